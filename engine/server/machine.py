"""What a server takes from the machine that it runs on, in one place.

A simulation can put a machine of its own there.

Sockets come from the same direction, see `engine.server.sockets`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from actors.generation.texts import TextWorkers
from actors.regions.devices import Devices
from actors.residency.residency import Memory as MeasuredMemory
from actors.seams.given import Seams
from actors.serving.instances.launching import Launcher
from actors.serving.policy.gpus.placing import Room
from actors.values.events import Log
from actors.values.hardware.gpus import Gpu
from actors.values.specs import ModelSpec
from engine.observability.gpus import Gpus, open_nvml
from engine.processes.backends import BackendTraits, discover
from engine.processes.devices.memory import GpuDevices
from engine.processes.gpus.nvml import find_gpus, read_room, read_use
from engine.processes.launch import WorkerLauncher
from engine.processes.spares import Spares
from engine.processes.text.launching import VersionTexts
from engine.repository.fingerprint import Digests
from engine.repository.opening import open_sources
from engine.repository.source import Source
from engine.server.residency import Memory
from engine.server.version_tree import milliseconds_since_epoch
from engine.settings.settings import Settings


class SparingLauncher(Launcher, Protocol):
    """Starts workers, and has some started beforehand."""

    @property
    def spares(self) -> Spares:
        """Those that wait; their actor is a child of the tree."""


class Machine(Protocol):
    """Processes, directories, memory, clocks and chance."""

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """Return what there is to run models with, by name. See `engine.processes.backends.discover`."""

    def launcher(
        self,
        backends: Mapping[str, BackendTraits],
        *,
        environ: Mapping[str, str],
        spare_workers: int,
        log: Log,
    ) -> SparingLauncher:
        """Return what starts workers."""

    def sources(self, settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
        """Return the repositories. Raises TritiumError for one that can't be opened."""

    def gpu_table(self, environ: Mapping[str, str]) -> Sequence[Gpu]:
        """Return the GPUs that models may be given instances on. Blocks, where there are any."""

    def text_workers(self, environ: Mapping[str, str], log: Log) -> Callable[[ModelSpec], TextWorkers]:
        """Return what launches the text workers of language models. `environ` is that of workers."""

    def gpu_room(self, environ: Mapping[str, str]) -> Mapping[str, Room]:
        """Return the memory of the GPUs by their UUIDs. Blocks. Raises NoGpus."""

    def devices(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Devices | None:
        """Return what reaches the memory of GPUs; None without one. `environ` is that of workers."""

    def memory(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> MeasuredMemory:
        """Return what measures how much models take, on `gpus` too."""

    def cores(self) -> int:
        """Return how many workers can load their models at once without slowing each other down."""

    def random(self) -> random.Random:
        """Return a source of chance: jitter of restarts, shares of traffic, ages of connections."""

    def wall_clock(self) -> int:
        """Return milliseconds since the epoch."""

    def gpus(self, environ: Mapping[str, str]) -> Gpus:
        """Return what reads the GPUs. Blocks. Raises NoGpus."""

    def monotonic(self) -> float:
        """Return seconds on a clock that may stand anywhere, and may be read from threads."""

    def seams(self) -> Seams:
        """Return threads, alarms and fault points."""


class ThisMachine:
    """The real one."""

    def backends(self, directory: Path | None) -> Mapping[str, BackendTraits]:
        """See `Machine`."""
        return discover(directory)

    def launcher(
        self,
        backends: Mapping[str, BackendTraits],
        *,
        environ: Mapping[str, str],
        spare_workers: int,
        log: Log,
    ) -> WorkerLauncher:
        """See `Machine`."""
        return WorkerLauncher(backends, environ=environ, spare_workers=spare_workers, log=log)

    def sources(self, settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
        """See `Machine`."""
        return open_sources(settings, environ, digests)

    def gpu_table(self, environ: Mapping[str, str]) -> Sequence[Gpu]:
        """See `Machine`."""
        return find_gpus(environ)

    def text_workers(self, environ: Mapping[str, str], log: Log) -> Callable[[ModelSpec], TextWorkers]:
        """See `Machine`."""
        return partial(VersionTexts, environ=environ, log=log)

    def gpu_room(self, environ: Mapping[str, str]) -> Mapping[str, Room]:
        """See `Machine`."""
        return read_room(environ)

    def devices(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Devices | None:
        """See `Machine`."""
        return GpuDevices(gpus, environ=environ) if gpus else None

    def memory(self, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Memory:
        """See `Machine`."""
        return Memory(gpus=gpus, read_use=partial(read_use, environ) if gpus else None)

    def cores(self) -> int:
        """See `Machine`."""
        return len(os.sched_getaffinity(0))

    def random(self) -> random.Random:
        """See `Machine`."""
        return random.Random()

    def wall_clock(self) -> int:
        """See `Machine`."""
        return milliseconds_since_epoch()

    def gpus(self, environ: Mapping[str, str]) -> Gpus:
        """See `Machine`."""
        return open_nvml(environ)

    def monotonic(self) -> float:
        """See `Machine`."""
        return time.monotonic()

    def seams(self) -> Seams:
        """See `Machine`."""
        return Seams()
