"""How batches go to one worker: at once, or through the instance's channel; and how they are taken back.

A batch is sent in the turn that forms it, to begin at once or to wait in the worker behind an execution. To
wake the instance's task for it adds 6 to 15 % to the calls that a small request costs. A batch with long
inputs is handed to the instance, which sends it from its own task. So is a batch while the channel holds
another one. The copy of long inputs would hold the loop for about a millisecond per MiB, most of all into new
pages. So it is made in slices, between other tasks. The `Execute` frame follows the last piece. Frames keep
the order in which batches were dispatched.

Inputs in clients' regions are read by the worker, whose `Execute` frame brings the regions' descriptors. A
strict sandbox gets none, as a descriptor gives all of a client's object. There the instance reads, in slices.
Requests for decoupled models bring no such inputs (`actors.serving.intake`). Of inputs on a GPU the frame
says where they are, and of outputs whether they may stay there (`actors.wire.device_spans`). A worker that is
told of an allocation keeps it open. It is told as well when that has ended.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import chain
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
from actors.values.confinement import Sandbox
from actors.values.regions import Region, RegionTensor
from actors.values.requests import InferRequest
from actors.values.specs import ModelSpec
from actors.values.tensors import DevicePlace
from actors.wire import batch_frames, frames
from actors.wire.arena import INPUT
from actors.wire.device_spans import DEVICE, tell_devices
from actors.wire.gathering import DeviceInput, Gather, default_metadata
from actors.wire.region_spans import RegionRead, tell_spans

FILLED_AT_ONCE: Final = 4 * 1024 * 1024
"""Inputs of up to so many bytes are copied in one piece, which takes some 4 ms at worst."""


class NotRead(Exception):
    """No request of a batch has inputs: all lie in regions that are too short now. See `InFlight.unread`."""


class Filling(NamedTuple):
    """A batch that is prepared: what copies its inputs, its frame, and the regions that its worker needs."""

    batch: InFlight
    gather: Gather
    packet: bytes
    regions: Sequence[Region]

    @property
    def long(self) -> bool:
        """Whether its inputs must be copied in slices, as all that the server reads from regions is."""
        gather = self.gather
        return gather.copied > FILLED_AT_ONCE or (len(gather.reads) > 0 and not self.regions)


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
        gpu: int = -1,
        ordinal: int | None = None,
        prefetch: bool,
        on_room: Callable[[], None],
        on_unsent: Callable[[InFlight, Exception], None],
    ) -> None:
        """With `prefetch` a batch may wait in the worker behind the one that executes.

        `gpu` is the one whose memory the worker reads and writes; -1: none. `ordinal` is its number as the
        worker counts, if that is another.

        `on_room` is called when another batch may be dispatched. `on_unsent` is given a batch that was handed
        over and could not be sent: it is no longer held, and its requests are to be answered.
        """
        self.given = 0  # requests so far
        self._pipe = pipe
        self._spec = spec
        self._memory = memory
        self._held = held
        self._streams = streams
        self._gpu = gpu
        self._ordinal = ordinal
        # By the handles that the worker may have open: who tells of their end. Two regions may be of one
        # allocation.
        self._opened: dict[bytes, list[dict[object, Callable[[bytes], None]]]] = {}
        self._shares_regions = not spec.decoupled and spec.confinement.sandbox is not Sandbox.STRICT
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
                filling = self._prepare(batch)
                at_once = not filling.long
                if at_once:
                    self._send(filling)
                    batch.began_at = begins
                else:
                    self.filling = filling
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

    def _prepare(self, batch: InFlight) -> Filling:
        """Make room for the inputs of a batch; return what copies them, and what sends it off."""
        slot, requests = batch.slot, batch.requests
        gather = Gather(requests, self._spec)
        used = gather.nbytes
        told: list[dict[str, object]] = []
        rows: list[int] = []
        wanted = False
        for request in requests:
            told.append({} if request.padding else default_metadata(request, self._spec))
            rows.append(request.rows)
            if request.output_regions or request.device_outputs:
                wanted = True
        regions: Sequence[Region] = ()
        if (wanted or gather.reads or gather.devices) and self._shares_regions:
            regions = tell_spans(gather.reads, requests, told)
            if self._gpu >= 0:
                batch.devices = gather.devices
                self._tell_devices(gather.devices, requests, told)
        packet = batch_frames.Execute(
            batch.id, slot.index, rows, gather.inputs, told if any(told) else None
        ).encode()
        spilled = len(packet) if len(packet) > frames.MAX_FRAME else 0
        slot.make_room(INPUT, used + spilled)
        if spilled:
            slot.segments[INPUT].view[used : used + spilled] = packet
            packet = frames.encode_spilled(slot.index, INPUT, used, spilled)
        return Filling(batch, gather, packet, regions)

    def _tell_devices(
        self,
        inputs: Sequence[DeviceInput],
        requests: Sequence[InferRequest],
        told: Sequence[dict[str, object]],
    ) -> None:
        """Add to `told` what of `requests` lies on the GPU, and what is to lie there."""
        places: list[dict[str, DevicePlace]] = [{} for _ in requests]
        regions: list[dict[str, str]] = [{} for _ in requests]
        for each in inputs:
            tensor, place = each.tensor, each.place
            places[each.index][tensor.name] = place
            if place.keeper is not None:
                self._open(place.handle, place.keeper.on_end)
            elif isinstance(tensor, RegionTensor):
                region = tensor.source.region
                regions[each.index][tensor.name] = region.name
                region.counts.read(place.nbytes)
                self._open(place.handle, region.on_end)
        for index, request in enumerate(requests):
            targets: dict[str, tuple[DevicePlace, str]] = {}
            for name, target in (request.output_regions or {}).items():
                region, to = target.region, target.place
                if to is not None and to.device == self._gpu and name in self._spec.device_outputs:
                    targets[name] = to, region.name
                    self._open(region.handle, region.on_end)
            outputs = sorted(request.device_outputs or ())
            spans = tell_devices(places[index], outputs, targets, regions[index], device=self._ordinal)
            if spans:
                told[index][DEVICE] = spans

    def _open(self, handle: bytes, on_end: dict[object, Callable[[bytes], None]]) -> None:
        """Note that the worker opens an allocation: at its end, what is in `on_end` is called."""
        if self not in on_end:
            on_end[self] = self._unshare
            self._opened.setdefault(handle, []).append(on_end)

    def _unshare(self, handle: bytes) -> None:
        # The next batch that names the handle has it opened once more, by whichever region.
        for on_end in self._opened.pop(handle, ()):
            on_end.pop(self, None)
        self._pipe.tell_nowait(frames.encode_unshared(handle))

    def close(self) -> None:
        """The worker is gone: it has nothing open any more."""
        for each in self._opened.values():
            for on_end in each:
                on_end.pop(self, None)
        self._opened.clear()
        self.disown()

    def _send(self, filling: Filling) -> None:
        filling.gather.copy_into(filling.batch.slot.segments[INPUT].view)
        passing.batches += 1
        self._send_off(filling)

    def _send_off(self, filling: Filling) -> None:
        batch, slot = filling.batch, filling.batch.slot.index
        self._memory.control.offer(slot, len(batch.requests))
        if filling.regions:
            self._send_with(filling.regions, filling.gather.reads, filling.packet)
        else:
            self._pipe.send_nowait(filling.packet)
        batch.become(SENT)
        if batch.unread is not None:
            for place in batch.unread:
                self._memory.control.cancel(slot, place)

    def _send_with(self, regions: Sequence[Region], reads: Sequence[RegionRead], packet: bytes) -> None:
        """Send a frame and its regions. In place of one that has been closed, there is a file of no bytes."""
        for read in reads:
            read.tensor.source.region.counts.read(read.tensor.nbytes)
        nothing = os.open(os.devnull, os.O_RDONLY) if any(each.fileno < 0 for each in regions) else -1
        try:
            self._pipe.send_nowait(packet, [each.fileno if each.fileno >= 0 else nothing for each in regions])
        finally:
            if nothing >= 0:
                os.close(nothing)

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
                filling = self._prepare(batch)
                if not filling.long:
                    self._send(filling)
                    self._held.sent(batch, trio.current_time())
                    return None
                self.filling = filling
        except Exception as error:
            self._unsent(batch, error)
            if not isinstance(error, (OSError, MemoryError)):
                raise
            return None
        return self._filled(self.filling)

    def _filled(self, filling: Filling) -> Steps[None]:
        batch, gather = filling.batch, filling.gather
        view = batch.slot.segments[INPUT].view
        for _ in chain(gather.copying(view), () if filling.regions else gather.reading(view)):
            yield None
            if batch.state is not HANDED:  # it was taken back; its slot may be another batch's already
                return
        if gather.unread is not None:
            batch.unread = gather.unread
            if len(gather.unread) == len(batch.requests):
                self._unsent(batch, NotRead())
                return
        self.filling = None
        try:
            self._send_off(filling)
        except OSError as error:  # of the descriptors that go with it
            self._unsent(batch, error)
            return
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
