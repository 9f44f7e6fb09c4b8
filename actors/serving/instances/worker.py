"""One live worker as the server sees it: its slots, the batches that it works on, and its messages.

Plain functions that never wait: an instance actor feeds packets in, the scheduler puts batches in. Results go
to the model's state, which answers the requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Protocol

import trio

from actors.seams import faults
from actors.seams.slices import Steps, passing
from actors.serving.asks import WorkerAsks
from actors.serving.instances.batches import InFlight
from actors.serving.instances.filling import FILLED_AT_ONCE, Filler
from actors.serving.instances.pipe import Pipe
from actors.values.requests import InferRequest
from actors.values.specs import InstanceSpec, ModelSpec
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import INPUT, MAX_CANCELLABLE, OUTPUT, ControlPage, Segment
from actors.wire.frames import FrameError
from actors.wire.gathering import Cut, Gather, Scatter, default_metadata, outputs_of
from actors.wire.parts import Arrived, PartStream
from actors.wire.slots import Slot

SPARE_SLOTS: Final = 2
"""Slots beyond those that may execute or be prefetched.

So responses that are being sent don't hold up the next batch.
"""

OPEN_LIMIT: Final = 1024
"""Requests of a decoupled model that may be open in one worker.

While so many are open, no other batch is dispatched.
"""

LOG_LEVELS: Final = frozenset({"info", "warning", "error", "verbose"})

_LARGEST_OUTPUT: Final = 64 * 1024 * 1024 * 1024
_MOST_TEXTS: Final = 16


Slow = Callable[[], Steps[None]]
"""The remaining work on a packet. Each call begins it anew, see `LiveWorker.on_packet`."""


class WorkerEvents(Protocol):
    """What a live worker tells its owner. The calls are synchronous, while a packet is handled."""

    def ready(self) -> None:
        """The model is loaded."""

    def unconfined(self, missing: Sequence[str]) -> None:
        """The worker could not impose some limits on itself, each given with its reason."""

    def load_failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded; the worker is about to exit."""

    def finished(
        self, batch: InFlight, result: frames.Result, answers: Sequence[Cut], *, borrowed: bool
    ) -> None:
        """A batch is done.

        The slot's execution lease ends when this returns; `borrowed` answers need leases of their own.
        """

    def part(self, batch: InFlight, arrived: Arrived) -> None:
        """A part of a decoupled model's answer has come."""

    def logged(self, level: str, message: str) -> None:
        """The model wrote a log line."""

    def slot_freed(self) -> None:
        """Another batch may be dispatched."""


class LiveWorker:
    """The connection to one worker, from launch to death. Never awaits."""

    def __init__(
        self, pipe: Pipe, spec: ModelSpec, instance: InstanceSpec, events: WorkerEvents, *, prefetch: bool
    ) -> None:
        self.pipe = pipe
        self.outstanding: dict[int, InFlight] = {}
        self.took = 0.0  # seconds that the last batch to finish executed
        # Batches of a decoupled model that have executed, and still have requests to answer.
        self.open: dict[int, InFlight] = {}
        self.given = 0  # requests so far
        self.serving_since = math.inf  # since when it may be given clients' requests
        self.farewell = "stopped"  # why it ends, if that is no death
        self._tell_idle: Callable[[], None] | None = None
        self.asks: WorkerAsks | None = None  # what it asks for, if it may ask
        self._spec = spec
        self._events = events
        self._lanes = instance.lanes
        self._capacity = instance.lanes * (2 if prefetch else 1)
        self._slot_count = self._capacity + SPARE_SLOTS
        self._cancellable = min(MAX_CANCELLABLE, max(1, spec.max_batch_size))
        self._next_id = 1
        self._taken_back: dict[int, InFlight] = {}  # batches whose frames the worker has still to skip
        control = Segment.create(ControlPage.size_for(self._slot_count, self._cancellable), "tritium-control")
        self._control = ControlPage(control, instance.lanes, self._cancellable)
        self.has_check = False  # the model has a readiness check of its own
        self._probing = False  # it has been asked, and has not answered
        self._disowned = False
        self._curious: list[Callable[[bool], None]] = []
        self._decoupled = spec.decoupled
        self._streams: dict[tuple[int, int], PartStream] = {}  # by batch and place in it
        self._stream_of: dict[InferRequest, PartStream] = {}
        self._crowded = False  # as many requests are open as are allowed
        # When one of its requests last stopped waiting for a client.
        self._moved_at = -math.inf
        self._unread = False  # the worker does not read its credit
        self.filler = Filler(self._on_filled)
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._handlers: dict[int, Callable[[bytes], Slow | None]] = {
            frames.RESULT: self._on_result,
            frames.READY: self._on_ready,
            frames.PROBED: self._on_probed,
            frames.LOAD_FAILED: self._on_load_failed,
            frames.ROOM: self._on_room,
            frames.SKIPPED: self._on_skipped,
            frames.LOG: self._on_log,
            frames.SPILLED: self._on_spilled,
        }
        if spec.decoupled:
            self._handlers[frames.PART] = self._on_part
            self._handlers[frames.MORE] = self._on_more

    def load(
        self, backend: str, model: dict[str, object], limits: dict[str, int], calls: int | None = None
    ) -> None:
        """Tell the worker what to load. `backend` is `module:Class`; `model` are the fields of `ModelInfo`.

        `calls` is the descriptor of the worker's end of the connection on which it may call; it stays the
        caller's.
        """
        body = json.dumps(
            {
                "backend": backend,
                "model": model,
                "limits": limits,
                "lanes": self._lanes,
                "slots": self._slot_count,
                "cancellable": self._cancellable,
                "control_size": self._control.segment.size,
            }
        ).encode()
        letter = Segment.create(max(len(body), 1), "tritium-load")
        letter.view[: len(body)] = body
        descriptors = (self._control.segment.fd, letter.fd, *(() if calls is None else (calls,)))
        self.pipe.send_nowait(bytes((frames.LOAD,)), descriptors)
        letter.close_fd()
        self._control.segment.close_fd()
        self._slots = [Slot(index, self._send_segment, self._on_free) for index in range(self._slot_count)]
        self._free = self._slots[::-1]

    def _send_segment(self, slot: int, side: int, segment: Segment) -> None:
        self.pipe.send_nowait(frames.encode_segment(slot, side, segment.size), (segment.fd,))

    @property
    def idle(self) -> bool:
        """Whether it holds no batch."""
        return not self.outstanding and not self.open

    def when_idle(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the worker holds no batch: now, or when it has answered its batches or is gone."""
        self._tell_idle = tell
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self._tell_idle is not None and self.idle:
            tell, self._tell_idle = self._tell_idle, None
            tell()

    @property
    def waiting(self) -> int:
        """How many of its requests wait behind those that execute."""
        return sum(len(each.requests) for each in self.outstanding.values() if each.began_at == math.inf)

    @property
    def free_lanes(self) -> int:
        """How many batches could begin to execute at once.

        Zero or less means that a further batch would wait behind others.
        """
        return self._lanes - len(self.outstanding)

    @property
    def slots_in_use(self) -> int:
        """How many slots are leased: by batches, and by responses that view data in them."""
        return len(self._slots) - len(self._free)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be dispatched."""
        held = len(self.outstanding) + len(self._taken_back)
        return (
            held < self._capacity
            and bool(self._free)
            and not self._crowded
            and self.filler.batch is None  # a frame must not overtake the previous batch's frame
        )

    @property
    def busy_since(self) -> float:
        """When the last of its lanes was given its execution; infinite while a lane is free."""
        lanes = self._lanes
        if len(self.outstanding) < lanes:
            return math.inf
        return max(batch.since for batch in islice(self.outstanding.values(), lanes))

    @property
    def stuck_since(self) -> float:
        """Since when each of its lanes has been busy with one execution, without progress.

        Infinite while a lane is free, or while the worker may be waiting for a client to read.
        """
        if self._waits_for_clients():
            return math.inf
        # A batch that was taken back keeps its lane until the worker has skipped it. A stopped worker never
        # does.
        held = chain(self.outstanding.values(), self._taken_back.values())
        begun = sorted(batch.began_at for batch in held if batch.began_at < math.inf)
        return math.inf if len(begun) < self._lanes else max(self._moved_at, begun[self._lanes - 1])

    def not_begun(self) -> list[InFlight]:
        """Return the batches that the model has not begun, oldest first, as far as the worker says now."""
        begun = self._control.executing()
        return [batch for batch in self.outstanding.values() if batch.id not in begun]

    def holding(self, request: InferRequest) -> InFlight | None:
        """Return the batch with `request` that is not known to be over; None if there is none."""
        return next((batch for batch in self.outstanding.values() if request in batch.requests), None)

    def take_back(self, batch: InFlight, now: float) -> bool:
        """Keep the worker from beginning with `batch`. False if it has begun, and nothing has changed.

        If this succeeds, the requests are the caller's, as if they had never been dispatched. See
        `actors.wire.arena`, "Claims".
        """
        if not self._control.take_back(batch.slot.index):
            return False
        del self.outstanding[batch.id]
        filling = batch is self.filler.batch
        if filling:
            # The worker was never sent the batch, and has nothing to skip.
            self.filler.stop()
        else:
            self._taken_back[batch.id] = batch
        self.given -= len(batch.requests)
        for request in batch.requests:
            request.attempts -= 1
        if self._decoupled:
            self._forget_streams(batch)
        self.advance(now)
        if filling:
            batch.slot.release()
        self._tell_if_idle()
        return True

    def _forget_streams(self, batch: InFlight) -> None:
        for index, request in enumerate(batch.requests):
            self._streams.pop((batch.id, index), None)
            self._stream_of.pop(request, None)
        self._crowded = len(self._streams) >= OPEN_LIMIT

    def dispatch(self, requests: Sequence[InferRequest], *, now: float, alone: bool = False) -> InFlight:
        """Gather a batch into a free slot and send it off. Requires `has_room`.

        Raises OSError where the system has no memory or descriptor for a segment; then nothing has happened.
        """
        slot = self._free.pop()
        slot.lease()
        begins = now if len(self.outstanding) < self._lanes else math.inf
        batch = InFlight(self._next_id, requests, slot, alone=alone, began_at=begins)
        try:
            self._send(batch)
        except BaseException:
            slot.release()
            raise
        self._next_id += 1
        self.given += len(requests)
        self.outstanding[batch.id] = batch
        if self._decoupled:
            self._open_streams(batch)
        for request in requests:
            request.attempts += 1
        return batch

    def _open_streams(self, batch: InFlight) -> None:
        batch.open = len(batch.requests)
        for index, request in enumerate(batch.requests):
            stream = PartStream(batch.id, index, request, self._grant)
            self._streams[batch.id, index] = self._stream_of[request] = stream
        self._crowded = len(self._streams) >= OPEN_LIMIT

    def _send(self, batch: InFlight) -> None:
        slot, requests = batch.slot, batch.requests
        gather = Gather(requests, self._spec)
        used = gather.nbytes
        told = [{} if request.padding else default_metadata(request, self._spec) for request in requests]
        rows = [request.rows for request in requests]
        packet = frames.Execute(
            batch.id, slot.index, rows, gather.inputs, told if any(told) else None
        ).encode()
        spilled = len(packet) if len(packet) > frames.MAX_FRAME else 0
        slot.make_room(INPUT, used + spilled)
        view = slot.segments[INPUT].view
        if spilled:
            view[used : used + spilled] = packet
            packet = frames.encode_spilled(slot.index, INPUT, used, spilled)
        self._control.offer(slot.index, len(requests))
        if used > FILLED_AT_ONCE:
            batch.began_at = math.inf
            self.filler.begin(batch, gather, view, packet)
            return
        gather.copy_into(view)
        passing.batches += 1
        self.pipe.send_nowait(packet)

    def _on_filled(self, batch: InFlight, frame: bytes) -> None:
        self.pipe.send_nowait(frame)
        if batch in islice(self.outstanding.values(), self._lanes):
            batch.began_at = trio.current_time()
        self._events.slot_freed()  # another batch may be dispatched now

    def advance(self, now: float, *, ended: InFlight | None = None) -> None:
        """A batch has finished at `now`, or was taken back: the next in line begins."""
        if ended is not None:
            self.took = now - ended.since
        for batch in islice(self.outstanding.values(), self._lanes):
            if batch is not self.filler.batch:
                batch.began_at = min(batch.began_at, now)
        if self._taken_back and len(self.outstanding) < self._lanes:
            for batch in self._taken_back.values():  # the worker has only to skip them
                batch.began_at = min(batch.began_at, now)

    def overdue(self, began_before: float) -> InFlight | None:
        """Return a batch that began before `began_before` and is not done.

        For a batch of a decoupled model, the time of its last part counts instead.

        A batch that was taken back is overdue like any other: a worker that has nothing else to do and does
        not skip it reads nothing. While one of a decoupled model's requests waits for its client, the model
        may be waiting with it, and no batch is overdue.
        """
        if self._moved_at > began_before or self._waits_for_clients():
            return None
        return next((batch for batch in self._held() if batch.began_at <= began_before), None)

    def oldest_began_at(self) -> float:
        """When the longest-running batch began or last showed progress; infinite if none may be overdue."""
        if self._waits_for_clients():
            return math.inf
        return max(self._moved_at, min((batch.began_at for batch in self._held()), default=math.inf))

    def _held(self) -> Iterator[InFlight]:
        return chain(self._taken_back.values(), self.outstanding.values(), self.open.values())

    def _waits_for_clients(self) -> bool:
        return any(stream.exhausted for stream in self._streams.values())

    def stop_prefetching(self) -> None:
        """Let no further batch wait behind an execution here, while another instance may be free.

        The execution may have to wait for other models.
        """
        self._capacity = self._lanes

    def executing_now(self) -> list[InFlight]:
        """Return the batches that have a lane, and that the worker has been sent."""
        having_lanes = islice(self.outstanding.values(), self._lanes)
        return [batch for batch in having_lanes if batch is not self.filler.batch]

    def cancel(self, request: InferRequest) -> None:
        """Flag a running request as unwanted; the model may look at the flag, or not.

        What the worker asks for on its behalf is cancelled.
        """
        if self.asks is not None:
            self.asks.cancelled(request)
        if self._decoupled:
            stream = self._stream_of.get(request)
            if stream is not None:
                self._cancel_stream(stream)
            return
        for batch in self.outstanding.values():
            place = batch.place_of(request)
            if place is not None:
                self._control.cancel(batch.slot.index, place)
                return

    def _cancel_stream(self, stream: PartStream) -> None:
        """Cancel by frame, and on the control page.

        The worker looks at the page as it begins with a batch. The frame may come before that.
        """
        batch = self.outstanding.get(stream.batch_id)
        if batch is not None:
            self._control.cancel(batch.slot.index, stream.index)
        self.pipe.send_nowait(frames.encode_cancel(stream.batch_id, stream.index))

    def probe(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` with the model's own readiness: now, or once the worker has answered.

        Callers that ask in the meantime share the answer. The worker is asked while it executes.
        """
        if not self.has_check:
            tell(True)
            return
        self._curious.append(tell)
        if not self._probing:
            self._probing = True
            self.pipe.send_nowait(bytes((frames.PROBE,)))

    def forget(self, tell: Callable[[bool], None]) -> None:
        """A caller of `probe` no longer waits."""
        if tell in self._curious:
            self._curious.remove(tell)

    def disown(self) -> None:
        """The batches that the worker holds are answered already: drop its results."""
        self._disowned = True
        self._let_go()

    def _let_go(self) -> None:
        self.filler.stop()
        self.outstanding.clear()
        self._taken_back.clear()
        self.open.clear()
        self._streams.clear()
        self._stream_of.clear()
        self._tell_if_idle()

    def stop(self) -> None:
        """Ask the worker to finish what it has and exit."""
        self.pipe.send_nowait(bytes((frames.STOP,)))

    def executing(self) -> frozenset[int]:
        """Return the ids of batches that the model had begun: by the control page, or as still open."""
        return self._control.executing() | self.open.keys()

    def close(self) -> None:
        """The worker is gone: close the connection, and let go of the segments that no response views."""
        self.pipe.close()
        self._answer_the_curious(said=False)
        self._let_go()
        self._slots.clear()
        self._free.clear()
        self._handlers.clear()
        self.asks = None
        self._control.segment.close_fd()  # `load` may not have run
        self._control.close()

    def trimming(self) -> Steps[None]:
        """Return memory of slots that nothing used for a while. Yields between pieces of work."""
        for slot in tuple(self._free):
            for _ in slot.trimming():
                yield None

    def emptying(self) -> Steps[None]:
        """The worker is dead, and all that it held is settled: return the memory of its slots.

        Yields like `trimming`; `close` would do it in one piece.
        """
        for slot in self._slots:
            for _ in slot.emptying():
                yield None

    def on_packet(self, packet: bytes) -> Slow | None:
        """Handle one packet. Raises FrameError: the worker is broken or hostile and must be killed.

        If that takes long, return the remaining work. It must be done in slices, before any other packet is
        handled, and it may be given up and done anew.
        """
        if faults.points is not None:
            faults.points.passing("instance.packet")
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise FrameError(f"a worker sent a frame of kind {packet[0]}, which is none of its own")
        return handler(packet)

    def _on_result(self, packet: bytes) -> Slow | None:
        result = frames.Result.decode(packet, decoupled=self._decoupled)
        batch = self.outstanding.get(result.batch_id)
        if batch is None and self._disowned:
            return None
        if (
            batch is None
            or result.slot != batch.slot.index
            or result.requests != len(batch.requests)
            or batch is self.filler.batch
        ):
            raise FrameError(
                f"a result for batch {result.batch_id} in slot {result.slot}, which was not asked for"
            )
        scatter = Scatter(result, batch.slot.segments[OUTPUT].view, self._spec)
        answers = scatter.answers(batch.requests)  # raises before any request has been answered
        if scatter.unchecked:
            return partial(self._finish_slowly, batch, result, scatter, answers)
        self._finish(batch, result, scatter, answers)
        return None

    def _finish_slowly(
        self, batch: InFlight, result: frames.Result, scatter: Scatter, answers: Sequence[Cut]
    ) -> Steps[None]:
        for _ in scatter.checking():
            yield None
        if self.outstanding.get(batch.id) is batch:  # it may have been disowned meanwhile
            self._finish(batch, result, scatter, answers)

    def _finish(
        self, batch: InFlight, result: frames.Result, scatter: Scatter, answers: Sequence[Cut]
    ) -> None:
        if self._decoupled:
            self._close_streams(batch, answers)
        del self.outstanding[batch.id]
        try:
            self._events.finished(batch, result, answers, borrowed=scatter.borrowed)
        except BaseException:
            # Some requests of the batch have not been answered.
            self.outstanding = {batch.id: batch, **self.outstanding}
            raise
        finally:
            batch.slot.release()
            if self._tell_idle is not None:
                self._tell_if_idle()

    def _close_streams(self, batch: InFlight, answers: Sequence[Cut]) -> None:
        """An execution is over: close the streams of requests that it answered in one piece."""
        closed = [index for index, (_, _, answer) in enumerate(answers) if answer is None or not answer.open]
        for index in closed:
            if (batch.id, index) not in self._streams:
                raise FrameError(f"a second answer to request {index} of batch {batch.id}")
        for index in closed:
            self._end_stream(batch, self._streams[batch.id, index])
        if batch.open:
            self.open[batch.id] = batch

    def _end_stream(self, batch: InFlight, stream: PartStream) -> None:
        del self._streams[stream.batch_id, stream.index]
        del self._stream_of[stream.request]
        stream.done = True
        if stream.exhausted:
            self._moved_at = trio.current_time()
        batch.open -= 1
        if not batch.open:
            self.open.pop(batch.id, None)
            if self._tell_idle is not None:
                self._tell_if_idle()
        if self._crowded:
            self._crowded = len(self._streams) >= OPEN_LIMIT
            self._events.slot_freed()

    def _on_part(self, packet: bytes) -> Slow | None:
        part = frames.Part.decode(packet)
        stream = self._stream(part.batch_id, part.index)
        return None if stream is None else self._take_part(stream, stream.receive(part))

    def _on_more(self, packet: bytes) -> Slow | None:
        batch_id, index, data = frames.decode_more(packet)
        stream = self._stream(batch_id, index)
        return None if stream is None else self._take_part(stream, stream.receive_more(data))

    def _stream(self, batch_id: int, index: int) -> PartStream | None:
        """Return the stream that a frame is for; None if its answer is no longer needed."""
        if self._unread:
            raise FrameError("a worker sends part after part and never reads its credit")
        stream = self._streams.get((batch_id, index))
        if stream is None and not self._disowned:
            raise FrameError(f"a part of request {index} of batch {batch_id}, which is not open")
        return stream

    def _take_part(self, stream: PartStream, part: frames.Part | None) -> Slow | None:
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
        part: frames.Part,
        outputs: list[Tensor],
        checking: Callable[[], Iterator[None]],
    ) -> Steps[None]:
        for _ in checking():
            yield None
        if self._streams.get((stream.batch_id, stream.index)) is stream:  # the answer is still needed
            self._deliver(stream, part, outputs)

    def _deliver(self, stream: PartStream, part: frames.Part, outputs: list[Tensor]) -> None:
        batch = self.outstanding.get(stream.batch_id) or self.open[stream.batch_id]
        arrived = Arrived(stream, part, outputs)
        if part.final:
            self._end_stream(batch, stream)
        self._events.part(batch, arrived)

    def _grant(self, stream: PartStream, parts: int, nbytes: int, waited: bool) -> None:
        # No request can have more than two frames of credit unread.
        if self.pipe.backlog > 2 * OPEN_LIMIT:
            self._unread = True
            return
        if waited:
            self._moved_at = trio.current_time()
        self.pipe.send_nowait(frames.encode_credit(stream.batch_id, stream.index, parts, nbytes))

    def _on_free(self, slot: Slot) -> None:
        if not self.pipe.closed:
            self._free.append(slot)
            self._events.slot_freed()

    def _on_ready(self, packet: bytes) -> None:
        body = frames.decode_json(packet)
        self.has_check = bool(body.get("asks"))
        unapplied = _texts(body, "unapplied")
        if unapplied:
            self._events.unconfined(unapplied)
        self._events.ready()

    def _on_probed(self, packet: bytes) -> None:
        if not self._probing:
            raise FrameError("a worker says whether it is ready without having been asked")
        self._probing = False
        self._answer_the_curious(said=frames.decode_probed(packet))

    def _answer_the_curious(self, *, said: bool) -> None:
        curious, self._curious = self._curious, []
        for tell in curious:
            tell(said)

    def _on_load_failed(self, packet: bytes) -> None:
        body = frames.decode_json(packet)
        self._events.load_failed(_text(body, "message"), _text(body, "traceback"))

    def _on_log(self, packet: bytes) -> None:
        body = frames.decode_json(packet)
        level = _text(body, "level")
        if level not in LOG_LEVELS:
            raise FrameError(f"a worker logs at level {level!r}")
        self._events.logged(level, _text(body, "message"))

    def _on_room(self, packet: bytes) -> None:
        slot, batch_id, nbytes = frames.decode_room(packet)
        batch = self.outstanding.get(batch_id)
        if (
            batch is None
            or batch.slot.index != slot
            or nbytes > _LARGEST_OUTPUT
            or batch is self.filler.batch
        ):
            raise FrameError(f"a worker asks for {nbytes} bytes in slot {slot} for batch {batch_id}")
        if self.pipe.backlog > self._slot_count:  # an honest worker waits for room, and reads meanwhile
            raise FrameError("a worker asks for room again and again and never reads the answer")
        try:
            batch.slot.make_room(OUTPUT, nbytes)
        except OSError as error:
            raise FrameError(f"a worker asks for {nbytes} bytes: {error.strerror}") from error

    def _on_skipped(self, packet: bytes) -> None:
        slot, batch_id = frames.decode_skipped(packet)
        batch = self._taken_back.get(batch_id)
        if batch is None and self._disowned:
            return
        if batch is None or batch.slot.index != slot:
            raise FrameError(f"a worker passed over batch {batch_id} in slot {slot}, which it was to execute")
        del self._taken_back[batch_id]
        batch.slot.release()

    def _on_spilled(self, packet: bytes) -> Slow | None:
        slot, side, offset, nbytes = frames.decode_spilled(packet)
        if slot >= len(self._slots) or side != OUTPUT or not 0 < nbytes <= frames.MAX_SPILLED:
            raise FrameError(f"a worker spilled {nbytes} bytes into slot {slot}, side {side}")
        view = self._slots[slot].segments[OUTPUT].view
        if offset + nbytes > len(view):
            raise FrameError(f"a worker spilled to byte {offset + nbytes} of a segment of {len(view)} bytes")
        inner = bytes(view[offset : offset + nbytes])
        if inner[0] != frames.RESULT:
            raise FrameError(f"a worker spilled a frame of kind {inner[0]}")
        return self._on_result(inner)


def _texts(body: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return a short list of strings of a cold frame. Raises FrameError."""
    values = body.get(key, [])
    if not isinstance(values, list) or len(values) > _MOST_TEXTS:
        raise FrameError(f"a worker's {key!r} is no list of up to {_MOST_TEXTS} texts")
    return tuple(_text({key: value}, key) for value in values)


def _text(body: dict[str, Any], key: str) -> str:
    """Return a string of a cold frame, in characters that any log or document can hold.

    Raises FrameError.
    """
    value = body.get(key, "")
    if not isinstance(value, str):
        raise FrameError(f"a worker's {key!r} is of type {type(value).__name__}")
    return value.encode(errors="replace").decode()
