"""How far the loads of a server are, as lines for its terminal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.interfaces import UNLOADED, IndexEntry
from actors.values.specs import ModelKey
from engine.observability.loads import load_seconds, load_text
from engine.observability.starting.drawing import Line, fitting, padded
from engine.observability.terminals import Ability
from engine.observability.text import duration

READY: Final = "READY"
ON_DEMAND: Final = "ON DEMAND"
UNAVAILABLE: Final = "UNAVAILABLE"
LOADING: Final = "LOADING"

_WAITING: Final = "waiting"
_NAME: Final = 24
_TIME: Final = 8
_MOST: Final = 12
"""Models that are shown at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The terminal that is drawn on."""

    width: int
    height: int
    ability: Ability

    @property
    def name(self) -> int:
        """How wide models' names are."""
        return max(8, min(_NAME, self.width // 3))


def standing(entry: IndexEntry, on_demand: Collection[ModelKey]) -> str:
    """Return where a version stands: the index's word, or that its first request loads it."""
    if entry.progress is not None:
        return LOADING
    if entry.reason == UNLOADED and ModelKey(entry.name, entry.namespace) in on_demand:
        return ON_DEMAND
    return entry.state or UNAVAILABLE


def title(entry: IndexEntry) -> str:
    """Return a version's name."""
    return f"{entry.name}/{entry.version}" if entry.version else entry.name


def first_line(reason: str) -> str:
    """Return the first line of why a model failed; the frames of its exception may follow that."""
    return reason.strip().partition("\n")[0]


def block(
    entries: Sequence[IndexEntry], on_demand: Collection[ModelKey], canvas: Canvas, *, seconds: float
) -> list[Line]:
    """Return the lines to keep below the log while models load: counts, loads under way, and failures.

    `seconds` is how long all of it takes so far. The first line is empty: see `drawing.redrawn`.
    """
    states = [(entry, standing(entry, on_demand)) for entry in entries]
    under_way = [entry for entry, state in states if state == LOADING]
    # Those that wait for their turn are only counted: they tell nothing, and may be many.
    loading = [entry for entry in under_way if (entry.progress or {}).get("phase") != _WAITING]
    loading.sort(key=lambda entry: -_seconds(entry))
    failed = [entry for entry, state in states if state == UNAVAILABLE and entry.reason != UNLOADED]
    failed = [entry for entry in failed if entry.reason]
    rows = [_loading(entry, canvas) for entry in loading] + [_failed(entry, canvas) for entry in failed]
    room = max(0, min(_MOST, canvas.height - 4))
    more: list[Line] = [[(f"  and {len(rows) - room} more", "dim")]] if len(rows) > room else []
    ready = sum(state == READY for _, state in states)
    head = [f"{ready} of {len(states)} ready"]
    head += [f"{len(loading)} loading"] if loading else []
    head += [f"{len(failed)} failed"] if failed else []
    waiting = len(under_way) - len(loading)
    head += [f"{waiting} waiting"] if waiting else []
    dormant = sum(state == ON_DEMAND for _, state in states)
    head += [f"{dormant} on demand"] if dormant else []
    took = duration(seconds)
    words = padded(f"Loading: {', '.join(head)}", canvas.width - _TIME - 1, canvas.ability.marks.cut)
    return [[], [(f"{words}{took:>{_TIME}}", "bold")], *rows[:room], *more]


def _seconds(entry: IndexEntry) -> float:
    return load_seconds(entry.progress or {}) or 0.0


def _loading(entry: IndexEntry, canvas: Canvas) -> Line:
    room = max(0, canvas.width - 2 - canvas.name - 2 - _TIME - 1)
    mark = canvas.ability.marks.cut
    name = padded(canvas.ability.shown(title(entry)), canvas.name, mark)
    phase = padded(canvas.ability.shown(load_text(entry.progress or {})), room, mark)
    return [
        ("  ", ""),
        (f"{name}  ", "bold"),
        (phase, "yellow"),
        (f"{duration(_seconds(entry)):>{_TIME}}", ""),
    ]


def _failed(entry: IndexEntry, canvas: Canvas) -> Line:
    mark = canvas.ability.marks.cut
    name = padded(canvas.ability.shown(title(entry)), canvas.name, mark)
    reason = canvas.ability.shown(first_line(entry.reason))
    return [
        ("  ", ""),
        (f"{name}  ", "bold"),
        (fitting(reason, max(0, canvas.width - 2 - canvas.name - 3), mark), "red"),
    ]
