"""What the server's own log says: whether it tells of each fault, and when it noticed a hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Protocol

from actors.values.events import Event
from chaos.checker.goals import Evidence, Findings, Goal
from chaos.checker.injections import Blow
from chaos.checker.matching import matched
from chaos.record.records import LogExpected

EARLY: Final = 0.05
"""Seconds that a line may be ahead of its cause, because the two clocks are read one after the other."""

_PATIENCE: Final = 10.0  # seconds by which a line may be late and still be there


class LogLine(Protocol):
    """A line, as `engine.observability.reading` has it."""

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        ...

    @property
    def event(self) -> str:
        """Its name."""
        ...

    @property
    def keys(self) -> Mapping[str, Any]:
        """Everything else."""
        ...

    def matches(self, event: str, keys: Mapping[str, object]) -> bool:
        """Whether it tells of `event`, with at least these keys and values."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """A line, by the machine's monotonic clock."""

    t: float
    line: LogLine


@dataclass(frozen=True, slots=True)
class Exit:
    """A worker's end, as the log tells it."""

    t: float
    reason: str


class Log:
    """The lines of a log that the checker asks for."""

    def __init__(self, lines: Iterable[LogLine], blows: Sequence[Blow], to_monotonic: float) -> None:
        """`to_monotonic` is added to the log's times."""
        wanted = {each.event for blow in blows for each in blow.injected.expects}
        self.exits: dict[int, Exit] = {}
        self.started: dict[int, float] = {}  # by process, when it was given an instance
        self.ready: dict[str, list[float]] = {}  # by model, when one of its workers began to serve
        self.told: list[Told] = []
        # By request: when an error was told, and its code.
        self.errors: dict[str, list[tuple[float, str]]] = {}
        self._blows = blows
        self._found: dict[int, int] = {}
        for line in lines:
            t = line.time + to_monotonic
            if line.event in wanted:
                self.told.append(Told(t, line))
            if "code" in line.keys and "request_id" in line.keys:
                self.errors.setdefault(str(line.keys["request_id"]), []).append((t, str(line.keys["code"])))
            pid = line.keys.get("pid")
            if line.event == Event.WORKER_EXITED.value and isinstance(pid, int):
                self.exits[pid] = Exit(t, str(line.keys.get("reason", "")))
            elif line.event == Event.WORKER_STARTED.value and isinstance(pid, int):
                self.started[pid] = t
            elif line.event == Event.WORKER_READY.value:
                self.ready.setdefault(str(line.keys.get("model", "")), []).append(t)
        self.told.sort(key=lambda each: each.t)

    def found(self, n: int) -> int:
        """Return how many of a fault's lines are there. Call it after `goals`."""
        return self._found.get(n, 0)

    def goals(self, began: float) -> Iterable[Goal]:
        """Judge that the log tells of each fault in time, each time by a line of its own."""
        expected = [(blow, each) for blow in self._blows for each in blow.injected.expects]
        in_time = self._lines_of(expected, 0.0, frozenset())
        late = self._lines_of(expected, _PATIENCE, frozenset(in_time))
        missing, delayed = Findings(), Findings()
        for (blow, each), prompt, tardy in zip(expected, in_time, late, strict=True):
            told = f"{blow.told(began)}; {self._nearest(blow, each)}"
            if prompt is not None:
                self._found[blow.n] = self._found.get(blow.n, 0) + 1
            elif tardy is None:
                missing.add(f"no line '{each.event}' with {dict(each.keys)}", f"fault {blow.n}", told)
            else:
                delayed.add(
                    f"no line '{each.event}' with {dict(each.keys)} within {each.within:g} s",
                    f"fault {blow.n}",
                    told,
                )
        yield missing.goal(
            "faults missing in the log",
            f"lines that the log should have had of a fault, with the right reason, within {_PATIENCE:g} s of the time for it",
            measured=len(expected),
        )
        yield delayed.goal(
            "faults told late",
            "of those lines, such as came after the time for them: a second, where the fault says no other",
            measured=len(expected),
            timed=True,
        )

    def _lines_of(
        self, expected: Sequence[tuple[Blow, LogExpected]], grace: float, taken: AbstractSet[int | None]
    ) -> list[int | None]:
        """Return the index of the line that each expectation gets.

        Lines in `taken` are not given again; a line may come `grace` seconds late.
        """
        wants = [self._candidates(blow, each, grace, taken) for blow, each in expected]
        return matched(wants, dict.fromkeys(range(len(self.told)), 1))

    def _candidates(
        self, blow: Blow, expected: LogExpected, grace: float, taken: AbstractSet[int | None]
    ) -> list[int]:
        return [
            place
            for place, told in enumerate(self.told)
            if blow.t - EARLY <= told.t <= blow.t + expected.within + grace
            and place not in taken
            and _tells_of(told.line, expected)
        ]

    def _nearest(self, blow: Blow, expected: LogExpected) -> str:
        """Return what the log has in place of the expected line, as a hint for the reader of the verdict."""
        after = [each for each in self.told if each.line.event == expected.event and each.t >= blow.t - EARLY]
        if not after:
            return "no such event after it"
        first = after[0]
        return f"the next is {first.t - blow.t:.3f} s after it, with {dict(first.line.keys)}"


def _tells_of(line: LogLine, expected: LogExpected) -> bool:
    choices = [value if isinstance(value, list | tuple) else (value,) for value in expected.keys.values()]
    return any(
        line.matches(expected.event, dict(zip(expected.keys, chosen, strict=True)))
        for chosen in product(*choices)
    )


def hang_times(
    exits: Mapping[int, Exit], unended: Mapping[tuple[int, int], float], limit: float
) -> list[tuple[float, Evidence]]:
    """Return, for each worker that was ended for a hang, the seconds from its limit to the line that tells.

    `unended` is when each execution that never ended began, by process and batch. The last of a process is
    the one that hung; those before it were ended by an exception. A worker that was stopped before it could
    write its begin down is not measured.
    """
    begun: dict[int, float] = {}
    for (pid, _), begin in unended.items():
        begun[pid] = max(begin, begun.get(pid, begin))
    return [
        (
            each.t - begun[pid] - limit,
            Evidence(
                what=f"noticed {(each.t - begun[pid] - limit) * 1e3:.0f} ms after its limit",
                id=f"worker {pid}",
                story=f"began {each.t - begun[pid]:.3f} s before the log told of its end",
            ),
        )
        for pid, each in exits.items()
        if each.reason == "hang" and pid in begun
    ]
