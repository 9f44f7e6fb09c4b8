"""Pictures of what Tritium draws on terminals, to be looked at: `python -m tests.support.screens FOLDER`.

SVG, light and dark, 80 and 120 columns wide: the live page of recorded servers, and a start.
"""

import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI
from rich.text import Text

from actors.values.interfaces import IndexEntry
from actors.values.specs import ModelKey
from engine.cli.tree.page import Screen, View, page
from engine.cli.tree.reading import Reading
from engine.observability.starting.hints import Address, hints
from engine.observability.starting.progress import Canvas, block
from engine.observability.starting.summary import Loaded, summary
from engine.observability.terminals import Ability
from tests.support.model_doubles import make_spec

RECORDED = Path(__file__).parents[1] / "engine" / "cli" / "recorded_trees.json"
ABILITY = Ability(draws=True, colours=True, wide=True)
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
# Pictures ask no other host for fonts.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
WHY = "Internal: RuntimeError: the weights are not where they should be: /nowhere/weights.bin"
LAZY = {ModelKey("lazy", "")}
ENTRIES = (
    IndexEntry(name="add_sub", version=1, state="READY"),
    IndexEntry(
        name="bert",
        progress={"phase": "downloading", "seconds": 4.2, "bytes": 440 << 20, "bytes_done": 12 << 20},
    ),
    IndexEntry(name="broken", version=1, state="UNAVAILABLE", reason=WHY),
    IndexEntry(name="lazy", version=1, state="UNAVAILABLE", reason="unloaded"),
    IndexEntry(name="slow", version=1, progress={"phase": "warming up", "seconds": 8.0}),
)


def _live(name: str, width: int, view: View) -> Sequence[Text]:
    found = [Reading(**each) for each in json.loads(RECORDED.read_text())[name]]
    before = found[0] if len(found) > 1 else None
    screen = Screen(width=width, height=34, ability=ABILITY)
    return page("http://127.0.0.1:8000", before, found[-1], view, screen)


def _start(width: int) -> Iterator[Text]:
    canvas = Canvas(width=width, height=30, ability=ABILITY)
    lines = list(block(ENTRIES, LAZY, canvas, seconds=9.0))
    done = [each for each in ENTRIES if each.progress is None]
    http = Address(host="", port=8000)
    told = list(hints([make_spec(name="add_sub")], http=http, grpc=Address(host="", port=8001), metrics=None))
    options = [("core", "python"), ("model_repository_path", "/models"), ("http", "0.0.0.0:8000")]
    loaded = Loaded(
        entries=done, on_demand=LAZY, seconds={("add_sub", 1): 0.6}, options=options, hints=told, took=9.4
    )
    for line in [*lines, *summary(loaded, canvas)]:
        yield Text.assemble(*((words, style) for words, style in line))


def pictures() -> Iterator[tuple[str, str]]:
    """Yield (name, SVG)."""
    opened = View(selected="models/slow/1", opened=frozenset({"models/slow/1"}))
    for width in (80, 120):
        screens = {
            "loading": _live("loading", width, View()),
            "busy": _live("busy", width, View(selected="models/add_sub/1")),
            "killed": _live("killed", width, opened),
            "start": [*_start(width)],
        }
        for name, lines in screens.items():
            for look, theme in THEMES.items():
                console = Console(record=True, file=io.StringIO(), width=width, force_terminal=True)
                for line in lines:
                    console.print(line)
                title = f"tritium: {name}"
                yield (
                    f"{name}-{width}-{look}",
                    console.export_svg(title=title, theme=theme, code_format=FORMAT),
                )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures():
        (folder / f"{name}.svg").write_text(svg)
