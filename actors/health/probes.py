"""The probes that readiness makes: periodic ones, and rounds of them on demand.

At most one probe of a version runs at a time. A round probes every essential version that serves, and callers
that ask at about the same time share it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from actors.health.verdicts import Named
from actors.health.watches import Watch
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.probing import probe
from actors.serving.standing import Status
from actors.values.interfaces import DeepReport

PERIODIC_WITHIN: Final = 10.0
"""Seconds a periodic probe may take at most, if the model's own limit is not set."""

DEEP_WITHIN: Final = 2.0
DEEP_AT_ONCE: Final = 8
DEEP_BUDGET: Final = 10.0
"""Seconds after which a round of deep probes begins no other probe."""

DEEP_SHARED_FOR: Final = 0.25
"""Seconds for which the report of one round answers all callers."""


@dataclass(slots=True)
class ProbeCounts:
    """The results of readiness' own probes of one model version, over all its generations."""

    name: str
    version: int
    probes: int = 0
    failures: int = 0  # those that counted against it
    seconds: float = 0.0  # how long the last one took


class Probes:
    """Makes probes, and counts them. `ended` rings when one has ended."""

    def __init__(self, ended: Bell) -> None:
        self.counts: dict[Named, ProbeCounts] = {}
        self._ended = ended

    def forget(self, known: set[Named]) -> None:
        """Forget the counts of versions that are not among `known`."""
        for gone in self.counts.keys() - known:
            del self.counts[gone]

    def begin_due(self, nursery: trio.Nursery, watches: Iterable[Watch], now: float) -> float:
        """Begin the periodic probes that are due, and return when the next one is."""
        if faults.points is not None:
            faults.points.passing("readiness.turn")
        earliest = math.inf
        for watch in watches:
            if not watch.periodic or watch.running:
                continue
            if watch.due <= now:
                spec = watch.state.spec
                watch.due = now + spec.probe_interval
                within = min(spec.probe_interval, spec.execution_timeout or PERIODIC_WITHIN)
                watch.running = True
                nursery.start_soon(self._probe, watch, within)
            else:
                earliest = min(earliest, watch.due)
        return earliest

    async def exercised(self, watch: Watch, within: float) -> bool:
        """Probe a version, or wait for the probe that runs.

        False if that takes longer than `within` seconds.
        """
        if not watch.running:
            watch.running = True
            await self._probe(watch, within)
            return True
        with trio.move_on_after(within):
            await watch.ended.next_ring()
            return True
        return False

    async def _probe(self, watch: Watch, within: float) -> None:
        """Probe a version that is marked as `running`."""
        state = watch.state
        watch.began = trio.current_time()
        answered_before = state.statistics.computed_count
        outcome = await probe(state, within=within)
        watch.running = False
        if state.status is Status.READY:  # else it was being unloaded, and the outcome tells nothing
            watch.learn(
                outcome,
                others=state.statistics.computed_count - answered_before,
                now=trio.current_time(),
            )
            key, version = watch.named
            counts = self.counts.setdefault(watch.named, ProbeCounts(str(key), version))
            counts.probes += 1
            counts.failures += bool(watch.trouble)
            counts.seconds = outcome.seconds
        watch.ended.ring()
        self._ended.ring()  # the time of the next probe has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The versions of a round, and of some why no probe of theirs has ended, and since when."""

    watches: Mapping[ModelState, Watch] = field(default_factory=dict)
    unanswered: Mapping[ModelState, tuple[str, float]] = field(default_factory=dict)


class _Round:
    """One round of deep probes, and the callers that wait for its report."""

    def __init__(self) -> None:
        self.begun = False
        self.done = trio.Event()
        self.ended_at = math.inf
        self.report: DeepReport | None = None


class DeepProbes:
    """The rounds of probes on demand. `wanted` rings when there is one to begin."""

    def __init__(self, probes: Probes, wanted: Bell) -> None:
        self._probes = probes
        self._wanted = wanted
        self._round: _Round | None = None

    async def report(self) -> DeepReport | None:
        """Wait for the report of a round that has just ended or is to begin; None where none was made."""
        now = trio.current_time()
        shared = self._round
        if shared is None or now - shared.ended_at >= DEEP_SHARED_FOR:
            shared = self._round = _Round()
            self._wanted.ring()
        with trio.move_on_after(DEEP_BUDGET + DEEP_WITHIN):
            await shared.done.wait()
        return shared.report

    def begin_anew(self) -> None:
        """The task that made the present round has ended with its actor."""
        if self._round is not None:
            self._round.begun = False

    def begin(
        self,
        nursery: trio.Nursery,
        *,
        watches: Callable[[], Iterable[Watch]],
        ask: Callable[[], Awaitable[None]],
        conclude: Callable[[Probed], DeepReport],
    ) -> None:
        """Begin the round that is wanted, if there is one.

        `watches` returns the versions to probe, `ask` asks the models for their own checks, and `conclude`
        makes the report.
        """
        shared = self._round
        if shared is not None and not shared.begun:
            shared.begun = True
            nursery.start_soon(self._make, shared, watches, ask, conclude)

    async def _make(
        self,
        shared: _Round,
        watches: Callable[[], Iterable[Watch]],
        ask: Callable[[], Awaitable[None]],
        conclude: Callable[[Probed], DeepReport],
    ) -> None:
        deadline = trio.current_time() + DEEP_BUDGET
        at_once = trio.CapacityLimiter(DEEP_AT_ONCE)
        unanswered: dict[ModelState, tuple[str, float]] = {}
        probed = {watch.state: watch for watch in watches()}

        async def exercise(watch: Watch) -> None:
            async with at_once:
                now = trio.current_time()
                within = min(DEEP_WITHIN, deadline - now)
                if within <= 0:
                    why = f"there was no time to probe it: others took {DEEP_BUDGET:g} s"
                    unanswered[watch.state] = why, now
                elif not await self._probes.exercised(watch, within):
                    taken = trio.current_time() - watch.began
                    why = f"a probe inference has not been answered for {taken:.1f} s"
                    unanswered[watch.state] = why, watch.began

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for watch in probed.values():
                nursery.start_soon(exercise, watch)
        shared.report = conclude(Probed(watches=probed, unanswered=unanswered))
        shared.ended_at = trio.current_time()
        shared.done.set()
