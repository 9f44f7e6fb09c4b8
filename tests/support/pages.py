"""A page's commands, as a tutorial that `tests.support.tutorials` can follow.

Blocks that say why they are not run are left out, as are those that hold no commands. A comment
`<!-- run: COMMAND -->` stands for commands that the page does not show, such as the start of a server. What a
block shows under `<!-- numbers of its own -->` is compared but for the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.house.site.commands import Commands, blocks

_HIDDEN: Final = re.compile(r"^<!-- run: (?P<command>.+?)\s-->$", re.MULTILINE | re.DOTALL)
_SERVES: Final = re.compile(r"^(?:[A-Z_]+=\S+ +)*(?:tritium (?:serve|run|sagemaker)|hypercorn) ")
_INSTALLS: Final = "pip install "


def as_tutorial(text: str) -> str:
    """Return the commands of a document as blocks of `sh`, and what they print as blocks of `text`."""
    hidden = [
        (text.count("\n", 0, match.start()) + 1, f"{match['command']}\n") for match in _HIDDEN.finditer(text)
    ]
    parts = [*((line, _fenced("sh", command)) for line, command in hidden)]
    parts += [(block.line, "".join(_translated(block))) for block in blocks(text) if block.reason is None]
    return "".join(part for _, part in sorted(parts))


def _translated(block: Commands) -> Iterator[str]:
    """Yield a server's start by itself, and what stands between two such in one script with one output.

    A command whose output is shown may fail: the output says so.
    """
    commands: list[str] = []
    printed: list[str] = []
    for command, shown in [*_lines(block), ("", "")]:
        if commands and (not command or _SERVES.match(command)):
            if not any(printed):
                yield _fenced("sh", "\n".join(commands))
            else:
                yield _fenced("sh", "\n".join(map(_told, commands, printed)))
                yield _fenced("output" if block.own_numbers else "text", "\n".join(filter(None, printed)))
            commands, printed = [], []
        if _SERVES.match(command):
            yield _fenced("sh", command)
        elif command and not command.startswith(_INSTALLS):
            commands.append(re.sub(r"\bcurl ", "curl -sS ", command))
            printed.append(shown.strip("\n"))


def _told(command: str, shown: str) -> str:
    """Return a command that prints whole lines if the page shows some, and otherwise nothing."""
    return f"{{ {command}\n}} 2>&1 | sed '$a\\'" if shown else f"{{ {command}\n}} >/dev/null"


def _lines(block: Commands) -> Iterator[tuple[str, str]]:
    """Yield each command and what is shown below it; without prompts each line is one, and shows nothing."""
    for command, shown in block.session():
        if shown or "\n" not in command or "$ " in block.text[:2]:
            yield command.replace("localhost:", "127.0.0.1:"), shown
        else:
            joined = command.replace("\\\n", " ").replace("localhost:", "127.0.0.1:")
            yield from ((line, "") for line in joined.split("\n") if line.strip())


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"
