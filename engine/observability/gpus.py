"""What NVIDIA's management library says of the GPUs: read on a thread at an interval, told at a scrape.

The library is that of `engine.processes.gpus.nvml`. A machine without a GPU, a driver or the
library is nothing unusual: GPU metrics are off then, for a reason that one line of the log and the table at
the start tell, and the server serves. A GPU that can't be read for a while has no series meanwhile.

Reference: contract observability.md section 1.5.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.values.events import Event, Log
from actors.values.families import Block, Families, Family, Labels, blocks
from engine.processes.gpus.nvml import Load, NoGpus, open_library
from engine.settings.reporting import MetricsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at a moment: watts, bytes, joules since the server started; None for what it can't tell."""

    uuid: str
    utilization: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy: float | None = None


class GpusUnreadable(Exception):
    """The GPUs can't be read at the moment. The message is for the operator: why."""


class Gpus(Protocol):
    """GPUs that were found. The library stays open until the process ends: to close it could block."""

    @property
    def uuids(self) -> Sequence[str]:
        """Their UUIDs, in the order of their ids."""

    def read(self) -> Sequence[GpuSample]:
        """Return what they are now. Blocks. Raises GpusUnreadable."""


# -- the library


def open_nvml(environ: Mapping[str, str], load: Load = importlib.import_module) -> NvmlGpus:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` leaves to this server. Blocks. Raises NoGpus.

    `load` imports the library.
    """
    opened = open_library(environ, load)
    return NvmlGpus(opened.library, opened.handles)


class NvmlGpus:
    """GPUs by `pynvml`. Implements `Gpus`."""

    def __init__(self, library: Any, handles: Mapping[str, Any]) -> None:
        """`handles` are the library's, by UUID."""
        self._library = library
        self._handles = handles
        self._first_energy: dict[str, int] = {}  # millijoules since the driver was loaded

    @property
    def uuids(self) -> Sequence[str]:
        """See `Gpus.uuids`."""
        return list(self._handles)

    def read(self) -> Sequence[GpuSample]:
        """See `Gpus.read`."""
        try:
            return [self._sample(uuid, handle) for uuid, handle in self._handles.items()]
        except self._library.NVMLError as error:
            raise GpusUnreadable(str(error)) from error

    def _sample(self, uuid: str, handle: Any) -> GpuSample:
        library = self._library
        rates = self._if_told(library.nvmlDeviceGetUtilizationRates, handle)
        memory = self._if_told(library.nvmlDeviceGetMemoryInfo, handle)
        power = self._if_told(library.nvmlDeviceGetPowerUsage, handle)
        limit = self._if_told(library.nvmlDeviceGetPowerManagementLimit, handle)
        return GpuSample(
            uuid=uuid,
            utilization=None if rates is None else rates.gpu / 100,
            memory_total=None if memory is None else memory.total,
            memory_used=None if memory is None else memory.used,
            power_usage=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
            energy=self._energy(uuid, self._if_told(library.nvmlDeviceGetTotalEnergyConsumption, handle)),
        )

    def _if_told(self, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return what the driver says, or None where this GPU can't tell it: an old one, or a part of one."""
        try:
            return ask(handle)
        except self._library.NVMLError_NotSupported:
            return None

    def _energy(self, uuid: str, millijoules: int | None) -> float | None:
        if millijoules is None:
            return None
        first = self._first_energy.setdefault(uuid, millijoules)
        if millijoules < first:  # the driver was loaded again
            first = self._first_energy[uuid] = 0
        return (millijoules - first) / 1000


# -- the actor

_INTENSITY: Final = Intensity(3, 60.0)

Opening = Callable[[], Gpus]
"""Opens the library. Blocks. Raises NoGpus."""


class GpuMetrics:
    """What is known of the GPUs: the last samples, and why there are none."""

    def __init__(self, settings: MetricsSettings, *, shown: bool, opening: Opening, log: Log) -> None:
        """`shown` is whether there is a port that tells metrics."""
        self.samples: Sequence[GpuSample] = ()
        self.known = trio.Event()
        self.standing = "not looked for yet"
        self._uuids: Sequence[str] = ()
        self._opening = opening
        self._log = log
        self._interval = settings.interval / 2  # contract: figures are refreshed twice an interval
        self._limiter = trio.CapacityLimiter(1)  # a driver that hangs holds one thread, and no other
        self._unreadable = ""
        why = _why_off(settings, shown)
        self._off = bool(why)
        if why:
            self._settle(f"off: {why}")

    def _settle(self, standing: str) -> None:
        self.standing = standing
        self.known.set()

    def uuid_of(self, device: int) -> str:
        """Return the UUID of a GPU by its id; empty where it is not known."""
        return self._uuids[device] if 0 <= device < len(self._uuids) else ""

    def specs(self) -> list[ChildSpec]:
        """Return the actor, unless the settings want no GPU metrics."""
        if self._off:
            return []
        return [ChildSpec("gpus", self.run, intensity=_INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP)]

    async def run(self, ctx: ChildContext) -> None:
        """Read the GPUs, for ever. The start function of a permanent child."""
        ctx.started()
        try:
            gpus = await in_thread(self._opening, limiter=self._limiter, abandon_on_cancel=True)
        except NoGpus as no:
            if not self.known.is_set():
                self._log(Event.GPUS_UNAVAILABLE, level="info", reason=str(no))
            self._settle(f"off: {no}")
            ctx.publish(gpu_metrics=self.standing)
            await ctx.stopping.wait()
            return
        self._uuids = gpus.uuids
        self._settle(f"{len(self._uuids)} GPU{'' if len(self._uuids) == 1 else 's'}")
        ctx.publish(gpu_metrics=self.standing, gpus=list(self._uuids))
        try:
            while True:
                await self._read(gpus)
                await trio.sleep(self._interval)
        finally:
            self.samples = ()

    async def _read(self, gpus: Gpus) -> None:
        try:
            self.samples = await in_thread(gpus.read, limiter=self._limiter, abandon_on_cancel=True)
        except GpusUnreadable as why:
            self.samples = ()
            if str(why) != self._unreadable:
                self._unreadable = str(why)
                self._log(Event.GPUS_UNAVAILABLE, level="warning", reason=str(why))
        else:
            self._unreadable = ""


def _why_off(settings: MetricsSettings, shown: bool) -> str:
    if not shown:
        return "--allow-metrics=false"
    if not settings.gpu:
        return "--allow-gpu-metrics=false"
    return "TRITON_SERVER_CPU_ONLY is set" if settings.cpu_only else ""


FAMILIES: Final[Families[GpuSample]] = (
    Family("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", lambda s: s.utilization),
    Family("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda s: s.memory_total),
    Family("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda s: s.memory_used),
    Family("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda s: s.power_usage),
    Family("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda s: s.power_limit),
    Family(
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        lambda s: s.energy,
    ),
)


def gpu_blocks(samples: Sequence[GpuSample]) -> Iterator[Block]:
    """Yield what is known of each GPU."""
    return blocks(FAMILIES, [(Labels({"gpu_uuid": each.uuid}), each) for each in samples])
