"""Exceptions that callers of a supervisor may see."""

from actors.supervision.restart import ExitReason


class SupervisionError(Exception):
    """Base of the exceptions that this library raises at its callers."""


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


class AlreadyStarted(SupervisionError):
    """`start_child`: there is a child of this name."""


class NoSuchChild(SupervisionError):
    """There is no child of this name or path."""


class NotRunning(SupervisionError):
    """The supervisor is not up: not yet started, stopping, or gone."""
