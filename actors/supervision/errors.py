"""Exceptions that callers of a supervisor or of a `Ref` may see, and the two that a child raises on purpose.

Each class of a refused operation carries OTP's word for it in `code`.
"""

from typing import ClassVar

from actors.supervision.restart import ExitReason


class SupervisionError(Exception):
    """Base of the exceptions that this library raises at its callers."""


class ActorDied(SupervisionError):
    """The actor at `path` is not alive, or died before it answered; `reason` says of what."""

    def __init__(self, path: str, reason: ExitReason) -> None:
        super().__init__(f"no answer from actor {path!r}: {reason}")
        self.path = path
        self.reason = reason


class CallTimedOut(SupervisionError, TimeoutError):
    """The deadline of a call passed: the inbox stayed full, or the actor did not answer."""


class IntensityExceeded(SupervisionError):
    """A supervisor gave up: its child `offender` needed one restart more than the intensity allows."""

    def __init__(self, supervisor: str, offender: str, reason: ExitReason) -> None:
        super().__init__(
            f"supervisor {supervisor!r} gave up: child {offender!r} kept dying, last of {reason}"
        )
        self.supervisor = supervisor
        self.offender = offender
        self.reason = reason


class StartError(SupervisionError):
    """The child at `path` did not start; `reason` says why and its exception is the cause."""

    def __init__(self, path: str, reason: ExitReason) -> None:
        super().__init__(f"child {path!r} did not start: {reason}")
        self.path = path
        self.reason = reason


class ExitShutdown(Exception):
    """Raised by a child to end with reason `shutdown`, which is no failure: a transient child stays down."""


class IgnoreStart(Exception):
    """Raised by a child before it is ready: it has nothing to do here. Its spec is kept; it is no failure."""


class ChildError(SupervisionError):
    """A refused operation on a child; `code` is OTP's word for it."""

    code: ClassVar[str]

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"child {path!r} {message}")
        self.path = path


class AlreadyStarted(ChildError):
    """`start_child`: a child of this name is up."""

    code = "already_started"


class AlreadyPresent(ChildError):
    """`start_child`: a child of this name is known, though not up; use `restart_child` or `delete_child`."""

    code = "already_present"


class NotFound(ChildError):
    """There is no child of this name."""

    code = "not_found"


class Running(ChildError):
    """The child is up; `terminate_child` it first."""

    code = "running"


class Restarting(ChildError):
    """The child is about to be restarted; `terminate_child` stops that."""

    code = "restarting"


class NotRunning(SupervisionError):
    """The supervisor is not up: not yet started, stopping, or gone."""
