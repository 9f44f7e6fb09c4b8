"""Header fields of answers."""

from __future__ import annotations

from typing import Final

from actors.values.errors import TritiumError
from protocols.kserve.compression import OFFERED, UnsupportedCompression
from protocols.status import retry_seconds

Header = tuple[bytes, bytes]

JSON: Final[Header] = (b"content-type", b"application/json")
EVENTS: Final[Header] = (b"content-type", b"text/event-stream; charset=utf-8")

SOON: Final[Header] = (b"retry-after", b"1")
"""The field that goes with a status of 503 whose end is unknown."""

_PHASES: Final = ("queue", "compute_input", "compute_infer", "compute_output")


def failure_fields(error: TritiumError) -> list[Header]:
    """Return the fields that go with the status of `error`, without its Content-Type."""
    if isinstance(error, UnsupportedCompression):
        return [(b"accept-encoding", OFFERED)]
    seconds = retry_seconds(error)
    return [(b"retry-after", b"%d" % seconds)] if seconds else []


def server_timing(timing: tuple[int, int, int, int]) -> Header:
    """Return the Server-Timing field that tells how a request's nanoseconds were spent, in milliseconds."""
    spent = (f"{name};dur={ns / 1e6:.3f}" for name, ns in zip(_PHASES, timing, strict=True))
    return (b"server-timing", ", ".join(spent).encode())
