"""The requests of a decoupled model that are open in this worker.

It knows which senders may send, and how much the server has taken.

A model sends from whichever threads it likes, during `execute` and after it. A sender waits while a window of
its own request is on its way (`actors.wire.frames`). So a client which stalls only stalls the thread that serves
it. The thread that reads the connection hands out credit and never waits.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.tensors import pack_bytes
from actors.wire import batch_frames, frames
from actors.wire.arena import align
from actors.wire.batch_frames import LARGEST_TOGETHER, MOST_TOGETHER, Answer, Part, Placed
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS
from engine.worker.backends.base import ResponseSender, SenderClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import Output
    from engine.worker.backends.raw import RawOutput

    Send = Callable[[bytes], None]

_LARGEST_PART = 2**31
_TEXT_LIMIT = 8 * 1024  # characters of an error's message


class Window:
    """What one request has on its way."""

    __slots__ = ("_changed", "_nbytes", "_open", "_parts", "cancelled", "listener")

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._open = True
        self._parts = 0
        self._nbytes = 0
        self.cancelled = False
        self.listener: Callable[[], None] | None = None  # called when the client has gone

    def cancel(self) -> None:
        """The client has gone."""
        self.cancelled = True
        if self.listener is not None:
            self.listener()

    def wait_for_room(self, nbytes: int) -> None:
        """Wait until another part may be sent, and count it. Raises SenderClosed if the server went away."""
        with self._changed:
            while self._open and (self._parts >= WINDOW_PARTS or self._nbytes >= WINDOW_BYTES):
                self._changed.wait()
            if not self._open:
                raise SenderClosed("the server went away while a response waited to be sent")
            self._parts += 1
            self._nbytes += nbytes

    @property
    def full(self) -> bool:
        """Whether `wait_for_room` would wait."""
        return self._open and (self._parts >= WINDOW_PARTS or self._nbytes >= WINDOW_BYTES)

    def credit(self, parts: int, nbytes: int) -> None:
        """The server has got rid of so much."""
        with self._changed:
            self._parts -= parts
            self._nbytes -= nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """There will be no more credit."""
        with self._changed:
            self._open = False
            self._changed.notify_all()


class Bundle:
    """Short parts that one thread sends together."""

    __slots__ = ("_packets", "_send", "thread")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._packets: list[bytes] = []
        self.thread = threading.get_ident()

    def add(self, packet: bytes) -> None:
        """Send a packet, at once or with the others; they keep their order."""
        if len(packet) > LARGEST_TOGETHER:
            self.flush()
            self._send(packet)
            return
        self._packets.append(packet)
        if len(self._packets) == MOST_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        packets, self._packets = self._packets, []
        if packets:
            self._send(packets[0] if len(packets) == 1 else batch_frames.join_parts(packets))


class OpenRequests:
    """Every request that has not had its last response, by batch and place in it."""

    def __init__(self, send: Send, model_name: str) -> None:
        self.send = send
        self.model_name = model_name
        self._windows: dict[tuple[int, int], Window] = {}
        self._closed = False
        self._bundle: Bundle | None = None
        self.forked = False  # this process is not the worker, but one that it has forked

    def open(self, batch_id: int, index: int) -> Window:
        """Begin with a request."""
        window = self._windows[batch_id, index] = Window()
        if self._closed:
            window.close()
        return window

    def forget(self, batch_id: int, index: int) -> None:
        """A request has had its last response."""
        self._windows.pop((batch_id, index), None)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Have the short parts that this thread sends leave together. One thread at a time can."""
        if self._bundle is not None:
            yield
            return
        bundle = self._bundle = Bundle(self.send)
        try:
            yield
        finally:
            self._bundle = None
            bundle.flush()

    def own_bundle(self) -> Bundle | None:
        """Return what the parts of this thread are put into, if they leave together."""
        bundle = self._bundle
        return bundle if bundle is not None and bundle.thread == threading.get_ident() else None

    def on_credit(self, packet: bytes) -> None:
        """Hand out credit; credit for a request that has ended is dropped."""
        batch_id, index, parts, nbytes = frames.decode_credit(packet)
        window = self._windows.get((batch_id, index))
        if window is not None:
            window.credit(parts, nbytes)

    def on_cancel(self, packet: bytes) -> None:
        """A client has gone."""
        window = self._windows.get(frames.decode_cancel(packet))
        if window is not None:
            window.cancel()

    def close(self) -> None:
        """The server said stop, or went away: no thread may go on waiting for it."""
        self._closed = True
        for window in list(self._windows.values()):
            window.close()


class WorkerSender(ResponseSender):
    """Sends the responses to one request. When its last reference is dropped, the request is over."""

    def __init__(
        self, requests: OpenRequests, window: Window, batch_id: int, index: int, wanted: Sequence[str]
    ) -> None:
        self._requests = requests
        self._window = window
        self._batch_id = batch_id
        self._index = index
        self._wanted = wanted
        self._order = threading.Lock()  # of the frames of one part
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the last response has been sent."""
        return self._closed

    def send(
        self,
        outputs: Sequence[Output],
        parameters: Mapping[str, Parameter] | None = None,
        *,
        final: bool = False,
    ) -> None:
        """Send a response. See `ResponseSender.send`."""
        batch_frames.check_parameters(parameters or {})
        placed, data = _laid_out([output for output in outputs if output[0] in self._wanted])
        self._send(Answer(placed, parameters), data, final=final)

    def send_raw(
        self,
        outputs: Sequence[RawOutput],
        parameters: Mapping[str, Parameter] | None = None,
        *,
        final: bool = False,
    ) -> None:
        """Send a response of bytes. See `ResponseSender.send_raw`."""
        batch_frames.check_parameters(parameters or {})
        wanted = (output for output in outputs if output.name in self._wanted)
        placed, data = _put_together([(each.name, each.datatype, each.shape, each.data) for each in wanted])
        self._send(Answer(placed, parameters), data, final=final)

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call back once the client has gone. See `ResponseSender.when_cancelled`."""
        self._window.listener = callback
        if self._window.cancelled:
            callback()

    def fail(self, code: ErrorCode, message: str, *, final: bool = True) -> None:
        """Send an error. See `ResponseSender.fail`."""
        self._send(Answer(code=code, message=message[:_TEXT_LIMIT]), b"", final=final)

    def finish(self) -> None:
        """Say that there are no more responses. See `ResponseSender.finish`."""
        self._send(None, b"", final=True)

    def would_wait(self) -> bool:
        """Whether `send` would wait now. See `ResponseSender.would_wait`."""
        return self._window.full

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Have short parts leave together. See `ResponseSender.together`."""
        return self._requests.together()

    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._window.cancelled

    def abandon(self) -> bool:
        """Close it without a response: the request is to run again.

        False if the last response has been sent.
        """
        with self._order:
            if self._closed:
                return False
            self._closed = True
            return True

    def _send(self, answer: Answer | None, data: bytes, *, final: bool) -> None:
        packets = Part(self._batch_id, self._index, answer, data, len(data), final=final).packets()
        if self._requests.forked:
            raise SenderClosed(
                "a response must be sent by the model's own process, and not by one that it has forked"
            )
        with self._order:
            if self._closed:
                raise SenderClosed("the last response to this request has been sent already")
            bundle = self._requests.own_bundle()
            if data or not final:
                if bundle is not None and self._window.full:
                    bundle.flush()  # the window may be full of what waits here
                self._window.wait_for_room(len(data))
            if final:
                self._closed = True
                self._requests.forget(self._batch_id, self._index)
            send = self._requests.send if bundle is None else bundle.add
            for packet in packets:
                send(packet)

    def __del__(self) -> None:
        if not self._closed:
            # There is nothing left that could be told.
            with contextlib.suppress(Exception):
                self.fail(
                    ErrorCode.INTERNAL,
                    f"model '{self._requests.model_name}' let go of a request without its final response",
                )


def _laid_out(outputs: Sequence[Output]) -> tuple[list[Placed], bytes]:
    """Return where each output lies in the bytes of all. Raises ValueError if they are too many."""
    packed = [(name, datatype, array.shape, _packed(datatype, array)) for name, datatype, array in outputs]
    return _put_together(packed)


def _put_together(
    outputs: Sequence[tuple[str, DataType, Sequence[int], bytes]],
) -> tuple[list[Placed], bytes]:
    placed = []
    pieces: list[bytes] = []
    at = 0
    for name, datatype, shape, data in outputs:
        start = align(at)
        pieces += (bytes(start - at), data)
        placed.append(Placed(name, datatype, shape, start, len(data)))
        at = start + len(data)
    if at > _LARGEST_PART:
        raise ValueError(f"a response of {at} bytes; send at most {_LARGEST_PART} in one")
    return placed, pieces[1] if len(placed) == 1 else b"".join(pieces)


def _packed(datatype: DataType, array: np.ndarray[Any, Any]) -> bytes:
    if datatype is DataType.BYTES:
        return pack_bytes(array.ravel().tolist())
    return array.astype(datatype.numpy, copy=False).tobytes()
