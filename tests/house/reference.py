"""Write what the tables of settings say into the pages: `python -m tests.house.reference`.

That is docs/options.md, docs/metrics.md, docs/openai_fields.md, the table of `tritium.*` parameters in
docs/model_configuration.md, the C functions in docs/backends/c_libraries.md, and the flags by fate in
docs/coming_from_triton.md. A test compares them.
"""

from __future__ import annotations

import textwrap
from typing import Final

from engine.settings.option import Flag, Group
from engine.settings.parameters import PARAMETERS
from engine.settings.settings import FLAGS
from tests.house import c_functions, metrics, migration, openai_fields
from tests.house.graph import ROOT

OPTIONS: Final = ROOT / "docs" / "options.md"
METRICS_PAGE: Final = ROOT / "docs" / "metrics.md"
PARAMETERS_PAGE: Final = ROOT / "docs" / "model_configuration.md"

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
    before, _, rest = PARAMETERS_PAGE.read_text(encoding="utf-8").partition(_HEAD)
    rows = "".join(
        f"| `{each.key}` | {each.form.metavar} | {each.default} | {each.about} |\n"
        for each in PARAMETERS.values()
    )
    return before + _HEAD + rows + rest[rest.index("\n\n") + 1 :]


def main() -> None:
    """Write them."""
    METRICS_PAGE.write_text(metrics.page(), encoding="utf-8")
    openai_fields.PAGE.write_text(openai_fields.page(), encoding="utf-8")
    c_functions.PAGE.write_text(c_functions.page(), encoding="utf-8")
    migration.PAGE.write_text(migration.page(), encoding="utf-8")
    OPTIONS.write_text(options(), encoding="utf-8")
    PARAMETERS_PAGE.write_text(parameters(), encoding="utf-8")


if __name__ == "__main__":
    main()
