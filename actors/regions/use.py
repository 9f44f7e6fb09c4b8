"""What one request has of regions: it holds them, its inputs are read, its outputs are written.

Short tensors are read and written at once, in one call of the system. Longer ones go through threads, in
pieces, so that no size of a region holds the loop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import trio

from actors.regions.devices import DeviceError, DeviceRegion
from actors.regions.objects import Writes, read_at_once, reading, write, write_at_once
from actors.seams.threads import in_thread
from actors.supervision.offload import NotDone, Offload
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, Internal, TritiumError, Unavailable
from actors.values.regions import (
    Region,
    RegionCounts,
    RegionSlice,
    RegionTensor,
    RegionUse,
    Staying,
    too_small,
)
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.tensors import Buffer, Tensor
from actors.wire.region_spans import DIRECT_FROM

AT_ONCE: Final = 256 * 1024
"""Bytes of a request's inputs, and of its outputs, that are read and written on the loop.

That takes some 10 and 15 µs; a thread takes 60 µs to begin and to be heard of.
"""


class MemoryClaim(Protocol):
    """What a request holds of the memory that all requests of the server share."""

    async def take(self, size: int, *, urgent: bool = False) -> bool:
        """Wait for `size` bytes; False where there were none in time. `urgent`: the request holds some."""

    def release(self) -> None:
        """Give them back."""


class Found:
    """The places of the tensors of requests, found in the table: true while its `standing` is the same.

    Inputs come as `reads`, each with its place in the request, outputs as `targets`, by their names.
    """

    __slots__ = ("long_targets", "nbytes", "of_device", "reads", "regions", "short", "standing", "targets")

    def __init__(
        self,
        reads: Sequence[tuple[int, RegionSlice]],
        targets: Mapping[str, RegionSlice],
        standing: object,
    ) -> None:
        self.reads = reads
        self.targets = targets
        self.standing = standing
        self.nbytes = sum(source.nbytes for _, source in reads)
        slices = [*(source for _, source in reads), *targets.values()]
        self.regions = tuple(dict.fromkeys(each.region for each in slices))
        # One of the regions is memory of a GPU.
        self.of_device = any(isinstance(region, DeviceRegion) for region in self.regions)
        # All inputs are read on the loop.
        self.short = self.nbytes <= AT_ONCE and not self.of_device
        # What an instance may write itself, and would.
        self.long_targets: Mapping[str, RegionSlice] | None = None
        if any(
            target.nbytes > DIRECT_FROM or isinstance(target.region, DeviceRegion)
            for target in targets.values()
        ):
            self.long_targets = targets


class Use(RegionUse):
    """The regions of one request, held until `end`.

    The request and it know each other until then. So nothing is left to the garbage collector.
    """

    __slots__ = ("_claim", "_claims", "_limiter", "_request", "_unread", "found", "over")

    def __init__(
        self,
        request: InferRequest,
        found: Found,
        claims: Callable[[], MemoryClaim],
        limiter: trio.CapacityLimiter,
    ) -> None:
        self.over = False
        self.found = found
        self._request: InferRequest | None = request
        self._claims = claims
        self._limiter = limiter
        self._claim: MemoryClaim | None = None
        self._unread = False  # some inputs were not read yet
        for region in found.regions:
            region.hold()

    def take(self) -> None:
        """Read inputs as far as they are short. Longer ones become tensors that refer to theirs.

        Raises InvalidArgument where a region has become too short.
        """
        request, found = self._request, self.found
        assert request is not None, "inputs are taken once, as the request comes"
        if not found.short:
            request.inputs = self._referring(request.inputs)
        inputs = request.inputs
        for place, source in found.reads:
            tensor = inputs[place]
            if self._unread and isinstance(tensor, RegionTensor):
                continue
            counts = source.region.counts
            try:
                tensor.data = read_at_once(source, tensor.name)
            except TritiumError:
                counts.reads_failed += 1
                raise
            counts.reads += 1
            counts.bytes_read += source.nbytes

    def _referring(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return `inputs`, with references in place of those that are not read at once."""
        tensors = list(inputs)
        room = AT_ONCE
        for place, source in self.found.reads:
            if source.nbytes <= room and not isinstance(source.region, DeviceRegion):
                room -= source.nbytes
                continue
            tensor = tensors[place]
            tensors[place] = RegionTensor(tensor.name, tensor.datatype, tensor.shape, source)
            self._unread = True
        return tensors

    def end(self) -> None:
        """See `RegionUse`."""
        if self.over:
            return
        self.over = True
        self._request = None
        for region in self.found.regions:
            region.let_go()
        if self._claim is not None:
            self._release()

    def _release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    def must_read(self, *, stay: Staying) -> bool:
        """See `RegionUse`."""
        if not self._unread:
            return False
        request = self._request
        # `read` tells one that is over.
        return request is None or any(_is_read(tensor, stay=stay) for tensor in request.inputs)

    async def read(self, *, stay: Staying) -> None:
        """See `RegionUse`."""
        request = self._request
        if request is None:
            raise Cancelled("")
        unread = [
            (place, tensor)
            for place, tensor in enumerate(request.inputs)
            if isinstance(tensor, RegionTensor) and _is_read(tensor, stay=stay)
        ]
        nbytes = sum(tensor.nbytes for _, tensor in unread)
        # A request whose other inputs are long has come through the same memory.
        urgent = any(len(tensor.data) > AT_ONCE for tensor in request.inputs)
        if self._claim is None:
            self._claim = self._claims()
        if not await self._claim.take(nbytes, urgent=urgent):
            raise Unavailable(
                f"{request.prefix}the server has no memory left to read {nbytes} bytes of inputs from shared"
                " memory, as other requests are being received; see --receive-memory",
                retry_after=1.0,
            )
        inputs = list(request.inputs)
        for place, tensor in unread:
            if self.over or request.cancelled:
                self._release()
                raise Cancelled("")
            data = await self._read(tensor)
            inputs[place] = Tensor(tensor.name, tensor.datatype, tensor.shape, data)
        request.inputs = inputs
        if self.over:
            self._release()

    async def _read(self, tensor: RegionTensor) -> Buffer:
        source = tensor.source
        region = source.region
        region.hold()
        try:
            if isinstance(region, DeviceRegion):
                work = partial(_read_device, region, source, tensor.name)
            else:
                work = partial(reading, source, tensor.name, region.fileno)
            data = await in_thread(work, limiter=self._limiter)
        except TritiumError:
            region.counts.reads_failed += 1
            raise
        finally:
            region.let_go()
        region.counts.read(source.nbytes)
        return data


def _is_read(tensor: Tensor, *, stay: Staying) -> bool:
    if not isinstance(tensor, RegionTensor):
        return False
    region = tensor.source.region
    if isinstance(region, DeviceRegion):
        return not (region.handle and region.device_id == stay.gpu and tensor.name in stay.inputs)
    return not stay.system or tensor.datatype is DataType.BYTES


class PlacingReply(ReplyPort):
    """Writes outputs to their regions, and then passes each part on to `port` without their data.

    Parts keep their order: behind one that a thread writes, the others wait. An output without data whose
    shape has elements was written by the instance, and passes as it is.
    """

    __slots__ = ("_counts", "_offload", "_port", "_use", "_waiting")

    def __init__(self, port: ReplyPort, use: Use, *, offload: Offload, counts: RegionCounts) -> None:
        """`use` knows where the client wants outputs. `offload` writes long ones."""
        self._port = port
        self._use = use
        self._offload = offload
        self._counts = counts
        # The parts behind one that is being written; None: none is.
        self._waiting: deque[tuple[InferResponse | TritiumError, bool]] | None = None

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `ReplyPort`."""
        if self._waiting is not None:
            self._waiting.append((part, final))
        elif isinstance(part, TritiumError) or self._use.over:
            self._port.put(part, final=final)
        else:
            self._place(part, final=final)

    def _place(self, part: InferResponse, *, final: bool) -> None:
        targets = self._use.found.targets
        writes: Writes = []
        passed: list[Tensor] = []  # in the places of the outputs
        nbytes = 0
        for tensor in part.outputs:
            target = targets.get(tensor.name)
            size = len(tensor.data)
            if target is None or not size:
                passed.append(tensor)
                continue
            if size > target.nbytes:
                self._fail(part, Internal(too_small(tensor.name, target.nbytes, size)), final=final)
                return
            writes.append((tensor, target))
            passed.append(Tensor(tensor.name, tensor.datatype, tensor.shape, b""))
            nbytes += size
        try:
            if nbytes > AT_ONCE or (nbytes and self._use.found.of_device):
                self._write_later(part, _Writing(writes, passed, nbytes), final=final)
                return
            if writes:
                write_at_once(writes)
        except TritiumError as error:
            self._fail(part, error, final=final)
            return
        if writes:
            self._written(part, passed, len(writes), nbytes)
        self._port.put(part, final=final)

    def _write_later(self, part: InferResponse, job: _Writing, *, final: bool) -> None:
        self._waiting = deque()
        done = partial(self._wrote, part, job, final)
        if not self._offload.submit(job.run, done, nbytes=job.nbytes):
            why = "the server has too many outputs to write to shared memory; send the request again"
            done(None, Unavailable(why, retry_after=1.0))

    def _wrote(
        self, part: InferResponse, job: _Writing, final: bool, _: object, error: Exception | None
    ) -> None:
        job.end()
        waiting, self._waiting = self._waiting, None
        if error is None:
            self._written(part, job.passed, len(job.writes), job.nbytes)
            self._port.put(part, final=final)
        elif isinstance(error, TritiumError):
            self._fail(part, error, final=final)
        else:
            # Also what was interrupted as its actor died.
            self._fail(part, Internal("outputs could not be written to shared memory"), final=final)
        for later, last in waiting or ():
            self.put(later, final=last)
        if error is not None and not isinstance(error, (TritiumError, NotDone)):
            raise error

    def _written(self, part: InferResponse, passed: list[Tensor], count: int, nbytes: int) -> None:
        """`count` outputs were written: have `part` pass on without their data."""
        counts = self._counts
        counts.writes += count
        counts.bytes_written += nbytes
        part.outputs = passed
        if count == len(passed):
            part.release()

    def _fail(self, part: InferResponse, error: TritiumError, *, final: bool) -> None:
        self._counts.writes_failed += 1
        part.release()
        self._port.put(error.with_traceback(None), final=final)


class _Writing:
    """Outputs that a thread writes. It has descriptors of its own, so that nothing else can close them.

    They are closed by the thread or, if that never runs, by `end`. Raises Unavailable where there are none.
    """

    __slots__ = ("_held", "_own", "_turn", "nbytes", "passed", "writes")

    def __init__(self, writes: Writes, passed: list[Tensor], nbytes: int) -> None:
        """`passed` is what is passed on once they are written. They have `nbytes` in all."""
        self.writes = writes
        self.passed = passed
        self.nbytes = nbytes
        self._own: dict[Region, int] = {}
        self._held: list[DeviceRegion] = []
        self._turn = [self._own]  # taken by the one that closes them, by a step that can't be divided
        try:
            for _, target in writes:
                region = target.region
                if isinstance(region, DeviceRegion):
                    region.hold()
                    self._held.append(region)
                elif region not in self._own:
                    self._own[region] = os.dup(region.fileno)
        except OSError as error:
            self.end()
            why = f"outputs can't be written to shared memory now: {error.strerror}"
            raise Unavailable(why, retry_after=1.0) from error

    def run(self) -> None:
        """Write them: on a thread. Raises InvalidArgument and Internal."""
        try:
            own = self._turn.pop()
        except IndexError:
            return  # nothing waits for it any more
        try:
            for tensor, target in self.writes:
                region = target.region
                if isinstance(region, DeviceRegion):
                    _write_device(region, target, tensor)
                else:
                    write(target, tensor.name, tensor.data, own[region])
        finally:
            _close(own)

    def end(self) -> None:
        """Nothing waits for it any more: on the loop's thread."""
        if self._turn:
            with suppress(IndexError):
                _close(self._turn.pop())
        held, self._held = self._held, []
        for region in held:
            region.let_go()


def _close(own: Mapping[Region, int]) -> None:
    for fileno in own.values():
        os.close(fileno)


def _read_device(region: DeviceRegion, source: RegionSlice, name: str) -> Buffer:
    try:
        return region.memory.read(source.at, source.nbytes)
    except DeviceError as error:
        text = f"input '{name}' can't be read from CUDA shared memory region '{region.name}': {error}"
        raise Internal(text) from error


def _write_device(region: DeviceRegion, target: RegionSlice, tensor: Tensor) -> None:
    try:
        region.memory.write(target.at, tensor.data)
    except DeviceError as error:
        text = (
            f"output '{tensor.name}' can't be written to CUDA shared memory region '{region.name}': {error}"
        )
        raise Internal(text) from error
