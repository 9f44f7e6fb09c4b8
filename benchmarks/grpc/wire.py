"""One HTTP/2 connection of the load client: bytes in, bytes out, no socket and no clock. Pure.

It knows as much of RFC 9113 as it takes to load a server fairly and no more. It keeps a number of requests
under way and keeps to the peer's windows. It opens its own windows so wide that an answer never waits for
them, and looks at the status of every answer. Header blocks are decoded once: as long as the table does not
change, the same bytes mean the same headers.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final

from hpack import Decoder

from benchmarks.grpc.payloads import PREFIX_SIZE

_FRAME: Final = struct.Struct(">IBI")  # length (3 bytes) and type (1), flags, stream
_SETTING: Final = struct.Struct(">HI")

# RFC 9113 section 6: types of frames, flags, settings.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5

WINDOW: Final = 2**30 - 1  # ours, as h2load has it
_DEFAULT_WINDOW: Final = 65_535
_TABLE: Final = 4096
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Field 2 of ModelStreamInferResponse; an error's message would come before it, as field 1.
_INFER_RESPONSE: Final = 0x12

Buffer = bytes | memoryview


class Surprise(Exception):
    """The server did something that this client does not understand, or ended the connection."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream) + payload


class Blocks:
    """Reads the peer's header blocks; None if an answer is good so far, else what is wrong with it."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._known: dict[bytes, str | None] = {}

    def read(self, block: bytes, *, last: bool) -> str | None:
        """Judge a block.

        Its bytes alone decide: blocks of trailers hold a status of gRPC and others never do.
        """
        try:
            return self._known[block]
        except KeyError:
            return self._read(block, last=last)

    def _read(self, block: bytes, *, last: bool) -> str | None:
        table = self._decoder.header_table
        before = tuple(table.dynamic_entries)
        headers = dict(self._decoder.decode(block, raw=True))
        verdict = self._verdict(headers, last=last)
        if tuple(table.dynamic_entries) != before:
            self._known.clear()
        else:
            self._known[block] = verdict
        return verdict

    @staticmethod
    def _verdict(headers: dict[bytes, bytes], *, last: bool) -> str | None:
        if (status := headers.get(b":status", b"200")) != b"200":
            return f":status {status.decode()}"
        if last and (status := headers.get(b"grpc-status", b"none")) != b"0":
            return f"grpc-status {status.decode()} {headers.get(b'grpc-message', b'').decode()}".rstrip()
        return None


class Connection:
    """What unary calls and a stream have in common. Times are seconds on the caller's clock.

    `output` is for the caller to write and clear. `latencies` are those of finished requests, good ones and
    others.
    """

    def __init__(self, blocks: Iterator[bytes], message: bytes, limit: int) -> None:
        self.output: list[Buffer] = [PREFACE + _our_settings()]
        self.latencies: list[float] = []
        self.failures: Counter[str] = Counter()
        self.answer_bytes = 0
        self._blocks = blocks
        self._message = message
        self._view = memoryview(message)
        self._limit = limit
        self._judge = Blocks()
        self._rest = b""
        self._credit = 0  # received and not yet returned to the peer
        self._window = _DEFAULT_WINDOW
        self._initial = _DEFAULT_WINDOW
        self._frame = 16_384
        # By stream: its window, and how much of its message is sent.
        self._waiting: dict[int, list[int]] = {}
        self._calls = 1

    @property
    def outstanding(self) -> int:
        """Requests that were not answered yet."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether nothing more is expected of the peer."""
        return not self.outstanding

    def fill(self, now: float) -> None:
        """Start as many requests as may be under way."""
        raise NotImplementedError

    def end(self) -> None:
        """Start nothing any more."""

    def receive(self, data: bytes, now: float) -> None:
        """Read what came. Raises Surprise."""
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        unpack = _FRAME.unpack_from
        while end - position >= 9:
            kind, flags, stream = unpack(data, position)
            stop = position + 9 + (kind >> 8)
            if stop > end:
                break
            what = kind & 0xFF
            if what == DATA:
                self._credit += kind >> 8
                self._on_data(stream, data, position + 9, stop, flags, now)
            elif what == HEADERS:
                if flags & (PADDED | PRIORITY | END_HEADERS) != END_HEADERS:
                    raise Surprise("a header block that is padded, prioritised or continued")
                last = flags & END_STREAM != 0
                wrong = self._judge.read(data[position + 9 : stop], last=last)
                if last or wrong:
                    self._on_end(stream, wrong, now)
            else:
                self._control(what, flags, stream, data[position + 9 : stop], now)
            position = stop
        self._rest = data[position:]
        if self._credit > WINDOW // 2:
            self._return_credit()

    def _on_data(self, stream: int, data: bytes, start: int, stop: int, flags: int, now: float) -> None:
        raise NotImplementedError

    def _on_end(self, stream: int, wrong: str | None, now: float) -> None:
        raise NotImplementedError

    def _return_credit(self) -> None:
        self.output.append(frame(WINDOW_UPDATE, 0, 0, self._credit.to_bytes(4, "big")))
        self._credit = 0

    def _control(self, what: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        """Obey a frame that carries no answer; others are ignored (RFC 9113 section 4.1)."""
        if what == WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif what == SETTINGS and not flags & ACK:
            for identifier, value in _SETTING.iter_unpack(payload):
                self._set(identifier, value)
            self.output.append(frame(SETTINGS, ACK, 0))
            self._send_waiting()
        elif what == PING and not flags & ACK:
            self.output.append(frame(PING, ACK, 0, payload))
        elif what == RST_STREAM:
            self._on_end(stream, f"RST_STREAM {int.from_bytes(payload, 'big')}", now)
        elif what == GOAWAY:
            code, debug = int.from_bytes(payload[4:8], "big"), payload[8:].decode(errors="replace")
            raise Surprise(f"GOAWAY {code} {debug}".rstrip())
        elif what == CONTINUATION:
            raise Surprise("a continued header block")

    def _set(self, identifier: int, value: int) -> None:
        if identifier == HEADER_TABLE_SIZE and value < _TABLE:
            raise Surprise(f"a header table of {value} bytes: the blocks were made for {_TABLE}")
        if identifier == MAX_STREAMS and value < self._limit:
            raise Surprise(f"a limit of {value} concurrent streams: {self._limit} were asked for")
        if identifier == INITIAL_WINDOW:
            for state in self._waiting.values():
                state[0] += value - self._initial
            self._initial = value
        if identifier == MAX_FRAME:
            self._frame = value

    def _widen(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._window += increment
        elif stream in self._waiting:
            self._waiting[stream][0] += increment
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send as much as the windows allow of the messages that did not fit into them, oldest first."""
        total = len(self._message)
        for stream, state in list(self._waiting.items()):
            while (size := min(total - state[1], state[0], self._window, self._frame)) > 0:
                sent = state[1] + size
                flags = END_STREAM if sent == total else 0
                self.output += _FRAME.pack(size << 8 | DATA, flags, stream), self._view[state[1] : sent]
                state[0] -= size
                state[1] = sent
                self._window -= size
            if state[1] == total:
                del self._waiting[stream]


class UnaryConnection(Connection):
    """Keeps `limit` unary calls under way, every one with `message` (with its gRPC prefix) as its request."""

    def __init__(self, blocks: Iterator[bytes], message: bytes, limit: int) -> None:
        super().__init__(blocks, message, limit)
        self._began: dict[int, float] = {}
        # Only for a message that fits into one frame.
        self._data_head = (len(message) & 0xFFFFFF).to_bytes(3, "big") + bytes([DATA, END_STREAM])

    @property
    def outstanding(self) -> int:
        """Calls that were not answered yet."""
        return len(self._began)

    def fill(self, now: float) -> None:
        """Start as many calls as may be under way."""
        began, output, message, size = self._began, self.output, self._message, len(self._message)
        for _ in range(self._limit - len(began)):
            block = next(self._blocks)
            stream = self._calls
            self._calls += 2
            began[stream] = now
            head = _FRAME.pack(len(block) << 8 | HEADERS, END_HEADERS, stream) + block
            if size <= self._window and size <= self._frame and size <= self._initial and not self._waiting:
                self._window -= size
                output.append(b"".join((head, self._data_head, stream.to_bytes(4, "big"), message)))
            else:
                output.append(head)
                self._waiting[stream] = [self._initial, 0]
        if self._waiting:
            self._send_waiting()

    def _on_data(self, stream: int, data: bytes, start: int, stop: int, flags: int, now: float) -> None:
        self.answer_bytes += stop - start
        if flags & END_STREAM:
            self._on_end(stream, "no trailers", now)

    def _on_end(self, stream: int, wrong: str | None, now: float) -> None:
        began = self._began.pop(stream, None)
        if began is None:
            return  # a reset after the answer
        self._waiting.pop(stream, None)
        self.latencies.append(now - began)
        if wrong is not None:
            self.failures[wrong] += 1


class ScriptConnection(UnaryConnection):
    """Keeps a unary call under way for each of `scripts`, which goes through its messages again and again."""

    def __init__(self, blocks: Iterator[bytes], scripts: Sequence[Sequence[bytes]]) -> None:
        super().__init__(blocks, scripts[0][0], len(scripts))
        longest = max(len(message) for script in scripts for message in script)
        if longest > self._frame:
            raise ValueError(
                f"a message of {longest} bytes: those of a script are one frame of 16384 at most"
            )
        self._idle: deque[Iterator[bytes]] = deque(map(cycle, scripts))
        self._busy: dict[int, Iterator[bytes]] = {}

    def fill(self, now: float) -> None:
        """Start the next call of every script that has none under way."""
        while self._idle:
            script = self._idle.popleft()
            message, block, stream = next(script), next(self._blocks), self._calls
            self._calls += 2
            self._began[stream] = now
            self._busy[stream] = script
            self._window -= len(message)
            if self._window < 0:
                raise Surprise("the connection's window does not hold one message of each call")
            self.output.append(
                frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, message)
            )

    def _on_end(self, stream: int, wrong: str | None, now: float) -> None:
        super()._on_end(stream, wrong, now)
        script = self._busy.pop(stream, None)
        if script is not None:
            self._idle.append(script)


class StreamConnection(Connection):
    """Keeps `limit` requests under way on one stream, whose answers come in the order of the requests."""

    def __init__(self, blocks: Iterator[bytes], message: bytes, limit: int) -> None:
        super().__init__(blocks, message, 1)
        if len(message) > self._frame:
            raise ValueError(
                f"a message of {len(message)} bytes: requests of a stream are one frame of 16384 at most"
            )
        self._most = limit
        self._began: deque[float] = deque()
        self._part = b""
        self._room = _DEFAULT_WINDOW
        self._open = False
        self._ended = False
        self._over = False
        self._data_frame = frame(DATA, 0, 1, message)

    @property
    def outstanding(self) -> int:
        """Requests that were not answered yet."""
        return len(self._began)

    @property
    def finished(self) -> bool:
        """Whether the stream has its trailers."""
        return self._over

    def fill(self, now: float) -> None:
        """Send as many requests as may be under way and as the windows allow: each is one frame."""
        if not self._open:
            block = next(self._blocks)
            self.output.append(frame(HEADERS, END_HEADERS, 1, block))
            self._open = True
        size = len(self._message)
        number = min(self._most - len(self._began), min(self._room, self._window) // size)
        if number > 0 and not self._ended:
            self._room -= number * size
            self._window -= number * size
            self._began.extend([now] * number)
            self.output.append(self._data_frame * number)

    def end(self) -> None:
        """Half-close: the server answers what it has and then sends trailers."""
        if self._open and not self._ended:
            self.output.append(frame(DATA, END_STREAM, 1))
        self._ended = True

    def _on_data(self, stream: int, data: bytes, start: int, stop: int, flags: int, now: float) -> None:
        self.answer_bytes += stop - start
        part = self._part + data[start:stop] if self._part else data[start:stop]
        position, end = 0, len(part)
        while end - position >= PREFIX_SIZE:
            following = position + PREFIX_SIZE + int.from_bytes(part[position + 1 : position + 5], "big")
            if following > end:
                break
            if not self._began:
                raise Surprise("an answer to no request")
            self.latencies.append(now - self._began.popleft())
            if part[position + PREFIX_SIZE] != _INFER_RESPONSE:
                self.failures[part[position + PREFIX_SIZE : following][:200].decode(errors="replace")] += 1
            position = following
        self._part = part[position:]
        if flags & END_STREAM:
            self._on_end(stream, "no trailers", now)

    def _on_end(self, stream: int, wrong: str | None, now: float) -> None:
        if self._over:
            return
        self._over = True
        if wrong is None and not self._ended:
            wrong = "the stream ended"
        if wrong is not None:
            self.failures[wrong] += 1
            raise Surprise(f"the stream ended early: {wrong}")

    def _return_credit(self) -> None:
        self.output.append(frame(WINDOW_UPDATE, 0, 1, self._credit.to_bytes(4, "big")))
        super()._return_credit()

    def _set(self, identifier: int, value: int) -> None:
        if identifier == INITIAL_WINDOW:
            self._room += value - self._initial
        super()._set(identifier, value)

    def _widen(self, stream: int, increment: int) -> None:
        if stream:
            self._room += increment
        else:
            super()._widen(stream, increment)


def _our_settings() -> bytes:
    """Return SETTINGS (no push, wide windows) and the update that widens the connection's window as well."""
    settings = _SETTING.pack(ENABLE_PUSH, 0) + _SETTING.pack(INITIAL_WINDOW, WINDOW)
    update = (WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")
    return frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, update)
