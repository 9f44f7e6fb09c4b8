"""Secrets among the options: how they come from files, and how they are kept out of what is shown.

An option whose word may hold a secret has a second flag, `--NAME-file=FILE`, whose lines are such words. A
file is read once, at the start, so that /dev/fd/3 will do as well. Where a secret stands on the command line
itself, every user of the machine can read it in the list of processes: that earns a warning. No error, and
nothing that is printed at the start, repeats such a word as it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from engine.settings.forms import SettingsError, text
from engine.settings.option import Flag

HIDDEN: Final = "…"
"""What stands for a secret where it would have been shown."""

_LARGEST: Final = 1 << 20  # bytes of one file
_SECRET: Final = re.compile(
    r"(?:^|[._-])(?:api[._-]?key|key|secret|token|password|passwd|passphrase|credentials?|auth)(?:$|[._-])",
    re.IGNORECASE,
)
_SPLIT: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def looks_secret(name: str) -> bool:
    """Whether a setting of this name is likely to be a secret, such as `hf_token` or `apiKey`."""
    return bool(_SECRET.search(_SPLIT.sub("_", name)))


def concealed(word: str) -> str:
    """Return a word of an option without what follows the first `=` or `:`, which may be a secret."""
    head = re.match(r"[^=:]*[=:]", word)
    return f"{head[0]}{HIDDEN}" if head else word


def in_query(uri: str) -> bool:
    """Whether a repository's URI has a query, in which Azure's signatures stand."""
    return uri.startswith("as://") and "?" in uri


def with_files(flags: Iterable[Flag]) -> Iterator[Flag]:
    """Yield the flags, each that may hold a secret followed by the one that names a file of such words."""
    for flag in flags:
        yield flag
        if flag.secret is not None:
            name = f"{flag.name}-file"
            about = (
                f"Tritium's own: words of --{flag.name}, one a line, so that no secret stands on the command"
                " line; lines that begin with # are left out. FILE is read once, and may be /dev/fd/N."
                " Repeatable."
            )
            yield replace(
                flag,
                name=name,
                form=text("FILE"),
                default="",
                help=about,
                separator=";",
                aliases=(),
                secret=None,
            )


def from_files(words: Mapping[str, Sequence[str]], table: Mapping[str, Flag]) -> dict[str, list[str]]:
    """Return the words that stand in the files which were given, by the flag that they are for.

    Raises SettingsError.
    """
    return {
        flag.name: [line for path in words[name] for line in _lines(path, name)]
        for flag in table.values()
        if flag.secret is not None and (name := f"{flag.name}-file") in words
    }


def warnings(argv: Mapping[str, Sequence[str]], table: Mapping[str, Flag]) -> Iterator[str]:
    """Yield a warning for each flag whose words in argv hold a secret, which it does not repeat."""
    for name, words in argv.items():
        flag = table[name]
        if flag.secret is not None and any(map(flag.secret, words)):
            yield (
                f"--{name} holds a secret on the command line, where every user of this machine can read it;"
                f" put it into a file, for --{name}-file"
            )


def read_secret(path: str, what: str) -> str:
    """Return the secret that is all of a file, without the line feed at its end. Raises SettingsError."""
    value = _text(path, what).removesuffix("\n").removesuffix("\r")
    if not value:
        raise SettingsError(f"{what}: '{path}' is empty", hint="it holds the secret, and nothing else")
    return value


def _lines(path: str, name: str) -> Iterator[str]:
    for line in _text(path, f"--{name}").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _text(path: str, what: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"{what}: '{path}' can't be read: {reason}") from None
    if len(data) > _LARGEST:
        raise SettingsError(f"{what}: '{path}' has more than {_LARGEST} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{what}: '{path}' is no UTF-8 text") from None
