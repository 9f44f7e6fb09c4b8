"""Faults of the machine: its clock jumps, its disk is full, it stands still for a moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import trio

from actors.values.events import Event
from chaos.faults.base import Injection, NoTarget, Stage, Trouble, now
from chaos.faults.network.attacks import newcomers
from chaos.faults.network.crowds import EVERYTHING
from chaos.record.records import Excuse, LogExpected

# -- the clock

_JUMPS: Final = (-86_400.0, -3_600.0, -2.0, 2.0, 3_600.0, 86_400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump:
    """The wall clock, as the server's code reads it, jumps forth or back, and then returns."""

    name: str = "clock_jump"
    expected: str = "Nobody notices: no request fails, times out early or waits longer, because the server measures by the monotonic clock."
    weight: float = 1.0
    lasts: float = 2.0

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Jump by seconds, an hour or a day."""
        seconds = target.choice(_JUMPS)
        t = now()
        await stage.sabotage.jump(seconds)
        return Injection(
            t=t,
            models=(),
            detail=f"the wall clock jumps by {seconds:+.0f} s",
            expects=[
                LogExpected(event=Event.FAULT_INJECTED.value, keys={"fault": "jump", "seconds": seconds})
            ],
            undo=partial(stage.sabotage.jump, -seconds),
        )


# -- the disk


class DiskUnsuitable(Exception):
    """The log lies where a full disk would harm other users of it; the message says why."""


@contextmanager
def own_disk(folder: Path, size: int = 1 << 30) -> Iterator[bool]:
    """Mount a file system of its own, in memory, at an empty folder inside the block.

    Yields whether that was allowed. What lies on it at the end is in the folder afterwards. `size` is bytes
    at the most, taken only as they are written.
    """
    mounted = not _quietly("mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            aside = folder.with_name(f"{folder.name}.kept")
            subprocess.run(["cp", "-a", str(folder), str(aside)], check=True)
            subprocess.run(["umount", str(folder)], check=True)
            folder.rmdir()
            aside.rename(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFull:
    """The disk under the server's log is full: each write to it fails.

    Where the log has a file system of its own (`own_disk`), that is made as small as what is on it: the
    kernel's ENOSPC. Elsewhere the server's process alone gets a limit on the size of files that is that of
    the log: EFBIG, which takes the same code paths. That limit also applies to memory shared with workers. So
    the fault does not act before the log is larger than any piece of that memory. The server must write a
    line for each request (`--log-requests=true`): otherwise there is little that can fail.
    """

    name: str = "disk_full"
    expected: str = (
        "No request fails or waits: log lines are lost, counted, and told once there is room again."
    )
    weight: float = 1.0
    lasts: float = 1.5

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Fill it. Raises NoTarget if that can't be done without harm."""
        log = Path(os.readlink(f"/proc/{stage.server.pid}/fd/1"))
        try:
            fill = _filling(stage, log)
        except DiskUnsuitable as error:
            raise NoTarget(str(error)) from error
        t = now()
        detail, empty = await trio.to_thread.run_sync(fill)
        return Injection(
            t=t, models=(), detail=detail, mutes=True, undo=partial(_made_room, stage, empty, log, target)
        )


Undo = Callable[[], None]

_PATIENCE: Final = 5.0  # seconds

# Bytes; the segments of memory that the workload shares with workers are smaller.
_LEAST_LOG: Final = 1 << 20
_SLACK: Final = 5  # tries, since the log grows meanwhile


def _filling(stage: Stage, log: Path) -> Callable[[], tuple[str, Undo]]:
    if not log.is_file():
        raise DiskUnsuitable(f"the server's standard output is no file, but {log}")
    if log.parent.is_mount() and log.parent.stat().st_dev != stage.folder.stat().st_dev:
        return partial(_shrink, log.parent)
    size = log.stat().st_size
    if size < _LEAST_LOG:
        raise DiskUnsuitable(
            f"the log {log} has no file system of its own (see own_disk), and with {size} bytes is too small for a limit"
        )
    return partial(limit, stage, size)


def _shrink(disk: Path) -> tuple[str, Undo]:
    """Make a file system in memory as small as what is on it."""
    found = os.statvfs(disk)
    whole = found.f_blocks * found.f_frsize
    for _ in range(_SLACK):
        found = os.statvfs(disk)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        if not _quietly("mount", "-o", f"remount,size={max(used, found.f_frsize)}", str(disk)):
            return f"the disk of the log is full with {used} bytes", partial(_resize, disk, whole)
    raise Trouble(f"{disk} could not be made smaller than what is on it")


def _resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def limit(stage: Stage, size: int) -> tuple[str, Undo]:
    """Limit the size of files that the server writes.

    Returns what was done, in words, and how to lift the limit again.
    """
    server = psutil.Process(stage.server.pid)
    limits = server.rlimit(psutil.RLIMIT_FSIZE)
    server.rlimit(psutil.RLIMIT_FSIZE, (size, limits[1]))

    def lift() -> None:
        # Workers that were started meanwhile have inherited the limit.
        for process in (server, *stage.server.descendants()):
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE)[0] == size:
                    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, limits)

    return f"no file of the server's may be larger than {size} bytes, as its log is", lift


async def _made_room(stage: Stage, empty: Undo, log: Path, target: random.Random) -> None:
    """Make room, and wait until the log is written again. Raises Trouble if it is not."""
    await trio.to_thread.run_sync(empty)
    before = os.stat(log).st_size
    troubles = await newcomers(stage, target)
    with trio.move_on_after(_PATIENCE) as waiting:
        while True:
            if os.stat(log).st_size > before:
                break
            await trio.sleep(0.05)
    if waiting.cancelled_caught:
        troubles.append(
            f"requests were answered, and nothing was written to {log} though there is room again"
        )
    if troubles:
        raise Trouble("; ".join(troubles))


def _quietly(*command: str) -> int:
    return subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


# -- the whole machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStopped:
    """The server, alone or with its workers, stands still and goes on."""

    name: str = "server_stopped"
    expected: str = (
        "All requests wait, and are answered when the server goes on; none fails but those whose own time was up meanwhile, and no "
        "worker is taken for hung."
    )
    weight: float = 1.0
    lasts: float = 1.0

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Stop them."""
        server = psutil.Process(stage.server.pid)
        stopped = [server, *(stage.server.descendants() if target.random() < 0.5 else ())]
        t = now()
        _send(stopped, signal.SIGSTOP)
        with_workers = f" with its {len(stopped) - 1} workers" if len(stopped) > 1 else ""
        return Injection(
            t=t,
            models=EVERYTHING,
            detail=f"the server{with_workers} is stopped",
            # Some requests to `slow` are given a second, and no request waits longer than half of one in its
            # queue.
            excuses=[
                Excuse(
                    models=("slow",),
                    codes=("DEADLINE_EXCEEDED", "UNAVAILABLE"),
                    before=self.lasts,
                    after=self.lasts,
                )
            ],
            stops=True,
            undo=partial(_go_on, stopped),
        )


async def _go_on(stopped: Sequence[psutil.Process]) -> None:
    _send(stopped, signal.SIGCONT)


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


FAULTS: Final = (ClockJump(), DiskFull(), ServerStopped())
"""The family's faults."""
