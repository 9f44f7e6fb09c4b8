"""Clients' shared memory: implements `actors.values.interfaces.SharedMemory`, and the actor that writes.

The regions outlive the actor: it only runs threads. Where it dies, answers that were being written fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from actors.regions.devices import DeviceError, DeviceRegion, Devices
from actors.regions.objects import open_object
from actors.regions.policy import (
    RegionLimits,
    check_extent,
    check_inputs,
    check_names,
    check_place,
    object_name,
)
from actors.regions.table import Entry, RegionTable
from actors.regions.use import AT_ONCE, Found, MemoryClaim, PlacingReply, Use
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.offload import NotDone, Offload
from actors.supervision.spec import ChildSpec
from actors.values.errors import InvalidArgument, TritiumError, Unsupported
from actors.values.interfaces import CudaRegion, SharedMemory, SystemRegion
from actors.values.regions import Region, RegionPlace, RegionPlaces, RegionSlice
from actors.values.requests import InferRequest

DISABLED: Final = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_THREADS: Final = 4  # that read, and as many that write
_JOBS: Final = 4096  # answers that wait for a thread or are being written
_SHOWN: Final = 64  # regions in the tree, the oldest


class RegionRegistry(SharedMemory):
    """The regions of one server. Passive; `spec` is its actor."""

    __slots__ = (
        "_allowed",
        "_claims",
        "_device_lock",
        "_devices",
        "_lock",
        "_offload",
        "_readers",
        "table",
    )

    def __init__(
        self,
        *,
        allowed: bool,
        limits: RegionLimits,
        claims: Callable[[], MemoryClaim],
        devices: Devices | None = None,
    ) -> None:
        """`claims` makes claims on the memory for requests. `devices`: None where there is no GPU."""
        self.table = RegionTable(limits, self._close_later)
        self._allowed = allowed
        self._claims = claims
        self._devices = devices
        # One registration of a kind at a time: each looks, opens, and takes its name. A device may take long.
        self._lock = trio.Lock()
        self._device_lock = trio.Lock()
        self._readers = trio.CapacityLimiter(_THREADS)
        # A thread reads what an answer lends it, so no answer is given back before its thread has ended.
        self._offload = Offload(
            limiter=trio.CapacityLimiter(_THREADS), jobs=_JOBS, nbytes=2**63, abandons=False
        )

    # -- registration

    def check_allowed(self) -> None:
        """See `SharedMemory`."""
        if not self._allowed:
            raise Unsupported(DISABLED)

    @property
    def has_cuda(self) -> bool:
        """See `SharedMemory`."""
        return self._devices is not None

    async def register_system(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        """See `SharedMemory`."""
        try:
            self.check_allowed()
            check_names(name, key)
            found = object_name(name, key)
            async with self._lock:
                self.table.check_free(name)
                fileno, size = await in_thread(open_object, found, key)
                try:
                    check_extent(name, offset, byte_size, object_size=size, page=_PAGE)
                    self.table.check_free(name)  # the other kind may have it by now
                    self.table.check_room(name, byte_size)
                except TritiumError:
                    with trio.CancelScope(shield=True):
                        await in_thread(os.close, fileno)
                    raise
                self.table.add(Region(name, key, offset, byte_size, fileno), trio.current_time())
        except TritiumError:
            self.table.refused += 1
            raise

    async def register_cuda(self, name: str, raw_handle: bytes, *, device_id: int, byte_size: int) -> None:
        """See `SharedMemory`."""
        try:
            if self._devices is None:
                raise InvalidArgument(
                    f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
                )
            self.check_allowed()
            check_names(name)
            async with self._device_lock:
                await self._open_cuda(self._devices, name, raw_handle, device_id, byte_size)
        except TritiumError:
            self.table.refused += 1
            raise

    async def _open_cuda(
        self, devices: Devices, name: str, raw_handle: bytes, device_id: int, byte_size: int
    ) -> None:
        self.table.check_free(name)
        try:
            memory = await in_thread(devices.open, raw_handle, device_id)
        except DeviceError as error:
            raise InvalidArgument("failed to register shared memory region: invalid args") from error
        try:
            if byte_size > memory.nbytes:
                raise InvalidArgument(f"failed to register shared memory region '{name}': invalid args")
            self.table.check_free(name)  # as above
            self.table.check_room(name, byte_size)
        except TritiumError:
            with suppress(DeviceError):
                memory.close()
            raise
        self.table.add(DeviceRegion(name, byte_size, device_id, memory, raw_handle), trio.current_time())

    def system_regions(self, name: str = "") -> Sequence[SystemRegion]:
        """See `SharedMemory`."""
        return [
            SystemRegion(name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size)
            for region in self.table.listed(name, cuda=False)
        ]

    def cuda_regions(self, name: str = "") -> Sequence[CudaRegion]:
        """See `SharedMemory`."""
        return [
            CudaRegion(name=region.name, device_id=region.device_id, byte_size=region.byte_size)
            for region in self.table.listed(name, cuda=True)
            if isinstance(region, DeviceRegion)
        ]

    def unregister_system(self, name: str = "") -> None:
        """See `SharedMemory`."""
        self._unregister(name, cuda=False)

    def unregister_cuda(self, name: str = "") -> None:
        """See `SharedMemory`."""
        self._unregister(name, cuda=True)

    def _unregister(self, name: str, *, cuda: bool) -> None:
        self.check_allowed()
        if name:
            self.table.unregister(name, cuda=cuda)
        else:
            self.table.unregister_all(cuda=cuda)

    def _close_later(self, fileno: int) -> bool:
        return self._offload.submit(partial(os.close, fileno), partial(_closed, fileno))

    # -- requests

    def attach(self, request: InferRequest, places: RegionPlaces) -> None:
        """See `Regions`."""
        found = places.found
        if not isinstance(found, Found) or found.standing is not self.table.standing:
            found = places.found = self._find(places)
        if found.nbytes > AT_ONCE:
            check_inputs(request.prefix, found.nbytes, self.table.limits)
        use = Use(request, found, self._claims, self._readers)
        try:
            use.take()
        except BaseException:
            use.end()
            raise
        request.regions = use
        if found.targets:
            request.reply = PlacingReply(request.reply, use, offload=self._offload, counts=self.table.counts)
            request.output_regions = found.long_targets

    def _find(self, places: RegionPlaces) -> Found:
        """Return what `places` are. Raises NotFound and InvalidArgument."""
        reads = [(at, self._slice(place)) for at, place in enumerate(places.inputs) if place is not None]
        targets = {name: self._slice(place) for name, place in places.outputs.items()}
        return Found(reads, targets, self.table.standing)

    def _slice(self, place: RegionPlace) -> RegionSlice:
        name, offset, nbytes = place
        region = self.table.find(name)
        check_place(name, region.byte_size, offset=offset, nbytes=nbytes)
        return RegionSlice(region, region.offset + offset, nbytes)

    # -- the actor

    def spec(self) -> ChildSpec:
        """Return its actor."""
        return ChildSpec("shared-memory", self._run)

    async def _run(self, ctx: ChildContext) -> None:
        ctx.info = ToldRegions(self.table)
        await self._offload.run(ctx)

    def close(self) -> None:
        """Close all regions: the server has ended."""
        self.table.close()


def _closed(fileno: int, _: object, error: Exception | None) -> None:
    if isinstance(error, NotDone):  # no thread has begun
        os.close(fileno)


class ToldRegions(Mapping[str, object]):
    """The regions as the tree shows them, at the moment it is looked at."""

    _KEYS: Final = ("registered", "bytes", "regions")

    def __init__(self, table: RegionTable) -> None:
        self._table = table

    def __getitem__(self, key: str) -> object:
        match key:
            case "registered":
                return len(self._table)
            case "bytes":
                return sum(entry.region.byte_size for entry in self._table)
            case "regions":
                now = trio.current_time()
                return [_told(entry, now) for entry, _ in zip(self._table, range(_SHOWN), strict=False)]
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._KEYS if len(self._table) else self._KEYS[:1])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _told(entry: Entry, now: float) -> dict[str, object]:
    region = entry.region
    told: dict[str, object] = {"name": region.name, "bytes": region.byte_size}
    if isinstance(region, DeviceRegion):
        told["device"] = region.device_id
    else:
        told["key"] = region.key
    told |= {"age": round(now - entry.since, 1), "users": region.users}
    if entry.leaving:
        told["unregistered"] = True
    return told
