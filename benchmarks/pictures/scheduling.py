"""How batches form: of sequences on slots, direct and oldest, and of single requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.pictures import ink
from benchmarks.pictures.load import Asked, ask
from benchmarks.pictures.served import Execution, executions, written
from benchmarks.subjects import CHECKOUT, Subject, server

_WORK: Final = 0.025
_DIRECT: Final = """\
max_batch_size: 4
sequence_batching { direct { max_queue_delay_microseconds: 2000 } }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_OLDEST: Final = """\
max_batch_size: 3
sequence_batching { oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 2000 } }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_DYNAMIC: Final = """\
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 40000 }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
# Of each sequence: its requests, the seconds after which it begins, and those that it waits after an answer.
_SEQUENCES: Final = ((8, 0.0, 0.0), (4, 0.01, 0.0), (5, 0.06, 0.03), (6, 0.06, 0.0), (5, 0.08, 0.0))
# Seconds after which single requests come.
_ARRIVALS: Final = (0.0, 0.006, 0.013, 0.02, 0.09, 0.1, 0.19, 0.193, 0.196, 0.2, 0.206, 0.212, 0.23, 0.3)
_SHOWN: Final = 13  # batches of sequences
_STEP: Final = 100  # number of a request: its sequence times this, and its place in it
_LEFT: Final = 124.0
_CELL, _TALL = 38.0, 25.0
_DIRECT_TOP: Final = 126.0
_OLDEST_TOP: Final = _DIRECT_TOP + 4 * _TALL + 88
_DYNAMIC_TOP: Final = _OLDEST_TOP + 3 * _TALL + 94
_SECONDS: Final = 0.38


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What workers executed, and when single requests came."""

    direct: Sequence[Execution]
    oldest: Sequence[Execution]
    dynamic: Sequence[Execution]
    requests: Sequence[Asked]


def recorded(scratch: Path) -> Run:
    """Send five sequences to each of two models, and single requests to a third."""
    found: dict[str, Sequence[Execution]] = {}
    models = scratch / "models"
    for name, configuration in (("direct", _DIRECT), ("oldest", _OLDEST), ("dynamic", _DYNAMIC)):
        written(models, name, scratch / name, body=f"time.sleep({_WORK})", configuration=configuration)
    with server("tritium", CHECKOUT, models, scratch) as subject:
        for name in ("direct", "oldest"):
            with ThreadPoolExecutor(len(_SEQUENCES)) as pool:
                begin = time.monotonic() + 0.1
                for done in [
                    pool.submit(_sequence, subject, name, number, begin)
                    for number in range(1, len(_SEQUENCES) + 1)
                ]:
                    done.result()
            found[name] = executions(scratch / name)
        with ThreadPoolExecutor(len(_ARRIVALS)) as pool:
            begin = time.monotonic() + 0.1
            requests = list(pool.map(lambda number: _single(subject, number, begin), range(len(_ARRIVALS))))
    return Run(
        direct=found["direct"],
        oldest=found["oldest"],
        dynamic=executions(scratch / "dynamic"),
        requests=requests,
    )


def _sequence(subject: Subject, model: str, sequence: int, begin: float) -> None:
    count, after, pause = _SEQUENCES[sequence - 1]
    time.sleep(max(0.0, begin + after - time.monotonic()))
    for place in range(1, count + 1):
        ask(
            subject,
            model,
            sequence * _STEP + place,
            sequence_id=sequence,
            sequence_start=place == 1,
            sequence_end=place == count,
        )
        time.sleep(pause)


def _single(subject: Subject, number: int, begin: float) -> Asked:
    time.sleep(max(0.0, begin + _ARRIVALS[number] - time.monotonic()))
    return ask(subject, "dynamic", number + 1)


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    told = (
        "Real runs. Direct: a sequence keeps its slot, so a model can keep its state by row; E waits in the"
        " backlog until a slot is free. Oldest: a batch has the requests that came first, each of another"
        " sequence. Dynamic: a batch begins when it is full, or when its first request has waited 40\u00a0ms."
    )
    parts = [
        ink.text(ink.MARGIN, 58, "each letter is a sequence, each column a batch", fill=ink.GREY),
        *_heading(_DIRECT_TOP, "direct", "a row is a slot; dashed: padded (READY is false)"),
        *_grid(run.direct, _DIRECT_TOP, 4, "slot"),
        *_heading(_OLDEST_TOP, "oldest", "a row is a place in the batch"),
        *_grid(run.oldest, _OLDEST_TOP, 3, "row"),
        *_heading(_DYNAMIC_TOP, "dynamic", "requests and their batches"),
        *_dynamic(run),
        ink.paragraph(ink.MARGIN, _DYNAMIC_TOP + 160, told),
    ]
    height = _DYNAMIC_TOP + 160 + ink.LEADING * (len(ink.broken(told)) - 1) + 16
    return ink.picture(height, "How batches form", told, "python -m benchmarks.pictures scheduling", parts)


def _heading(top: float, name: str, told: str) -> Iterator[str]:
    yield ink.text(ink.MARGIN, top - 34, name, size=ink.BODY, bold=True)
    yield ink.text(_LEFT, top - 34, told, fill=ink.GREY)


def _grid(batches: Sequence[Execution], top: float, rows: int, row: str) -> Iterator[str]:
    """Draw a column for each batch, and a cell for each of its rows."""
    for place in range(rows):
        y = top + _TALL * place
        yield ink.text(_LEFT - 12, y + 17, f"{row} {place}", fill=ink.GREY, anchor="end")
    for column, each in enumerate(batches[:_SHOWN]):
        x = _LEFT + _CELL * column
        yield ink.text(x + _CELL / 2 - 2, top - 8, str(column + 1), fill=ink.GREY, anchor="middle")
        for place in range(rows):
            y = top + _TALL * place
            number = each.numbers[place] if place < len(each.numbers) else 0
            yield from _cell(x, y, number // _STEP, padded=place < len(each.numbers))


def _cell(x: float, y: float, sequence: int, *, padded: bool) -> Iterator[str]:
    if sequence:
        yield ink.box(x, y, _CELL - 4, _TALL - 3, fill=ink.LANES[sequence - 1], radius=4)
        letter = "ABCDEF"[sequence - 1]
        yield ink.text(x + _CELL / 2 - 2, y + 16.5, letter, bold=True, fill=ink.PAPER, anchor="middle")
    elif padded:
        yield ink.box(x + 0.5, y + 0.5, _CELL - 5, _TALL - 4, stroke=ink.GREY, dashes="2 3", radius=4)
    else:
        yield ink.box(x, y, _CELL - 4, _TALL - 3, fill=ink.GRID, opacity=0.4, radius=4)


def _dynamic(run: Run) -> Iterator[str]:
    """Draw when requests came, and the batches in which they were executed."""
    start = min(each.begin for each in run.requests)
    came = {each.number: each.begin - start for each in run.requests}
    top, bars = _DYNAMIC_TOP, _DYNAMIC_TOP + 52
    right = _LEFT + _CELL * _SHOWN

    def x(seconds: float) -> float:
        return _LEFT + seconds / _SECONDS * (right - _LEFT)

    yield ink.text(_LEFT - 12, top + 5, "they come", fill=ink.GREY, anchor="end")
    yield ink.text(_LEFT - 12, bars + 22, "batches", fill=ink.GREY, anchor="end")
    for place, each in enumerate(run.dynamic):
        colour = ink.LANES[place % 3]
        begin, end = each.begin - start, (each.end or each.begin) - start
        middle = (x(begin) + x(end)) / 2
        for number in each.numbers:
            yield ink.line(
                f"M{x(came[number]):.1f} {top:.1f}L{x(begin):.1f} {bars:.1f}", stroke=colour, width=1.4
            )
            yield ink.dot(x(came[number]), top, 5, fill=colour)
        yield ink.box(x(begin), bars, x(end) - x(begin), 32, fill=colour, radius=4)
        yield ink.text(middle, bars + 21, str(len(each.numbers)), bold=True, fill=ink.PAPER, anchor="middle")
    yield ink.line(f"M{_LEFT:g} {bars + 44:.1f}H{right:.1f}")
    for count in range(int(_SECONDS * 10) + 1):
        yield ink.line(f"M{x(count / 10):.1f} {bars + 44:.1f}v5")
        told = f"{count * 100} ms" if count else "0"
        yield ink.text(x(count / 10), bars + 66, told, fill=ink.GREY, anchor="middle")
