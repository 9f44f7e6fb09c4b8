"""A new version gets a share of the requests, fails, loses it by itself, and is promoted when it is fixed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.payloads import WrongAnswer
from benchmarks.pictures import ink
from benchmarks.pictures.load import Asked, ask, paced
from benchmarks.pictures.served import written
from benchmarks.subjects import CHECKOUT, Subject, server

_MODEL: Final = "price"
_CONFIGURATION: Final = """\
max_batch_size: 8
version_policy { all { } }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_RATE: Final = 120.0
_PLANS: Final = ((0.0, 10), (3.0, 50), (9.0, 50), (12.0, 100))  # when, and the share of version 2 in percent
_BREAKS, _FIXED, _END = 6.0, 8.5, 15.0
_WINDOW: Final = 2
_BIN: Final = 0.25
_LEFT, _RIGHT = 76.0, ink.WIDTH - 26.0
_TOP, _TALL = 126.0, 160.0
_FACTS: Final = f"{_RATE:g} requests a second; rollback at 5 % errors within {_WINDOW} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What clients saw from `start` on, and when version 2 was rolled back."""

    requests: Sequence[Asked]
    start: float
    rolled_back: float | None

    @property
    def errors(self) -> int:
        """Requests without a good answer."""
        return sum(each.failed for each in self.requests)


def recorded(scratch: Path) -> Run:
    """Let version 2 of a model have its shares, and fail for a while."""
    broken = scratch / "broken"
    body = f"""\
if "/2/" in __file__ and os.path.exists({str(broken)!r}):
    raise pb_utils.TritonModelException("version 2 is broken")
"""
    written(
        scratch / "models", _MODEL, scratch / "log", body=body, configuration=_CONFIGURATION, versions=(1, 2)
    )
    options = ["--model-control-mode=explicit", "--load-model=*"]
    rolled: list[float] = []
    with server("tritium", CHECKOUT, scratch / "models", scratch, options) as subject:
        _plan(subject, _PLANS[0][1])
        start = time.monotonic()
        requests = paced(
            lambda number: ask(subject, _MODEL, number),
            _RATE,
            _END,
            meanwhile=[
                *((at, lambda share=share: _plan(subject, share)) for at, share in _PLANS[1:]),
                (_BREAKS, broken.touch),
                (_BREAKS, lambda: rolled.append(_rolled_back(subject))),
                (_FIXED, broken.unlink),
            ],
        )
    return Run(requests=requests, start=start, rolled_back=rolled[0] - start)


def _plan(subject: Subject, share: int) -> None:
    plan: dict[str, object] = {"weights": {"1": 100 - share, "2": share}}
    if share < 100:  # with all of them, there is no version to fall back to
        plan["rollback"] = {"max_error_rate": 0.05, "window": _WINDOW}
    connection = subject.connect()
    try:
        connection.request("POST", f"/v2/tritium/models/{_MODEL}/traffic", json.dumps(plan))
        response = connection.getresponse()
        if response.status != 200:
            raise WrongAnswer(f"traffic plan: {response.status} {response.read()!r}")
    finally:
        connection.close()


def _rolled_back(subject: Subject) -> float:
    """Wait until a version has lost its share; return when that was seen."""
    deadline = time.monotonic() + _FIXED - _BREAKS
    while time.monotonic() < deadline:
        state: Mapping[str, Any] = subject.get_json(f"/v2/tritium/models/{_MODEL}/traffic")
        if any(each.get("rolled_back") for each in state["versions"]):
            return time.monotonic()
        time.sleep(0.01)
    raise WrongAnswer("version 2 was not rolled back")


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    marks = _marks(run)
    bottom = _TOP + _TALL
    errors = bottom + 22
    axis = errors + 16
    notes = axis + 62
    parts = [
        ink.text(ink.MARGIN, 58, _FACTS, fill=ink.GREY),
        *_legend(84),
        *_shares(run),
        *_errors(run, errors),
        *_axis(axis),
        *(part for place, (at, _) in enumerate(marks) for part in _mark(place, at, errors)),
    ]
    for place, (_, told) in enumerate(marks):
        y = notes + 26 * place
        parts += _number(place, ink.MARGIN + 10, y - 5)
        parts.append(ink.text(ink.MARGIN + 30, y, told))
    height = notes + 26 * (len(marks) - 1) + 18
    description = f"{_FACTS}. " + " ".join(f"{place + 1}: {told}." for place, (_, told) in enumerate(marks))
    title = "A canary is rolled back, fixed and promoted"
    return ink.picture(height, title, description, "python -m benchmarks.pictures canary", parts)


def _marks(run: Run) -> list[tuple[float, str]]:
    after = (run.rolled_back or 0.0) - _BREAKS
    shares = [share for _, share in _PLANS]
    return [
        (_PLANS[0][0], f"version 2 gets {shares[0]} % of the requests"),
        (_PLANS[1][0], f"all is well: {shares[1]} %"),
        (_BREAKS, "version 2 begins to fail"),
        (
            run.rolled_back or _BREAKS,
            f"rolled back by the server, {after:.1f} s later: {run.errors} errors in all",
        ),
        (_PLANS[2][0], f"fixed: an operator gives it {shares[2]} % again"),
        (_PLANS[3][0], f"promoted: {shares[3]} %"),
    ]


def _x(seconds: float) -> float:
    return _LEFT + seconds / _END * (_RIGHT - _LEFT)


def _bins(run: Run) -> Iterator[tuple[float, list[Asked]]]:
    bins: dict[int, list[Asked]] = {}
    for each in run.requests:
        bins.setdefault(int((each.end - run.start) / _BIN), []).append(each)
    for number in sorted(bins):
        if number * _BIN < _END:
            yield number * _BIN, bins[number]


def _shares(run: Run) -> Iterator[str]:
    """Draw the share of each version, over that of the other."""
    yield ink.box(_LEFT, _TOP, _RIGHT - _LEFT, _TALL, fill=ink.BLUE, radius=0)
    steps = f"M{_LEFT:.1f} {_TOP + _TALL:.1f}"
    for at, requests in _bins(run):
        # A failed answer names no version; only version 2 fails.
        second = sum(each.failed or each.version == "2" for each in requests) / len(requests)
        steps += f"L{_x(at):.1f} {_TOP + _TALL * (1 - second):.1f}H{_x(at + _BIN):.1f}"
    yield ink.shape(f"{steps}V{_TOP + _TALL:.1f}z", fill=ink.AMBER)
    for percent in (0, 50, 100):
        y = _TOP + _TALL * percent / 100
        yield ink.text(_LEFT - 8, y + 5, f"{100 - percent} %", fill=ink.GREY, anchor="end")


def _errors(run: Run, y: float) -> Iterator[str]:
    yield ink.text(_LEFT - 8, y + 5, "errors", fill=ink.RED, anchor="end")
    for each in run.requests:
        if each.failed:
            yield ink.line(f"M{_x(each.end - run.start):.1f} {y - 8:.1f}v16", stroke=ink.RED, width=1.4)


def _axis(y: float) -> Iterator[str]:
    yield ink.line(f"M{_LEFT:g} {y:.1f}H{_RIGHT:g}")
    for seconds in range(0, int(_END) + 1, 3):
        yield ink.line(f"M{_x(seconds):.1f} {y:.1f}v5")
        told = f"{seconds} s" if seconds else "0"
        yield ink.text(_x(seconds), y + 22, told, fill=ink.GREY, anchor="middle")


def _mark(place: int, at: float, bottom: float) -> Iterator[str]:
    yield ink.line(f"M{_x(at):.1f} {_TOP - 8:g}V{bottom + 16:.1f}", stroke=ink.INK, width=1.4)
    aside = {2: -8, 3: 8}.get(place, 0)  # these two are close to each other
    yield from _number(place, _x(at) + aside, _TOP - 16)


def _number(place: int, x: float, y: float) -> Iterator[str]:
    yield ink.dot(x, y, 10, fill=ink.INK)
    yield ink.text(x, y + 5, str(place + 1), bold=True, fill=ink.PAPER, anchor="middle")


def _legend(y: float) -> Iterator[str]:
    yield ink.box(ink.MARGIN, y - 12, 18, 13, fill=ink.BLUE)
    yield ink.text(ink.MARGIN + 25, y, "version 1")
    yield ink.box(130, y - 12, 18, 13, fill=ink.AMBER)
    yield ink.text(155, y, "version 2")
    yield ink.text(244, y, "share of the requests", fill=ink.GREY)
