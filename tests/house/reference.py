"""Write what the tables of settings say into the pages: `python -m tests.house.reference`.

`PAGES` lists the pages. With `--check` nothing is written, and pages that differ are named; a test does the
same. A table whose lines have texts of their own (an endpoint, an event, a variable) fails where one is
missing, so nothing of them is without a word in the documents.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from engine.settings.option import Flag, Group
from engine.settings.parameters import PARAMETERS
from engine.settings.settings import FLAGS
from tests.house import c_functions, metrics, migration, openai_fields
from tests.house.graph import ROOT
from tests.house.tables import endpoints, errors, fields, happenings, methods, variables

_OPTIONS: Final = ROOT / "docs" / "options.md"
_PARAMETERS: Final = ROOT / "docs" / "model_configuration.md"

_INTRODUCTION: Final = """\
# Options of `tritium serve`

This page is written by `python -m tests.house.reference` from the settings' own table, as is
`tritium serve --help`. A flag is written `--flag=value` or `--flag value`. Bool values are `true`, `on`, `1`
and `false`, `off`, `0`.

Each flag can be set by an environment variable too: `TRITIUM_` and its name in capitals, with `_` for `-`, as
in `TRITIUM_HTTP_PORT`. A flag on the command line wins. `TRITIUM_MODEL_REPOSITORY` takes several directories
separated by `:`, other repeatable flags separate by `;`.
"""
_HEAD: Final = "| key | values | default | meaning |\n|---|---|---|---|\n"


def options() -> str:
    """Return the page of all options."""
    parts = [_INTRODUCTION]
    for group in Group:
        items = [_item(flag) for flag in FLAGS if flag.group is group]
        parts += [f"\n## {group.value}\n\n", *items] if items else []
    return "".join(parts)


def _item(flag: Flag) -> str:
    word = f"={flag.form.metavar}" if flag.form.metavar else ""
    default = f" (default `{flag.default}`)" if flag.default else ""
    about = flag.help or f"{flag.no_effect}."
    return (
        textwrap.fill(
            f"- `--{flag.name}{word}`{default}: {about}",
            110,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        + "\n"
    )


def parameters() -> str:
    """Return the page about model configurations, with the table of Tritium's parameters as it is now."""
    before, _, rest = _PARAMETERS.read_text(encoding="utf-8").partition(_HEAD)
    rows = "".join(
        f"| `{each.key}` | {each.form.metavar} | {each.default} | {each.about} |\n"
        for each in PARAMETERS.values()
    )
    return before + _HEAD + rows + rest[rest.index("\n\n") + 1 :]


PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    _OPTIONS: options,
    _PARAMETERS: parameters,
    **{
        table.PAGE: table.page
        for table in (
            metrics,
            openai_fields,
            c_functions,
            migration,
            endpoints,
            methods,
            errors,
            variables,
            happenings,
            fields,
        )
    },
}
"""The pages, and what each has to say."""


def stale() -> list[str]:
    """Return the pages that say something else than the tables."""
    return [
        str(page.relative_to(ROOT))
        for page, text in PAGES.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text()
    ]


def main() -> int:
    """Write them, or check them."""
    if "--check" in sys.argv[1:]:
        found = stale()
        sys.stdout.write("".join(f"{page}: `python -m tests.house.reference` writes it\n" for page in found))
        return 1 if found else 0
    for page, text in PAGES.items():
        page.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
