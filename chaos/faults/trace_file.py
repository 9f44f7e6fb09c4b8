"""The disk under the trace file is full, while every request is traced.

A run's server that does not export its traces writes them to a file, which is a link to a device that is
always full. With a log frequency it writes others beside it, for which there is room.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from os import strerror
from pathlib import Path
from typing import Final

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Stage, until
from chaos.faults.collector import set_traces
from chaos.record.outcome import now
from chaos.record.records import LogExpected

LOST: Final = "tritium_traces_lost_total"

_FULL: Final = Path("/dev/full")
_EACH: Final = 20  # traces in each of the files for which there is room


def trace_file(run: Path) -> Path:
    """Return where the server of a run writes its traces."""
    return run / "traces" / "trace.json"


def file_flags(run: Path) -> Sequence[str]:
    """Make the link in a run's folder; return the flags of a server that writes there."""
    link = trace_file(run)
    link.parent.mkdir(parents=True)
    link.symlink_to(_FULL)
    return ("--trace-config=mode=triton", f"--trace-config=triton,file={link}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiskFull(Fault):
    """Every request is traced, and the traces can't be written."""

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Trace every request. Raises NoTarget where the server writes no such file."""
        del target
        link = trace_file(stage.folder)
        if not link.is_symlink():
            raise NoTarget("this server writes no traces to a file")
        lost = await _lost(stage)
        t = now()
        await set_traces(stage.server, trace_level=["TIMESTAMPS"], trace_rate="1", log_frequency="0")
        return Injection(
            t=t,
            models=(),
            detail=f"every request is traced, and the disk under {link.name} is full",
            expects=[
                LogExpected(event=Event.TRACES_LOST.value, keys={"error": strerror(ENOSPC)}, within=3.0)
            ],
            undo=partial(_made_room, stage, lost, frozenset(_numbered(link))),
        )


async def _made_room(stage: Stage, lost: float, before: frozenset[Path]) -> None:
    """Write where there is room, and then trace nothing. Raises Trouble if that does not come about."""
    try:
        await until(
            partial(_lost, stage),
            lambda seen: seen > lost,
            lambda seen: f"every request was traced, the disk was full, and {LOST} still counts {seen}",
        )
        await set_traces(stage.server, log_frequency=str(_EACH))

        async def whole() -> list[int]:
            return [_length(each) for each in _numbered(trace_file(stage.folder)) if each not in before]

        await until(
            whole,
            lambda seen: any(seen),
            lambda seen: f"there is room, and of {len(seen or ())} files with traces none is a whole array",
            pause=0.1,
        )
    finally:
        await set_traces(stage.server, trace_level=["OFF"])


def _numbered(link: Path) -> list[Path]:
    return sorted(link.parent.glob(f"{link.name}.*"))


def _length(file: Path) -> int:
    """Return how many objects a file has; 0 while it is being written."""
    try:
        return len(json.loads(file.read_text()))
    except (ValueError, FileNotFoundError):
        return 0


async def _lost(stage: Stage) -> float:
    return await stage.server.metric(LOST, reason="sink")


FAULTS: Final[Sequence[Fault]] = (
    TraceDiskFull(
        name="trace_disk_full",
        expected="No request fails or waits: traces are lost, counted, and told of in one line of the log;"
        " files for which there is room are"
        " written whole.",
        lasts=2.0,
    ),
)
"""The family's faults."""
