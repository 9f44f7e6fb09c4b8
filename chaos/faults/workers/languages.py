"""Faults of a language model: its engines and its text worker are killed under streams."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, NoTarget, Stage
from chaos.faults.targets import signalled
from chaos.record.outcome import now
from chaos.record.records import LogExpected
from chaos.subject.server import Node, find, serving
from chaos.workload.answers import TALE

OFTEN: Final = 12.0
"""How often they are drawn: there is no run of a minute without one of them, or hardly one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKilled(Fault):
    """A signal to one of the engines."""

    number: signal.Signals

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Kill. Raises NoTarget if no engine serves."""
        version = f"models/{TALE}/1/engine"
        nodes = [node for node in await _below(stage, version, f"{version}/instances") if serving(node)]
        if not nodes:
            raise NoTarget("no engine serves just now")
        hit = target.choice(nodes)
        keys = {"actor": hit["path"], "pid": hit["info"]["pid"], "reason": f"signal_{self.number.value}"}
        return _killed(hit, self.number, LogExpected(event=Event.WORKER_EXITED.value, keys=keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWorkerKilled(Fault):
    """SIGKILL to the text worker."""

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Kill. Raises NoTarget if there is none."""
        del target
        version = f"models/{TALE}/1"
        path = f"{version}/texts"
        found = [node for node in await _below(stage, version, version) if node["path"] == path]
        if not found or "pid" not in found[0]["info"]:
            raise NoTarget("no text worker serves just now")
        expected = LogExpected(event=Event.CHILD_EXITED.value, keys={"actor": path})
        return _killed(found[0], signal.SIGKILL, expected)


async def _below(stage: Stage, version: str, path: str) -> Sequence[Node]:
    """Return the children of a node below a version: that of an engine stands beside that of its model."""
    try:
        versions = find(await stage.server.tree(), "models")["children"]
        [own] = [node for node in versions if node["path"] == version]
        return list(find(own, path)["children"])
    except (LookupError, ValueError):
        return []


def _killed(node: Node, number: signal.Signals, expected: LogExpected) -> Injection:
    pid, t = node["info"]["pid"], now()
    if not signalled(pid, number):
        raise NoTarget(f"the process of {node['path']} has just ended")
    return Injection(
        t=t,
        models=(TALE,),
        detail=f"{number.name} to {node['path']} (pid {pid})",
        pid=pid,
        expects=[expected],
    )


FAULTS: Sequence[Fault] = (
    EngineKilled(
        name="engine_sigkill",
        expected="Every stream of that engine goes on in another one, without a character lost or twice;"
        " no client has an error.",
        number=signal.SIGKILL,
        weight=OFTEN,
    ),
    EngineKilled(
        name="engine_sigsegv",
        expected="The same. Its streams are suspects: they begin again one at a time.",
        number=signal.SIGSEGV,
        weight=OFTEN,
    ),
    TextWorkerKilled(
        name="text_worker_sigkill",
        expected="Every stream pauses, and goes on behind the last piece that was told, once another text"
        " worker has its ids.",
        weight=OFTEN,
    ),
)
