"""One live worker as the server sees it: the batches that it works on, and its messages.

Plain functions that never wait: an instance actor feeds packets in, the scheduler puts batches in. Results go
to the model's state, which answers the requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from actors.seams import faults
from actors.seams.steps import Steps
from actors.serving.asks import WorkerAsks
from actors.serving.instances.batches import (
    AHEAD,
    DONE,
    HANDED,
    HeldBatches,
    InFlight,
    lost_inputs,
)
from actors.serving.instances.device_buffers import DeviceBuffers
from actors.serving.instances.memory import SPARE_SLOTS, WorkerMemory
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.reports import ReportEvents, WorkerReports
from actors.serving.instances.sending import BatchSender
from actors.serving.instances.streams import OpenStreams, Slow
from actors.serving.statistics import ModelStatistics
from actors.values.errors import TritiumError
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest
from actors.values.specs import InstanceSpec, ModelSpec
from actors.wire import batch_frames, frames
from actors.wire.arena import OUTPUT, Segment
from actors.wire.batch_frames import Answer
from actors.wire.frames import FrameError
from actors.wire.gathering import Cut, Scatter
from actors.wire.parts import Arrived

_LARGEST_OUTPUT: Final = 64 * 1024 * 1024 * 1024


class WorkerEvents(ReportEvents, Protocol):
    """What a live worker tells its owner. The calls are synchronous."""

    def finished(
        self, batch: InFlight, result: batch_frames.Result, answers: Sequence[Cut], *, borrowed: bool
    ) -> None:
        """A batch is done.

        The slot's execution lease ends when this returns; `borrowed` answers need leases of their own.
        """

    def short(self, batch: InFlight) -> None:
        """A batch, whose result follows, found too little memory on its GPU."""

    def part(self, batch: InFlight, arrived: Arrived) -> None:
        """A part of a decoupled model's answer has come."""

    def unsent(self, batch: InFlight, error: Exception) -> None:
        """A batch that was handed over could not be sent. Its requests are to be answered."""

    def slot_freed(self) -> None:
        """Another batch may be dispatched."""

    def hung(self, limit: float) -> None:
        """It has work, and has shown no sign of life for `limit` seconds: it is to be ended."""


class LiveWorker:
    """The connection to one worker, from launch to death. Never awaits."""

    def __init__(
        self,
        pipe: Pipe,
        spec: ModelSpec,
        instance: InstanceSpec,
        events: WorkerEvents,
        *,
        prefetch: bool,
        held: HeldBatches | None = None,
        statistics: ModelStatistics | None = None,
    ) -> None:
        """`held` is the instance's, which outlives the worker. `statistics` are the version's."""
        self.pipe = pipe
        self.held = held or HeldBatches(instance.lanes)
        self.outstanding, self.open = self.held.outstanding, self.held.open
        self.took = 0.0  # seconds that the last batch to finish executed
        self.serving_since = math.inf  # since when it may be given clients' requests
        self.farewell = "stopped"  # why it ends, if that is no death
        # Of an engine of a language model: signs of life so far, and if it has shown none for long, how long.
        self.parts = self.steps = 0
        self.silent_for = 0.0
        self.sleep_state = SleepState.AWAKE  # whether that engine sleeps
        self.asks: WorkerAsks | None = None  # what it asks for, if it may ask
        self._spec = spec
        self._events = events
        self._disowned = False
        self.memory = WorkerMemory(
            pipe,
            instance.lanes * (AHEAD if prefetch else 1) + SPARE_SLOTS,
            lanes=instance.lanes,
            max_batch_size=spec.max_batch_size,
            on_free=events.slot_freed,
        )
        self._streams = (
            OpenStreams(pipe, spec, self.held, on_part=events.part, on_room=events.slot_freed)
            if spec.decoupled
            else None
        )
        # The instance may outlive others of the version that are elsewhere.
        gpu = instance.device_id if instance.kind == "GPU" and spec.shares_gpu_memory else -1
        # What it leaves on its GPU, if it can do so.
        self.buffers = (
            None
            if gpu < 0
            else DeviceBuffers(pipe, gpu, statistics or ModelStatistics(), ordinal=instance.ordinal)
        )
        self.sender = BatchSender(
            pipe,
            spec,
            self.memory,
            self.held,
            self._streams,
            gpu=gpu,
            ordinal=instance.ordinal,
            prefetch=prefetch,
            on_room=events.slot_freed,
            on_unsent=events.unsent,
        )
        self.reports = WorkerReports(pipe, events)
        # What schedulers and readiness ask of its parts, which they call without a detour.
        self.dispatch = self.sender.dispatch
        self.take_back = self.sender.take_back
        self.stop_prefetching = self.sender.stop_prefetching
        self.holding = self.held.holding
        self.probe = self.reports.probe
        self.forget = self.reports.forget
        self._handlers: dict[int, Callable[[bytes], Slow | None]] = {
            frames.RESULT: self._on_result,
            frames.READY: self.reports.on_ready,
            frames.PROBED: self.reports.on_probed,
            frames.LOAD_FAILED: self.reports.on_load_failed,
            frames.ROOM: self._on_room,
            frames.SKIPPED: self._on_skipped,
            frames.SHORT: self._on_short,
            frames.LOG: self.reports.on_log,
            frames.PHASE: self.reports.on_phase,
            frames.SPILLED: self._on_spilled,
        }
        if self.buffers is not None:
            self._handlers[frames.EXPORTED] = self.buffers.on_exported
        if self._streams is not None:
            self._handlers[frames.PART] = self._streams.on_part
            self._handlers[frames.PARTS] = self._streams.on_parts
            self._handlers[frames.MORE] = self._streams.on_more

    def load(
        self, backend: str, model: dict[str, object], limits: dict[str, int], calls: int | None = None
    ) -> None:
        """Tell the worker what to load. `backend` is `module:Class`; `model` are the fields of `ModelInfo`.

        `calls` is the descriptor of the worker's end of the connection on which it may call; it stays the
        caller's.
        """
        memory = self.memory
        page = memory.control.segment
        body = json.dumps(
            {
                "backend": backend,
                "model": model,
                "limits": limits,
                "lanes": self.held.lanes,
                "slots": memory.slot_count,
                "cancellable": memory.cancellable,
                "control_size": page.size,
            }
        ).encode()
        letter = Segment.create(max(len(body), 1), "tritium-load")
        letter.view[: len(body)] = body
        descriptors = (page.fd, letter.fd, *(() if calls is None else (calls,)))
        self.pipe.send_nowait(bytes((frames.LOAD,)), descriptors)
        letter.close_fd()
        page.close_fd()
        memory.make_slots()

    # -- for schedulers --------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether it holds no batch."""
        return not self.outstanding and not self.open

    @property
    def has_room(self) -> bool:
        """Whether another batch may be dispatched."""
        held = self.held  # asked several times a batch, so nothing here is a call
        return (
            len(held.outstanding) + len(held.revoked) + held.withdrawn < self.sender.credit
            and len(self.memory.free) > 0
            and (self._streams is None or not self._streams.crowded)
            # The next batch would wait for the rest of this one's inputs.
            and self.sender.filling is None
        )

    @property
    def free_lanes(self) -> int:
        """See `HeldBatches.free_lanes`."""
        return self.held.lanes - len(self.outstanding)

    @property
    def busy_since(self) -> float:
        """See `HeldBatches.busy_since`."""
        return self.held.busy_since

    @property
    def given(self) -> int:
        """How many requests it was given so far."""
        return self.sender.given

    @property
    def stuck_since(self) -> float:
        """Since when each of its lanes has been busy with one execution, without progress.

        Infinite while a lane is free, or while the worker may be waiting for a client to read.
        """
        if self._waits_for_clients():
            return math.inf
        return max(self._moved_at(), self.held.lanes_busy_since)

    @property
    def has_check(self) -> bool:
        """Whether its model has a readiness check of its own."""
        return self.reports.has_check

    def has_open(self, request: InferRequest) -> bool:
        """Whether parts of the answer to `request` may come from it."""
        return self._streams is not None and self._streams.of(request) is not None

    def not_begun(self) -> list[InFlight]:
        """Return the batches that the model has not begun, oldest first, as far as the worker says now."""
        begun = self.memory.control.executing()
        return [batch for batch in self.outstanding.values() if batch.id not in begun]

    # -- time ------------------------------------------------------------------------------------------------

    def ended(self, batch: InFlight, now: float) -> None:
        """A batch has finished at `now`: the next in line begins."""
        self.took = now - batch.since
        self.held.advance(now)

    def overdue(self, began_before: float) -> InFlight | None:
        """Return a batch that began before `began_before` and is not done.

        For a batch of a decoupled model, the time of its last part counts instead.

        A batch that was taken back is overdue like any other: a worker that has nothing else to do and does
        not skip it reads nothing. While one of a decoupled model's requests waits for its client, the model
        may be waiting with it, and no batch is overdue.
        """
        if self._moved_at() > began_before or self._waits_for_clients():
            return None
        return next((batch for batch in self.held.all() if batch.began_at <= began_before), None)

    def oldest_began_at(self) -> float:
        """When the longest-running batch began or last showed progress; infinite if none may be overdue."""
        if self._waits_for_clients():
            return math.inf
        return max(self._moved_at(), min((batch.began_at for batch in self.held.all()), default=math.inf))

    def _moved_at(self) -> float:
        return -math.inf if self._streams is None else self._streams.moved_at

    def _waits_for_clients(self) -> bool:
        return self._streams is not None and self._streams.wait_for_clients

    # -- for its owner ---------------------------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> None:
        """Flag a running request as unwanted; the model may look at the flag, or not.

        What the worker asks for on its behalf is cancelled.
        """
        if self.asks is not None:
            self.asks.cancelled(request)
        if self._streams is None:
            for batch in self.outstanding.values():
                place = batch.place_of(request)
                if place is not None:
                    self.memory.control.cancel(batch.slot.index, place)
                    return
            return
        stream = self._streams.of(request)
        if stream is None:
            return
        # By frame, and on the control page: the worker looks at the page as it begins with a batch, and the
        # frame may come before that.
        executing = self.outstanding.get(stream.batch_id)
        if executing is not None:
            self.memory.control.cancel(executing.slot.index, stream.index)
        self.pipe.send_nowait(frames.encode_cancel(stream.batch_id, stream.index))

    def disown(self) -> None:
        """The batches that the worker holds are answered already: drop its results."""
        self._disowned = True
        if self._streams is not None:
            self._streams.disown()
        self.sender.disown()

    def hangs(self, limit: float) -> None:
        """End a worker that has work, and has shown no sign of life for `limit` seconds."""
        self._events.hung(limit)

    def stop(self) -> None:
        """Ask the worker to finish what it has and exit."""
        self.pipe.send_nowait(bytes((frames.STOP,)))

    def executing(self) -> frozenset[int]:
        """Return the ids of batches that the model had begun: by the control page, or as still open."""
        return self.memory.control.executing() | self.open.keys()

    def close(self) -> None:
        """The worker is gone: close the connection, and let go of the segments that no response views."""
        self.pipe.close()
        self.reports.close()
        if self._streams is not None:
            self._streams.clear()
        self.sender.close()
        if self.buffers is not None:
            self.buffers.close()
        self._handlers.clear()
        self.asks = None
        self.memory.close()

    # -- what it says ----------------------------------------------------------------------------------------

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
        result = batch_frames.Result.decode(packet, decoupled=self._spec.decoupled)
        batch = self.outstanding.get(result.batch_id)
        if batch is None and self._disowned:
            return None
        if (
            batch is None
            or result.slot != batch.slot.index
            or result.requests != len(batch.requests)
            or batch.state is HANDED
        ):
            raise FrameError(
                f"a result for batch {result.batch_id} in slot {result.slot}, which was not asked for"
            )
        scatter = Scatter(result, batch.slot.segments[OUTPUT].view, self._spec, buffers=self.buffers)
        answers = scatter.answers(batch.requests)  # raises before any request has been answered
        if scatter.unchecked:
            return partial(self._finish_slowly, batch, result, scatter, answers)
        self._finish(batch, result, scatter, answers)
        return None

    def _finish_slowly(
        self, batch: InFlight, result: batch_frames.Result, scatter: Scatter, answers: Sequence[Cut]
    ) -> Steps[None]:
        for _ in scatter.checking():
            yield None
        if self.outstanding.get(batch.id) is batch:  # it may have been disowned meanwhile
            self._finish(batch, result, scatter, answers)

    def _finish(
        self, batch: InFlight, result: batch_frames.Result, scatter: Scatter, answers: Sequence[Cut]
    ) -> None:
        if batch.unread is not None:
            answers = _without(answers, batch.unread)
        if batch.devices:
            answers = _without(answers, lost_inputs(batch))
        if self._streams is not None:
            self._streams.close_answered(batch, answers)
        del self.outstanding[batch.id]
        try:
            self._events.finished(batch, result, answers, borrowed=scatter.borrowed)
        except BaseException:
            self.held.restore(batch)
            raise
        else:
            batch.become(DONE)
        finally:
            batch.slot.release()
            self.held.note_end()

    def _on_room(self, packet: bytes) -> None:
        slot, batch_id, nbytes = frames.decode_room(packet)
        batch = self.outstanding.get(batch_id)
        if batch is None or batch.slot.index != slot or nbytes > _LARGEST_OUTPUT or batch.state is HANDED:
            raise FrameError(f"a worker asks for {nbytes} bytes in slot {slot} for batch {batch_id}")
        if self.pipe.backlog > self.memory.slot_count:  # an honest worker waits for room, and reads meanwhile
            raise FrameError("a worker asks for room again and again and never reads the answer")
        try:
            batch.slot.make_room(OUTPUT, nbytes)
        except OSError as error:
            raise FrameError(f"a worker asks for {nbytes} bytes: {error.strerror}") from error

    def _on_short(self, packet: bytes) -> None:
        slot, batch_id = frames.decode_short(packet)
        batch = self.outstanding.get(batch_id)
        if batch is None and self._disowned:
            return
        if batch is None or batch.slot.index != slot or batch.state is HANDED:
            raise FrameError(
                f"a worker says that batch {batch_id} found no memory, which it was not to execute"
            )
        self._events.short(batch)

    def _on_skipped(self, packet: bytes) -> None:
        slot, batch_id = frames.decode_skipped(packet)
        batch = self.held.revoked.get(batch_id)
        if batch is None and self._disowned:
            return
        if batch is None or batch.slot.index != slot:
            raise FrameError(f"a worker passed over batch {batch_id} in slot {slot}, which it was to execute")
        del self.held.revoked[batch_id]
        batch.slot.release()

    def _on_spilled(self, packet: bytes) -> Slow | None:
        inner = self.memory.spilled(packet)
        if inner[0] != frames.RESULT:
            raise FrameError(f"a worker spilled a frame of kind {inner[0]}")
        return self._on_result(inner)


def _without(answers: Sequence[Cut], unread: Mapping[int, TritiumError]) -> list[Cut]:
    """Return the answers, with errors for the requests whose inputs the model did not see."""
    cuts = list(answers)
    for place, error in unread.items():
        cuts[place] = cuts[place][0], [], Answer(code=error.code, message=error.message)
    return cuts
