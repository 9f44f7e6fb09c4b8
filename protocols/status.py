"""The only table from error codes to what a wire says: HTTP status and gRPC status number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from actors.values.errors import NEVER, ErrorCode, TooManyRequests, TritiumError, Unavailable

# Contract: http.md section 1.1 and grpc.md section 2 for Triton's eight. The others are Tritium's own.
STATUS: Final[Mapping[ErrorCode, tuple[int, int]]] = {
    ErrorCode.UNKNOWN: (400, 2),  # UNKNOWN
    ErrorCode.INTERNAL: (500, 13),  # INTERNAL
    ErrorCode.NOT_FOUND: (404, 5),  # NOT_FOUND
    ErrorCode.INVALID_ARG: (400, 3),  # INVALID_ARGUMENT
    ErrorCode.UNAVAILABLE: (503, 14),  # UNAVAILABLE
    ErrorCode.UNSUPPORTED: (501, 12),  # UNIMPLEMENTED
    ErrorCode.ALREADY_EXISTS: (400, 6),  # ALREADY_EXISTS
    ErrorCode.CANCELLED: (400, 1),  # CANCELLED
    ErrorCode.DEADLINE_EXCEEDED: (504, 4),  # DEADLINE_EXCEEDED
    ErrorCode.POISONED: (422, 9),  # FAILED_PRECONDITION
    ErrorCode.UNAUTHENTICATED: (401, 16),  # UNAUTHENTICATED
    ErrorCode.PERMISSION_DENIED: (403, 7),  # PERMISSION_DENIED
    ErrorCode.RESOURCE_EXHAUSTED: (429, 8),  # RESOURCE_EXHAUSTED
    ErrorCode.TAKEN_OVER: (409, 9),  # FAILED_PRECONDITION
    # Proxies retry neither of these: Envoy's `retriable-4xx` is 409, and 421 invites another connection.
    ErrorCode.OTHER_REPLICA: (412, 9),  # FAILED_PRECONDITION
}


def http_status(code: ErrorCode) -> int:
    """Return the HTTP status that stands for `code`."""
    return STATUS[code][0]


def grpc_status(code: ErrorCode) -> int:
    """Return the number of the gRPC status that stands for `code`."""
    return STATUS[code][1]


def retry_seconds(error: TritiumError) -> int:
    """Return after how many whole seconds to retry a request refused with `error` (RFC 9110, section 10.2.3).

    At least 1, which is also told where the time is unknown; 0 where it is not worth trying again, or not a
    matter of time.
    """
    if not isinstance(error, (Unavailable, TooManyRequests)) or error.retry_after == NEVER:
        return 0
    return max(1, math.ceil(error.retry_after))
