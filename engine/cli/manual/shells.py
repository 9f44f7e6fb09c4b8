"""Scripts that make a shell complete the words of `tritium`. Pure: the table in, a script out.

The scripts hold all words, so that a key press starts no process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from types import MappingProxyType
from typing import Final

from engine.cli.manual.table import Line, Word

_SHORT: Final = 70  # characters of an explanation beside a word


def brief(about: str) -> str:
    """Return the first clause of an explanation, short enough to stand beside a word."""
    first = re.split(r"(?<=[a-z)])[.;] ", about.removeprefix("Tritium's own: "), maxsplit=1)[0]
    return first if len(first) <= _SHORT else first[: _SHORT - 1].rsplit(" ", 1)[0] + "…"


# -- bash

_BASH: Final = """\
# Completion of the command tritium for bash:  source <(tritium completion bash)
_tritium() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    local flag=$previous words= paths=
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W '{commands} --help --version' -- "$cur") )
        return
    fi
    # bash makes three words of --flag=value
    if [[ $cur == = ]]; then
        cur=
    elif [[ $previous == = ]]; then
        flag=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    case "$command $flag" in
{values}
    esac
    case $command in
{lines}
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=( $(compgen -W "$words" -- "$cur") )
        if [[ ${{#COMPREPLY[@]}} == 1 && $COMPREPLY == *= ]]; then compopt -o nospace; fi
    elif [[ $paths ]]; then
        COMPREPLY+=( $(compgen -f -- "$cur") )
        compopt -o filenames
    fi
}}
complete -F _tritium tritium
"""


def bash(table: Sequence[Line]) -> str:
    """Return the script for bash."""
    values = [text for line in table for text in _bash_values(line)]
    lines = []
    for line in table:
        words = " ".join(f"{name}{'=' if word.metavar else ''}" for word in line.words for name in word.names)
        below = (
            f" (( COMP_CWORD == 2 )) && COMPREPLY=( $(compgen -W '{' '.join(line.below)}' -- \"$cur\") );"
            if line.below
            else ""
        )
        paths = " paths=yes;" if line.paths else ""
        lines.append(f"        {line.name}) words='{words}';{paths}{below};;".replace(";;;", ";;"))
    return _BASH.format(
        commands=" ".join(line.name for line in table), values="\n".join(values), lines="\n".join(lines)
    )


def _bash_values(line: Line) -> Iterator[str]:
    """Yield a branch for each kind of value: what the words are that take it, and what is completed."""
    kinds: dict[str, list[str]] = {}
    for word in line.words:
        match word.takes:
            case "nothing":
                continue
            case "choices":
                key = f'COMPREPLY=( $(compgen -W {quote(" ".join(word.choices))} -- "$cur") )'
            case "directory":
                key = 'COMPREPLY=( $(compgen -d -- "$cur") ); compopt -o filenames'
            case "file":
                key = 'COMPREPLY=( $(compgen -f -- "$cur") ); compopt -o filenames'
            case _:
                key = "return"
        kinds.setdefault(key, []).extend(f'"{line.name} {name}"' for name in word.names)
    for then, words in kinds.items():
        yield f"        {'|'.join(words)}) {then}{'' if then == 'return' else '; return'};;"


# -- zsh


def zsh(table: Sequence[Line]) -> str:
    """Return the script for zsh."""
    commands = "\n".join(f"        {_zsh(f'{line.name}:{brief(line.about)}')}" for line in table)
    branches = "\n".join(_zsh_branch(line) for line in table)
    return f"""\
#compdef tritium
# Completion of the command tritium for zsh:  source <(tritium completion zsh)
_tritium() {{
    local -a commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{branches}
    esac
}}
if [[ $funcstack[1] == _tritium ]]; then _tritium "$@"; else compdef _tritium tritium; fi
"""


def _zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_branch(line: Line) -> str:
    specs = [_zsh(spec) for word in line.words for spec in _zsh_specs(word)]
    if line.below:
        specs.append(_zsh(f"1:what:({' '.join(line.below)})"))
    if line.paths or line.below:
        specs.append("'*:path:_files'")
    joined = " \\\n            ".join(specs)
    return f"        {line.name})\n          _arguments -S \\\n            {joined};;"


def _zsh_specs(word: Word) -> Iterator[str]:
    about = re.sub(r"([\[\]:\\])", r"\\\1", brief(word.about))
    values: Mapping[str, str] = {
        "choices": f"({' '.join(word.choices)})",
        "directory": "_files -/",
        "file": "_files",
    }
    metavar = re.sub(r"([:\[\]\\()])", r"\\\1", word.metavar)
    for name in word.names:
        if word.metavar:
            yield f"*{name}=[{about}]:{metavar}:{values.get(word.takes, ' ')}"
        else:
            yield f"{name}[{about}]"


# -- fish


def fish(table: Sequence[Line]) -> str:
    """Return the script for fish."""
    return "\n".join(_fish_lines(table)) + "\n"


def _fish_lines(table: Sequence[Line]) -> Iterator[str]:
    yield "# Completion of the command tritium for fish:  tritium completion fish | source"
    for line in table:
        about = _fish(brief(line.about))
        yield f"complete -c tritium -f -n __fish_use_subcommand -a {line.name} -d {about}"
    for line in table:
        seen = f"complete -c tritium -n '__fish_seen_subcommand_from {line.name}'"
        if not line.paths:
            yield f"{seen} -f"
        if line.below:
            yield f"{seen} -a '{' '.join(line.below)}'"
        for word in line.words:
            takes = {
                "nothing": "",
                "choices": f" -x -a '{' '.join(word.choices)}'",
                "directory": " -x -a '(__fish_complete_directories)'",
                "file": " -r -F",
            }.get(word.takes, " -x")
            about = _fish(brief(word.about))
            yield from (f"{seen} -l {name.removeprefix('--')}{takes} -d {about}" for name in word.names)


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Final[Mapping[str, Callable[[Sequence[Line]], str]]] = MappingProxyType(
    {"bash": bash, "zsh": zsh, "fish": fish}
)
