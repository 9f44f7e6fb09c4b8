"""Count vague words and long lines, per package: numbers that may only fall.

`python -m tests.house.words` prints the table; with `--write` it becomes the new limit, in `words.csv`. A test
compares them. Vague words hide who acts: "the client" or "the supervisor" helps where "somebody" does not.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LIMITS: Final = Path(__file__).with_name("words.csv")
COLUMNS: Final = 110

_VAGUE: Final = re.compile(r"\b(?:nobody|somebody|whoever|whom|everybody|anybody)\b", re.IGNORECASE)
_GENERATED: Final = re.compile(r"_pb2\.pyi?$|/generated/|/captured/|^docs/reliability/run-")
_TEXT: Final = (".py", ".md", ".toml")
_MARGINS: Final = re.compile(r"^\s*\|.*\|\s*$")
"""A row of a table in a page can't be broken."""


@dataclass(frozen=True, slots=True)
class Count:
    """What is counted in one package."""

    words: int
    lines: int


def counted() -> dict[str, Count]:
    """Count every package: a folder at the top, or one below `actors`, `engine` and `protocols`."""
    counts: dict[str, Count] = {}
    for path in _files():
        text = (ROOT / path).read_text(encoding="utf-8")
        words = len(_VAGUE.findall(text))
        long = sum(len(line) > COLUMNS for line in text.splitlines() if not _MARGINS.match(line))
        package = _package(path)
        before = counts.get(package, Count(0, 0))
        counts[package] = Count(before.words + words, before.lines + long)
    return dict(sorted(counts.items()))


def limits() -> dict[str, Count]:
    """Read the numbers that must not be exceeded. A package without one has to have none at all."""
    with LIMITS.open(newline="") as file:
        return {row["package"]: Count(int(row["words"]), int(row["lines"])) for row in csv.DictReader(file)}


def write(counts: dict[str, Count]) -> None:
    """Make these counts the limits."""
    with LIMITS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["package", "words", "lines"])
        writer.writerows(
            [package, count.words, count.lines]
            for package, count in counts.items()
            if count.words or count.lines
        )


def _files() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    own = str(Path(__file__).relative_to(ROOT).parent)
    for path in listed.stdout.splitlines():
        if (
            path.endswith(_TEXT)
            and not _GENERATED.search(path)
            and not path.startswith(own)
            and (ROOT / path).is_file()
        ):
            yield path


def _package(path: str) -> str:
    parts = Path(path).parts[:-1]
    depth = 2 if parts and parts[0] in {"actors", "engine", "protocols"} else 1
    return "/".join(parts[:depth]) or "."


def main() -> None:
    """Print the table, or write it."""
    counts = counted()
    if "--write" in sys.argv[1:]:
        write(counts)
    allowed = limits()
    sys.stdout.write(f"{'package':32} {'vague words':>12} {'limit':>6} {'long lines':>12} {'limit':>6}\n")
    for package, count in counts.items():
        limit = allowed.get(package, Count(0, 0))
        sys.stdout.write(f"{package:32} {count.words:12} {limit.words:6} {count.lines:12} {limit.lines:6}\n")


if __name__ == "__main__":
    main()
