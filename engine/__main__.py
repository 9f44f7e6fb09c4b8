"""The `tritium` command.

Its parts are imported only when they are asked for, so that help is printed quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from engine.cli.manual.commands import COMMANDS

_ABOUT: Final = (
    "Tritium serves the models of a Triton model repository over the KServe v2 protocol. Every model instance"
    " runs in a worker process under a supervisor, so a crash, a hang or a poisonous request costs at most what"
    " that instance was doing."
)
_MORE: Final = """\
options:
  --help     show this, or with a command: its own help
  --version  show the version, and whether the core is compiled

examples:
  tritium init ./exports --to ./models
  tritium check ./models
  tritium serve --model-repository=./models
  tritium migrate -- tritonserver --model-repository=./models --http-thread-count=8
  tritium run my_model.py
  tritium sign --key release.key models/resnet
  tritium key new --auth-file auth.toml --name ci
  tritium tree --url http://127.0.0.1:8000 --watch
  tritium traffic resnet --weights 1=90,2=10 --rollback-error-rate 0.05
  tritium fleet apply --file fleet.yaml
  tritium events --follow --model resnet
  tritium logs server.log --timeline --model resnet
  tritium audit audit.jsonl --since 1d --outcome denied

`tritium COMMAND --help` tells more, and so does the manual page: tritium man | man -l -
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    _allow_any_text()
    try:
        match command:
            case "--help" | "-h" | "help":
                sys.stdout.write(usage())
                return 0
            case "--version" | "-V" | "version":
                return _version()
            case _ if command in COMMANDS:
                from importlib import import_module

                import engine.core.chosen  # noqa: F401  # before anything that it chooses

                module = import_module(f"engine.cli.{COMMANDS[command].module}")
                status: int = getattr(module, command)(words[1:])
                return status
            case _:
                return _unknown(command, words)
    except BrokenPipeError:
        # The reader, a pager or `head`, has seen enough. Python would complain again when it flushes at its
        # end.
        _silence_stdout()
        return 0
    except KeyboardInterrupt:
        return 130


def usage(width: int | None = None) -> str:
    """Return the help of the command, as wide as the terminal."""
    from engine.cli.manual.filling import columns, filled

    wide = columns(width)
    commands = (
        filled(command.about, wide, "             ", f"  {name:<11}") for name, command in COMMANDS.items()
    )
    head = "usage: tritium COMMAND [OPTIONS]\n\n" + filled(_ABOUT, wide)
    return f"{head}\ncommands:\n{''.join(commands)}\n{_MORE}"


def _version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    from engine.core.chosen import CORE

    try:
        what = f"tritium {version('tritium')}"
    except PackageNotFoundError:
        what = "tritium, run from a source tree"
    sys.stdout.write(f"{what}, core: {CORE}\n")
    return 0


def _unknown(command: str, words: Sequence[str]) -> int:
    from difflib import get_close_matches

    if command.startswith("--"):
        hint = f"flags belong to a command: tritium serve {' '.join(words)}"
    else:
        nearest = get_close_matches(command, COMMANDS, n=1)
        hint = (
            f"did you mean '{nearest[0]}'?"
            if nearest
            else f"commands are {', '.join([*COMMANDS][:-1])} and {[*COMMANDS][-1]}"
        )
    sys.stderr.write(f"unknown command '{command}'\n{hint}\n")
    return 1


def _allow_any_text() -> None:
    """Names may come from any directory, and the terminal's encoding need not have our marks."""
    import io

    from engine.observability.text import PLAINER

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)


def _silence_stdout() -> None:
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
