"""Errors that are told to a client. Any other exception is a bug, and a supervisor's business.

Codes are Triton's eight (contract, http.md section 1.1) and Tritium's own seven. Each wire spells the codes
in its own way: see `protocols.status`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final


class ErrorCode(Enum):
    """What kind of failure a client is told about."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"
    DEADLINE_EXCEEDED = "Deadline exceeded"
    POISONED = "Poisoned"
    UNAUTHENTICATED = "Unauthenticated"
    PERMISSION_DENIED = "Permission denied"
    RESOURCE_EXHAUSTED = "Resource exhausted"
    TAKEN_OVER = "Taken over"
    OTHER_REPLICA = "Other replica"

    @property
    def rendered(self) -> str:
        """The prefix of a status that is embedded in another message (contract, http.md section 1.1)."""
        return "<invalid code>" if self is ErrorCode.CANCELLED else self.value


class TritiumError(Exception):
    """An error with a code, whose message is for the client's eyes.

    Subclasses fix the code; `TritiumError.of` makes one from a code that came over a wire.
    """

    code: ErrorCode = ErrorCode.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @staticmethod
    def of(code: ErrorCode, message: str) -> TritiumError:
        """Return the error class that stands for `code`, with this message."""
        return _CLASS_OF[code](message)

    def render(self) -> str:
        """Return `<Prefix>: <message>`, the form used inside other messages."""
        return f"{self.code.rendered}: {self.message}"


class UnknownFailure(TritiumError):
    """A failure of an unknown kind."""

    code = ErrorCode.UNKNOWN


class Internal(TritiumError):
    """The server or a model failed; the request was not at fault."""

    code = ErrorCode.INTERNAL


class NotFound(TritiumError):
    """The client asked for something that does not exist."""

    code = ErrorCode.NOT_FOUND


class InvalidArgument(TritiumError):
    """The request contradicts the model or the protocol."""

    code = ErrorCode.INVALID_ARG


NEVER: Final = math.inf
"""`Unavailable.retry_after` of a request that would be refused whenever it is sent."""


class Unavailable(TritiumError):
    """It exists but can't serve now: queue full, timed out in the queue, not ready, stopping, instance lost.

    `retry_after` is in how many seconds it may be worth trying again: 0 if that is not known, NEVER if
    waiting does not help.
    """

    code = ErrorCode.UNAVAILABLE

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(Unavailable):
    """It can't serve now, as others ask for too much: a queue is full, or a promise could not be kept.

    Tried later it may well succeed, so APIs that know that tell it apart from what does not serve at all.
    """


class WorkerLost(Unavailable):
    """The worker died that ran the request.

    `how` says which one, and of what. `blamed`: the request may have caused it.
    """

    def __init__(self, message: str, *, how: str, blamed: bool) -> None:
        super().__init__(message)
        self.how = how
        self.blamed = blamed


class Unsupported(TritiumError):
    """Understood, but not offered."""

    code = ErrorCode.UNSUPPORTED


class AlreadyExists(TritiumError):
    """The thing to be made is there already."""

    code = ErrorCode.ALREADY_EXISTS


class Cancelled(TritiumError):
    """The caller went away, or asked to stop."""

    code = ErrorCode.CANCELLED


class DeadlineExceeded(TritiumError):
    """The execution limit or the caller's own deadline passed."""

    code = ErrorCode.DEADLINE_EXCEEDED


class Poisoned(TritiumError):
    """This very request killed a worker twice while it ran alone; it is refused."""

    code = ErrorCode.POISONED


class Unauthenticated(TritiumError):
    """The client has shown no credentials where some are needed, or bad ones.

    `invalid`: it has shown some. Then others are needed, and not only some (RFC 6750, section 3.1).
    """

    code = ErrorCode.UNAUTHENTICATED

    def __init__(self, message: str, *, invalid: bool = False) -> None:
        super().__init__(message)
        self.invalid = invalid

    @property
    def challenge(self) -> str:
        """The value of a `WWW-Authenticate` field (RFC 9110, section 11.6.1)."""
        return 'Bearer realm="tritium", error="invalid_token"' if self.invalid else 'Bearer realm="tritium"'


class PermissionDenied(TritiumError):
    """It is known who the client is, and it may not do this."""

    code = ErrorCode.PERMISSION_DENIED


class TooManyRequests(TritiumError):
    """The client has used up its share.

    `retry_after` is in how many seconds there is some again; 0: unknown.
    """

    code = ErrorCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TakenOver(TritiumError):
    """A controller of several servers asks for it, and a newer one has taken over."""

    code = ErrorCode.TAKEN_OVER


class OtherReplica(TritiumError):
    """The sequence that the request goes on with began on another server."""

    code = ErrorCode.OTHER_REPLICA


_CLASS_OF = {
    cls.code: cls
    for cls in (
        UnknownFailure,
        Internal,
        NotFound,
        InvalidArgument,
        Unavailable,
        Unsupported,
        AlreadyExists,
        Cancelled,
        DeadlineExceeded,
        Poisoned,
        Unauthenticated,
        PermissionDenied,
        TooManyRequests,
        TakenOver,
        OtherReplica,
    )
}
