"""Whether the server ended as it has to, in whichever way it was told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chaos.checker.goals import Evidence, Goal
from chaos.record.records import Ending

LIMITS: Final[Mapping[str, Mapping[str, tuple[float, str]]]] = {
    "sigterm": {
        "not_ready": (0.1, "seconds from the signal until readiness says no, or nobody answers"),
        "dropped": (0, "requests that had been accepted and got no answer"),
        "status": (0, "the exit status"),
        "children": (0, "processes left"),
        "sockets": (0, "ports left open"),
        "memory": (0, "pieces of the server's shared memory that another process still holds"),
    },
    "sigterm_twice": {
        "ended": (1.0, "seconds from the second signal until the process is gone"),
        "children": (0, "processes left"),
        "sockets": (0, "ports left open"),
        "memory": (0, "pieces of the server's shared memory that another process still holds"),
    },
    "sigterm_hung": {
        "late": (2.0, "seconds from the end of --exit-timeout-secs until the process is gone"),
        "untold": (0, "requests that hung or waited and were not told UNAVAILABLE"),
        "children": (0, "processes left"),
        "sockets": (0, "ports left open"),
        "memory": (0, "pieces of the server's shared memory that another process still holds"),
    },
    "sigkill": {
        "children": (0, "processes left"),
        "descriptors": (0, "other descriptors of the server that another process still holds"),
        "sockets": (0, "ports left open"),
        "memory": (0, "pieces of the server's shared memory that another process still holds"),
    },
}
"""By way to end and figure: the limit, and what is counted.

A figure that an `Ending` does not have is not measured.
"""

SECONDS: Final = frozenset({"not_ready", "ended", "late"})


def ending_goals(endings: Sequence[Ending]) -> Iterable[Goal]:
    """Yield a goal for each limit, and one goal that nothing went wrong.

    The figure of a limit is the worst one over all endings of its way.
    """
    for how, figures in LIMITS.items():
        given = [ending for ending in endings if ending.how == how]
        for name, (limit, about) in figures.items():
            yield _goal(how, name, limit, about, [each for each in given if name in each.figures])
    troubles = [(ending.how, ending.trouble) for ending in endings if ending.trouble]
    yield Goal(
        name="endings: trouble",
        about="ways to end in which something else went wrong",
        limit=0,
        figure=float(len(troubles)) if endings else None,
        measured=len(endings),
        found=len(troubles),
        evidence=tuple(Evidence(what="trouble", id=how, story=trouble) for how, trouble in troubles),
    )


def other_figures(endings: Sequence[Ending]) -> dict[str, float]:
    """Return the figures that no limit is set for."""
    return {
        f"{ending.how}: {name}": value
        for ending in endings
        for name, value in ending.figures.items()
        if name not in LIMITS.get(ending.how, {})
    }


def _goal(how: str, name: str, limit: float, about: str, given: Sequence[Ending]) -> Goal:
    values = [ending.figures[name] for ending in given]
    beyond = [value for value in values if value > limit]
    return Goal(
        name=f"{how}: {name}",
        about=about,
        limit=limit,
        figure=max(values, default=None),
        unit="s" if name in SECONDS else "",
        timed=name in SECONDS,
        measured=len(values),
        found=len(beyond),
        evidence=tuple(Evidence(what=f"{value:g}", id=how, story=f"{about}: {value:g}") for value in beyond),
    )
