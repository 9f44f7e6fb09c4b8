"""Traces in tests:

a book that keeps what is over, a sink that keeps what it gets, and a tracer of everything.
"""

from __future__ import annotations

import threading
from itertools import count
from random import Random

from actors.tracing.sinks import TraceSink
from actors.tracing.tracing import Tracing
from actors.values.tracing.settings import TIMESTAMPS, TraceSetting
from actors.values.tracing.spans import Trace, TraceBook
from actors.values.tracing.traces import finished


class Book(TraceBook):
    """Keeps the values of traces that are over, in microseconds of the test's clock from `start` on."""

    def __init__(self, start=0.0):
        self.start = start
        self.finished = []
        self._numbers = count(1)
        self._random = Random(7)

    def next_number(self):
        return next(self._numbers)

    def chance(self, bits):
        return self._random.getrandbits(bits) or 1

    def take(self, trace):
        self.finished.append(finished(trace, lambda at: round((at - self.start) * 1e6)))

    def trace(self, **options):
        return Trace(self, None, **options)


class KeptTraces(TraceSink):
    """Keeps what it gets. It fails with `error` while that is set, and waits for `gate` if there is one."""

    def __init__(self):
        self.calls = []
        self.closed = 0
        self.error = None
        self.gate: threading.Event | None = None

    @property
    def traces(self):
        return [trace for call in self.calls for trace in call]

    def write(self, traces):
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        self.calls.append(list(traces))
        for trace in traces:
            trace.setting.collected += 1

    def close(self):
        self.closed += 1


def tracing_of(sink=None, **setting):
    """Return traces that sample every request into `sink`, unless `setting` says otherwise."""
    given = TraceSetting(**{"levels": (TIMESTAMPS,), "rate": 1, "file": "t.json", **setting})
    return Tracing(given, sink or KeptTraces(), ns=lambda at: round(at * 1e9), random=Random(3))


def names(moments):
    """The names of moments, in order."""
    return [moment.name for moment in moments]
