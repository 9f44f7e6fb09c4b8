"""Whole drawings: the timeline of a run, and what the server took meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.checker.judge import Judgement
from chaos.checker.soak import QUANTITIES, Quantity, told, trends
from chaos.checker.trend import Trend
from chaos.record.records import Sample
from chaos.report import panels
from chaos.report.panels import LEFT, RIGHT, Frame, heading
from chaos.report.svg import Axis, element, line, text, titled

WIDTH: Final = 1200


def timeline(judgement: Judgement) -> str:
    """Return the run over its time: faults, throughput, errors and latencies, and each model."""
    frame = panels.frame(judgement.timeline)
    drawn = [heading("faults, from injection to healing", 40)]
    bars, y = panels.faults(frame, judgement.blows, 48)
    drawn.append(bars)
    everything = judgement.timeline.all
    for words, height, panel in (
        ("requests a second: good answers, and sent", 110, panels.throughput),
        ("errors a second", 60, panels.failures),
        ("latency of good answers: p50 and p99", 110, panels.latency),
    ):
        y += 26
        drawn += [heading(words, y), panel(frame, everything, y + 8, height)]
        if panel is panels.failures:
            drawn.append(panels.unexcused(frame, judgement.timeline.unexcused, y + 8))
        drawn.append(panels.hovers(frame, everything, y + 8, height, "all models"))
        y += 8 + height
    y += 26
    drawn.append(heading("each model: good answers and errors; shaded where a fault may be felt", y))
    y += 8
    for name, lane in sorted(judgement.timeline.models.items()):
        drawn.append(panels.model(frame, name, lane, judgement.blows, y, 40))
        y += 46
    return _whole(
        "Timeline of the run", _phases(judgement, frame, y) + "".join(drawn) + _seconds(frame, y), y + 24
    )


def resources(samples: Sequence[Sample], judgement: Judgement) -> str:
    """Return what the server takes over its time, each quantity with its trend; "" without samples."""
    if not samples:
        return ""
    frame = panels.frame(judgement.timeline)
    ordered = sorted(samples, key=lambda each: each.t)
    found = trends(ordered)
    drawn: list[str] = []
    y = 16.0
    for quantity in QUANTITIES:
        drawn += [
            heading(f"{quantity.name}: {told(quantity, found[quantity.name])}", y),
            _quantity(frame, quantity, ordered, found[quantity.name], y + 8, 70),
        ]
        y += 104
    return _whole("What the server takes", "".join(drawn) + _seconds(frame, y - 18), y + 6)


def _quantity(
    frame: Frame, quantity: Quantity, samples: Sequence[Sample], trend: Trend, top: float, height: float
) -> str:
    values = [quantity.of(each) for each in samples]
    room = max(1.0, (max(values) - min(values)) * 0.1)
    y = Axis(low=max(0.0, min(values) - room), high=max(values) + room, start=top + height, stop=top)
    points = [(frame.at(each.t), y.at(value)) for each, value in zip(samples, values, strict=True)]
    drawn = panels.grid(y, lambda tick: f"{tick:,.0f}") + element("path", class_="sent", d=line(points))
    if trend.blocks > 1:
        since, until = trend.since, samples[-1].t
        half = trend.slope * (until - since) / 2 / 3600
        ends = [(frame.at(since), y.at(trend.level - half)), (frame.at(until), y.at(trend.level + half))]
        drawn += element("path", titled(told(quantity, trend)), class_="trend", d=line(ends))
    return drawn


def _phases(judgement: Judgement, frame: Frame, bottom: float) -> str:
    drawn = []
    for place, (phase, begin, end) in enumerate(judgement.manifest.phases):
        if phase == "ending":
            continue
        x, until = frame.at(begin), frame.at(end)
        kind = f"phase {'even' if place % 2 else 'odd'}"
        drawn.append(element("rect", class_=kind, x=x, y=8, width=until - x, height=bottom - 8))
        drawn.append(text(phase, (x + until) / 2, 22, class_="phase-name middle"))
    return "".join(drawn)


def _seconds(frame: Frame, y: float) -> str:
    axis = Axis(low=frame.x.low, high=frame.x.high, start=LEFT, stop=RIGHT)
    # Only every second tick: they need room for their words.
    ticks = [tick for place, tick in enumerate(axis.ticks()) if place % 2 == 0]
    return "".join(text(f"{tick:g} s", axis.at(tick), y + 14, class_="tick middle") for tick in ticks)


def _whole(name: str, content: str, height: float) -> str:
    return element(
        "svg",
        titled(name) + content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_label=name,
    )
