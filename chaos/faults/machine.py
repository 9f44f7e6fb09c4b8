"""Faults of the machine: its clock jumps, its disk is full, it stands still for a moment."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import trio

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Stage, Trouble
from chaos.faults.network.attacks import newcomers
from chaos.faults.network.crowds import EVERYTHING
from chaos.record.outcome import now
from chaos.record.records import Excuse, LogExpected

# -- the clock

_JUMPS: Final = (-86_400.0, -3_600.0, -2.0, 2.0, 3_600.0, 86_400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Fault):
    """The wall clock, as the server's code reads it, jumps forth or back, and then returns."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFull(Fault):
    """The disk under the server's log is full: each write to it fails.

    The server's process gets a limit on the size of files that is that of the log: EFBIG, which takes the
    same code paths as ENOSPC. That limit also applies to memory shared with workers. So the fault does not
    act before the log is larger than any piece of that memory. The server must write a line for each request
    (`--log-requests=true`): otherwise there is little that can fail.
    """

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Fill it. Raises NoTarget if that can't be done without harm."""
        log = Path(os.readlink(f"/proc/{stage.server.pid}/fd/1"))
        size = _size(log)
        if size < _LEAST_LOG:
            raise NoTarget(f"the server's log {log} has {size} bytes, which is too small for a limit")
        t = now()
        lift = limit(stage, size)
        return Injection(
            t=t,
            models=(),
            detail=f"no file of the server's may be larger than {size} bytes, as its log is",
            mutes=True,
            undo=partial(_made_room, stage, lift, log, target),
        )


_PATIENCE: Final = 5.0  # seconds

# Bytes; the segments of memory that the workload shares with workers are smaller.
_LEAST_LOG: Final = 1 << 20


def _size(log: Path) -> int:
    return log.stat().st_size if log.is_file() else 0


def limit(stage: Stage, size: int) -> Callable[[], None]:
    """Limit the size of files that the server writes. Returns how to lift the limit again."""
    server = psutil.Process(stage.server.pid)
    limits = server.rlimit(psutil.RLIMIT_FSIZE)
    server.rlimit(psutil.RLIMIT_FSIZE, (size, limits[1]))

    def lift() -> None:
        # Workers that were started meanwhile have inherited the limit.
        for process in (server, *stage.server.descendants()):
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE)[0] == size:
                    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, limits)

    return lift


async def _made_room(stage: Stage, lift: Callable[[], None], log: Path, target: random.Random) -> None:
    """Make room, and wait until the log is written again. Raises Trouble if it is not."""
    lift()
    before = _size(log)
    troubles = await newcomers(stage, target)
    with trio.move_on_after(_PATIENCE) as waiting:
        while _size(log) <= before:  # noqa: ASYNC110 (another process writes it)
            await trio.sleep(0.05)
    if waiting.cancelled_caught:
        troubles.append(
            f"requests were answered, and nothing was written to {log} though there is room again"
        )
    if troubles:
        raise Trouble("; ".join(troubles))


# -- the whole machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStopped(Fault):
    """The server, alone or with its workers, stands still and goes on."""

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


FAULTS: Final[Sequence[Fault]] = (
    ClockJump(
        name="clock_jump",
        expected="Nobody notices: no request fails, times out early or waits longer, because the server measures by the monotonic clock.",
        lasts=2.0,
    ),
    DiskFull(
        name="disk_full",
        expected="No request fails or waits: log lines are lost, counted, and told once there is room again.",
        lasts=1.5,
    ),
    ServerStopped(
        name="server_stopped",
        expected="All requests wait, and are answered when the server goes on; none fails but those whose own time was up meanwhile, and no "
        "worker is taken for hung.",
        lasts=1.0,
    ),
)
"""The family's faults."""
