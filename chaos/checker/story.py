"""What became of one request, put together from the history and the journal while they are read."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaos.checker.goals import Goal
from chaos.record.records import Executed, Fail, Invoke, Ok, Unknown

End = Ok | Fail | Unknown

NO_ANSWER: Final = "no answer"

LINGER: Final = 30.0
"""Seconds after a request's end in which its model's work on it still belongs to its story."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """A worker has had a request in hand. `end` is None if it never finished with it."""

    model: str
    pid: int
    batch: int
    begin: float
    end: float | None = None


@dataclass(slots=True, kw_only=True)
class Story:
    """One request: what was sent, how it ended (once, if all is well), and which workers executed it.

    The executions are in the order of time.
    """

    invoke: Invoke
    ends: list[End] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)

    @property
    def end(self) -> End | None:
        """Its first end."""
        return self.ends[0] if self.ends else None

    @property
    def until(self) -> float:
        """When it ended; infinite if it never did."""
        return self.ends[0].t if self.ends else float("inf")

    @property
    def code(self) -> str:
        """The code of its error, `NO_ANSWER` if it ended without an answer, "" otherwise."""
        if isinstance(self.end, Fail):
            return self.end.code
        return NO_ANSWER if isinstance(self.end, Unknown) else ""

    @property
    def message(self) -> str:
        """The text of its error; empty if it got none."""
        return self.end.message if isinstance(self.end, Fail) else ""

    def told(self, began: float) -> str:
        """Return the story in a line, with times in seconds since the run began."""
        invoke = self.invoke
        said = [f"n={invoke.n} {invoke.model} over {invoke.protocol}, value {invoke.value}"]
        if invoke.sequence:
            said.append(f"sequence {invoke.sequence} [{invoke.index}]")
        if invoke.poison:
            said.append(f"poison '{invoke.poison}'")
        if invoke.by:
            said.append(f"sent by fault {invoke.by}")
        said.append(f"sent at {invoke.t - began:.3f} s ({invoke.phase})")
        if invoke.deadline is not None:
            said.append(f"due by {invoke.deadline - began:.3f} s")
        for each in self.executions:
            until = "never ended" if each.end is None else f"until {each.end - began:.3f} s"
            said.append(f"executed by {each.model} in {each.pid} from {each.begin - began:.3f} s {until}")
        said += [_end_told(end, began) for end in self.ends] or ["never ended"]
        return "; ".join(said)


def _end_told(end: End, began: float) -> str:
    match end:
        case Ok():
            tries = f" after {end.attempts} attempts" if end.attempts > 1 else ""
            return f"answered {list(end.values)} at {end.t - began:.3f} s{tries}"
        case Fail():
            return f"failed with {end.code} at {end.t - began:.3f} s: {end.message[:200]}"
        case Unknown():
            return f"no answer at {end.t - began:.3f} s: {end.reason[:200]}"


class Rule(Protocol):
    """One check: it sees every story once, in no particular order, and judges at the end."""

    def see(self, story: Story) -> None:
        """Take note of a request."""
        ...

    def goals(self) -> Iterable[Goal]:
        """Judge all that was seen."""
        ...


class Pairing:
    """Pairs beginnings with ends, and executions with requests.

    It holds requests that are open or have ended less than `LINGER` seconds ago, and a number for each
    request executed to its end before that. The history and the journal need be in the order of time only
    within `LINGER` seconds.
    """

    def __init__(self) -> None:
        # Ends of requests that were not open: told twice, long ago, or never begun.
        self.strays: list[End] = []
        self.twice_begun: list[Invoke] = []
        # Executions to the end of requests that were executed to their end long before.
        self.late: list[Executed] = []
        # By process and batch, when an execution began that never ended.
        self.unended: dict[tuple[int, int], float] = {}
        self._open: dict[int, Story] = {}
        self._ending: deque[Story] = deque()
        self._executions: dict[str, list[Execution]] = {}
        self._running: dict[tuple[int, int, str, str], Execution] = {}
        self._done: set[int] = set()

    def stories(self, history: Iterable[Invoke | End], journal: Iterable[Executed]) -> Iterator[Story]:
        """Yield each request, once nothing more is expected of it."""
        merged: Iterator[Invoke | End | Executed] = heapq.merge(history, journal, key=lambda each: each.t)
        for record in merged:
            self._take(record)
            while self._ending and self._ending[0].until < record.t - LINGER:
                yield self._settled(self._ending.popleft())
        unended = [story for story in self._open.values() if not story.ends]
        for story in (*self._ending, *unended):
            yield self._settled(story)
        for (pid, batch, _, _), execution in self._running.items():
            key = (pid, batch)
            self.unended[key] = min(execution.begin, self.unended.get(key, execution.begin))

    @property
    def unclaimed(self) -> int:
        """Requests in the journal that are in no history.

        They come from raw connections, or from a client that wrote nothing.
        """
        return len(self._executions)

    def _take(self, record: Invoke | End | Executed) -> None:
        match record:
            case Executed():
                self._execution(record)
            case Invoke():
                if record.n in self._open:
                    self.twice_begun.append(record)
                else:
                    self._open[record.n] = Story(invoke=record)
            case _:
                story = self._open.get(record.n)
                if story is None:
                    self.strays.append(record)
                    return
                story.ends.append(record)
                if len(story.ends) == 1:
                    self._ending.append(story)

    def _execution(self, record: Executed) -> None:
        key = (record.pid, record.batch, record.id, record.model)
        if not record.end:
            execution = Execution(model=record.model, pid=record.pid, batch=record.batch, begin=record.t)
            self._running[key] = execution
            self._executions.setdefault(record.id, []).append(execution)
            return
        begun = self._running.pop(key, None)
        if begun is not None:
            begun.end = record.t
        if hash((record.id, record.model)) in self._done:
            self.late.append(record)

    def _settled(self, story: Story) -> Story:
        self._open.pop(story.invoke.n, None)
        story.executions = self._executions.pop(story.invoke.id, [])
        self._done.update(
            hash((story.invoke.id, each.model)) for each in story.executions if each.end is not None
        )
        return story
