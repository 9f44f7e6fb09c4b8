"""The decision on a request's head, before any bytes of a long body are kept.

A server asks `Admit` once more of a body is to come than is here with its head. So requests whose body is
short, or has come with the head, pay nothing for it; the application finds the same by itself.

What becomes of a refused body is decided here too. Clients other than curl read the answer only once they
have sent everything. A connection that is closed with bytes unread is reset, which can take the answer with
it. So the answer goes out at once, and what still comes is read and dropped. A short rest is read to its end,
so that the connection lives on. A long one is read within `MOST_DISCARDED` and as long as it keeps coming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.callers import Caller, Peer
from protocols.http.answers import Answer, error_answer
from protocols.http.fields import Header

SMALL_BODY: Final = 64 * 1024
"""Bytes that a body may have where it brings no tensors and no files.

A server may have read so much before it asks.
"""

MOST_SKIPPED: Final = 1024 * 1024
"""Of a refused body, bytes that may still come if the connection is to live on."""

MOST_DISCARDED: Final = 256 * 1024 * 1024
"""Of a refused body, bytes that are read and dropped so that the client reads its answer."""

DISCARD_PAUSE: Final = 2.0
"""Seconds for which a body that is being dropped may pause."""

DISCARD_TIME: Final = 60.0
"""Seconds for which a refused body is read and dropped at the most, however fast it comes."""


@dataclass(slots=True, kw_only=True)
class Admitted:
    """The body may come, up to `most` bytes. One is made for each request.

    `too_long` makes the answer to a longer body. It is told how long that is, as far as known. A body that is
    not `wanted` is dropped as it comes.
    """

    most: int
    too_long: Callable[[int], Answer]
    caller: Caller | None = None  # whose it is, if the server tells identities apart
    wanted: bool = True


Admission = Answer | Admitted
"""An answer refuses the body."""

AdmitHead = Callable[[str, bytes, Sequence[Header], int], Admission]
"""Told method, path, header fields (names in lower case) and length (-1: chunked) of a request.

Never raises.
"""

Admit = Callable[[Peer, str, bytes, Sequence[Header], int], Admission]
"""The same, for the requests of any connection."""


def limited(most: int, length: int, too_long: Callable[[int], Answer]) -> Admission:
    """Admit a body of at most `most` bytes, which is announced to have `length`, or is chunked (-1)."""
    return too_long(length) if length > most else Admitted(most=most, too_long=too_long)


def short(length: int) -> Admission:
    """Admit no more than `SMALL_BODY`: for endpoints that take little or nothing."""
    return limited(
        SMALL_BODY,
        length,
        lambda size: error_answer(
            413, f"request body of {size} bytes exceeds the {SMALL_BODY} bytes that this endpoint takes"
        ),
    )


def unread(length: int) -> Admission:
    """Admit no more than `SMALL_BODY`, and keep none of it: for endpoints that take nothing.

    Clients that send an empty JSON object with every request are answered all the same.
    """
    admission = short(length)
    if isinstance(admission, Admitted):
        admission.wanted = False
    return admission


def admit_short(
    _peer: Peer, _method: str, _path: bytes, _headers: Sequence[Header], length: int
) -> Admission:
    """Admit short bodies only, for an application whose endpoints all take little or nothing (`Admit`)."""
    return short(length)


def may_skip(rest: int, *, awaits_continue: bool) -> bool:
    """Whether the connection lives on behind a refused body of which `rest` bytes are to come.

    `rest` is -1 where that is not known. A client that waits to be told to go on may send the body, or leave
    it out (RFC 9110, section 10.1.1), so it is unknown what comes next.
    """
    return 0 <= rest <= MOST_SKIPPED and not awaits_continue
