"""From the words of a command line, or from variables, to values by flag.

They are checked against the table and read as types.

What the values mean together is `engine.settings.settings`' business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from engine.settings.flag import Flag, Kind, OneOf
from engine.settings.flags import BY_NAME, BY_VARIABLE
from engine.settings.uris import is_remote
from engine.settings.variables import settings_among, unknown_variable

_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})
_INT_MAX: Final = 2**31 - 1  # Triton reads these into C ints
_UNITS: Final = MappingProxyType(
    {
        "": 1,
        "B": 1,
        **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
        **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    }
)


class SettingsError(Exception):
    """The flags or variables make no sense. `hint` says what would have, if the message itself may not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def scan_argv(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the values given for each flag, by its own name, in order.

    A word without dashes is a model repository.
    """
    given: dict[str, list[str]] = {}
    words = iter(argv)
    for word in words:
        if word and not word.startswith("-"):
            given.setdefault("model-repository", []).append(_repository(word))
            continue
        if not word.startswith("--") or word == "--":
            raise SettingsError(f"Unexpected argument: {word}")
        name, equals, value = word[2:].partition("=")
        flag = BY_NAME.get(name)
        if flag is None:
            raise SettingsError(f"unrecognized option '--{name}'", hint=_nearest(name, BY_NAME, "--"))
        if flag.kind is Kind.SWITCH:
            if equals:
                raise SettingsError(f"option '--{name}' doesn't allow an argument")
            value = "true"
        elif not equals:
            following = next(words, None)
            if following is None:
                raise SettingsError(f"option '--{name}' requires an argument")
            value = following
        given.setdefault(flag.name, []).append(value)
    return given


def _repository(word: str) -> str:
    name, equals, _ = word.partition("=")
    if equals and name in BY_NAME:
        raise SettingsError(f"Unexpected argument: {word}", hint=f"did you mean --{word}?")
    return word


def scan_environ(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values given for each flag; an empty variable counts as unset, as does an unknown one."""
    given: dict[str, list[str]] = {}
    for variable, value in settings_among(environ).items():
        flag = BY_VARIABLE.get(variable)
        if flag is None or not value:
            continue
        if flag.kind is Kind.SWITCH and not _to_bool(value, flag):
            continue
        given[flag.name] = _split(flag, value)
    return given


def warn_of_environ(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none."""
    return [
        unknown_variable(name, BY_VARIABLE) for name in settings_among(environ) if name not in BY_VARIABLE
    ]


def _split(flag: Flag, value: str) -> list[str]:
    if not flag.repeatable:
        return [value]
    parts = _split_repositories(value) if flag.separator == ":" else value.split(flag.separator)
    return [part for part in parts if part]


def _split_repositories(value: str) -> Iterator[str]:
    """Split at colons, except those inside a URI.

    A URI ends only before an absolute path or another URI.
    """
    while value:
        end = _URI_END.search(value, value.index("://") + 3) if is_remote(value) else re.search(":", value)
        yield value[: end.start()] if end else value
        value = value[end.end() :] if end else ""


_URI_END: Final = re.compile(r":(?=/(?!/)|(?:s3|gs|as)://)")


def _nearest(name: str, known: Mapping[str, Flag], prefix: str) -> str:
    from difflib import get_close_matches  # only a mistake pays for it

    matches = get_close_matches(name, known, n=1)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""


# -- from values by flag to types


class Given:
    """Values by flag name, checked against what is refused, read as types."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given
        self.warnings: list[str] = []
        if "cache-config" in given and "response-cache-byte-size" in given:
            raise SettingsError(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
                " Please provide one or the other."
            )
        for name, values in given.items():
            self._check(BY_NAME[name], values)

    def _check(self, flag: Flag, values: Sequence[str]) -> None:
        for value in values:
            complaint = flag.check(value) if flag.check is not None else ""
            if complaint:
                taken = (
                    f"; it takes {' or '.join(flag.check.choices)}" if isinstance(flag.check, OneOf) else ""
                )
                raise SettingsError(complaint, hint=f"--{flag.name} was given '{value}'{taken}")
            if flag.kind is Kind.BOOL:
                _to_bool(value, flag)
            elif flag.kind is Kind.INT:
                to_int(value, flag)
            elif flag.kind is Kind.NUMBER:
                _to_number(value, flag)
            if flag.instead and value.lower() not in {harmless.lower() for harmless in flag.harmless}:
                raise SettingsError(
                    f"--{flag.name} is not supported by this version of Tritium: {flag.instead}"
                )
        if flag.no_effect:
            self.warnings.append(f"--{flag.name} has no effect: {flag.no_effect}")

    def has(self, name: str) -> bool:
        """Whether the flag was given."""
        return name in self._given

    def text(self, name: str, default: str) -> str:
        """Return its last value; of a flag with a choice of words, the word in its own letter case."""
        if name not in self._given:
            return default
        value, check = self._given[name][-1], BY_NAME[name].check
        return (check.choice(value) or value) if isinstance(check, OneOf) else value

    def all(self, name: str) -> Sequence[str]:
        """Return all its values, in order."""
        return self._given.get(name, ())

    def boolean(self, name: str, default: bool) -> bool:  # a default, beside the others'
        """Return its last value as a truth value."""
        return _to_bool(self._given[name][-1], BY_NAME[name]) if name in self._given else default

    def integer(self, name: str, default: int, *, least: int = 0, most: int = _INT_MAX) -> int:
        """Return its last value as a whole number. Raises SettingsError beyond the bounds."""
        if name not in self._given:
            return default
        word = self._given[name][-1]
        value = to_int(word, BY_NAME[name])
        if not least <= value <= most:
            raise SettingsError(
                f"Provided option value is out of bound. Got {word}",
                hint=f"--{name} takes {least} to {most}",
            )
        return value

    def number(self, name: str, default: float) -> float:
        """Return its last value as a number."""
        return _to_number(self._given[name][-1], BY_NAME[name]) if name in self._given else default


def _to_bool(word: str, flag: Flag) -> bool:
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise SettingsError(
        f"invalid value for bool option: {word}", hint=f"--{flag.name} takes true, on or 1; false, off or 0"
    )


def to_int(word: str, flag: Flag) -> int:
    """Return a whole number, a C int unless the flag counts bytes. Raises SettingsError."""
    if not re.fullmatch(r"[+-]?[0-9]+", word):
        raise SettingsError(f"Invalid option value. Got {word}", hint=f"--{flag.name} takes a whole number")
    # A C int, as in Triton; the length is bounded before `int` sees it.
    value = int(word) if len(word) < 20 else _INT_MAX + 1
    if not -_INT_MAX - 1 <= value <= _INT_MAX and flag.name not in _WIDE:
        raise SettingsError(
            f"Provided option value is out of bound. Got {word}",
            hint=f"--{flag.name} takes at most {_INT_MAX}",
        )
    return value


def _to_number(word: str, flag: Flag) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)", word):
        raise SettingsError(
            f"Invalid option value. Got {word}", hint=f"--{flag.name} takes a number, such as 0.5"
        )
    value = float(word)
    if not 0 <= value <= _INT_MAX:
        raise SettingsError(
            f"Provided option value is out of bound. Got {word}", hint=f"--{flag.name} takes 0 to {_INT_MAX}"
        )
    return value


# Byte counts: 64 bits.
_WIDE: Final = frozenset({"http-max-input-size", "pinned-memory-pool-byte-size", "response-cache-byte-size"})


def read_memory_limit(text: str, total: int) -> int:
    """Return the bytes that `--resident-memory-limit` means of `total`. Raises SettingsError.

    The value is a size, or a share such as `80%`.
    """
    share = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]+)?)\s*%", text.strip())
    if share is None:
        return read_size("resident-memory-limit", text, or_such_as="80%")
    percent = float(share[1])
    if not 0 < percent <= 100:
        raise SettingsError(
            f"Provided option value is out of bound. Got {text}",
            hint="--resident-memory-limit takes shares over 0% and up to 100%",
        )
    return int(total * percent / 100)


def read_size(name: str, text: str, *, or_such_as: str = "") -> int:
    """Return a number of bytes, over 0: `100`, `8GiB`, `1.5 GB`. Raises SettingsError that names the flag."""
    size = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    unit = None if size is None else _UNITS.get(size[2])
    if size is None or unit is None:
        others = f", or {or_such_as}" if or_such_as else ""
        raise SettingsError(
            f"Invalid option value. Got {text}",
            hint=f"--{name} takes bytes, or a size such as 8GiB or 500MB{others}",
        )
    count = int(float(size[1]) * unit) if "." in size[1] else int(size[1]) * unit
    if not 0 < count < 2**63:
        raise SettingsError(
            f"Provided option value is out of bound. Got {text}", hint=f"--{name} takes 1 byte or more"
        )
    return count
