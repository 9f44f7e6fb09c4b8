"""The parts of a timeline that lie one below the other, over the same seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checker.injections import Blow
from chaos.checker.timeline import Lane, Timeline
from chaos.report.svg import Axis, area, element, line, text, titled
from chaos.report.words import NOTHING, seconds

LEFT: Final = 92.0
RIGHT: Final = 1172.0

KINDS: Final = {"worker": "worker", "hang": "hang", "actor": "actor", "supervisor": "supervisor", "": "other"}


@dataclass(frozen=True, slots=True)
class Frame:
    """What all parts share: the seconds from left to right."""

    timeline: Timeline
    x: Axis

    def at(self, t: float) -> float:
        """Return where a moment of the monotonic clock lies."""
        return self.x.at(t - self.timeline.begin)

    def middle(self, place: int) -> float:
        """Return where the middle of a bin lies."""
        return self.x.at(self.timeline.at(place) + self.timeline.width / 2)


def frame(timeline: Timeline) -> Frame:
    """Return the frame of a whole run."""
    return Frame(timeline, Axis(low=0.0, high=timeline.end - timeline.begin, start=LEFT, stop=RIGHT))


def grid(y: Axis, said: Callable[[float], str]) -> str:
    """Return an axis's lines and numbers."""
    return "".join(
        element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y.at(tick), y2=y.at(tick))
        + text(said(tick), LEFT - 6, y.at(tick) + 4, class_="tick end")
        for tick in y.ticks()
    )


def heading(words: str, y: float) -> str:
    """Return a part's name above it."""
    return text(words, LEFT, y, class_="heading")


def faults(frame: Frame, blows: Sequence[Blow], top: float) -> tuple[str, float]:
    """Return a bar for each fault, from its injection to its healing, and where the bars end below.

    No two bars overlap.
    """
    rows: list[float] = []
    drawn: list[str] = []
    for blow in blows:
        begin = frame.at(blow.t)
        end = max(begin + 4.0, frame.at(blow.healed))
        row = next((place for place, until in enumerate(rows) if until + 1 <= begin), len(rows))
        rows[row : row + 1] = [end]
        drawn.append(_bar(frame, blow, begin, end, top + row * 11))
    return "".join(drawn), top + max(1, len(rows)) * 11


def _bar(frame: Frame, blow: Blow, begin: float, end: float, y: float) -> str:
    injected = blow.injected
    lasted = seconds(blow.healed - blow.t) if blow.healed != float("inf") else "not healed"
    words = (
        f"{blow.n} {injected.fault} at {blow.t - frame.timeline.begin:.2f} s, {lasted}\n{injected.detail}\n"
        f"may be felt by: {', '.join(injected.models) or 'nobody'}"
    )
    if blow.trouble:
        words += f"\ntrouble: {blow.trouble}"
    kind = f"fault {KINDS.get(injected.measures, 'other')}{' trouble' if blow.trouble else ''}"
    return element("rect", titled(words), class_=kind, x=begin, y=y, width=end - begin, height=9, rx=2)


def throughput(frame: Frame, lane: Lane, top: float, height: float) -> str:
    """Return good answers a second as an area and what was sent as a line."""
    width = frame.timeline.width
    y = Axis(low=0.0, high=max([1.0, *lane.sent, *lane.good]) / width, start=top + height, stop=top)
    good = [(frame.middle(place), y.at(count / width)) for place, count in enumerate(lane.good)]
    sent = [(frame.middle(place), y.at(count / width)) for place, count in enumerate(lane.sent)]
    return (
        grid(y, lambda tick: f"{tick:g}")
        + element("path", class_="good", d=area(good, top + height))
        + element("path", class_="sent", d=line(sent))
    )


def failures(frame: Frame, lane: Lane, top: float, height: float) -> str:
    """Return errors a second as bars, those without an answer on top."""
    ended = [errors + silent for errors, silent in zip(lane.errors, lane.silent, strict=True)]
    y = Axis(low=0.0, high=max([1.0, *ended]) / frame.timeline.width, start=top + height, stop=top)
    return grid(y, lambda tick: f"{tick:g}") + _bars(frame, lane, y)


def _bars(frame: Frame, lane: Lane, y: Axis) -> str:
    thick = max(1.2, (RIGHT - LEFT) / frame.timeline.bins - 0.4)
    width = frame.timeline.width
    drawn: list[str] = []
    for place, (errors, silent) in enumerate(zip(lane.errors, lane.silent, strict=True)):
        x = frame.middle(place) - thick / 2
        for kind, low, high in (("errors", 0, errors), ("silent", errors, errors + silent)):
            if high > low:
                floor = y.at(low / width)
                tall = max(3.0, floor - y.at(high / width))  # one among hundreds is to be seen
                drawn.append(element("rect", class_=kind, x=x, y=floor - tall, width=thick, height=tall))
    return "".join(drawn)


def unexcused(frame: Frame, marks: Iterable[tuple[float, str, str]], y: float) -> str:
    """Return a mark for each error that nothing excuses."""
    return "".join(
        element(
            "path",
            titled(f"{code}, and no excuse: {model} at {t - frame.timeline.begin:.2f} s"),
            class_="unexcused",
            d=f"M{frame.at(t):.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z",
        )
        for t, model, code in marks
    )


def latency(frame: Frame, lane: Lane, top: float, height: float) -> str:
    """Return p50 and p99 of each bin, on a logarithmic axis."""
    p50 = [lane.quantile(place, 0.5) for place in range(frame.timeline.bins)]
    p99 = [lane.quantile(place, 0.99) for place in range(frame.timeline.bins)]
    known = [each for each in (*p50, *p99) if each is not None and each > 0]
    low = 10.0 ** _floor_of(min(known, default=1e-3))
    y = Axis(low=low, high=max([low * 10, *known]), start=top + height, stop=top, logarithmic=True)
    drawn = grid(y, seconds)
    for kind, values in (("p99", p99), ("p50", p50)):
        points = [
            None if value is None else (frame.middle(place), y.at(value))
            for place, value in enumerate(values)
        ]
        drawn += element("path", class_=kind, d=line(points))
    return drawn


def _floor_of(value: float) -> int:
    power = 0
    while 10.0**power > value and power > -6:
        power -= 1
    return power


def model(frame: Frame, name: str, lane: Lane, blows: Sequence[Blow], top: float, height: float) -> str:
    """Return one model's lane: its good answers, its errors, and bands where it may feel a fault."""
    width = frame.timeline.width
    bands = "".join(
        element(
            "rect",
            titled(f"{name}: {blow.injected.fault} ({blow.n}) may be felt"),
            class_="band",
            x=frame.at(blow.t),
            y=top,
            width=max(2.0, frame.at(blow.felt_until) - frame.at(blow.t)),
            height=height,
        )
        for blow in blows
        if name in blow.injected.models
    )
    ends = [sum(each) for each in zip(lane.errors, lane.silent, strict=True)]
    y = Axis(low=0.0, high=max([1.0, *lane.good, *ends]) / width, start=top + height, stop=top)
    good = [(frame.middle(place), y.at(count / width)) for place, count in enumerate(lane.good)]
    return (
        element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=top + height, y2=top + height)
        + text(name, LEFT - 6, top + height / 2 + 4, class_="label end")
        + element("path", class_="good", d=area(good, top + height))
        + bands
        + _bars(frame, lane, y)
        + hovers(frame, lane, top, height, name)
    )


def hovers(frame: Frame, lane: Lane, top: float, height: float, name: str) -> str:
    """Return what is shown of each second when the reader points at it."""
    step = (RIGHT - LEFT) / frame.timeline.bins
    return "".join(
        element(
            "rect",
            titled(_second(frame.timeline, lane, place, name)),
            class_="hover",
            x=LEFT + place * step,
            y=top,
            width=step,
            height=height,
        )
        for place in range(frame.timeline.bins)
    )


def _second(timeline: Timeline, lane: Lane, place: int, name: str) -> str:
    p50, p99 = (lane.quantile(place, share) for share in (0.5, 0.99))
    at = timeline.at(place)
    when = f"{at:.0f} s" if timeline.width == 1 else f"{at:.0f} to {at + timeline.width:.0f} s"
    return (
        f"{name}, {when}: {lane.sent[place]} sent, {lane.good[place]} good, {lane.errors[place]} errors, "
        f"{lane.silent[place]} without an answer\n"
        f"p50 {NOTHING if p50 is None else seconds(p50)}, p99 {NOTHING if p99 is None else seconds(p99)}"
    )
