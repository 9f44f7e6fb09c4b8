"""The YAML of docs/kubernetes.md: manifests, values of the chart, and values of other charts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy.helm.charts import ROOT, Manifest, manifests

PAGE: Final = ROOT / "docs" / "kubernetes.md"
_BLOCK: Final = re.compile(
    r"(?:^<!-- values of: (?P<chart>\S+) -->\n)?^```yaml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of YAML: its line, what it holds, and the chart whose values these are; empty for manifests."""

    line: int
    chart: str
    documents: tuple[Manifest, ...]

    @property
    def values(self) -> dict[str, Any]:
        """Its values, where it holds some."""
        (found,) = self.documents
        return found


def blocks() -> Iterator[Block]:
    """Yield the blocks of the page.

    One whose documents have no kind holds values, of this chart unless it names another.
    """
    text = PAGE.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        found = tuple(manifests(match["text"]))
        kinds = ["kind" in each for each in found]
        assert found
        assert all(kinds) == any(kinds), match["text"]
        yield Block(
            line=text.count("\n", 0, match.start("text")),
            chart=match["chart"] or ("" if all(kinds) else "tritium"),
            documents=found,
        )
