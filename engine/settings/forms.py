"""How the word of an option is written, and the value that it becomes: a switch, a number, a size, a choice."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

INT_MAX: Final = 2**31 - 1
"""Triton reads most numbers into C ints."""

_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})
_UNITS: Final = MappingProxyType(
    {
        "": 1,
        "B": 1,
        **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
        **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    }
)


class SettingsError(Exception):
    """The options make no sense. `hint` says what would have, if the message itself may not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Form(Generic[T_co]):
    """How one option's word is written.

    Every word that is given is checked, and the last one is read. Both functions take the word and the option's
    name, and raise SettingsError.
    """

    metavar: str  # what stands for the word in the help; "" if the option takes none
    read: Callable[[str, str], T_co]
    check: Callable[[str, str], object] = lambda word, name: None
    choices: tuple[str, ...] = ()

    def into(self, convert: Callable[[T_co], U]) -> Form[U]:
        """Return the form of a word that becomes `convert`'s value."""
        return Form(self.metavar, lambda word, name: convert(self.read(word, name)), self.check, self.choices)


def text(metavar: str) -> Form[str]:
    """Return the form of a word that is taken as it is."""
    return Form(metavar, lambda word, name: word)


def some_text(metavar: str) -> Form[str]:
    """Return the form of a word that is taken as it is, and that may not be empty.

    For options that close something: an empty variable of a shell must not leave it open.
    """

    def check(word: str, name: str) -> None:
        if not word:
            raise SettingsError(
                f"--{name} is empty", hint=f"give it a {metavar.lower()}, or leave --{name} out"
            )

    return Form(metavar, lambda word, name: word, check)


def integer(metavar: str, *, least: int = 0, most: int = INT_MAX, wide: bool = False) -> Form[int]:
    """Return the form of a whole number from `least` to `most`. A `wide` one counts bytes, in 64 bits."""

    def check(word: str, name: str) -> int:
        return to_int(word, name, wide=wide)

    def read(word: str, name: str) -> int:
        value = check(word, name)
        if not least <= value <= most:
            raise out_of_bound(word, f"--{name} takes {least} to {most}")
        return value

    return Form(metavar, read, check)


def within(least: int, most: float, complaint: str) -> Form[int]:
    """Return the form of a whole number for whose bounds Triton has a complaint of its own."""

    def check(word: str, name: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", word) and not least <= int(word) <= most:
            raise SettingsError(complaint, hint=f"--{name} was given '{word}'")
        return to_int(word, name)

    return Form("VALUE", check, check)


def number(metavar: str = "SECONDS") -> Form[float]:
    """Return the form of a number, decimals and all, that is not negative."""

    def read(word: str, name: str) -> float:
        if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)", word):
            raise SettingsError(
                f"Invalid option value. Got {word}", hint=f"--{name} takes a number, such as 0.5"
            )
        value = float(word)
        if not 0 <= value <= INT_MAX:
            raise out_of_bound(word, f"--{name} takes 0 to {INT_MAX}")
        return value

    return Form(metavar, read, read)


def one_of(metavar: str, *choices: T, complaint: str = "") -> Form[T]:
    """Return the form of a word that is one of the choices, in any letter case."""
    by_word: dict[str, T] = {str(choice).lower(): choice for choice in choices}
    words = tuple(map(str, choices))
    told = f"{', '.join(words[:-1])} or {words[-1]}"

    def read(word: str, name: str) -> T:
        if word.lower() not in by_word:
            raise SettingsError(
                complaint or f"invalid argument for --{name}",
                hint=f"--{name} was given '{word}'; it takes {told}",
            )
        return by_word[word.lower()]

    return Form(metavar, read, read, words)


def shaped(metavar: str, pattern: str, form: str) -> Form[str]:
    """Return the form of a word that must match `pattern`, which `form` tells the reader."""

    def read(word: str, name: str) -> str:
        if not re.fullmatch(pattern, word, re.DOTALL):
            raise SettingsError(misshapen(name, form, word).message, hint=f"--{name} was given '{word}'")
        return word

    return Form(metavar, read, read)


def misshapen(name: str, form: str, word: str) -> SettingsError:
    """Return Triton's error about a word that is not of an option's form."""
    return SettingsError(f"--{name} option format is '{form}'. Got {word}")


def out_of_bound(word: str, hint: str) -> SettingsError:
    """Return Triton's error about a number that is too small or too large."""
    return SettingsError(f"Provided option value is out of bound. Got {word}", hint=hint)


def to_bool(word: str, name: str) -> bool:
    """Return a truth value. Raises SettingsError."""
    value = truth(word)
    if value is None:
        raise SettingsError(
            f"invalid value for bool option: {word}", hint=f"--{name} takes true, on or 1; false, off or 0"
        )
    return value


def truth(word: str) -> bool | None:
    """Return the truth value that a word tells, None if it tells none."""
    return True if word.lower() in _TRUE else False if word.lower() in _FALSE else None


def to_int(word: str, name: str, *, wide: bool = False) -> int:
    """Return a whole number: a C int unless it is `wide`. Raises SettingsError."""
    if not re.fullmatch(r"[+-]?[0-9]+", word):
        raise SettingsError(f"Invalid option value. Got {word}", hint=f"--{name} takes a whole number")
    # The length is bounded before `int` sees it.
    value = int(word) if len(word) < 20 else INT_MAX + 1
    if not -INT_MAX - 1 <= value <= INT_MAX and not wide:
        raise out_of_bound(word, f"--{name} takes at most {INT_MAX}")
    return value


def to_size(word: str, name: str, *, or_such_as: str = "") -> int:
    """Return a number of bytes, over 0: `100`, `8GiB`, `1.5 GB`. Raises SettingsError."""
    parts = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]+)?)\s*([A-Za-z]*)", word.strip())
    unit = None if parts is None else _UNITS.get(parts[2])
    if parts is None or unit is None:
        others = f", or {or_such_as}" if or_such_as else ""
        raise SettingsError(
            f"Invalid option value. Got {word}",
            hint=f"--{name} takes bytes, or a size such as 8GiB or 500MB{others}",
        )
    count = int(float(parts[1]) * unit) if "." in parts[1] else int(parts[1]) * unit
    if not 0 < count < 2**63:
        raise out_of_bound(word, f"--{name} takes 1 byte or more")
    return count


def size_text(nbytes: int) -> str:
    """Return a number of bytes for people: `1.5 GiB`, `64 MiB`, `100 bytes`. One of `to_size` comes close."""
    size, unit = float(nbytes), "bytes"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.4g} {unit}"


def memory_share(word: str, name: str) -> str:
    """Check it now; what a share comes to is known where the memory is."""
    to_memory(word, 1024**4, name)
    return word.strip()


def to_memory(word: str, total: int, name: str) -> int:
    """Return the bytes that a word means of `total`: a size, or a share such as `80%`. Raises SettingsError."""
    share = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]+)?)\s*%", word.strip())
    if share is None:
        return to_size(word, name, or_such_as="80%")
    percent = float(share[1])
    if not 0 < percent <= 100:
        raise out_of_bound(word, f"--{name} takes shares over 0% and up to 100%")
    return int(total * percent / 100)


BOOL: Final = Form("BOOL", to_bool, to_bool)
SWITCH: Final = Form("", to_bool, to_bool)
SIZE: Final = Form("SIZE", to_size)
MEMORY: Final = Form("SIZE|PERCENT", memory_share)
"""A size, or a share of the memory that the server may use; `to_memory` reads it."""
ANY_MEMORY: Final = Form("SIZE|PERCENT", lambda word, name: memory_share(word, name) if word else "")
"""The same; nothing stands for no bound."""
PORT: Final = integer("PORT", most=65535)
AnyForm = Form[Any]
