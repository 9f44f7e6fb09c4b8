"""A parser that knows the head that comes again finds what one finds that reads each byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from protocols.http.parser import RequestLimits, RequestParser
from tests.protocols.paths.written import plain, writings


class Reader:
    """Feeds a parser as a connection does, which takes each request before it reads on."""

    def __init__(self) -> None:
        self.parser = RequestParser(RequestLimits(max_head_size=500_000, max_body_size=200_000))
        self.found: list[tuple[Any, ...]] = []

    def read(self, octets: bytes) -> None:
        """Read some bytes, in memory that is overwritten behind it."""
        parser = self.parser
        rest = memoryview(octets)
        while rest and parser.refusal is None:
            if parser.direct is None:
                scratch = bytearray(rest)
                parser.feed(memoryview(scratch))
                scratch[:] = b"!" * len(scratch)
                rest = rest[len(rest) :]
            else:
                room = parser.direct[parser.received :]
                part = rest[: len(room)]
                room[: len(part)] = part
                parser.fill(len(part))
                rest = rest[len(part) :]
        while parser.ready:
            self.found.append(_seen(parser.ready.popleft()))

    def end(self) -> tuple[Any, ...]:
        """Return all that came of it."""
        refusal = self.parser.refusal
        return self.found, refusal and refusal.status, self.parser.begun, self.parser.in_body


def _seen(request: Any) -> tuple[Any, ...]:
    head = request.head
    said = head.method, head.path, head.query, head.headers, head.raw_headers, head.http_version
    return *said, head.keep_alive, head.of_page, bytes(request.body), request.size


@st.composite
def repetitive(draw: DrawFn) -> list[bytes]:
    """What a client writes that repeats itself: the same heads, with bodies that fit or do not."""
    several = draw(
        st.lists(
            st.one_of(writings.map(lambda each: each.octets), st.just(plain("held"))), min_size=1, max_size=3
        )
    )
    written = []
    for _ in range(draw(st.integers(2, 8))):
        octets = draw(st.sampled_from(several))
        match draw(st.integers(0, 11)):
            case 0:
                octets += draw(
                    st.sampled_from((b"\r\n", b"\n", b"\0", b"G", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
                )
            case 1:
                octets = octets[: -draw(st.integers(1, 5))]
            case 2:
                octets += octets
            case 3:
                octets = octets.replace(b"\x00", b"\r\n\r\n", 1)
            case 4:
                at = draw(st.integers(0, max(0, len(octets) - 1)))
                octets = octets[:at] + bytes([draw(st.integers(0, 255))]) + octets[at + 1 :]
        written.append(octets)
    return written


def read(pieces: Iterable[bytes]) -> tuple[Any, ...]:
    reader = Reader()
    for piece in pieces:
        reader.read(piece)
    return reader.end()


def assert_same(written: list[bytes]) -> None:
    whole = read(written)
    torn = [(each[:1], each[1:]) for each in written]
    assert whole == read(part for parts in torn for part in parts)
    # Heads that are known, and heads that come in parts, by turns.
    for some in (0, 1):
        by_turns = [
            parts if place % 2 == some else (each,)
            for place, (each, parts) in enumerate(zip(written, torn, strict=True))
        ]
        assert whole == read(part for parts in by_turns for part in parts)


@settings(max_examples=400)
@given(written=repetitive())
def test_a_head_that_comes_again_is_read_as_for_the_first_time(written):
    assert_same(written)


@pytest.mark.long
@settings(max_examples=100_000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(written=repetitive())
def test_a_head_that_comes_again_is_read_as_for_the_first_time_however_long_one_looks(written):
    assert_same(written)
