"""How long it took until a model answered again after it was hit.

For a worker the clock starts with the injection. It stops with the first good answer of its *successor*, a
worker that was started after the injection. Answers of the other instance do not count, because it answers
all the time.

Some models keep no journal. Sequences stay with the worker in which they began, and so leave a new worker
idle. For both kinds of model the clock stops when the log tells that a successor serves. It does not stop
before the first good answer to a request that was sent after the injection and is not in the middle of a
sequence.

For an actor of the server, and its supervisor, the clock starts with the first request for the model after
the injection. It stops with the first good answer to a request sent since. HTTP and gRPC are measured apart,
and the longer time counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from chaos.checker.goals import Evidence, Goal, at_most
from chaos.checker.injections import Blow
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.records import Ok, Wire

HORIZON: Final = 30.0
"""Seconds after an injection in which a recovery counts; later there was none."""

Clock = Literal["worker", "actor", "supervisor"]


@dataclass(slots=True)
class _Watch:
    blow: Blow
    asked: dict[Wire, float] = field(default_factory=dict)  # the first request since
    answered: dict[Wire, float] = field(default_factory=dict)  # the first good answer to one of these
    workers: dict[int, float] = field(default_factory=dict)  # the first good answer of each process since

    def see(self, story: Story) -> None:
        invoke, end = story.invoke, story.end
        if invoke.t >= self.blow.t and (invoke.start or not invoke.sequence):
            wire = invoke.protocol
            self.asked[wire] = min(invoke.t, self.asked.get(wire, invoke.t))
            if isinstance(end, Ok):
                self.answered[wire] = min(end.t, self.answered.get(wire, end.t))
        if isinstance(end, Ok) and not invoke.sequence:
            for each in story.executions:
                if each.begin >= self.blow.t and each.end is not None:
                    self.workers[each.pid] = min(end.t, self.workers.get(each.pid, end.t))

    def replaced(self, born: Mapping[int, float], ready: Sequence[float]) -> float | None:
        """Return the seconds until a successor answered, or, without a journal, until it could have.

        `ready` is when workers began to serve.
        """
        if not self.asked:
            return None
        if self.workers:
            ends = [end for pid, end in self.workers.items() if born[pid] >= self.blow.t]
        else:
            serves = min((t for t in ready if t >= self.blow.t), default=float("inf"))
            ends = [max(serves, end) for end in self.answered.values()]
        return min(ends, default=float("inf")) - self.blow.t

    def served(self) -> float | None:
        """Return the seconds from the first demand to the first good answer, on the wire that took longer."""
        return max(
            (self.answered.get(wire, float("inf")) - asked for wire, asked in self.asked.items()),
            default=None,
        )


class Recovery:
    """Recovery times, by what was hit."""

    def __init__(self, blows: Sequence[Blow], limits: Limits, began: float) -> None:
        self._limits = limits
        self._began = began
        self._watches: dict[str, list[_Watch]] = {}
        for blow in blows:
            if blow.injected.measures in ("worker", "actor", "supervisor") and blow.injected.model:
                self._watches.setdefault(blow.injected.model, []).append(_Watch(blow))
        self._born: dict[int, float] = {}
        self._ready: Mapping[str, Sequence[float]] = {}

    def told(self, started: Mapping[int, float], ready: Mapping[str, Sequence[float]]) -> None:
        """Take note of what the log says; call it before `goals`.

        `started` is when each process was started, `ready` when workers of each model began to serve.
        """
        self._born.update(started)
        self._ready = ready

    def see(self, story: Story) -> None:
        """Take note of a request for a model that was hit within the last seconds."""
        if story.invoke.phase == "ending":
            return
        for each in story.executions:
            self._born[each.pid] = min(each.begin, self._born.get(each.pid, each.begin))
        watches = self._watches.get(story.invoke.model, [])
        low = bisect.bisect_left(watches, story.invoke.t - HORIZON, key=lambda watch: watch.blow.t)
        high = bisect.bisect_right(watches, story.until, key=lambda watch: watch.blow.t)
        for watch in watches[low:high]:
            watch.see(story)

    def times(self) -> dict[int, float]:
        """Return the recovery time of each fault that was measured, by its number."""
        found: dict[int, float] = {}
        for watch in (each for watches in self._watches.values() for each in watches):
            took = self._took(watch)
            if took is not None:
                found[watch.blow.n] = took
        return found

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        limits = self._limits
        yield self._goal("worker", 0.5, limits.worker_p50, "worker killed → good answer of its successor")
        yield self._goal("worker", 0.99, limits.worker_p99, "worker killed → good answer of its successor")
        yield self._goal("actor", 0.99, limits.actor_p99, "actor of the server crashed → good answer")
        yield self._goal("supervisor", 0.99, limits.supervisor_p99, "supervisor crashed → good answer")

    def _took(self, watch: _Watch) -> float | None:
        if watch.blow.injected.measures == "worker":
            return watch.replaced(self._born, self._ready.get(watch.blow.injected.model, ()))
        return watch.served()

    def _goal(self, clock: Clock, share: float, limit: float, about: str) -> Goal:
        watches = (each for watches in self._watches.values() for each in watches)
        times = [
            (took, _evidence(watch.blow, took, self._began))
            for watch in watches
            if watch.blow.injected.measures == clock and (took := self._took(watch)) is not None
        ]
        return at_most(limit, times, name=f"{clock} recovery p{share * 100:.0f}", about=about, share=share)


def _evidence(blow: Blow, took: float, began: float) -> Evidence:
    what = "no good answer" if took == float("inf") else f"{took * 1e3:.0f} ms"
    return Evidence(
        what=what, id=f"fault {blow.n}", story=f"{blow.told(began)}; felt on '{blow.injected.model}'"
    )
