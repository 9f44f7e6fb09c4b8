"""The requests of a decoupled model that are open in one worker: their parts, and the worker's credit.

Plain functions that never wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from actors.seams.steps import Steps
from actors.serving.instances.batches import HeldBatches, InFlight
from actors.serving.instances.pipe import Pipe
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor
from actors.wire import batch_frames, frames
from actors.wire.frames import FrameError
from actors.wire.gathering import Cut, outputs_of
from actors.wire.parts import Arrived, PartStream

OPEN_LIMIT: Final = 1024
"""Requests of a decoupled model that may be open in one worker.

While so many are open, no other batch is dispatched.
"""

Slow = Callable[[], Steps[None]]
"""The remaining work on a packet. Each call begins it anew, see `LiveWorker.on_packet`."""


class OpenStreams:
    """The answers that come in parts, by batch and place in it."""

    def __init__(
        self,
        pipe: Pipe,
        spec: ModelSpec,
        held: HeldBatches,
        *,
        on_part: Callable[[InFlight, Arrived], None],
        on_room: Callable[[], None],
    ) -> None:
        """`on_part` is given each part, `on_room` is called when no longer too many are open."""
        self.crowded = False  # as many requests are open as are allowed
        # When one of its requests last stopped waiting for a client.
        self.moved_at = -math.inf
        self._pipe = pipe
        self._spec = spec
        self._held = held
        self._on_part = on_part
        self._on_room = on_room
        self._streams: dict[tuple[int, int], PartStream] = {}
        self._stream_of: dict[InferRequest, PartStream] = {}
        self._unread = False  # the worker does not read its credit
        self._disowned = False

    @property
    def wait_for_clients(self) -> bool:
        """Whether the model may be waiting for a client to read."""
        return any(stream.exhausted for stream in self._streams.values())

    def open(self, batch: InFlight) -> None:
        """A batch is handed over."""
        batch.open = len(batch.requests)
        for index, request in enumerate(batch.requests):
            stream = PartStream(batch.id, index, request, self._grant)
            self._streams[batch.id, index] = self._stream_of[request] = stream
        self.crowded = len(self._streams) >= OPEN_LIMIT

    def forget(self, batch: InFlight) -> None:
        """A batch was taken back."""
        for index, request in enumerate(batch.requests):
            self._streams.pop((batch.id, index), None)
            self._stream_of.pop(request, None)
        self.crowded = len(self._streams) >= OPEN_LIMIT

    def close_answered(self, batch: InFlight, answers: Sequence[Cut]) -> None:
        """An execution is over: close the streams of requests that it answered in one piece."""
        closed = [index for index, (_, _, answer) in enumerate(answers) if answer is None or not answer.open]
        for index in closed:
            if (batch.id, index) not in self._streams:
                raise FrameError(f"a second answer to request {index} of batch {batch.id}")
        for index in closed:
            self._end(batch, self._streams[batch.id, index])
        if batch.open:
            self._held.open[batch.id] = batch

    def _end(self, batch: InFlight, stream: PartStream) -> None:
        del self._streams[stream.batch_id, stream.index]
        del self._stream_of[stream.request]
        stream.done = True
        if stream.exhausted:
            self.moved_at = trio.current_time()
        batch.open -= 1
        if not batch.open:
            self._held.open.pop(batch.id, None)
            self._held.note_end()
        if self.crowded:
            self.crowded = len(self._streams) >= OPEN_LIMIT
            self._on_room()

    def on_part(self, packet: bytes) -> Slow | None:
        """Handle a part, or its beginning. See `LiveWorker.on_packet`."""
        part = batch_frames.Part.decode(packet)
        stream = self._stream(part.batch_id, part.index)
        return None if stream is None else self._take(stream, stream.receive(part))

    def on_parts(self, packet: bytes) -> None:
        """Handle several parts, of several requests. None of them takes long."""
        for each in batch_frames.split_parts(packet):
            part = batch_frames.Part.decode(each)
            if len(part.data) < part.nbytes:
                raise FrameError(f"a part of {part.nbytes} bytes in one frame with others")
            stream = self._stream(part.batch_id, part.index)
            if stream is not None and self._take(stream, stream.receive(part)) is not None:
                raise FrameError("a part that takes long in one frame with others")

    def on_more(self, packet: bytes) -> Slow | None:
        """Handle more of a part. See `LiveWorker.on_packet`."""
        batch_id, index, data = frames.decode_more(packet)
        stream = self._stream(batch_id, index)
        return None if stream is None else self._take(stream, stream.receive_more(data))

    def _stream(self, batch_id: int, index: int) -> PartStream | None:
        """Return the stream that a frame is for; None if its answer is no longer needed."""
        if self._unread:
            raise FrameError("a worker sends part after part and never reads its credit")
        stream = self._streams.get((batch_id, index))
        if stream is None and not self._disowned:
            raise FrameError(f"a part of request {index} of batch {batch_id}, which is not open")
        return stream

    def _take(self, stream: PartStream, part: batch_frames.Part | None) -> Slow | None:
        if part is None:
            return None
        outputs, checking = outputs_of(part, stream.request, self._spec)
        if checking is not None:
            return partial(self._deliver_slowly, stream, part, outputs, checking)
        self._deliver(stream, part, outputs)
        return None

    def _deliver_slowly(
        self,
        stream: PartStream,
        part: batch_frames.Part,
        outputs: list[Tensor],
        checking: Callable[[], Iterator[None]],
    ) -> Steps[None]:
        for _ in checking():
            yield None
        if self._streams.get((stream.batch_id, stream.index)) is stream:  # the answer is still needed
            self._deliver(stream, part, outputs)

    def _deliver(self, stream: PartStream, part: batch_frames.Part, outputs: list[Tensor]) -> None:
        batch = self._held.outstanding.get(stream.batch_id) or self._held.open[stream.batch_id]
        arrived = Arrived(stream, part, outputs)
        if part.final:
            self._end(batch, stream)
        self._on_part(batch, arrived)

    def _grant(self, stream: PartStream, parts: int, nbytes: int, waited: bool) -> None:
        # No request can have more than two frames of credit unread.
        if self._pipe.backlog > 2 * OPEN_LIMIT:
            self._unread = True
            return
        if waited:
            self.moved_at = trio.current_time()
        self._pipe.send_nowait(frames.encode_credit(stream.batch_id, stream.index, parts, nbytes))

    def of(self, request: InferRequest) -> PartStream | None:
        """Return the stream of a request; None if it is not open."""
        return self._stream_of.get(request)

    def disown(self) -> None:
        """All open requests are answered already: drop what comes for them."""
        self._disowned = True
        self.clear()

    def clear(self) -> None:
        """The worker is gone, or its answers are not needed."""
        self._streams.clear()
        self._stream_of.clear()
