"""The life of a request, through frontend, model and worker, as its traces have measured it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.payloads import encode
from benchmarks.pictures import ink
from benchmarks.pictures.served import written
from benchmarks.subjects import CHECKOUT, infer, server

_MODEL: Final = "doubler"
_CONFIGURATION: Final = """\
max_batch_size: 8
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_WARM, _COUNT, _BEST = 200, 3000, 200
_LANES: Final = ("frontend", "model", "worker")
# Where a step is, the timestamps of its trace that are around it, and what is done.
STEPS: Final = (
    (0, "HTTP_RECV_START", "REQUEST_START", "read and decode the request"),
    (1, "REQUEST_START", "QUEUE_START", "check it against the model"),
    (1, "QUEUE_START", "COMPUTE_START", "queue, form a batch, copy inputs, wake the worker"),
    (2, "COMPUTE_START", "COMPUTE_INPUT_END", "find the inputs in shared memory"),
    (2, "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "execute the model"),
    (2, "COMPUTE_OUTPUT_START", "COMPUTE_END", "write the outputs"),
    (1, "COMPUTE_END", "REQUEST_END", "wake the server, cut the result for each request"),
    (0, "REQUEST_END", "HTTP_SEND_START", "encode the answer"),
    (0, "HTTP_SEND_START", "HTTP_SEND_END", "send it"),
)
_LEFT, _RIGHT = 112.0, ink.WIDTH - 34.0
_TOP, _LANE, _TALL = 92.0, 66.0, 26.0
_COLOURS: Final = (ink.BLUE, ink.GREEN, ink.ORANGE)
_FACTS: Final = "one client, one worker, a Python model that doubles a number"


@dataclass(frozen=True, slots=True)
class Run:
    """The timestamps of each request, in nanoseconds by their names."""

    traces: Sequence[Mapping[str, int]]

    @property
    def lengths(self) -> Sequence[float]:
        """The median of each step, in microseconds, among the quickest requests."""
        quickest = sorted(self.traces, key=lambda each: each[STEPS[-1][2]] - each[STEPS[0][1]])[:_BEST]
        return [
            statistics.median((each[end] - each[begin]) / 1000 for each in quickest)
            for _, begin, end, _ in STEPS
        ]


def recorded(scratch: Path) -> Run:
    """Send requests one after the other to a server that traces each of them."""
    written(scratch / "models", _MODEL, scratch / "log", body="", configuration=_CONFIGURATION)
    request = encode({"X": np.ones((1, 1), np.float32)}, "binary")
    options = [
        f"--trace-config=triton,file={scratch / 'trace'}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
    ]
    with server("tritium", CHECKOUT, scratch / "models", scratch, options) as subject:
        connection = subject.connect()
        for _ in range(_WARM + _COUNT):
            infer(connection, _MODEL, request)
        connection.close()
    found: dict[int, dict[str, int]] = {}
    for each in json.loads((scratch / "trace").read_text()):
        stamps = {stamp["name"]: stamp["ns"] for stamp in each.get("timestamps", ())}
        found.setdefault(each["id"], {}).update(stamps)
    whole = {name for _, begin, end, _ in STEPS for name in (begin, end)}
    return Run([found[key] for key in sorted(found)[_WARM:] if whole <= found[key].keys()])


def drawn(run: Run) -> str:
    """Return the picture as SVG."""
    lengths = run.lengths
    bottom = _TOP + _LANE * len(_LANES)
    notes = bottom + 66
    told = (
        f"Medians of the quickest {min(_BEST, len(run.traces))} of {len(run.traces)} traces of one machine."
        f" In all they take {sum(lengths):.0f}\u00a0µs, and tracing itself is a part of it."
    )
    parts = [
        ink.text(ink.MARGIN, 58, _FACTS, fill=ink.GREY),
        *_lanes(),
        *_steps(lengths),
        *_axis(sum(lengths), bottom),
    ]
    for place, ((lane, _, _, step), length) in enumerate(zip(STEPS, lengths, strict=True)):
        y = notes + 26 * place
        parts += _number(place, ink.MARGIN + 10, y - 5, _COLOURS[lane])
        parts.append(ink.text(ink.MARGIN + 30, y, step))
        parts.append(ink.text(_RIGHT + 16, y, f"{length:.0f} µs", bold=True, anchor="end"))
    end = notes + 26 * len(STEPS) + 6
    parts.append(ink.paragraph(ink.MARGIN, end, told))
    height = end + ink.LEADING * (len(ink.broken(told)) - 1) + 16
    description = f"{_FACTS}. " + " ".join(
        f"{_LANES[lane]}: {step}, {length:.0f} µs."
        for (lane, _, _, step), length in zip(STEPS, lengths, strict=True)
    )
    return ink.picture(
        height, "The life of a request", description, "python -m benchmarks.pictures request", parts
    )


def _lanes() -> Iterator[str]:
    for place, name in enumerate(_LANES):
        top = _TOP + _LANE * place
        yield ink.box(_LEFT, top, _RIGHT - _LEFT, _LANE - 8, fill=_COLOURS[place], opacity=0.09, radius=6)
        yield ink.text(ink.MARGIN, top + 27, name, bold=True, fill=_COLOURS[place])
        if place != 1:
            where = "worker process" if place == 2 else "server process"
            yield ink.text((_LEFT + _RIGHT) / 2, top + _LANE - 16, where, fill=ink.GREY, anchor="middle")


def _steps(lengths: Sequence[float]) -> Iterator[str]:
    """Draw each step in its lane, one behind the other."""
    scale = (_RIGHT - _LEFT) / sum(lengths)
    at, before = _LEFT, -1
    for place, ((lane, _, _, _), length) in enumerate(zip(STEPS, lengths, strict=True)):
        top = _TOP + _LANE * lane + 10
        wide = length * scale
        if before not in (-1, lane):
            other = _TOP + _LANE * before + 10 + _TALL
            begin, end = (other, top) if lane > before else (other - _TALL, top + _TALL)
            yield ink.line(f"M{at:.1f} {begin:.1f}V{end:.1f}", stroke=ink.INK, width=1.6)
        yield ink.box(at, top, wide - 1, _TALL, fill=_COLOURS[lane], radius=2)
        if wide > 22:
            yield ink.text(
                at + wide / 2, top + 18.5, str(place + 1), bold=True, fill=ink.PAPER, anchor="middle"
            )
        at, before = at + wide, lane


def _axis(whole: float, bottom: float) -> Iterator[str]:
    yield ink.line(f"M{_LEFT:g} {bottom + 2:.1f}H{_RIGHT:g}")
    step = next(each for each in (20, 50, 100, 200, 500, 1000, 10000) if whole / each < 7)
    for count in range(int(whole / step) + 1):
        x = _LEFT + count * step / whole * (_RIGHT - _LEFT)
        yield ink.line(f"M{x:.1f} {bottom + 2:.1f}v5")
        told = f"{count * step} µs" if count else "0"
        yield ink.text(x, bottom + 23, told, fill=ink.GREY, anchor="middle")


def _number(place: int, x: float, y: float, colour: str) -> Iterator[str]:
    yield ink.dot(x, y, 10, fill=colour)
    yield ink.text(x, y + 5, str(place + 1), bold=True, fill=ink.PAPER, anchor="middle")
