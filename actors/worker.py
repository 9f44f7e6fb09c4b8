"""One live worker as the server sees it: its slots, what it is working on, and what it says.

Plain functions that never wait: an instance actor feeds packets in, the scheduler puts batches in. Results go to the
model's state, which answers the requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from actors import frames
from actors.arena import INPUT, MAX_CANCELLABLE, OUTPUT, ControlPage, Segment
from actors.frames import FrameError
from actors.gathering import Cut, Gather, Scatter, default_metadata
from actors.messages.requests import InferRequest
from actors.pipe import Pipe
from actors.slots import Slot
from actors.specs import InstanceSpec, ModelSpec

SPARE_SLOTS: Final = 2
"""Slots beyond what may execute or be prefetched, so that responses which are being sent don't hold up the next batch."""

LOG_LEVELS: Final = frozenset({"info", "warning", "error", "verbose"})

_LARGEST_OUTPUT: Final = 64 * 1024 * 1024 * 1024


class InFlight:
    """A batch that a worker holds."""

    __slots__ = ("alone", "began_at", "id", "requests", "slot")

    def __init__(
        self, batch_id: int, requests: Sequence[InferRequest], slot: Slot, *, alone: bool, began_at: float
    ) -> None:
        self.id = batch_id
        self.requests = requests
        self.slot = slot
        self.alone = alone  # a suspect: nothing else may be in this worker
        self.began_at = began_at  # of execution, as far as the server can know: when it became the oldest


class WorkerEvents(Protocol):
    """What a live worker tells its owner; called synchronously while a packet is handled."""

    def ready(self) -> None:
        """The model is loaded."""

    def load_failed(self, message: str, traceback: str) -> None:
        """The model can't be loaded; the worker is about to exit."""

    def finished(
        self, batch: InFlight, result: frames.Result, answers: Sequence[Cut], *, borrowed: bool
    ) -> None:
        """A batch is done. The slot's execution lease ends when this returns; `borrowed` answers need leases of their own."""

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
        self._spec = spec
        self._events = events
        self._lanes = instance.lanes
        self._capacity = instance.lanes * (2 if prefetch else 1)
        self._slot_count = self._capacity + SPARE_SLOTS
        self._cancellable = min(MAX_CANCELLABLE, max(1, spec.max_batch_size))
        self._next_id = 1
        control = Segment.create(ControlPage.size_for(self._slot_count, self._cancellable), "tritium-control")
        self._control = ControlPage(control, instance.lanes, self._cancellable)
        self._asks = False  # the backend has a readiness check of its own
        self._last_said = True
        self._disowned = False
        self._curious: list[Callable[[bool], None]] = []
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._handlers: dict[int, Callable[[bytes], None]] = {
            frames.RESULT: self._on_result,
            frames.READY: self._on_ready,
            frames.PROBED: self._on_probed,
            frames.LOAD_FAILED: self._on_load_failed,
            frames.ROOM: self._on_room,
            frames.LOG: self._on_log,
            frames.SPILLED: self._on_spilled,
        }

    def load(self, backend: str, model: dict[str, object], limits: dict[str, int]) -> None:
        """Tell the worker what to load. `backend` is `module:Class`; `model` are the fields of `ModelInfo`."""
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
        self.pipe.send_nowait(bytes((frames.LOAD,)), (self._control.segment.fd, letter.fd))
        letter.close_fd()
        self._control.segment.close_fd()
        self._slots = [Slot(index, self._send_segment, self._on_free) for index in range(self._slot_count)]
        self._free = self._slots[::-1]

    def _send_segment(self, slot: int, side: int, segment: Segment) -> None:
        self.pipe.send_nowait(frames.encode_segment(slot, side, segment.size), (segment.fd,))

    @property
    def idle(self) -> bool:
        """Whether it holds no batch."""
        return not self.outstanding

    @property
    def waiting(self) -> int:
        """How many of its requests wait behind those that execute."""
        return sum(len(each.requests) for each in self.outstanding.values() if each.began_at == math.inf)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be dispatched."""
        return len(self.outstanding) < self._capacity and bool(self._free)

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
        self.outstanding[batch.id] = batch
        for request in requests:
            request.attempts += 1
        return batch

    def _send(self, batch: InFlight) -> None:
        slot, requests = batch.slot, batch.requests
        gather = Gather(requests, self._spec)
        used = gather.nbytes
        slot.make_room(INPUT, used)
        gather.copy_into(slot.segments[INPUT].view)
        self._control.clear(slot.index, len(requests))
        told = [default_metadata(request, self._spec) for request in requests]
        rows = [request.rows for request in requests]
        packet = frames.Execute(
            batch.id, slot.index, rows, gather.inputs, told if any(told) else None
        ).encode()
        if len(packet) > frames.MAX_FRAME:
            # The inputs are in place already, and a new generation would lose them; so they are moved along.
            old = slot.segments[INPUT]
            slot.make_room(INPUT, used + len(packet))
            view = slot.segments[INPUT].view
            if slot.segments[INPUT] is not old:
                view[:used] = old.view[:used]
            view[used : used + len(packet)] = packet
            packet = frames.encode_spilled(slot.index, INPUT, used, len(packet))
        self.pipe.send_nowait(packet)

    def advance(self, now: float) -> None:
        """A batch has finished at `now`: the next in line begins."""
        for batch in islice(self.outstanding.values(), self._lanes):
            batch.began_at = min(batch.began_at, now)

    def overdue(self, began_before: float) -> InFlight | None:
        """Return a batch that began before then and is not done."""
        return next((batch for batch in self.outstanding.values() if batch.began_at <= began_before), None)

    def oldest_began_at(self) -> float:
        """When the longest-running batch began; infinite for none."""
        return min((batch.began_at for batch in self.outstanding.values()), default=math.inf)

    def cancel(self, request: InferRequest) -> None:
        """Flag a running request as unwanted; the model may look, or not."""
        for batch in self.outstanding.values():
            for index, member in enumerate(batch.requests):
                if member is request:
                    self._control.cancel(batch.slot.index, index)
                    return

    def probe(self, tell: Callable[[bool], None]) -> None:
        """Have `tell` called with what the model says of its own readiness: now, or once it has been asked.

        Those who ask while it is being asked share the answer. A busy model is not interrupted: its last word stands.
        """
        if not self._asks or self.outstanding:
            tell(self._last_said)
            return
        self._curious.append(tell)
        if len(self._curious) == 1:
            self.pipe.send_nowait(bytes((frames.PROBE,)))

    def disown(self) -> None:
        """What it is working on is answered already: nobody wants its results."""
        self._disowned = True
        self.outstanding.clear()

    def stop(self) -> None:
        """Ask the worker to finish what it has and exit."""
        self.pipe.send_nowait(bytes((frames.STOP,)))

    def executing(self) -> frozenset[int]:
        """Return the ids of batches that were in the model's hands, by the control page."""
        return self._control.executing()

    def close(self) -> None:
        """The worker is gone: close the connection and let go of the segments, but for those that responses still view."""
        self.pipe.close()
        self._answer_the_curious(said=False)
        self.outstanding.clear()
        self._slots.clear()
        self._free.clear()
        self._handlers.clear()
        self._control.close()

    def trim(self) -> None:
        """Return memory of slots that nothing used for a while."""
        for slot in self._free:
            slot.trim()

    def on_packet(self, packet: bytes) -> None:
        """Handle one packet. Raises FrameError: the worker is broken or hostile and must be killed."""
        handler = self._handlers.get(packet[0])
        if handler is None:
            raise FrameError(f"a worker sent a frame of kind {packet[0]}, which is none of its own")
        handler(packet)

    def _on_result(self, packet: bytes) -> None:
        result = frames.Result.decode(packet)
        batch = self.outstanding.get(result.batch_id)
        if batch is None and self._disowned:
            return
        if batch is None or result.slot != batch.slot.index or result.requests != len(batch.requests):
            raise FrameError(
                f"a result for batch {result.batch_id} in slot {result.slot}, which was not asked for"
            )
        scatter = Scatter(result, batch.slot.segments[OUTPUT].view, self._spec)
        answers = scatter.answers(batch.requests)  # raises before anyone has been answered
        del self.outstanding[batch.id]
        try:
            self._events.finished(batch, result, answers, borrowed=scatter.borrowed)
        finally:
            batch.slot.release()

    def _on_free(self, slot: Slot) -> None:
        if not self.pipe.closed:
            self._free.append(slot)
            self._events.slot_freed()

    def _on_ready(self, packet: bytes) -> None:
        self._asks = bool(frames.decode_json(packet).get("asks"))
        self._events.ready()

    def _on_probed(self, packet: bytes) -> None:
        self._last_said = frames.decode_probed(packet)
        self._answer_the_curious(said=self._last_said)

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
        if batch is None or batch.slot.index != slot or nbytes > _LARGEST_OUTPUT:
            raise FrameError(f"a worker asks for {nbytes} bytes in slot {slot} for batch {batch_id}")
        if self.pipe.backlog > self._slot_count:  # a worker waits for room, and reads meanwhile
            raise FrameError("a worker asks for room again and again and never reads the answer")
        try:
            batch.slot.make_room(OUTPUT, nbytes)
        except OSError as error:
            raise FrameError(f"a worker asks for {nbytes} bytes: {error.strerror}") from error

    def _on_spilled(self, packet: bytes) -> None:
        slot, side, offset, nbytes = frames.decode_spilled(packet)
        if slot >= len(self._slots) or side != OUTPUT or not 0 < nbytes <= frames.MAX_SPILLED:
            raise FrameError(f"a worker spilled {nbytes} bytes into slot {slot}, side {side}")
        view = self._slots[slot].segments[OUTPUT].view
        if offset + nbytes > len(view):
            raise FrameError(f"a worker spilled to byte {offset + nbytes} of a segment of {len(view)} bytes")
        inner = bytes(view[offset : offset + nbytes])
        if inner[0] != frames.RESULT:
            raise FrameError(f"a worker spilled a frame of kind {inner[0]}")
        self._on_result(inner)


def _text(body: dict[str, Any], key: str) -> str:
    """Return a string of a cold frame, in characters that any log or document can hold. Raises FrameError."""
    value = body.get(key, "")
    if not isinstance(value, str):
        raise FrameError(f"a worker's {key!r} is of type {type(value).__name__}")
    return value.encode(errors="replace").decode()
