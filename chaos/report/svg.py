"""Pieces of SVG: escaped text, and paths over a scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """Return an element. `content` is markup.

    Underscores of attributes' names become hyphens; `class_` is `class`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def text(words: str, x: float, y: float, **attributes: object) -> str:
    """Return a line of text at a place."""
    return element("text", escape(words), x=x, y=y, **attributes)


def titled(words: str) -> str:
    """Return what a browser shows when the reader points at the element that contains this."""
    return f"<title>{escape(words)}</title>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Where values lie between two edges: linear, or by their logarithm."""

    low: float
    high: float
    start: float  # in the drawing's units, where `low` is
    stop: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies; a value beyond an end lies at that end."""
        low, high, given = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, given = math.log10(low), math.log10(high), math.log10(given)
        share = (given - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> Sequence[float]:
        """Return round values between the ends, few enough to be told apart."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        step = _step((self.high - self.low) / max(1.0, abs(self.stop - self.start) / 32))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * place for place in range(first, last + 1)]


def line(points: Iterable[tuple[float, float] | None]) -> str:
    """Return a path through points, with a gap at each None."""
    said: list[str] = []
    drawing = False
    for point in points:
        if point is not None:
            said.append(f"{'L' if drawing else 'M'}{_plain(point[0])} {_plain(point[1])}")
        drawing = point is not None
    return "".join(said)


def area(points: Sequence[tuple[float, float]], floor: float) -> str:
    """Return a path that encloses what lies between points and the floor."""
    if not points:
        return ""
    first, last = _plain(points[0][0]), _plain(points[-1][0])
    return f"{line(points)}L{last} {_plain(floor)}L{first} {_plain(floor)}Z"


def _step(rough: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is no less."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9))


def _plain(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
