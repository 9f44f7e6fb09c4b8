"""The traces of a server, with the sink that its mode asks for."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from actors.tracing.sinks import TraceSink
from actors.tracing.tracing import Tracing
from actors.values.events import Log
from actors.values.tracing.settings import OPENTELEMETRY, TraceSetting
from engine.observability.traces.file import TraceFiles


class TracesUnusable(Exception):
    """What the operator asks for can't be had, with a message that says what would work."""


def open_traces(
    setting: TraceSetting, log: Log, *, monotonic: Callable[[], float], random: Random
) -> Tracing:
    """Return the traces of a server, whose actor is still to be run.

    `monotonic` returns seconds on the machine's steady clock. Raises TracesUnusable.
    """
    ahead = monotonic() - trio.current_time()

    def ns(at: float) -> int:
        return round((at + ahead) * 1e9)

    return Tracing(setting, _sink(setting, log), ns=ns, random=random)


def _sink(setting: TraceSetting, log: Log) -> TraceSink:
    if setting.mode == OPENTELEMETRY:
        raise TracesUnusable("--trace-config=mode=opentelemetry is not supported by this version of Tritium")
    return TraceFiles(setting.file, log)
