"""The collector of traces is away, while every request is traced: it refuses, or never answers.

A run's server is set to export to a port of the run's own, where there is no collector at all. It traces
nothing until a fault tells it to.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from chaos.faults.base import Fault, Injection, NoTarget, Stage, Trouble, until
from chaos.record.outcome import now
from chaos.subject.server import Server
from chaos.wires.http import LOOPBACK, ask
from engine.settings.extras import is_missing

SETTING: Final = "/v2/trace/setting"
SPANS: Final = "tritium_trace_spans_total"

_QUEUE: Final = 256  # spans: it is full within the time of a fault


@contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port to which connections are refused; 0 if the server can't export traces."""
    if is_missing("opentelemetry.exporter.otlp.proto.http"):
        yield 0
        return
    with _bound(0) as kept:
        yield kept.getsockname()[1]


def tracing_flags(port: int) -> Sequence[str]:
    """Return the flags of a server that exports to this port, and traces nothing yet."""
    if not port:
        return ()
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url=http://{LOOPBACK}:{port}/v1/traces",
        f"opentelemetry,bsp_max_queue_size={_QUEUE}",
        f"opentelemetry,bsp_max_export_batch_size={_QUEUE // 2}",
        "opentelemetry,bsp_schedule_delay=100",
    )
    return [f"--trace-config={each}" for each in settings]


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    # A second socket takes the port while the first one keeps it.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((LOOPBACK, port))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorAway(Fault):
    """Every request is traced, and the spans can't be sent."""

    silent: bool = False  # connections are taken, and never answered

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Trace every request. Raises NoTarget where the server can't export."""
        del target
        if not stage.collector:
            raise NoTarget("this installation can't export traces")
        lost = await _lost(stage.server)
        t = now()
        with ExitStack() as stack:
            if self.silent:
                listening = stack.enter_context(_bound(stage.collector))
                listening.listen(16)  # what connects waits for ever
            await set_traces(stage.server, trace_level=["TIMESTAMPS"], trace_rate="1")
            opened = stack.pop_all()
        how = "says nothing" if self.silent else "refuses"
        return Injection(
            t=t,
            models=(),
            detail=f"every request is traced, and the collector {how}",
            undo=partial(_trace_no_more, stage, lost, opened),
        )


async def _trace_no_more(stage: Stage, lost: float, opened: ExitStack) -> None:
    """Trace no request. Raises Trouble if no span was lost: then none was made."""
    with opened:
        await until(
            partial(_lost, stage.server),
            lambda seen: seen > lost,
            lambda seen: f"every request was traced, and {SPANS} still counts {seen} spans as lost",
        )
        await set_traces(stage.server, trace_level=["OFF"])


async def set_traces(server: Server, **fields: object) -> None:
    """Change what is traced of all models. Raises Trouble if the server refuses."""
    reply = await ask(server.http_port, "POST", SETTING, json.dumps(fields).encode())
    if reply.status != 200:
        raise Trouble(f"HTTP {reply.status} to POST {SETTING}: {reply.body[:200]!r}")


async def _lost(server: Server) -> float:
    return await server.metric(SPANS, outcome="failed") + await server.metric(SPANS, outcome="dropped")


FAULTS: Final[Sequence[Fault]] = (
    CollectorAway(
        name="collector_refuses",
        expected="No request fails or waits: spans are lost, and counted.",
        lasts=2.0,
    ),
    CollectorAway(
        name="collector_silent",
        expected="No request fails or waits: the queue of spans fills, and what has no room is counted.",
        silent=True,
        lasts=2.0,
    ),
)
