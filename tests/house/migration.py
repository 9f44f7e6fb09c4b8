"""The part of docs/coming_from_triton.md that is written from the table of options: flags by their fate."""

from __future__ import annotations

import textwrap
from typing import Final

from engine.cli.migrate.fate import DIFFERENCES
from engine.settings.settings import FLAGS
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "coming_from_triton.md"
_HEAD: Final = "## Flags, by fate\n"

_INTRODUCTION: Final = """
This part is written by `python -m tests.house.reference`. [options.md](options.md) says what each flag does.

"""


def page() -> str:
    """Return the page, with the flags as they are now."""
    before = PAGE.read_text(encoding="utf-8").partition(_HEAD)[0]
    theirs = [flag for flag in FLAGS if not flag.own]
    same = [flag.name for flag in theirs if not flag.no_effect and flag.name not in DIFFERENCES]
    differing = [flag.name for flag in theirs if flag.name in DIFFERENCES]
    warned = [flag for flag in theirs if flag.no_effect]
    names = textwrap.fill(", ".join(f"`--{name}`" for name in same) + ".", 110, break_on_hyphens=False)
    rows = "".join(f"| `--{name}` | {DIFFERENCES[name]} |\n" for name in differing)
    return (
        f"{before}{_HEAD}{_INTRODUCTION}"
        f"**The same.** {len(same)} flags:\n\n{names}\n\n"
        f"**The same, with a difference.** {len(differing)} flags:\n\n| flag | here |\n|---|---|\n{rows}\n"
        f"**Accepted, with a warning.** {len(warned)} flags that have no effect:\n\n| flag | why |\n|---|---|\n"
        + "".join(f"| `--{flag.name}` | {flag.no_effect} |\n" for flag in warned)
        + "\n**Refused.** A flag that is none of these ends the start, as in Triton, and so does a value that a\nflag"
        " can't have. The error has the nearest name, or the values that would work.\n"
    )
