"""Where the instances of a version are loaded: on which GPUs, and whether these take another model at all.

The GPUs' memory is read when a version is loaded. What is promised to versions that load meanwhile counts as
taken; once they are loaded, the GPUs tell. Decided by `actors.serving.policy.gpus.placing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from actors.seams.threads import in_thread
from actors.serving.policy.gpus.placing import Room, devices_of, place, why_full, without
from actors.values.errors import Unavailable
from actors.values.hardware.gpus import Gpu
from actors.values.specs import InstanceSpec, ModelSpec
from engine.processes.gpus.nvml import NoGpus
from engine.processes.placement import seat

READ_WITHIN: Final = 10.0
"""Seconds for the driver to tell the GPUs' memory."""


class GpuPlacing:
    """Implements `actors.catalog.loading.Placing`."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        read: Callable[[], Mapping[str, Room]],
        bytes_of_files: Callable[[Path], Awaitable[int]],
        limits: Mapping[int, float],
    ) -> None:
        """`read` tells the GPUs' memory by their UUIDs: it blocks, and raises NoGpus.

        `limits` are the operator's, by GPU.
        """
        self._gpus = gpus
        self._read = read
        self._bytes_of_files = bytes_of_files
        self._limits = limits
        self._limiter = trio.CapacityLimiter(2)  # a driver that hangs holds up no other threads
        self._promised: dict[int, Counter[int]] = {}  # by the placed version's `id`: bytes by GPU

    async def place(self, spec: ModelSpec, before: Sequence[InstanceSpec] = ()) -> ModelSpec:
        """See `Placing`."""
        limited = any(number in self._limits for number in devices_of(spec.instances))
        if not limited and not any(each.candidates for each in spec.instances):
            return spec
        needs = await self._needs(spec)
        rooms = without(await self._rooms(), sum(self._promised.values(), Counter()))
        instances = place(spec.instances, rooms=rooms, needs=needs, before=before)
        known = {each.name for each in before}
        joining = [each for each in instances if each.name not in known]
        why = why_full(joining, rooms, self._limits)
        if why:
            raise Unavailable(why)
        placed = seat(replace(spec, instances=instances), self._gpus)
        self._promised[id(placed)] = Counter(
            {number: count * needs[number] for number, count in devices_of(joining).items()}
        )
        return placed

    def settled(self, spec: ModelSpec) -> None:
        """See `Placing`."""
        self._promised.pop(id(spec), None)

    async def _needs(self, spec: ModelSpec) -> dict[int, int]:
        """Return what an instance is thought to take on each GPU: its limit, or the bytes of its files."""
        files = 0 if spec.gpu_memory else sum([await self._bytes_of_files(each) for each in spec.directories])
        return {
            number: spec.gpu_memory.of(gpu.total) if spec.gpu_memory else files
            for number, gpu in enumerate(self._gpus)
        }

    async def _rooms(self) -> dict[int, Room]:
        found: Mapping[str, Room] = {}
        why = f"the driver did not tell it within {READ_WITHIN:g} s"
        with trio.move_on_after(READ_WITHIN):
            try:
                found = await in_thread(self._read, limiter=self._limiter, abandon_on_cancel=True)
                why = "the driver does not tell it"
            except NoGpus as no:
                why = str(no)
        missing = next((gpu.name for gpu in self._gpus if gpu.uuid not in found), None)
        if missing is not None:
            raise Unavailable(
                f"the memory of GPU '{missing}', which decides where models are loaded, is not known: {why}"
            )
        return {number: found[gpu.uuid] for number, gpu in enumerate(self._gpus)}
