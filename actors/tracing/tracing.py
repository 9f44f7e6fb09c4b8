"""Traces of a server: which requests are traced, and the actor that gives finished traces to their sinks.

A frontend asks `Tracing.begin`. A trace that is over goes to the actor over a channel of `MOST_WAITING`
places. Where the channel is full, the trace is dropped and counted. The actor makes values of the traces and
has the sink write them, both on a thread. A sink that is slow or fails costs traces, and never a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Final

import trio

from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.tracing.policy.contexts import context_of
from actors.tracing.policy.sampling import Sampler
from actors.tracing.policy.settings import TraceSettings
from actors.tracing.sinks import TraceSink
from actors.values.families import Block
from actors.values.tracing.settings import OPENTELEMETRY, TRITON, SettingChange, TraceControl, TraceSetting
from actors.values.tracing.spans import Span, Trace, TraceBook, Traced, Tracer
from actors.values.tracing.traces import FinishedTrace, finished

MOST_WAITING: Final = 1024
"""Finished traces that wait for the sink. Each has 1 MiB of tensors at most, and usually none."""

AT_ONCE: Final = 64
"""Traces that are given to the sink in one call."""

GATHERS: Final = 0.1
"""Seconds for which the first trace waits for others, since each call of the sink wakes a thread."""

CLOSES_WITHIN: Final = 5.0
"""Seconds that the sink has to write the rest as the server ends."""

_INTENSITY: Final = Intensity(3, 60.0)


class Tracing(Tracer, TraceBook, TraceControl):
    """The traces of a server. It outlives its actor."""

    def __init__(
        self,
        setting: TraceSetting,
        sink: TraceSink,
        *,
        ns: Callable[[float], int],
        random: Random,
    ) -> None:
        """`setting` is what the server was started with, whose mode never changes; `sink` is for that mode.

        `ns` turns a time on trio's clock into nanoseconds on the machine's steady clock. It is called on
        threads.
        """
        super().__init__()
        self.sampled = 0  # requests
        self.written = 0  # traces that the sink was given
        self.dropped = 0  # traces for which the channel had no place
        self.failed = 0  # traces that were lost with a call of the sink that failed
        self._settings = TraceSettings.of(setting)
        self._samplers: dict[str, Sampler] = {"": Sampler(setting)}
        self._sink = sink
        self._ns = ns
        self._random = random
        self._numbers = count(1)
        self._limiter = trio.CapacityLimiter(1)
        # None: a setting was replaced, or its count is exhausted, so the sink should look.
        self._finished, self._waiting = trio.open_memory_channel[Trace | None](MOST_WAITING)
        self._refresh()

    @property
    def unwritten(self) -> int:
        """Traces that the sink was given, and could not write."""
        return self._sink.lost

    # For frontends: see `Tracer`

    def begin(self, request: Traced, now: float, *, parent: str = "", state: str = "") -> Span | None:
        """Give `request` a span if it is to be traced: see `Tracer.begin`."""
        sampler = self._samplers.get(request.model_name) or self._samplers[""]
        context = context_of(parent, state) if parent and sampler.forces else None
        if context is None and self.skip:
            self.skip -= 1
            return None
        sampled = sampler.take(forced=context is not None)
        if len(self._samplers) == 1 and not self.skip:
            self.skip = sampler.run()
        if not sampled:
            return None
        self.sampled += 1
        if sampler.exhausted:
            self._refresh()
        trace = Trace(
            self, sampler, keeps_tensors=sampler.keeps_tensors, exported=sampler.forces, context=context
        )
        return trace.open(request, now)

    def forget(self, request: Traced) -> None:
        """See `Tracer.forget`."""
        span, request.span = request.span, None
        if span is None:
            if len(self._samplers) == 1:
                self.skip += 1
            else:
                (self._samplers.get(request.model_name) or self._samplers[""]).forget()
            return
        trace = span.trace
        assert isinstance(trace.setting, Sampler)
        if trace.context is None:
            self._skip_none()
        trace.setting.forget(sampled=True, forced=trace.context is not None)
        self.sampled -= 1
        trace.over = True
        trace.let_go()
        self._refresh()

    def _skip_none(self) -> None:
        """Ask about the next request: those that were to be skipped have not come."""
        self._samplers[""].seen -= self.skip
        self.skip = 0

    def _refresh(self) -> None:
        samplers = self._samplers.values()
        self.active = any(not each.exhausted for each in samplers)
        self.reads_context = any(each.forces for each in samplers)

    # For traces: see `TraceBook`

    def next_number(self) -> int:
        """Return the number of the next span."""
        return next(self._numbers)

    def chance(self, bits: int) -> int:
        """Return a random number of `bits` bits that is not 0."""
        return self._random.getrandbits(bits) or 1

    def take(self, trace: Trace) -> None:
        """A trace is over: have it written, or drop it where too many wait."""
        try:
            self._finished.send_nowait(trace)
        except trio.WouldBlock:
            self.dropped += 1
            self._lost(trace)

    def _lost(self, trace: Trace) -> None:
        sampler = trace.setting
        assert isinstance(sampler, Sampler)
        sampler.lost += 1
        trace.let_go()

    # For clients: see `TraceControl`

    def describe(self, model: str = "") -> Mapping[str, str | Sequence[str]]:
        """Return the setting in force: see `TraceControl.describe`."""
        sampler = self._samplers.get(model) or self._samplers[""]
        setting = sampler.setting
        told: dict[str, str | Sequence[str]] = {
            "trace_level": list(setting.levels) or ["OFF"],
            "trace_rate": str(setting.rate),
            "trace_count": str(sampler.left),
        }
        if setting.mode == TRITON:
            told |= {"log_frequency": str(setting.log_frequency), "trace_file": setting.file}
        told["trace_mode"] = setting.mode
        for name, value in setting.options if setting.mode == OPENTELEMETRY else ():
            told[name] = f"{told[name]},{value}" if name == "resource" and name in told else value
        return told

    def update(self, model: str, change: SettingChange) -> None:
        """Put a change in force: see `TraceControl.update`."""
        self._settings, new = self._settings.changed(model, change)
        self._skip_none()
        gone = new or {model}  # a model that has set nothing any more
        for name in gone:
            before = self._samplers.pop(name, None)
            if before is not None:
                before.retired = True
        for name in new:
            self._samplers[name] = Sampler(self._settings.setting(name))
        self._refresh()
        self._look()

    def _look(self) -> None:
        """Have the actor look up, and the sink at what it holds."""
        try:
            self._finished.send_nowait(None)
        except trio.WouldBlock:
            return  # it has something to do anyway

    def sink_blocks(self) -> Iterator[Block]:
        """Yield what the sink tells of itself in numbers."""
        return self._sink.blocks()

    # The actor

    def spec(self) -> ChildSpec:
        """Return the child spec of the actor. Its restarts are its own: no trouble of it ends the server."""
        return ChildSpec(
            "traces",
            self.run,
            shutdown=CLOSES_WITHIN + 1.0,
            intensity=_INTENSITY,
            on_exhausted=OnExhausted.RETRY_AT_CAP,
        )

    async def run(self, ctx: ChildContext) -> None:
        """Give finished traces to the sink, for ever. The start function of a permanent child."""
        stopping = ctx.stopping
        stopping.then(self._look)
        ctx.started()
        while not stopping.is_set():
            ctx.publish(sampled=self.sampled or None, dropped=self.dropped or None)
            first = await self._waiting.receive()
            if first is not None and self._waiting.statistics().current_buffer_used < AT_ONCE:
                with trio.move_on_after(GATHERS):
                    await stopping.wait()
            await self._write(first)
        await self._finish()

    async def _write(self, first: Trace | None) -> None:
        """Have the sink write `first` and what waits behind it."""
        traces = [] if first is None else [first]
        while len(traces) < AT_ONCE:
            try:
                trace = self._waiting.receive_nowait()
            except trio.WouldBlock:
                break
            if trace is not None:
                traces.append(trace)
        try:
            await in_thread(self._given, traces, limiter=self._limiter, abandon_on_cancel=True)
        except Exception:
            self.failed += len(traces)
            for trace in traces:
                self._lost(trace)
            raise
        self.written += len(traces)

    def _given(self, traces: Sequence[Trace]) -> None:
        """Give traces to the sink. On a thread."""
        values: list[FinishedTrace] = []
        for trace in traces:
            values.append(finished(trace, self._ns))
            trace.let_go()
        self._sink.write(values)

    async def _finish(self) -> None:
        """Write what waits, and let the sink close."""
        while self._waiting.statistics().current_buffer_used:
            await self._write(None)
        await in_thread(self._sink.close, limiter=self._limiter, abandon_on_cancel=True)
