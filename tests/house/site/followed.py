"""Which documents have their commands run, and of which that is not done yet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from tests.house.site.commands import blocks
from tests.house.site.links import ROOT, documents

NOT_YET: Final = Path(__file__).with_name("not_yet_run.csv")
"""Pages and the number of their blocks that are neither run nor say why not. It may only grow shorter."""

_BY_THEMSELVES: Final = ("docs/tutorials/", "docs/gallery.md")
"""Documents whose commands have tests of their own."""


def unmarked() -> dict[str, int]:
    """Return how many blocks of commands each document has that say nothing; unless other tests run them."""
    counts = {
        document: sum(block.reason is None for block in blocks((ROOT / document).read_text(encoding="utf-8")))
        for document in documents()
        if not document.startswith(_BY_THEMSELVES)
    }
    return {document: count for document, count in counts.items() if count}


def not_yet() -> dict[str, int]:
    """Read the list of what is not run yet."""
    with NOT_YET.open(newline="") as file:
        return {row["page"]: int(row["blocks"]) for row in csv.DictReader(file)}


def followed() -> list[str]:
    """Return the documents whose commands `tests/examples/test_pages.py` runs."""
    return sorted(set(unmarked()) - set(not_yet()))
