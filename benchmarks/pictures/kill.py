"""A worker is killed under load, and its requests are answered by another one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import parsers
from benchmarks.pictures import ink
from benchmarks.pictures.load import Asked, ask, paced
from benchmarks.pictures.served import Execution, executions, written
from benchmarks.subjects import CHECKOUT, Subject, server, tree

_MODEL: Final = "doubler"
_CONFIGURATION: Final = """\
max_batch_size: 8
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "tritium.retry" value { string_value: "always" } }
"""
_RATE, _SECONDS, _AT, _WORK = 200.0, 4.0, 2.0, 0.02
_BEFORE, _AFTER = 0.2, 0.4  # seconds that are shown
_LEFT, _RIGHT = 112.0, ink.WIDTH - 34.0
_TOP, _TALL = 112.0, 118.0  # of the clients' part
_LANES, _LANE = _TOP + _TALL + 54.0, 50.0
_MOST, _ENOUGH = 8, 3  # rows of a batch; of the one that is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What clients saw and workers did, and the worker that was killed."""

    requests: Sequence[Asked]
    executions: Sequence[Execution]
    killed: int
    at: float

    @property
    def errors(self) -> int:
        """Requests without a good answer."""
        return sum(each.failed for each in self.requests)

    @property
    def again(self) -> Sequence[Asked]:
        """Requests that a second worker began with."""
        return [each for each in self.requests if each.attempts > 1]

    @property
    def answers(self) -> Sequence[Asked]:
        """Requests whose answers are in the picture."""
        return [each for each in self.requests if -_BEFORE <= each.end - self.at <= _AFTER]

    @property
    def shown(self) -> Sequence[Execution]:
        """Batches that are in the picture."""
        begin, end = self.at - _BEFORE, self.at + _AFTER
        return [each for each in self.executions if begin <= each.begin and (each.end or 0.0) <= end]


def recorded(scratch: Path) -> Run:
    """Serve a model with two workers, kill one under load, and return what was seen."""
    log = scratch / "log"
    written(scratch / "models", _MODEL, log, body=f"time.sleep({_WORK})", configuration=_CONFIGURATION)
    with server("tritium", CHECKOUT, scratch / "models", scratch) as subject:
        killed: list[tuple[int, float]] = []
        requests = paced(
            lambda number: ask(subject, _MODEL, number),
            _RATE,
            _SECONDS,
            meanwhile=[(_AT, lambda: killed.append(_killed(subject, log)))],
        )
    [(pid, at)] = killed
    return Run(requests=requests, executions=executions(log), killed=pid, at=at)


def _killed(subject: Subject, log: Path) -> tuple[int, float]:
    """Kill a worker in the middle of a batch of several requests."""
    pid = min(parsers.worker_pids(tree(subject), _MODEL))
    while not any(
        each.pid == pid and each.end is None and len(each.numbers) >= _ENOUGH for each in executions(log)
    ):
        time.sleep(0.001)
    time.sleep(_WORK * 0.6)
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return pid, at


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    pids = list(dict.fromkeys([run.killed, *(each.pid for each in run.shown)]))
    lanes = {pid: _LANES + _LANE * place for place, pid in enumerate(pids)}
    bottom = _LANES + _LANE * len(pids)
    told = _told(run)
    title = "A worker is killed under load: no errors" if not run.errors else "A worker is killed under load"
    parts = [
        ink.text(ink.MARGIN, 58, _facts(), fill=ink.GREY),
        *_clients(run),
        *_workers(run, lanes),
        *_axis(run, bottom),
        ink.text(
            ink.MARGIN,
            bottom + 62,
            f"{run.errors} errors in {len(run.requests)} requests",
            size=20,
            bold=True,
            fill=ink.RED if run.errors else ink.GREEN,
        ),
        ink.paragraph(ink.MARGIN, bottom + 87, told),
    ]
    height = bottom + 87 + ink.LEADING * (len(ink.broken(told)) - 1) + 16
    description = f"{_facts()}. {run.errors} errors in {len(run.requests)} requests. {told}"
    return ink.picture(height, title, description, "python -m benchmarks.pictures kill", parts)


def _facts() -> str:
    return f"2 workers, {_RATE:g} requests a second, {1000 * _WORK:g} ms a batch, kill −9 after {_AT:g} s"


def _told(run: Run) -> str:
    slowest = max(each.seconds for each in run.answers)
    had = "1 request" if len(run.again) == 1 else f"{len(run.again)} requests"
    return (
        f"{had} of the killed worker ran again in another one (orange). A spare worker took its place."
        f" The slowest of these answers took {1000 * slowest:.0f}\u00a0ms."
    )


def _x(run: Run, at: float) -> float:
    return _LEFT + (at - run.at + _BEFORE) / (_BEFORE + _AFTER) * (_RIGHT - _LEFT)


def _clients(run: Run) -> Iterator[str]:
    shown = run.answers
    most = 50.0 * (1 + int(20 * max(each.seconds for each in shown)))
    yield ink.text(ink.MARGIN, _TOP - 21, "how long each answer took", bold=True)
    for value in range(0, int(most) + 1, 50 if most < 200 else 100):
        y = _TOP + _TALL - value / most * _TALL
        yield ink.line(f"M{_LEFT:g} {y:.1f}H{_RIGHT:g}", stroke=ink.GRID)
        yield ink.text(_LEFT - 8, y + 5, f"{value} ms", fill=ink.GREY, anchor="end")
    for each in shown:
        again = each.attempts > 1
        x, y = _x(run, each.end), _TOP + _TALL - 1000 * each.seconds / most * _TALL
        if each.failed:
            yield ink.cross(x, y, 5)
        else:
            yield ink.dot(x, y, 5 if again else 3.4, fill=ink.AMBER if again else ink.BLUE, opacity=0.95)


def _workers(run: Run, lanes: dict[int, float]) -> Iterator[str]:
    yield ink.text(ink.MARGIN, _LANES - 14, "what each worker ran: a box is a batch", bold=True)
    scale = (_RIGHT - _LEFT) / (_BEFORE + _AFTER)
    again = {each.number for each in run.again}
    lost = next((each for each in run.shown if each.pid == run.killed and each.end is None), None)
    for place, (pid, top) in enumerate(lanes.items()):
        killed = pid == run.killed
        spare = (
            not killed and run.executions and min(e.begin for e in run.executions if e.pid == pid) > run.at
        )
        end = _x(run, run.at) if killed else _RIGHT
        begin = _x(run, run.at) if spare else _LEFT
        middle = top + (_LANE - 8) / 2
        yield ink.box(begin, top, end - begin, _LANE - 8, fill=ink.GREEN, opacity=0.1, radius=6)
        yield ink.text(ink.MARGIN, middle - 2, f"worker {place + 1}", bold=True)
        told, colour = (
            ("killed", ink.RED) if killed else ("the spare", ink.GREEN) if spare else ("", ink.GREY)
        )
        if told:
            yield ink.text(ink.MARGIN, middle + 16, told, fill=colour)
        for each in (each for each in run.shown if each.pid == pid):
            tall = 8 + (_LANE - 22) * len(each.numbers) / _MOST
            x = _x(run, each.begin)
            if each is lost:
                yield ink.box(
                    x,
                    middle - tall / 2,
                    _x(run, run.at) - x,
                    tall,
                    fill=ink.RED,
                    opacity=0.25,
                    stroke=ink.RED,
                )
                continue
            second = again & {*each.numbers} and each.begin > run.at
            wide = ((each.end or each.begin) - each.begin) * scale - 1.5
            yield ink.box(x, middle - tall / 2, wide, tall, fill=ink.AMBER if second else ink.GREEN)
    if lost is not None:
        yield from _moves(run, lost, lanes)


def _moves(run: Run, lost: Execution, lanes: dict[int, float]) -> Iterator[str]:
    """Draw arrows from the batch that was lost to those in which its requests ran again."""
    for each in run.shown:
        if each.begin > run.at and {*each.numbers} & {*lost.numbers}:
            tall = 8 + (_LANE - 22) * len(each.numbers) / _MOST
            yield ink.arrow(
                (_x(run, lost.begin) + _x(run, run.at)) / 2,
                lanes[lost.pid] + (_LANE - 8) / 2,
                (_x(run, each.begin) + _x(run, each.end or each.begin)) / 2,
                lanes[each.pid] + (_LANE - 8) / 2 - tall / 2,
                stroke=ink.ORANGE,
                width=2.2,
            )


def _axis(run: Run, bottom: float) -> Iterator[str]:
    x = _x(run, run.at)
    ways = f"M{x:.1f} {_TOP - 14:g}V{_TOP + _TALL + 10:g}M{x:.1f} {_LANES - 4:g}V{bottom + 2:.1f}"
    yield ink.line(ways, stroke=ink.RED, width=2)
    yield ink.text(x - 4, _TOP - 21, "kill −9", bold=True, fill=ink.RED)
    yield ink.line(f"M{_LEFT:g} {bottom + 2:.1f}H{_RIGHT:g}")
    for count in range(-int(10 * _BEFORE), int(10 * _AFTER) + 1):
        at = _x(run, run.at + count / 10)
        yield ink.line(f"M{at:.1f} {bottom + 2:.1f}v5")
        if count % 2 == 0:
            yield ink.text(
                at,
                bottom + 23,
                f"{count * 100} ms".replace("-", "−") if count else "0",
                fill=ink.GREY,
                anchor="middle",
            )
