"""How much memory there is, how much workers take, and how much models take on disk.

The source is /proc and the file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from actors.seams.threads import in_thread
from actors.values.hardware.gpus import Gpu
from engine.processes.gpus.nvml import NoGpus

TOLD_WITHIN: Final = 10.0
"""Seconds for the driver to tell what processes take on GPUs."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Implements `actors.residency.residency.Memory`. What the kernel has to count page by page is read on a thread."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        gpus: Sequence[Gpu] = (),
        read_use: Callable[[], Mapping[str, Mapping[int, int]]] | None = None,
    ) -> None:
        """`read_use` tells what processes take on `gpus`, by UUID: it blocks, and raises NoGpus."""
        self._gpus = gpus
        self._read_use = read_use
        self._driver = trio.CapacityLimiter(1)
        self._proc = proc
        self._processes = trio.CapacityLimiter(1)
        self._files = trio.CapacityLimiter(2)  # their own: a file system may hang

    async def of_processes(self, pids: Collection[int]) -> dict[int, int]:
        """Return the bytes each process has resident. See `resident_bytes`."""
        return await in_thread(self._of_processes, pids, limiter=self._processes)

    def _of_processes(self, pids: Collection[int]) -> dict[int, int]:
        sizes = ((pid, resident_bytes(pid, self._proc)) for pid in pids)
        return {pid: size for pid, size in sizes if size is not None}

    async def of_gpus(self, pids: Collection[int]) -> dict[int, dict[int, int]]:
        """Return the bytes each process has on each GPU; nothing where the driver can't tell in time."""
        if self._read_use is None:
            return {}
        used: Mapping[str, Mapping[int, int]] = {}
        with trio.move_on_after(TOLD_WITHIN):
            with suppress(NoGpus):
                used = await in_thread(self._read_use, limiter=self._driver, abandon_on_cancel=True)
        wanted = set(pids)
        return {
            number: {pid: size for pid, size in used.get(gpu.uuid, {}).items() if pid in wanted}
            for number, gpu in enumerate(self._gpus)
        }

    async def of_files(self, directory: Path) -> int:
        """Return the bytes of all files below `directory`. See `bytes_on_disk`."""
        return await in_thread(bytes_on_disk, directory, limiter=self._files, abandon_on_cancel=True)


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return a process's share of memory; None if it has ended.

    That is its proportional set size, in which a page that several processes map (a library, a segment of
    ours) is counted once among them. If the kernel does not tell it, it is the resident set size, which
    counts that page once for each process.
    """
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # An old kernel, a process of another user, or one that has just ended: statm tells these apart.
        pass
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except OSError:
        return None


def bytes_on_disk(directory: Path) -> int:
    """Return the bytes of all files below `directory`; what is missing or may not be seen counts nothing."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # a dangling link, or deleted meanwhile
    return total


def memory_total(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that the server and its workers may use.

    That is the machine's memory, or its control group's if that is less.
    """
    limits = [_machine_memory(proc)]
    for file in _limit_files(proc, cgroup):
        try:
            text = file.read_text().strip()
        except OSError:
            # The root of the hierarchy has no limit, nor has one that is not mounted.
            continue
        if text.isdigit():  # not `max`
            limits.append(int(text))
    return min(limits)


def memory_available(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes of memory that the server and its workers may still take; None where that is unknown.

    That is what the machine has available, or what its control group, or one around it, has left if that is
    less. Memory that only caches files counts as left.
    """
    try:
        left = [_machine_memory(proc, "MemAvailable:")]
    except (OSError, ValueError):
        return None
    for file in _limit_files(proc, cgroup):
        used = "memory.current" if file.name == "memory.max" else "memory.usage_in_bytes"
        try:
            limit = file.read_text().strip()
            if not limit.isdigit():
                continue
            taken = int(file.with_name(used).read_text())
            for line in file.with_name("memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == ("inactive_file" if file.name == "memory.max" else "total_inactive_file"):
                    taken -= int(value)
        except (OSError, ValueError):
            continue
        left.append(max(0, int(limit) - taken))
    return min(left)


def _machine_memory(proc: Path, what: str = "MemTotal:") -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {what} in {proc / 'meminfo'}")


def _limit_files(proc: Path, cgroup: Path) -> Iterator[Path]:
    """Return where the limits of our control group, and of those around it, are, in either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        yield group / name
        while group != root:
            group = group.parent
            yield group / name
