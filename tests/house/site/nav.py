"""What `mkdocs.yml` says about the order of pages, with its patterns filled in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import yaml

from tests.house.graph import ROOT

_FILE: Final = ROOT / "mkdocs.yml"

Entry = Any
"""A page or a pattern, or one title with a page or a list of entries."""


def written() -> list[Entry]:
    """Return the navigation as it is written."""
    found: list[Entry] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["nav"]
    return found


def filled(nav: Sequence[Entry], pages: Sequence[str]) -> list[Entry]:
    """Return a navigation in which each pattern is the pages that it fits and that are named nowhere.

    A page that several patterns fit goes to the first of them. A title with nothing below it is left out.
    """
    free = set(pages) - set(named(nav))

    def fill(entries: Sequence[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if isinstance(entry, str) and "*" in entry:
                found = sorted(page for page in free if fnmatchcase(page, entry))
                free.difference_update(found)
                yield from found
            elif isinstance(entry, str):
                yield entry
            else:
                ((title, below),) = entry.items()
                inside = below if isinstance(below, str) else list(fill(below))
                if inside:
                    yield {title: inside}

    return list(fill(nav))


def named(nav: Sequence[Entry]) -> Iterator[str]:
    """Yield the pages and patterns of a navigation, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            ((_, below),) = entry.items()
            yield from [below] if isinstance(below, str) else named(below)
