"""A whole connection: any bytes, in any chunks, between answers of every kind.

Every input must satisfy three rules. What we write is frames, no more of them than the input can have earned,
and the only exception is ConnectionViolation behind a GOAWAY. The cuts between the bytes make no difference.
Whether header blocks are remembered makes none either.
"""

from dataclasses import replace
from random import Random

from hpack import Encoder

from protocols.http2.frames import ConnectionViolation, ErrorCode
from protocols.http2.hpack import encode_headers
from protocols.http2.streams import Http2Limits, Stream
from tests.fuzz import h2wire as wire
from tests.fuzz.campaign import chance_of
from tests.fuzz.mutation import damaged, reframed
from tests.fuzz.recorder import Recorder, Rig

_LIMITS = Http2Limits(max_streams=8, connection_window=100_000, max_frame_size=16_384)
_FORGETFUL = replace(_LIMITS, cached_heads=0)

_HEAD = encode_headers([(b":status", b"200"), (b"content-type", b"application/grpc")])
_TRAILERS = encode_headers([(b"grpc-status", b"0")])
_LARGE = bytes(70_000)

# The output that an input may cause by itself: a frame answers a frame, and a frame has at least nine bytes.
_OUTPUT_PER_OCTET = 4
_OUTPUT_ANYWAY = 5_000


class Connections:
    """Feeds bytes to `Http2Connection`, answers some of what it hears, and reads what it writes."""

    name = "connections"
    prefix = "connection"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """A recorded connection with damage, or frames drawn one by one."""
        kind = chance.random()
        if kind < 0.45:
            return _drawn(chance)
        octets = chance.choice(corpus) if kind < 0.9 else _drawn(chance)
        if chance.random() < 0.75:
            return reframed(octets, chance, corpus)
        return damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Three runs: silent and whole, silent and cut without a cache, and one that answers."""
        chance = chance_of(octets)
        outcome, rig = _listen(octets, [], _LIMITS)
        cut_outcome, cut_rig = _listen(octets, _some_cuts(octets, chance), _FORGETFUL)
        assert outcome == cut_outcome, f"{outcome!r} whole, {cut_outcome!r} in pieces"
        assert _told(rig) == _told(cut_rig)
        assert _by_stream(rig) == _by_stream(cut_rig)
        _converse(octets, chance)
        return outcome


def _told(rig: Rig) -> dict[int, tuple[object, ...]]:
    return {
        number: (heard.head, bytes(heard.data), heard.ended, heard.code)
        for number, heard in rig.recorder.streams.items()
    }


def _by_stream(rig: Rig) -> dict[int, list[wire.Frame]]:
    """What was written, stream by stream; how often the connection's window was widened may differ."""
    written: dict[int, list[wire.Frame]] = {}
    for frame in rig.frames:
        if frame.kind != wire.WINDOW_UPDATE:
            written.setdefault(frame.stream, []).append(frame)
    return written


def _listen(octets: bytes, cuts: list[int], limits: Http2Limits) -> tuple[str, Rig]:
    """Say nothing but what the protocol says by itself."""
    rig = Rig(limits)
    outcome = _feed(rig, octets, cuts)
    written = rig.drain()
    assert len(written) <= _OUTPUT_PER_OCTET * len(octets) + _OUTPUT_ANYWAY
    _check_bounds(rig)
    return outcome, rig


def _feed(rig: Rig, octets: bytes, cuts: list[int]) -> str:
    try:
        rig.send(octets, cuts=cuts)
    except ConnectionViolation as violation:
        rig.drain()
        assert rig.frames[-1].kind == wire.GOAWAY or wire.GOAWAY in {one.kind for one in rig.frames}
        return f"connection {violation.code.name}"
    rig.drain()
    resets = [ErrorCode(one.number()).name for one in rig.frames if one.kind == wire.RST_STREAM]
    return f"stream {resets[0]}" if resets else "calls" if rig.recorder.streams else "no call"


def _check_bounds(rig: Rig) -> None:
    assert len(rig.connection.streams) <= _LIMITS.max_streams
    assert set(rig.connection.streams) == set(rig.recorder.open), (
        "connection and handler know different streams"
    )


class _Hasty(Recorder):
    """A handler that acts on what it hears before it returns."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self.rig: Rig | None = None

    def opened(self, stream: Stream, head: tuple[wire.Field, ...]) -> None:
        super().opened(stream, head)
        self._maybe_act()

    def received(self, stream: Stream, data: memoryview) -> None:
        super().received(stream, data)
        self._maybe_act()

    def ended(self, stream: Stream) -> None:
        super().ended(stream)
        self._maybe_act()

    def _maybe_act(self) -> None:
        if self.rig is not None and self._chance.random() < 0.3:
            _act(self.rig, self._chance)


def _converse(octets: bytes, chance: Random) -> None:
    """Answer, refuse, grant and write between the pieces, and from within what the connection calls."""
    recorder = _Hasty(chance)
    rig = Rig(_LIMITS, recorder)
    recorder.rig = rig if chance.random() < 0.5 else None
    previous = 0
    for cut in [*_some_cuts(octets, chance), len(octets)]:
        try:
            rig.send(octets[previous:cut])
        except ConnectionViolation:
            break
        previous = cut
        for _ in range(chance.randrange(4)):
            _act(rig, chance)
        assert len(rig.connection.streams) <= _LIMITS.max_streams
    rig.drain()
    for number, stream in rig.recorder.open.items():
        rig.connection.answers.reset(stream, ErrorCode.CANCEL)
        assert number not in rig.connection.streams
    rig.drain()
    assert not rig.connection.streams or not any(stream.pending for stream in rig.connection.streams.values())


def _act(rig: Rig, chance: Random) -> None:
    connection = rig.connection
    if rig.recorder.open and chance.random() < 0.8:
        number = chance.choice(sorted(rig.recorder.open))
        stream = rig.recorder.open[number]
        size = chance.choice((0, 1, 5, 100, 16_384, 70_000))
        match chance.randrange(8):
            case 0 | 1:
                connection.answers.answer(stream, _HEAD, [memoryview(_LARGE)[:size]], size, _TRAILERS)
            case 2:
                connection.answers.head(stream, _HEAD)
            case 3:
                connection.answers.message(stream, [memoryview(_LARGE)[:size]], size)
            case 4:
                connection.answers.trailers(stream, _TRAILERS)
            case 5:
                connection.answers.reset(stream, ErrorCode.CANCEL)
                rig.recorder.open.pop(number, None)
            case 6:
                connection.window.grant(stream, size)
            case _:
                connection.answers.own(stream)
        return
    match chance.randrange(8):
        case 0:
            connection.control.go_away(ErrorCode.NO_ERROR)
        case 1:
            connection.control.ping(chance.randbytes(8))
        case 2:
            for part in connection.outward.take(chance.choice((1, 100, 1 << 16))):
                assert len(part) > 0
        case _:
            rig.drain(chance.choice((1, 100, 1 << 16)))


def _some_cuts(octets: bytes, chance: Random) -> list[int]:
    if chance.random() < 0.1:
        return list(range(1, len(octets)))
    return sorted(chance.randrange(len(octets) + 1) for _ in range(chance.randrange(8)))


def _drawn(chance: Random) -> bytes:
    """Frames that mostly keep to the rules, from a client with a table and streams of its own."""
    client = _Client(chance)
    frames = [wire.settings(client.settings())]
    frames += [client.frame() for _ in range(chance.randrange(1, 16))]
    return wire.PREFACE + b"".join(frames)


class _Client:
    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._encoder = Encoder()
        self._next = 1
        self._open: list[int] = []  # not ended by this client
        self._careful = chance.random() < 0.7

    def settings(self) -> list[tuple[int, int]]:
        chance = self._chance
        if self._careful:
            sizes = (0, 1, 100, 65_535, 1 << 20)
            return [
                (wire.INITIAL_WINDOW_SIZE, chance.choice(sizes)),
                (wire.MAX_FRAME_SIZE, chance.choice((1 << 14, 1 << 20))),
            ]
        values = (0, 1, 100, 16_384, 65_535, 1 << 20, (1 << 31) - 1)
        return [(chance.randrange(8), chance.choice(values)) for _ in range(chance.randrange(3))]

    def frame(self) -> bytes:
        """Any frame; a careful client's break no rule that it can know of."""
        chance = self._chance
        stream = self._some_stream()
        if stream is None:
            return self._opening()
        match chance.randrange(14):
            case 0 | 1 | 2 | 3:
                return self._opening()
            case 4 | 5 | 6:
                return self._data(stream)
            case 7:
                self._end(stream)
                return self._headers(stream, self._encoder.encode([(b"x-t", b"1")]), wire.END_STREAM)
            case 8:
                return wire.settings(self.settings())
            case 9:
                return wire.frame(wire.PING, chance.choice((0, 0, wire.ACK)), 0, chance.randbytes(8))
            case 10:
                increment = chance.choice((1, 100, 65_535, 65_535 if self._careful else (1 << 31) - 1))
                return wire.window_update(chance.choice((0, stream)), increment)
            case 11:
                self._end(stream)
                return wire.rst_stream(stream, chance.choice((0, 8, 2, 99)))
            case 12:
                return wire.frame(wire.PRIORITY, 0, stream, chance.randbytes(5))
            case _:
                kind = (
                    0xFA
                    if self._careful
                    else chance.choice((wire.GOAWAY, wire.PUSH_PROMISE, wire.SETTINGS, 0xFA))
                )
                return wire.frame(
                    kind, chance.randrange(256), chance.choice((0, stream)), chance.randbytes(8)
                )

    def _some_stream(self) -> int | None:
        if self._careful:
            return self._chance.choice(self._open) if self._open else None
        return max(1, self._next - 2 * self._chance.randrange(1, 4))

    def _end(self, stream: int) -> None:
        if stream in self._open:
            self._open.remove(stream)

    def _opening(self) -> bytes:
        number = self._next
        self._next += 2 * self._chance.choice((1, 1, 1, 1, 2))
        block = self._encoder.encode([*wire.REQUEST, *self._extra()])
        flags = self._chance.choice((0, 0, wire.END_STREAM))
        if not flags:
            self._open.append(number)
        return self._headers(number, block, flags)

    def _extra(self) -> list[wire.Field]:
        chance = self._chance
        rare = [
            (b"content-length", b"3"),
            (b"Upper", b"x"),
            (b"te", b"gzip"),
            (b"x", b"\0"),
            (b":late", b"x"),
        ]
        usual = [(b"grpc-timeout", b"1S"), (b"x-id", b"%d" % chance.randrange(9))]
        odd = 0.0 if self._careful else 0.15
        return [chance.choice(rare if chance.random() < odd else usual) for _ in range(chance.randrange(2))]

    def _headers(self, stream: int, block: bytes, flags: int) -> bytes:
        chance = self._chance
        if chance.random() < 0.15:
            cut = chance.randrange(len(block) + 1)
            rest = wire.frame(wire.CONTINUATION, wire.END_HEADERS, stream, block[cut:])
            return wire.frame(wire.HEADERS, flags, stream, block[:cut]) + rest
        body = block
        if chance.random() < 0.15:
            flags |= wire.HAS_PRIORITY
            body = chance.randbytes(5) + body
        if chance.random() < 0.15:
            flags |= wire.PADDED
            padding = chance.randrange(20)
            body = bytes((padding,)) + body + bytes(padding)
        return wire.frame(wire.HEADERS, flags | wire.END_HEADERS, stream, body)

    def _data(self, stream: int) -> bytes:
        chance = self._chance
        size = chance.choice((0, 1, 3, 5, 20, 3000, 16_384 if chance.random() < 0.2 else 7))
        flags = chance.choice((0, 0, wire.END_STREAM))
        if flags:
            self._end(stream)
        body = bytes(size)
        if chance.random() < 0.2:
            padding = chance.randrange(256)
            body = bytes((padding,)) + body[: 16_384 - 256] + bytes(padding)
            flags |= wire.PADDED
        return wire.data(stream, body, flags)
