"""Which documents have their commands run."""

from __future__ import annotations

from typing import Final

from tests.house.site.commands import blocks
from tests.house.site.links import ROOT, documents

_BY_THEMSELVES: Final = ("docs/tutorials/", "docs/gallery.md")
"""Documents whose commands have tests of their own."""


def followed() -> list[str]:
    """Return the documents whose commands `tests/examples/test_pages.py` runs."""
    return [
        document
        for document in documents()
        if not document.startswith(_BY_THEMSELVES)
        and any(block.reason is None for block in blocks((ROOT / document).read_text(encoding="utf-8")))
    ]
