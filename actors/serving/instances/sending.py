"""How batches go to one worker: at once, or through the instance's channel; and how they are taken back.

A batch is sent in the turn that forms it, to begin at once or to wait in the worker behind an execution. To
wake the instance's task for it adds 6 to 15 % to the calls that a small request costs. A batch with long
inputs is handed to the instance, which sends it from its own task. So is a batch while the channel holds
another one. The copy of long inputs would hold the loop for about a millisecond per MiB, most of all into new
pages. So it is made in slices, between other tasks. The `Execute` frame follows the last piece. Frames keep
the order in which batches were dispatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from actors.seams.slices import in_slices, passing
from actors.seams.steps import Steps
from actors.serving.instances.batches import (
    AHEAD,
    BEGUN,
    HANDED,
    SENT,
    HeldBatches,
    InFlight,
)
from actors.serving.instances.memory import WorkerMemory
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.streams import OpenStreams
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.wire import batch_frames, frames
from actors.wire.arena import INPUT
from actors.wire.gathering import Gather, default_metadata

FILLED_AT_ONCE: Final = 4 * 1024 * 1024
"""Inputs of up to so many bytes are copied in one piece, which takes some 4 ms at worst."""


class Filling(NamedTuple):
    """A batch whose long inputs are being copied, or are the next to be: what copies them, and its frame."""

    batch: InFlight
    gather: Gather
    packet: bytes


class BatchSender:
    """Sends batches to one worker, within its credit."""

    def __init__(
        self,
        pipe: Pipe,
        spec: ModelSpec,
        memory: WorkerMemory,
        held: HeldBatches,
        streams: OpenStreams | None,
        *,
        prefetch: bool,
        on_room: Callable[[], None],
        on_unsent: Callable[[InFlight, Exception], None],
    ) -> None:
        """With `prefetch` a batch may wait in the worker behind the one that executes.

        `on_room` is called when another batch may be dispatched. `on_unsent` is given a batch that was handed
        over and could not be sent: it is no longer held, and its requests are to be answered.
        """
        self.given = 0  # requests so far
        self._pipe = pipe
        self._spec = spec
        self._memory = memory
        self._held = held
        self._streams = streams
        self.credit = held.lanes * (AHEAD if prefetch else 1)
        self._on_room = on_room
        self._on_unsent = on_unsent
        self._next_id = 1
        self.filling: Filling | None = None

    def stop_prefetching(self) -> None:
        """Let no further batch wait behind an execution."""
        self.credit = self._held.lanes

    def dispatch(self, requests: Sequence[InferRequest], *, now: float, alone: bool = False) -> InFlight:
        """Begin with a batch, or hand it to the instance. Requires `LiveWorker.has_room`.

        Raises OSError where the system has no memory or descriptor for a segment; then nothing has happened.
        """
        held = self._held
        slot = self._memory.free.pop()
        slot.lease()
        batch = InFlight(self._next_id, requests, slot, alone=alone, began_at=math.inf)
        begins = now if len(held.outstanding) < held.lanes else math.inf
        at_once = not held.unsent
        held.outstanding[batch.id] = batch
        try:
            if at_once:
                gather, packet = self._prepare(batch)
                at_once = gather.nbytes <= FILLED_AT_ONCE
                if at_once:
                    self._send(batch, gather, packet)
                    batch.began_at = begins
                else:
                    self.filling = Filling(batch, gather, packet)
            if not at_once:
                held.hand(batch)
        except BaseException:
            del held.outstanding[batch.id]
            batch.slot.release()
            raise
        self._next_id += 1
        self.given += len(requests)
        if self._streams is not None:
            self._streams.open(batch)
        for request in requests:
            request.attempts += 1
        return batch

    def _prepare(self, batch: InFlight) -> tuple[Gather, bytes]:
        """Make room for the inputs of a batch; return what copies them, and the frame that sends it off."""
        slot, requests = batch.slot, batch.requests
        gather = Gather(requests, self._spec)
        used = gather.nbytes
        told = [{} if request.padding else default_metadata(request, self._spec) for request in requests]
        rows = [request.rows for request in requests]
        packet = batch_frames.Execute(
            batch.id, slot.index, rows, gather.inputs, told if any(told) else None
        ).encode()
        spilled = len(packet) if len(packet) > frames.MAX_FRAME else 0
        slot.make_room(INPUT, used + spilled)
        if spilled:
            slot.segments[INPUT].view[used : used + spilled] = packet
            packet = frames.encode_spilled(slot.index, INPUT, used, spilled)
        return gather, packet

    def _send(self, batch: InFlight, gather: Gather, packet: bytes) -> None:
        gather.copy_into(batch.slot.segments[INPUT].view)
        passing.batches += 1
        self._send_off(batch, packet)

    def _send_off(self, batch: InFlight, packet: bytes) -> None:
        batch.become(SENT)
        self._memory.control.offer(batch.slot.index, len(batch.requests))
        self._pipe.send_nowait(packet)

    async def run(self) -> None:
        """Send what is handed over, for ever. If this is cancelled, what was not sent is never sent."""
        while True:
            batch = await self._held.next_handed()
            if batch is None:
                # The batch that was taken back kept its credit until now.
                self._on_room()
            elif (steps := self.forward(batch)) is not None:
                await in_slices(steps)
            # Its inputs may be long: keep none while the task waits.
            del batch

    def forward(self, batch: InFlight) -> Steps[None] | None:
        """Send a batch that was handed over. If its inputs are long, return the work that does it."""
        try:
            if self.filling is None:  # otherwise `batch` was prepared as it was dispatched
                gather, packet = self._prepare(batch)
                if gather.nbytes <= FILLED_AT_ONCE:
                    self._send(batch, gather, packet)
                    self._held.sent(batch, trio.current_time())
                    return None
                self.filling = Filling(batch, gather, packet)
        except Exception as error:
            self._unsent(batch, error)
            if not isinstance(error, (OSError, MemoryError)):
                raise
            return None
        return self._filled(*self.filling)

    def _filled(self, batch: InFlight, gather: Gather, packet: bytes) -> Steps[None]:
        for _ in gather.copying(batch.slot.segments[INPUT].view):
            yield None
            if batch.state is not HANDED:  # it was taken back; its slot may be another batch's already
                return
        self.filling = None
        self._send_off(batch, packet)
        self._held.sent(batch, trio.current_time())
        self._on_room()

    def _unsent(self, batch: InFlight, error: Exception) -> None:
        self._let_go(batch)
        batch.slot.release()
        self._held.note_end()
        self._on_unsent(batch, error)

    def take_back(self, batch: InFlight, now: float) -> bool:
        """Keep the worker from beginning with `batch`. False if it has begun, and nothing has changed.

        If this succeeds, the requests are the caller's, as if they had never been dispatched. See
        `actors.wire.arena`, "Claims".
        """
        unsent = batch.state is HANDED
        if not unsent and not self._memory.control.take_back(batch.slot.index):
            if batch.state is SENT:
                batch.become(BEGUN)
            return False
        self._let_go(batch)
        self._held.advance(now)
        if unsent:  # the worker has nothing to skip, so nothing else uses the slot
            batch.slot.release()
        self._held.note_end()
        return True

    def _let_go(self, batch: InFlight) -> None:
        if self.filling is not None and self.filling.batch is batch:
            self.filling = None
        self._held.revoke(batch)
        self.given -= len(batch.requests)
        for request in batch.requests:
            request.attempts -= 1
        if self._streams is not None:
            self._streams.forget(batch)

    def disown(self) -> None:
        """The batches are answered already: send none of them."""
        self.filling = None
        self._held.clear()
