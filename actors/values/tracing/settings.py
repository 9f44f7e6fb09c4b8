"""A trace setting, and a change of one (contract, observability.md section 3.1). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

TRITON: Final = "triton"
OPENTELEMETRY: Final = "opentelemetry"
"""The modes: a file in Triton's form, or an exporter."""

TIMESTAMPS: Final = "TIMESTAMPS"
TENSORS: Final = "TENSORS"
OFF: Final = "OFF"
LEVELS: Final = (TIMESTAMPS, TENSORS)

HIGHEST_RATE: Final = 2**32 - 1
HIGHEST_COUNT: Final = 2**31 - 1
NOT_UPDATABLE: Final = "trace file location can not be updated through network protocol"
NO_TRACING: Final = "the server does not support tracing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSetting:
    """What is traced, and how.

    `levels` are of `LEVELS`; none: nothing is traced. Every `rate`-th request is sampled, `count` of them at
    most (-1: any number). `file` and `log_frequency` are Triton's mode's. `options` are those of the mode
    opentelemetry, names and values in the words of the command line; one may be repeated.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = TRITON
    options: tuple[tuple[str, str], ...] = ()


class Given(Enum):
    """What a change says of a field, if it gives no value."""

    KEEP = "keep"  # nothing: it stays as it is
    CLEAR = "clear"  # what is set for all models, or by the command line, is to hold again


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change of a trace setting, field by field."""

    levels: tuple[str, ...] | Given = Given.KEEP
    rate: int | Given = Given.KEEP
    count: int | Given = Given.KEEP
    log_frequency: int | Given = Given.KEEP


class TraceControl(Protocol):
    """The trace settings of a server, as clients may read and change them.

    An empty `model` means all models.
    """

    def describe(self, model: str = "") -> Mapping[str, str | Sequence[str]]:
        """Return the setting in force, by Triton's names. `trace_count` is what is left of it."""

    def update(self, model: str, change: SettingChange) -> None:
        """Put a change in force.

        Raises InvalidArgument for a setting that makes no sense; nothing has changed.
        """
