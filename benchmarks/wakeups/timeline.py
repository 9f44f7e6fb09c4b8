"""What one call is made of, from a loop's marks and the times of calls. Pure. Times are nanoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.wakeups.watched import Mark


@dataclass(frozen=True, slots=True)
class Call:
    """When a client began to send a request, and when it had the whole answer."""

    sent: int
    received: int


@dataclass(slots=True)
class Turn:
    """One turn of the loop: from the end of one wait for sockets to the beginning of the next."""

    woken: int
    over: int = 0
    polled: bool = False  # the wait before it was a look only: a task had asked for another turn
    steps: list[tuple[str, int]] = field(default_factory=list)  # by task: how long


def turns(marks: Sequence[tuple[int, int]], names: Sequence[str]) -> Iterator[Turn]:
    """Return the whole turns among these marks; one that was under way at the start or the end is none."""
    turn: Turn | None = None
    polled = False
    began, name = 0, ""
    for at, what in marks:
        if what == Mark.WOKEN:
            turn = Turn(at, polled=polled)
        elif what in (Mark.SLEEPS, Mark.POLLS):
            if turn is not None:
                turn.over = at
                yield turn
            turn, polled = None, what == Mark.POLLS
        elif what == Mark.PAUSES:
            if turn is not None and name:
                turn.steps.append((name, at - began))
            name = ""
        else:
            began, name = at, names[what - Mark.STEP]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What calls took of the loop, each figure for one call."""

    turns: float
    polls: float  # turns before which the loop did not sleep
    steps: float  # of tasks
    tasks: Sequence[tuple[str, float]]  # steps by task, most first


def counts(seen: Sequence[Turn], calls: int) -> Counts:
    """Return what `calls` calls took. Turns that have nothing to do with them count as well."""
    by_task = Counter(name for turn in seen for name, _ in turn.steps)
    return Counts(
        turns=len(seen) / calls,
        polls=sum(turn.polled for turn in seen) / calls,
        steps=by_task.total() / calls,
        tasks=[(name, count / calls) for name, count in by_task.most_common()],
    )


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of a time line: nanoseconds after the client began to send, and what happens."""

    at: float
    what: str


def timeline(seen: Sequence[Turn], calls: Sequence[Call]) -> Sequence[Moment]:
    """Return the time line of the most usual kind of call; each time is the median over such calls.

    Calls are of one kind where the same tasks ran in the same turns. Empty where no call has a turn.
    """
    kinds: dict[tuple[tuple[str, ...], ...], list[list[int]]] = {}
    at = 0
    for call in calls:
        while at < len(seen) and seen[at].woken < call.sent:
            at += 1
        mine = []
        while at < len(seen) and seen[at].woken < call.received:
            mine.append(seen[at])
            at += 1
        kind = tuple(tuple(name for name, _ in turn.steps) for turn in mine)
        times = [moment - call.sent for turn in mine for moment in (turn.woken, turn.over)]
        kinds.setdefault(kind, []).append([*times, call.received - call.sent])
    if not kinds or not (usual := max(kinds, key=lambda kind: len(kinds[kind]))):
        return []
    moments = [Moment(0, "the client begins to send")]
    middle = [median(column) for column in zip(*kinds[usual], strict=True)]
    for number, tasks in enumerate(usual):
        moments.append(Moment(middle[2 * number], f"the loop's turn {number + 1}: {', '.join(tasks)}"))
        moments.append(Moment(middle[2 * number + 1], f"turn {number + 1} is over"))
    moments.append(Moment(middle[-1], "the client has the answer"))
    return sorted(moments, key=lambda moment: moment.at)
