"""How long a client waited for the error when the worker that executed its request died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chaos.checker.goals import Evidence
from chaos.checker.injections import Blow
from chaos.checker.rules.log import Exit
from chaos.checker.story import Story
from chaos.record.records import Fail

SLOW_DEATHS: Final = frozenset({"hang", "oom", "processes"})
"""Reasons by which a worker dies some time after their cause."""
TELLING: Final = 0.5
"""Seconds in which the log tells of a death after its errors have been sent."""


def in_flight_errors(
    excused: Iterable[tuple[Story, int]], blows: Mapping[int, Blow], exits: Mapping[int, Exit]
) -> Sequence[tuple[float, Evidence]]:
    """Return the seconds from a worker's death to each error of what it was executing.

    If the worker died slowly, the death is the time of its log line. If the fault has killed that very
    process, the death is the injection. Otherwise it is the begin of the execution that the worker did not
    survive. What no journal tells of is not measured.
    """
    found: list[tuple[float, Evidence]] = []
    for failure, n in excused:
        blow = blows.get(n)
        broken = [each for each in failure.executions if each.end is None]
        if blow is None or not broken or not isinstance(failure.end, Fail):
            continue
        pid, begin = broken[-1].pid, broken[-1].begin
        # An exception also leaves an execution without an end: its worker lives on, or died later of
        # something else. A death that was not logged is another goal's business.
        if pid not in exits or exits[pid].t > failure.until + TELLING:
            continue
        if exits[pid].reason in SLOW_DEATHS:
            died = exits[pid].t
        else:
            died = max(begin, blow.t) if pid == blow.injected.pid else begin
        took = max(0.0, failure.until - died)
        story = f"{failure.invoke.model}, n={failure.invoke.n}, {blow.injected.fault} ({n}), worker {pid}"
        found.append(
            (took, Evidence(what=f"told after {took * 1e3:.0f} ms", id=failure.invoke.id, story=story))
        )
    return found
