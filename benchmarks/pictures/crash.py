"""A request crashes workers, and the others of its batch are answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import processes
from benchmarks.pictures import ink
from benchmarks.pictures.load import Asked, ask
from benchmarks.pictures.served import Execution, executions, written
from benchmarks.subjects import CHECKOUT, server

_MODEL: Final = "doubler"
_POISON: Final = 13
_NUMBERS: Final = (1, 2, _POISON, 4)
_WORK: Final = 0.03
_PROCESSES: Final = 3  # the server, its worker and a spare
_BODY: Final = f"""\
time.sleep({_WORK})
if {_POISON} in numbers:
    os.kill(os.getpid(), signal.SIGSEGV)
"""
_CONFIGURATION: Final = """\
max_batch_size: 4
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 200000 }
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tritium.retry" value { string_value: "always" } }
"""
_LEFT, _RIGHT = 112.0, ink.WIDTH - 84.0
_TOP, _ROW, _TALL = 122.0, 42.0, 24.0
_FACTS: Final = "one batch of 4 requests; the third one makes the model crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of each request, and what workers executed."""

    requests: Sequence[Asked]
    executions: Sequence[Execution]

    @property
    def deaths(self) -> Sequence[float]:
        """When each worker died."""
        return [self.died(each) for each in self.executions if each.end is None]

    def died(self, each: Execution) -> float:
        """Return when the execution of a worker that died of it ended."""
        return each.begin + _WORK

    @property
    def begin(self) -> float:
        """When the first request was sent."""
        return min(each.begin for each in self.requests)

    @property
    def end(self) -> float:
        """When the last request was answered."""
        return max(each.end for each in self.requests)


def recorded(scratch: Path) -> Run:
    """Send one batch to a model that crashes at one of its requests."""
    log = scratch / "log"
    written(scratch / "models", _MODEL, log, body=_BODY, configuration=_CONFIGURATION)
    with server("tritium", CHECKOUT, scratch / "models", scratch) as subject:
        while len(processes.family(subject.pid)) < _PROCESSES:
            time.sleep(0.05)
        with ThreadPoolExecutor(4) as pool:
            # A first batch, so that threads are there, and the spare is ready.
            list(pool.map(lambda number: ask(subject, _MODEL, number), (21, 22, 23, 24)))
            time.sleep(2.0)
            requests = list(pool.map(lambda number: ask(subject, _MODEL, number), _NUMBERS))
    done = [each for each in executions(log) if each.begin > min(each.begin for each in requests)]
    return Run(requests=requests, executions=done)


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    bottom = _TOP + _ROW * len(run.requests)
    good = sum(not each.failed for each in run.requests)
    title = "One request crashes; the others are answered"
    told = (
        "After each crash the batch is split, and its parts run alone in the next worker."
        f" After {len(run.deaths)} deaths the cause is known: request 3 gets 422, and its inputs are refused"
        f" for 600\u00a0s. The other {good} are answered."
    )
    parts = [
        ink.text(ink.MARGIN, 58, _FACTS, fill=ink.GREY),
        *_lives(run, bottom),
        *(
            part
            for place, each in enumerate(run.requests)
            for part in _request(run, each, _TOP + _ROW * place)
        ),
        *_axis(run, bottom),
        *_legend(bottom + 54),
        ink.paragraph(ink.MARGIN, bottom + 86, told),
    ]
    height = bottom + 86 + ink.LEADING * (len(ink.broken(told)) - 1) + 16
    return ink.picture(height, title, f"{_FACTS}. {told}", "python -m benchmarks.pictures crash", parts)


def _x(run: Run, at: float) -> float:
    return _LEFT + (at - run.begin) / (run.end - run.begin) * (_RIGHT - _LEFT)


def _lives(run: Run, bottom: float) -> Iterator[str]:
    """Draw the lives of workers behind the rows, and their ends."""
    yield ink.text(ink.MARGIN, _TOP - 28, "worker", bold=True)
    begins = [run.begin, *run.deaths]
    for place, (begin, end) in enumerate(zip(begins, [*run.deaths, run.end], strict=True)):
        x, wide = _x(run, begin), _x(run, end) - _x(run, begin)
        yield ink.box(x + 1, _TOP - 46, wide - 2, bottom - _TOP + 46, fill=ink.BLUE, opacity=0.08, radius=6)
        if wide > 16:
            yield ink.text(x + wide / 2, _TOP - 28, str(place + 1), bold=True, fill=ink.BLUE, anchor="middle")
    for death in run.deaths:
        x = _x(run, death)
        yield ink.line(f"M{x:.1f} {_TOP - 46:g}V{bottom:.1f}", stroke=ink.RED, width=2)


def _request(run: Run, asked: Asked, top: float) -> Iterator[str]:
    """Draw the way of one request from its client and back."""
    begin, end = _x(run, asked.begin), _x(run, asked.end)
    middle = top + _TALL / 2
    yield ink.text(ink.MARGIN, middle + 5, f"request {run.requests.index(asked) + 1}", bold=True)
    yield ink.line(f"M{begin:.1f} {middle:.1f}H{end:.1f}", stroke=ink.GREY, width=2, dashes="2 4")
    for each in run.executions:
        if asked.number not in each.numbers:
            continue
        x = _x(run, each.begin)
        if each.end is None:
            until = _x(run, run.died(each))
            yield ink.box(x, top, until - x - 1, _TALL, fill=ink.PAPER)
            yield ink.box(x, top, until - x - 1, _TALL, fill=ink.RED, opacity=0.22, stroke=ink.RED)
            yield ink.cross(until - 1, middle, 5)
        else:
            yield ink.box(x, top, _x(run, each.end) - x, _TALL, fill=ink.GREEN)
    colour = ink.RED if asked.failed else ink.GREEN
    yield ink.dot(end, middle, 5, fill=colour)
    yield ink.box(end + 8, middle - 10, 34, 20, fill=ink.PAPER, opacity=0.9)
    yield ink.text(end + 10, middle + 5, str(asked.status), bold=True, fill=colour)


def _axis(run: Run, bottom: float) -> Iterator[str]:
    yield ink.line(f"M{_LEFT:g} {bottom + 2:.1f}H{_RIGHT:g}")
    whole = run.end - run.begin
    step = next(each for each in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if whole / each < 6)
    for count in range(int(whole / step) + 1):
        x = _x(run, run.begin + count * step)
        yield ink.line(f"M{x:.1f} {bottom + 2:.1f}v5")
        told = f"{1000 * count * step:.0f} ms" if count else "0"
        yield ink.text(x, bottom + 23, told, fill=ink.GREY, anchor="middle")


def _legend(y: float) -> Iterator[str]:
    yield ink.box(ink.MARGIN, y - 11, 18, 12, fill=ink.GREEN)
    yield ink.text(ink.MARGIN + 25, y, "executed")
    yield ink.box(142, y - 11, 18, 12, fill=ink.RED, opacity=0.22, stroke=ink.RED)
    yield ink.cross(160, y - 5, 4)
    yield ink.text(172, y, "the worker dies of it")
    yield ink.line(f"M356 {y - 5:g}h22", stroke=ink.GREY, width=2, dashes="2 4")
    yield ink.text(386, y, "waits in the server")
