"""What a flag of `tritium serve` is, and the complaints that Triton itself would make about a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a flag's value must look like; a SWITCH takes none."""

    SWITCH = "switch"
    BOOL = "bool"
    INT = "int"
    NUMBER = "number"  # decimals, not negative
    TEXT = "text"


class Group(Enum):
    """Headings of the help text, in its order."""

    SERVER = "Server"
    MODELS = "Model repository"
    INSTANCES = "Model instances"
    BACKENDS = "Backends"
    CACHE = "Response cache"
    HTTP = "HTTP"
    GRPC = "gRPC"
    METRICS = "Metrics"
    LOGGING = "Logging"
    COMPATIBLE = "Accepted for Triton's sake, without effect (each one given is named in a warning)"
    REFUSED = "Triton flags that this version refuses, rather than ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    `default` and `metavar` are for the reader; the values themselves are typed in `engine.settings.settings`.
    """

    name: str
    kind: Kind = Kind.TEXT
    group: Group
    help: str = ""
    default: str = ""
    metavar: str = ""
    repeatable: bool = False
    separator: str = ";"  # between the values of a repeatable flag in its environment variable
    aliases: tuple[str, ...] = ()
    no_effect: str = ""
    instead: str = ""
    harmless: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None  # the complaint Triton itself would make about a value, or ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "TRITIUM_" + self.name.upper().replace("-", "_")


class OneOf:
    """A check that complains of what is none of the choices, in any letter case."""

    def __init__(self, complaint: str, *choices: str) -> None:
        self._complaint = complaint
        self.choices = choices

    def __call__(self, value: str) -> str:
        """Return what is wrong with `value`, or nothing."""
        return "" if self.choice(value) is not None else self._complaint

    def choice(self, value: str) -> str | None:
        """Return the choice that `value` is, in its own letter case; None if it is none of them."""
        return next((each for each in self.choices if each.lower() == value.lower()), None)


def trace_config(value: str) -> str:
    """Check the form of `--trace-config`."""
    head, equals, _ = value.partition("=")
    if head.rpartition(",")[2] and equals:
        return ""
    return f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {value}"


def cache_config(value: str) -> str:
    """Check the form of `--cache-config`."""
    cache, comma, pair = value.partition(",")
    setting, equals, _ = pair.partition("=")
    if cache and comma and setting and equals:
        return ""
    return f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {value}"


def _whole(value: str) -> int | None:
    """Return a whole number; None for what is none, or is out of every bound, of which others complain."""
    return int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value) else None


def positive(complaint: str) -> Callable[[str], str]:
    """Return a check that complains of numbers that are not over 0."""

    def check(value: str) -> str:
        number = _whole(value)
        return complaint if number is not None and number <= 0 else ""

    return check


def grpc_threads(value: str) -> str:
    """Check the bounds of `--grpc-infer-thread-count`."""
    number = _whole(value)
    if number is not None and not 2 <= number <= 128:
        return "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
    return ""
