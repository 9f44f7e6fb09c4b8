"""`tritium completion` and `tritium man`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from engine.cli.manual.roff import page
from engine.cli.manual.shells import SHELLS
from engine.cli.manual.table import lines
from engine.core.version import version


def completion_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium completion",
        description="Print a script that makes a shell complete commands, flags and their values.",
        epilog="""\
examples:
  source <(tritium completion bash)                 in ~/.bashrc
  source <(tritium completion zsh)                  in ~/.zshrc, after compinit
  tritium completion fish > ~/.config/fish/completions/tritium.fish
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", metavar="SHELL", choices=[*SHELLS], help="bash, zsh or fish")
    return parser


def completion(argv: Sequence[str]) -> int:
    """Print the script for a shell; return the process's exit status."""
    options = completion_parser().parse_args(argv)
    sys.stdout.write(SHELLS[options.shell]([*lines()]))
    return 0


def man_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    return argparse.ArgumentParser(
        prog="tritium man",
        description="Print the manual page tritium(1), in roff.",
        epilog="example: tritium man | man -l -",
        allow_abbrev=False,
    )


def man(argv: Sequence[str]) -> int:
    """Print the manual page; return the process's exit status."""
    man_parser().parse_args(argv)
    sys.stdout.write(page([*lines()], version=version()))
    return 0
