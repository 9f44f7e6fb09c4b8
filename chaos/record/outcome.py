"""How the ends of requests are named, for both protocols."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from grpclib.const import Status

from actors.values.errors import ErrorCode
from chaos.record.records import Wire
from protocols.status import grpc_status, http_status

CODES: Final[Mapping[int, str]] = {
    # From `protocols.status`, by HTTP status. 400 stands for four codes there; the commonest is taken.
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    412: "FAILED_PRECONDITION",
    422: "FAILED_PRECONDITION",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
}

UNREADABLE: Final = "DATA_LOSS"
"""The code of answers that claim to be good and can't be read. No server sends it, and nothing excuses it."""

NO_CONNECTION: Final = "no connection"  # no server listens; nothing was sent
DISCONNECTED: Final = "disconnected"  # it was sent, wholly or in part
NO_ANSWER: Final = "lost: no answer"  # within the client's patience
WENT_AWAY: Final = "went away"  # the harness has stopped waiting, for reasons of its own
"""What the reason of an `Unknown` begins with."""


def now() -> float:
    """Return the time of records: seconds of the machine's monotonic clock, which all processes share."""
    return time.monotonic()


def code_seen(name: str, protocol: Wire) -> str:
    """Return what a client of that protocol sees of an error that the server's log calls `name`.

    `name` is a code such as POISONED. An unknown name is returned as it is.
    """
    if name not in ErrorCode.__members__:
        return name
    code = ErrorCode[name]
    return code_of(http_status(code)) if protocol == "http" else Status(grpc_status(code)).name


def code_of(status: int) -> str:
    """Return the gRPC code that an HTTP status stands for; UNKNOWN if Tritium's table lacks the status."""
    return CODES.get(status, "UNKNOWN")
