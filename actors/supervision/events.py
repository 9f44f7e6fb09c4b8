"""What a supervisor reports: facts as values, for an injected observer. This library writes no log itself.

Every event names its supervisor, the child and the child's spec (OTP's *offender*). `context` is one of the
four contexts of OTP's `report_error` if OTP would have written a report, else None.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from actors.supervision.restart import ExitReason
from actors.supervision.spec import ChildSpec


class Context(Enum):
    """The four contexts of OTP's supervisor reports."""

    CHILD_TERMINATED = "child_terminated"
    START_ERROR = "start_error"
    SHUTDOWN_ERROR = "shutdown_error"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """What each event says of its child."""

    supervisor: str
    path: str
    offender: ChildSpec


@dataclass(frozen=True, slots=True)
class ChildStarted(ChildEvent):
    """A child is ready for the first time."""

    name: ClassVar[str] = "child_started"
    context: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class ChildRestarted(ChildEvent):
    """A child is ready again after the supervisor restarted it; `restarts` counts its restarts."""

    name: ClassVar[str] = "child_restarted"
    context: ClassVar[None] = None
    restarts: int


@dataclass(frozen=True, slots=True)
class ChildExited(ChildEvent):
    """A child that was ready has ended.

    `context` is child_terminated if OTP would report it (a permanent child, or an abnormal exit),
    shutdown_error if it was asked to stop and crashed or had to be killed, and None for a quiet end.
    """

    name: ClassVar[str] = "child_exited"
    reason: ExitReason
    context: Context | None


@dataclass(frozen=True, slots=True)
class ChildStartFailed(ChildEvent):
    """A child ended before it was ready."""

    name: ClassVar[str] = "child_start_failed"
    context: ClassVar[Context] = Context.START_ERROR
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class ChildKillForced(ChildEvent):
    """A child did not stop within its `grace` seconds and is being cancelled hard; its exit follows."""

    name: ClassVar[str] = "child_kill_forced"
    context: ClassVar[Context] = Context.SHUTDOWN_ERROR
    grace: float


@dataclass(frozen=True, slots=True)
class RestartsExhausted(ChildEvent):
    """A restart budget is used up.

    `context` is shutdown if the supervisor now gives up. It is None if the child is retried half-open, which
    is reported once.
    """

    name: ClassVar[str] = "restarts_exhausted"
    reason: ExitReason
    context: Context | None


SupervisionEvent = (
    ChildStarted | ChildRestarted | ChildExited | ChildStartFailed | ChildKillForced | RestartsExhausted
)
"""Everything a supervisor reports."""

Observer = Callable[[SupervisionEvent], None]
"""Told each event as it happens, from inside the supervisor: it must neither block nor raise."""
