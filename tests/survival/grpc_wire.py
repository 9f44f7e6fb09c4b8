"""gRPC as frames on a socket: a client that keeps the rules and one that does not.

The first one also notices surplus answers. The code writes frames by hand and reads header blocks with hpack;
messages are those of tritonclient. Nothing here is the server's own code.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import trio
from hpack import Decoder
from tritonclient.grpc import service_pb2 as pb

from chaos.subject.server import PATIENCE
from chaos.wires.http import connect
from tests.fuzz import h2wire as wire
from tests.survival.wire import Lost

SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
STREAM_INFER = SERVICE + "ModelStreamInfer"

OK = 0
FAILED_PRECONDITION = 9
UNAVAILABLE = 14

_WINDOW = 2**30
_FIRST_WINDOW = 65_535
_PIECE = 16_384  # every server takes frames of this size
_DTYPES = {"FP32": np.float32, "INT32": np.int32}


def message(body: bytes, *, compressed: bool = False) -> bytes:
    """Return a message as it lies in DATA frames."""
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


def request_fields(path: str, *more: wire.Field) -> list[wire.Field]:
    """Return the headers of a call."""
    return [(name, path.encode() if name == b":path" else value) for name, value in wire.REQUEST] + list(more)


def inference(model: str, inputs: Mapping[str, np.ndarray[Any, Any]], *, request_id: str = "") -> bytes:
    """Return a ModelInferRequest; tensors are FP32 or INT32."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    for name, array in inputs.items():
        datatype = "FP32" if array.dtype == np.float32 else "INT32"
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one inference: `status` is gRPC's; `response` is empty for an error without one."""

    status: int
    error: str
    response: Any

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return self.status == OK and not self.error

    @property
    def id(self) -> str:
        """The request's id, as it came back."""
        return str(self.response.id)

    @property
    def attempts(self) -> int:
        """How often the request was run."""
        return int(self.response.parameters["attempts"].int64_param or 1)

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs."""
        return {
            output.name: np.frombuffer(raw, _DTYPES[output.datatype]).reshape(output.shape)
            for output, raw in zip(self.response.outputs, self.response.raw_output_contents, strict=True)
        }


class Call:
    """One call of a channel."""

    def __init__(self, channel: Channel, stream: int, window: int) -> None:
        self.stream = stream
        self.window = window  # what we may send
        self.status: int | None = None
        self.details = ""
        self.failure = ""  # why there is neither an answer nor a status
        self._channel = channel
        self._data = bytearray()
        self._messages: deque[bytes] = deque()
        self._bell = trio.lowlevel.ParkingLot()

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.status is not None or bool(self.failure)

    async def send(self, body: bytes, *, end: bool = False) -> None:
        """Send one message. Raises Lost."""
        await self._channel.send_data(self, message(body), end=end)

    async def half_close(self) -> None:
        """Say that no more messages come."""
        await self._channel.send_data(self, b"", end=True)

    async def receive(self) -> bytes | None:
        """Return the next message, or None once the call has ended with a status; else raise Lost."""
        with trio.fail_after(PATIENCE):
            while not self._messages and not self.over:
                await self._bell.park()
        if self._messages:
            return self._messages.popleft()
        if self.failure:
            raise Lost(self.failure)
        return None

    async def answer(self) -> Answer:
        """Return the outcome of a unary inference. Raises Lost, and AssertionError for a second message."""
        body = await self.receive()
        assert body is None or await self.receive() is None, "a second answer to a unary call"
        assert self.status is not None
        assert (body is None) == (self.status != OK), f"status {self.status} with {body!r}"
        return Answer(self.status, self.details, pb.ModelInferResponse.FromString(body or b""))

    async def streamed(self) -> Answer:
        """Return the next answer of a ModelStreamInfer call. Raises Lost where the call has ended."""
        body = await self.receive()
        if body is None:
            raise Lost(f"the stream ended with status {self.status}: {self.details}")
        part = pb.ModelStreamInferResponse.FromString(body)
        return Answer(OK, part.error_message, part.infer_response)

    # Told by the channel

    def data(self, payload: bytes) -> None:
        """Gather messages."""
        self._data += payload
        while len(self._data) >= 5 and len(self._data) >= (end := 5 + int.from_bytes(self._data[1:5], "big")):
            self._messages.append(bytes(self._data[5:end]))
            del self._data[:end]
        self._bell.unpark_all()

    def headers(self, fields: Mapping[str, str]) -> None:
        """Take the status, if the headers hold one."""
        if fields.get(":status", "200") != "200":
            self.fail(f"HTTP status {fields[':status']}")
        if "grpc-status" in fields:
            self.status = int(fields["grpc-status"])
            self.details = unquote(fields.get("grpc-message", ""))
            if self._data:
                self.fail(f"the answer ends in the middle of a message, after {bytes(self._data[:100])!r}")
        self._bell.unpark_all()

    def fail(self, why: str) -> None:
        """Nothing more comes."""
        if not self.over:
            self.failure = why
        self._bell.unpark_all()


class Streamed:
    """Inferences on one open ModelStreamInfer call, any number at a time; answers keep their order."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._asking = trio.Lock()
        self._waiting: deque[trio.MemorySendChannel[Answer]] = deque()
        self._lost = ""
        self._over = trio.Event()

    async def infer(self, model: str, **fields: Any) -> Answer:
        """Have a model infer; see `inference` for the fields. Raises Lost."""
        # A caller that asks in a loop must not stop the other tasks.
        await trio.lowlevel.checkpoint()
        if self._lost:
            raise Lost(self._lost)
        send, receive = trio.open_memory_channel[Answer](1)
        async with self._asking:
            self._waiting.append(send)
            await self._call.send(inference(model, **fields))
        try:
            return await receive.receive()
        except trio.EndOfChannel:
            raise Lost(self._lost) from None

    async def run(self) -> None:
        """Hand out answers until the call is over. Raises AssertionError for an answer to no request."""
        try:
            while True:
                answer = await self._call.streamed()
                assert self._waiting, f"an answer to no request: {answer}"
                self._waiting.popleft().send_nowait(answer)
        except Lost as error:
            self._lost = str(error)
            for each in self._waiting:
                each.close()
            self._over.set()

    async def end(self) -> int | None:
        """End the requests and return the call's status.

        Raises Lost, and AssertionError for surplus answers.
        """
        await self._call.half_close()
        with trio.fail_after(PATIENCE):
            await self._over.wait()
        assert not self._waiting
        return self._call.status

    def close(self) -> None:
        """Nothing; the call goes on until its `end`."""


class Unary:
    """Inferences by separate calls on a shared channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def infer(self, model: str, **fields: Any) -> Answer:
        """Have a model infer; see `inference` for the fields. Raises Lost."""
        return await self._channel.infer(model, **fields)

    def close(self) -> None:
        """Nothing; other callers share the channel."""


class Channel:
    """One connection of a client that keeps the rules. `surplus` holds frames that were forbidden."""

    def __init__(self, stream: trio.SocketStream, *, window: int = _WINDOW) -> None:
        self._stream = stream
        self._inward = window
        self._frames = Frames(stream)
        self._sending = trio.Lock()
        self._bell = trio.lowlevel.ParkingLot()
        self._decoder = Decoder()
        self._ids = itertools.count(1, 2)
        self._calls: dict[int, Call] = {}
        self._window = _FIRST_WINDOW
        self._first_window = _FIRST_WINDOW
        self._taken = 0
        self._ended = False
        self.surplus: list[wire.Frame] = []
        self.goodbye: int | None = None  # the last stream that the server takes

    async def call(self, path: str) -> Call:
        """Open a call. Raises Lost."""
        async with self._sending:
            if self._ended or self.goodbye is not None:
                raise Lost("the server has said goodbye")
            call = Call(self, next(self._ids), self._first_window)
            self._calls[call.stream] = call
            await self._write(wire.headers(call.stream, request_fields(path)))
            return call

    async def infer(self, model: str, **fields: Any) -> Answer:
        """Have a model infer by ModelInfer; see `inference` for the fields."""
        call = await self.call(INFER)
        await call.send(inference(model, **fields), end=True)
        return await call.answer()

    def close(self) -> None:
        """Leave, without saying anything."""
        self._stream.socket.close()

    async def send_data(self, call: Call, data: bytes, *, end: bool) -> None:
        """Send as the windows allow. Raises Lost."""
        view = memoryview(data)
        while True:
            size = min(len(view), _PIECE, call.window, self._window)
            if size or not view:
                call.window -= size
                self._window -= size
                piece, view = view[:size], view[size:]
                last = wire.END_STREAM if end and not view else 0
                async with self._sending:
                    await self._write(wire.data(call.stream, bytes(piece), last))
                if not view:
                    return
            elif call.over or self._ended:
                raise Lost(call.failure or "the call ended while its request was sent")
            else:
                await self._bell.park()

    async def _write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Lost("the connection broke while a request was sent") from error

    async def begin(self) -> None:
        """Send the preface, the settings and a larger window. Raises Lost."""
        first = wire.settings([(wire.INITIAL_WINDOW_SIZE, self._inward)])
        await self._write(wire.PREFACE + first + wire.window_update(0, _WINDOW))

    async def run(self) -> None:
        """Take what the server sends, until it ends the connection."""
        try:
            while (frame := await self._frames.next()) is not None:
                await self._take(frame)
        except (Lost, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._ended = True
            self._fail_all("the connection ended before the answer")

    def _fail_all(self, why: str, *, above: int = 0) -> None:
        for call in list(self._calls.values()):
            if call.stream > above:
                call.fail(why)
        self._bell.unpark_all()

    async def _take(self, frame: wire.Frame) -> None:
        match frame.kind:
            case wire.DATA | wire.HEADERS | wire.RST_STREAM:
                await self._take_of_call(frame)
            case wire.SETTINGS if not frame.flags & wire.ACK:
                await self._apply(frame.payload)
            case wire.PING if not frame.flags & wire.ACK:
                async with self._sending:
                    await self._write(wire.frame(wire.PING, wire.ACK, 0, frame.payload))
            case wire.WINDOW_UPDATE:
                if frame.stream in self._calls:
                    self._calls[frame.stream].window += frame.number()
                elif not frame.stream:
                    self._window += frame.number()
                self._bell.unpark_all()
            case wire.GOAWAY:
                self.goodbye = frame.number() & 2**31 - 1
                self._fail_all("the server said goodbye and did not take this call", above=self.goodbye)

    async def _take_of_call(self, frame: wire.Frame) -> None:
        fields: dict[str, str] = {}
        if frame.kind == wire.HEADERS:
            fields = {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}
        call = self._calls.get(frame.stream)
        if call is None:
            if frame.kind != wire.RST_STREAM:
                self.surplus.append(frame)
        elif frame.kind == wire.HEADERS:
            call.headers(fields)
        elif frame.kind == wire.RST_STREAM:
            call.fail(f"the server reset the stream with {frame.number()}")
        else:
            call.data(frame.payload)
            await self._credit(len(frame.payload))
        if call is not None and (frame.kind == wire.RST_STREAM or frame.flags & wire.END_STREAM):
            call.fail("the stream ended without a status")
            del self._calls[frame.stream]
            self._bell.unpark_all()

    async def _credit(self, size: int) -> None:
        self._taken += size
        if self._taken >= _WINDOW // 2:
            async with self._sending:
                await self._write(wire.window_update(0, self._taken))
            self._taken = 0

    async def _apply(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            key, value = (
                int.from_bytes(payload[at : at + 2], "big"),
                int.from_bytes(payload[at + 2 : at + 6], "big"),
            )
            if key == wire.INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self._first_window
                self._first_window = value
        async with self._sending:
            await self._write(wire.frame(wire.SETTINGS, wire.ACK))


class Frames:
    """Cuts what comes into frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def next(self) -> wire.Frame | None:
        """Return the next frame; None at the end. Raises BrokenResourceError and ClosedResourceError."""
        buffer = self._buffer
        while len(buffer) < 9 or len(buffer) < (end := 9 + int.from_bytes(buffer[:3], "big")):
            data = await self._stream.receive_some(256 * 1024)
            if not data:
                return None
            buffer += data
        number = int.from_bytes(buffer[5:9], "big")
        frame = wire.Frame(buffer[3], buffer[4], number, bytes(buffer[9:end]))
        del buffer[:end]
        return frame


@asynccontextmanager
async def channel_to(port: int, *, window: int = _WINDOW) -> AsyncIterator[Channel]:
    """Open a channel around the block, whose calls accept `window` bytes each and no more.

    Raises OSError, and AssertionError for frames that the client did not ask for.
    """
    async with trio.open_nursery() as nursery:
        channel = Channel(await connect(port), window=window)
        try:
            await channel.begin()
            nursery.start_soon(channel.run)
            yield channel
        finally:
            channel.close()
            nursery.cancel_scope.cancel()
    assert not channel.surplus, channel.surplus[:5]


class Offender:
    """A connection that sends whatever the test says, and remembers what it got."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._frames = Frames(stream)
        self.got: list[wire.Frame] = []
        self.broke = False

    async def begin(self, *settings: tuple[int, int]) -> None:
        """Open as a decent client would."""
        await self.send(wire.PREFACE + wire.settings(settings))

    async def send(self, data: bytes) -> bool:
        """Send; return whether the server still lets us."""
        if self.broke:
            return False
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            self.broke = True
        return not self.broke

    async def flood(self, piece: Callable[[int], bytes], *, most: float = math.inf) -> None:
        """Send `piece(0)`, `piece(1)`, … until the server ends it or `most` pieces are sent.

        Frames from the server are read meanwhile.
        """
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                await self.wait_ended()
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            for number in itertools.count():
                if number >= most or not await self.send(piece(number)):
                    break
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    async def wait_ended(self) -> None:
        """Read until the server has ended the connection."""
        while await self._read() is not None:
            pass

    async def wait_for(self, kind: int, *, flags: int = 0) -> wire.Frame:
        """Read until a frame of this kind has come, with those flags at least. Raises Lost."""
        with trio.fail_after(PATIENCE):
            while (frame := await self._read()) is not None:
                if frame.kind == kind and frame.flags & flags == flags:
                    return frame
        raise Lost("the connection ended before that came")

    async def _read(self) -> wire.Frame | None:
        try:
            frame = await self._frames.next()
        except trio.BrokenResourceError:
            self.broke = True
            return None
        if frame is not None:
            self.got.append(frame)
        return frame

    @property
    def goaways(self) -> list[int]:
        """The error codes of the goodbyes that came."""
        return [frame.number(4) for frame in self.got if frame.kind == wire.GOAWAY]

    def resets(self) -> list[int]:
        """The error codes of the streams that the server reset."""
        return [frame.number() for frame in self.got if frame.kind == wire.RST_STREAM]


@asynccontextmanager
async def offending(port: int, *, receive_buffer: int = 0) -> AsyncIterator[Offender]:
    """Open a connection for an offender around the block."""
    async with await connect(port, receive_buffer=receive_buffer) as stream:
        yield Offender(stream)
