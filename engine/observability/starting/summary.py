"""What a terminal shows at the end of a start: the models, the options, what to try. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.interfaces import UNLOADED, IndexEntry
from actors.values.specs import ModelKey
from engine.observability.starting.drawing import Line, padded, wrapped
from engine.observability.starting.progress import (
    ON_DEMAND,
    READY,
    UNAVAILABLE,
    Canvas,
    standing,
    title,
)
from engine.observability.text import duration

_MOST: Final = 40
"""Models without a failure that are listed; the rest is counted."""

_STYLES: Final = {READY: "green", ON_DEMAND: "", UNAVAILABLE: "red"}
_STATE: Final = 11
_LONGEST_NAME: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of the loads at the start. `seconds` tells by name and version how long each took."""

    entries: Sequence[IndexEntry]
    on_demand: Collection[ModelKey]
    seconds: Mapping[tuple[str, int], float]
    options: Sequence[tuple[str, str]]
    hints: Sequence[tuple[str, str]]
    took: float


def summary(loaded: Loaded, canvas: Canvas) -> Iterator[Line]:
    """Yield the lines; commands to copy are the only ones that may be longer than the terminal is wide."""
    attempted = [entry for entry in loaded.entries if entry.state or entry.reason]
    states = [(entry, standing(entry, loaded.on_demand)) for entry in attempted]
    yield []
    yield from _table(states, loaded, canvas)
    if rest := len(loaded.entries) - len(attempted):
        yield [
            (
                f"  {rest} more {'model is' if rest == 1 else 'models are'} in the repositories, not loaded",
                "dim",
            )
        ]
    yield []
    options = ", ".join(f"{name} {value}" for name, value in loaded.options)
    yield from ([(f"  {line}", "dim")] for line in wrapped(canvas.ability.shown(options), canvas.width - 2))
    yield []
    ready = sum(state == READY for _, state in states)
    dormant = sum(state == ON_DEMAND for _, state in states)
    also = f", {dormant} on demand" if dormant else ""
    yield [(f"{ready} of {len(states)} models are ready{also}, after {duration(loaded.took)}. Try:", "bold")]
    width = max((len(what) for what, _ in loaded.hints), default=0)
    for what, how in loaded.hints:
        yield [(f"  {what:<{width}}  ", "dim"), (canvas.ability.shown(how), "")]
    yield []


def _table(states: Sequence[tuple[IndexEntry, str]], loaded: Loaded, canvas: Canvas) -> Iterator[Line]:
    """Failures come last, nearest to where the eye is."""
    well = [each for each in states if each[1] != UNAVAILABLE]
    failed = [each for each in states if each[1] == UNAVAILABLE]
    shown = [*well[:_MOST], *failed]
    if not shown:
        return
    mark = canvas.ability.marks.cut
    longest = max(len(canvas.ability.shown(title(entry))) for entry, _ in shown)
    wide = max(8, min(longest, _LONGEST_NAME, canvas.width - 4 - _STATE))
    yield [(f"  {'MODEL':<{wide}}  {'STATE':<{_STATE}}  LOADED IN", "dim")]
    for entry, state in shown:
        if len(well) > _MOST and entry is well[_MOST - 1][0]:
            yield [(f"  {len(well) - _MOST + 1} more are ready or on demand", "dim")]
            continue
        seconds = loaded.seconds.get((entry.name, entry.version))
        took = f"  {duration(seconds):>9}" if seconds is not None and state == READY else ""
        yield [
            (f"  {padded(canvas.ability.shown(title(entry)), wide, mark)}  ", "bold"),
            (f"{state:<{_STATE}}" if took else state, _STYLES.get(state, "yellow")),
            (took, ""),
        ]
        if state == UNAVAILABLE or (state == READY and entry.reason):
            yield from why(entry.reason, canvas)


def failures(
    entries: Sequence[IndexEntry], on_demand: Collection[ModelKey], canvas: Canvas
) -> Iterator[Line]:
    """Yield why models failed so far, for a start that ends before there is a summary."""
    for entry in entries:
        if entry.reason and standing(entry, on_demand) == UNAVAILABLE and entry.reason != UNLOADED:
            yield [(f"{canvas.ability.shown(title(entry))}  ", "bold"), (UNAVAILABLE, "red")]
            yield from why(entry.reason, canvas)


def why(reason: str, canvas: Canvas) -> Iterator[Line]:
    """Yield the lines of a reason, indented."""
    for row in reason.strip().splitlines():
        if row.strip():
            indent = "    " + " " * (len(row) - len(row.lstrip()))
            lines = wrapped(canvas.ability.shown(row.strip()), canvas.width - len(indent))
            yield from ([(f"{indent}{line}", "red")] for line in lines)
