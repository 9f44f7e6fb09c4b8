"""All options of all commands, as values: what completion and the manual page are made from.

Those of `tritium serve` are the table of settings; those of other commands are what their parsers take.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from engine.cli.manual.commands import COMMANDS
from engine.settings.forms import BOOL
from engine.settings.option import Flag
from engine.settings.settings import FLAGS

_SERVING: Final = frozenset({"serve", "run", "sagemaker"})
"""Commands that take the flags of `tritium serve`."""

_TAKING_PATHS: Final = frozenset(
    {"serve", "run", "init", "check", "migrate", "convert", "sign", "verify", "logs", "audit"}
)
_PATH: Final = re.compile(r"\b(?:FILE|PATH|PATHS|FOLDER|TO)\b")
_DIRECTORY: Final = re.compile(r"\bDIR\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One option of a command line. `metavar` is empty where it takes no value."""

    names: tuple[str, ...]
    metavar: str = ""
    about: str = ""
    choices: tuple[str, ...] = ()

    @property
    def takes(self) -> str:
        """What its value is, for completion: nothing, choices, directory, file, or value."""
        if not self.metavar:
            return "nothing"
        if self.choices:
            return "choices"
        if _DIRECTORY.search(self.metavar):
            return "directory"
        return "file" if _PATH.search(self.metavar) else "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one command takes: options, words of its own such as `key new`, and whether paths."""

    name: str
    about: str
    words: tuple[Word, ...]
    below: tuple[str, ...] = ()
    paths: bool = False


HELP: Final = Word(names=("--help",), about="show help")


def lines() -> Iterator[Line]:
    """Yield every command with its options, in the order of the help."""
    for name, command in COMMANDS.items():
        found = import_module(f"engine.cli.{command.module}")
        parser = getattr(found, f"{name}_parser", None)
        words = [HELP]
        below: tuple[str, ...] = ()
        if name in _SERVING:
            words += [_of_flag(flag) for flag in FLAGS]
        if name == "run":
            parser = import_module("engine.cli.llm.command").run_parser
        if parser is not None:
            below = tuple(_below(parser()))
            words += [word for word in _of_parser(parser()) if word.names != HELP.names]
        yield Line(
            name=name,
            about=command.about,
            words=tuple(words),
            below=below,
            paths=name in _TAKING_PATHS,
        )


def _of_flag(flag: Flag) -> Word:
    choices = ("true", "false") if flag.form is BOOL else flag.form.choices
    default = f" [default: {flag.default}]" if flag.default else ""
    about = (flag.help or f"No effect: {flag.no_effect}.") + default
    names = (f"--{flag.name}", *(f"--{alias}" for alias in flag.aliases))
    return Word(names=names, metavar=flag.form.metavar, about=about, choices=choices)


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[Word]:
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # its only name
            for below in dict.fromkeys(action.choices.values()):
                yield from (word for word in _of_parser(below) if word.names != HELP.names)
        elif action.option_strings:
            names = tuple(each for each in action.option_strings if each.startswith("--"))
            metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
            choices = tuple(map(str, action.choices or ()))
            about = (action.help or "").replace("%%", "%")
            yield Word(names=names, metavar=metavar, about=about, choices=choices if metavar else ())


def _below(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the words of which the first argument is one: commands of the command, or choices."""
    for action in _actions(parser):
        if not action.option_strings and action.choices:
            yield from map(str, action.choices)


def _actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    return parser._actions  # noqa: SLF001  # argparse tells them in no other way
