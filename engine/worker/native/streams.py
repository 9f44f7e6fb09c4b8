"""The open requests of a decoupled model: their responses come from any thread of the library, in any order.

One thread takes what the shim has queued and sends it on. It must not wait for one client while others have
responses: once a request's client does not take them, that request gets a thread of its own until they are
sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode
from engine.worker.backends.base import SenderClosed
from engine.worker.native.descriptions import FINAL, GONE, Event, Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.worker.backends.base import ResponseSender
    from engine.worker.native.shim import Shim


class Stream:
    """The responses of one request, in order."""

    def __init__(self, sender: ResponseSender) -> None:
        self._sender: ResponseSender | None = sender
        self._waiting: deque[Event] = deque()
        self._lock = threading.Lock()
        self._apart = False  # a thread of its own is sending

    def put(self, event: Event) -> None:
        """Send on what has come, or keep it behind what its client has not taken yet."""
        with self._lock:
            self._waiting.append(event)
            if self._apart:
                return
            if self._sender is not None and self._sender.would_wait():
                self._apart = True
                threading.Thread(target=self._send_apart, name="stream", daemon=True).start()
                return
        self._pass_on(self._waiting.popleft())

    def _send_apart(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._apart = False
                    return
                event = self._waiting.popleft()
            self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        sender = self._sender
        if sender is None:
            return
        final = bool(event.kind & FINAL)
        with contextlib.suppress(SenderClosed):
            if isinstance(event.response, Failure):
                sender.fail(event.response.code, event.response.message, final=final)
            elif event.response is not None:
                try:
                    sender.send_raw(event.response.outputs, event.response.parameters, final=final)
                except (ValueError, TypeError) as error:
                    sender.fail(ErrorCode.INTERNAL, f"a response can't be sent: {error}", final=final)
            elif final:
                sender.finish()
        if event.kind & GONE:
            # A sender without its final response says so when it is let go.
            self._sender = None


class OpenBatch:
    """A batch some of whose requests can still be answered. It keeps the memory of their inputs."""

    def __init__(self, senders: Sequence[ResponseSender], keep: Any) -> None:
        self.keep = keep
        self.streams = [Stream(sender) for sender in senders]
        self.left = len(senders)
        self.handle = 0  # once Execute has returned


class OpenBatches:
    """All open batches of a model, and the thread that sends on what becomes of them."""

    def __init__(self, shim: Shim, model: int, names: Sequence[str]) -> None:
        self._shim = shim
        self._model = model
        self._names = names
        self._open: dict[int, OpenBatch] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def begin(self, token: int, senders: Sequence[ResponseSender], flags: bytearray, keep: Any) -> None:
        """A batch is about to be executed. `flags` are set for requests whose clients go."""
        self._open[token] = OpenBatch(senders, (flags, keep))
        for index, sender in enumerate(senders):
            sender.when_cancelled(_setter(flags, index))

    def returned(self, token: int, handle: int) -> None:
        """The library's Execute has returned without an error."""
        self._settle(token, handle=handle)

    def abandon(self, token: int, handle: int, failure: Failure) -> None:
        """The library has refused a batch: its requests get the error."""
        with self._changed:
            opened = self._open.pop(token)
            self._shim.free("batch", handle)
            self._changed.notify_all()
        for stream in opened.streams:
            stream.put(Event(token, 0, FINAL | GONE, failure))

    def wait_empty(self, timeout: float) -> bool:
        """Wait until no request is open, up to `timeout` seconds; return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def close(self) -> None:
        """End the thread. No request is open."""
        self._shim.close(self._model)
        self._thread.join()

    def _settle(self, token: int, *, handle: int = 0) -> None:
        """Let go of a batch when Execute has returned and no request of it can be answered any more."""
        with self._changed:
            opened = self._open[token]
            if handle:
                opened.handle = handle
            else:
                opened.left -= 1
            if opened.handle and not opened.left:
                del self._open[token]
                self._shim.free("batch", opened.handle)
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            data = self._shim.next(self._model)
            if data is None:
                return
            for event in self._shim.reading(data, self._names).events():
                opened = self._open.get(event.token)
                if opened is None:  # its batch was refused, and answered nevertheless
                    continue
                opened.streams[event.index].put(event)
                if event.kind & GONE:
                    self._settle(event.token)


def _setter(flags: bytearray, index: int) -> Callable[[], None]:
    def cancel() -> None:
        flags[index] = 1

    return cancel
