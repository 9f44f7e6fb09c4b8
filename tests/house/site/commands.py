"""The commands of documents: which blocks hold some, what they run, and what says that a block is not run.

A fenced block of `sh` or `console` holds commands, and so does one without a language whose first line is one. In
a block of `console` they begin with `$`, and what they print follows. A comment on the line above, which no
page shows, says why a block is not run: `<!-- not run: gpu -->`. `REASONS` lists what may stand there.
`<!-- numbers of its own -->` says that what a block prints has other numbers each time.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

REASONS: Final = frozenset({"cloud", "cluster", "gpu", "install", "long", "mistake", "network", "system"})
"""A cloud, a cluster of machines or a GPU is wanted; packages are installed; it takes minutes, or goes on until
it is stopped; it shows a mistake or a failure; another host is asked; the machine itself is changed."""

_FENCE: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]*?) -->\n)?"
    r"(?:^(?P<numbers><!-- numbers of its own -->)\n)?"
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\s`]*)(?P<title>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_PROGRAMS: Final = (
    "apt-get", "cd", "cp", "curl", "docker", "echo", "git", "helm", "hypercorn", "kill", "kubectl", "minisign",
    "mkdir", "pip", "printf", "python", "python3", "ruff", "tritium",
)  # fmt: skip
_ASSIGNED: Final = re.compile(r"[A-Z][A-Z0-9_]*=\S*")
_SEPARATORS: Final = frozenset({"&&", "||", "|", ";", "&"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """A block of commands. `reason` is why it is not run, if it says so; `line` is that of its fence.

    Where a reader's numbers are `own_numbers`, what is printed differs in them from what is shown.
    """

    line: int
    language: str
    text: str
    reason: str | None
    own_numbers: bool

    @property
    def script(self) -> str:
        """The commands without their prompts, and without what they print."""
        return "".join(f"{command}\n" for command, _ in self.session())

    def session(self) -> Iterator[tuple[str, str]]:
        """Yield each command, and what is shown below it. Without prompts the whole is one."""
        if not re.search(r"^\$ ", self.text, re.MULTILINE):
            yield self.text.rstrip("\n"), ""
            return
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            end = _end(lines)
            yield "\n".join(lines[:end]), "\n".join(lines[end:])

    def calls(self) -> Iterator[list[str]]:
        """Yield the words of each program that is called, without what the shell does with it."""
        for line in self.script.replace("\\\n", " ").split("\n"):
            try:
                words = list(_lexed(line))
            except ValueError:  # a quote that a later line closes
                continue
            call: list[str] = []
            for word in [*words, ";"]:
                if word in _SEPARATORS:
                    yield from [call] if call else []
                    call = []
                elif call or not _ASSIGNED.fullmatch(word):
                    call.append(word)


def blocks(text: str) -> Iterator[Commands]:
    """Yield the blocks of a document that hold commands."""
    for match in _FENCE.finditer(text):
        language, body = match["language"], match["text"]
        if match["indent"]:
            body = re.sub(rf"^{match['indent']}", "", body, flags=re.MULTILINE)
        if "title=" in match["title"] or not (
            language in {"sh", "console"} or (not language and _is_shell(body))
        ):
            continue
        yield Commands(
            line=text.count("\n", 0, match.start("fence")) + 1,
            language=language,
            text=body,
            reason=match["reason"],
            own_numbers=match["numbers"] is not None,
        )


def _end(lines: list[str]) -> int:
    """Return how many of the lines are the first command: behind `\\`, in quotes, up to `<<END` it goes on."""
    document = re.search(r"<<'?(\w+)'?", lines[0])
    if document is not None:
        return lines.index(document[1]) + 1
    for end in range(1, len(lines) + 1):
        if not lines[end - 1].endswith("\\") and "".join(lines[:end]).count("'") % 2 == 0:
            return end
    return 1


def _is_shell(body: str) -> bool:
    words = body.split()
    while words and _ASSIGNED.fullmatch(words[0]):
        words.pop(0)
    return bool(words) and (words[0] == "$" or words[0] in _PROGRAMS)


def _lexed(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    yield from lexer
