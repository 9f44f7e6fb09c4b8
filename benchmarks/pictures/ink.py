"""What every picture of the documents is drawn with: colours that follow the reader's theme, and text.

A picture is `WIDTH` units wide, so that it can be read on a phone: text has 15 units or more. It names the
colours of the light theme, and its style sheet replaces them where the reader prefers a dark one. A browser
asks for that where the page says so, too (`color-scheme`), even in an `<img>`. The colours can be told apart
by people who see no red or no green (those of Okabe and Ito, darker where text has them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

WIDTH: Final = 640.0
MARGIN: Final = 18.0
TITLE, BODY, SMALL = 21.0, 16.0, 15.0  # sizes of text

PAPER, EDGE, GRID, INK, GREY = "#ffffff", "#d3d7dc", "#e6e8eb", "#1f2328", "#57606a"
BLUE, ORANGE, GREEN, PURPLE, RED = "#0067a3", "#b45309", "#00785a", "#9b4f86", "#c81e1e"
SKY, AMBER = "#4aa8dc", "#e69f00"
LANES: Final = (BLUE, GREEN, PURPLE, ORANGE, SKY, AMBER)
"""Colours of things side by side."""

_DARK: Final[Mapping[str, str]] = {
    PAPER: "#161b22",
    EDGE: "#3a424c",
    GRID: "#2a313a",
    INK: "#e6edf3",
    GREY: "#9aa4af",
    BLUE: "#58b2ee",
    ORANGE: "#f0883e",
    GREEN: "#3fc29a",
    PURPLE: "#d99ac4",
    RED: "#ff7b72",
    SKY: "#2b84b8",
    AMBER: "#d8a01a",
}

STYLE: Final = (
    "<style>@media (prefers-color-scheme: dark){"
    + "".join(
        f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}' for light, dark in _DARK.items()
    )
    + "}</style>\n"
)
"""The style sheet of a picture in these colours."""

COLOURS: Final = frozenset(_DARK)
"""All colours that a picture may have."""

_FACES: Final = "Segoe UI, Roboto, Helvetica, Arial, sans-serif"

# The advance of letters, as shares of the size, in a wide sans-serif face (DejaVu Sans, Verdana): others
# need less. What is missing here is 0.62 wide.
_ADVANCES: Final[Mapping[str, float]] = {
    **dict.fromkeys("ijl.,:;'|! \u00a0", 0.32),
    **dict.fromkeys("frt()[]/-", 0.41),
    **dict.fromkeys("mw—MW@%", 0.95),
    **dict.fromkeys("ABCDEFGHKNOPQRSUVXYZ+=−×→", 0.74),
}


def measure(words: str, size: float, *, bold: bool = False) -> float:
    """Return how wide a line of text is at most, roughly."""
    return sum(_ADVANCES.get(each, 0.62) for each in words) * size * (1.1 if bold else 1.0)


def head(width: float, height: float, title: str, command: str) -> str:
    """Return how a drawing of any width begins. `command` draws it again."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' font-family="{_FACES}">\n'
        f"<title>{escape(title)}</title>\n<!-- drawn by `{command}` -->\n{STYLE}"
        f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>\n'
    )


def picture(height: float, title: str, description: str, command: str, parts: Iterable[str]) -> str:
    """Return a whole picture, with its title on top. `command` draws it again."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 1.125:g}" height="{height * 1.125:g}"'
        f' viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-labelledby="title description"'
        f' font-family="{_FACES}">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="description">{escape(description)}</desc>\n'
        f"<!-- drawn by `{command}` -->\n{STYLE}"
        + box(0.5, 0.5, WIDTH - 1, height - 1, fill=PAPER, stroke=EDGE, radius=10)
        + text(MARGIN, 33, title, size=TITLE, bold=True)
        + "".join(parts)
        + "</svg>\n"
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = SMALL,
    bold: bool = False,
    fill: str = INK,
    anchor: str = "start",
) -> str:
    """Return a line of text. `anchor` is `start`, `middle` or `end`."""
    weight = ' font-weight="bold"' if bold else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{weight}{where} fill="{fill}">'
        f"{escape(words)}</text>\n"
    )


def paragraph(x: float, y: float, words: str, *, width: float = WIDTH - 2 * MARGIN, fill: str = GREY) -> str:
    """Return small text, broken into lines that are `LEADING` apart."""
    return "".join(
        text(x, y + LEADING * place, each, fill=fill) for place, each in enumerate(broken(words, width))
    )


LEADING: Final = 21.0
"""From one line of a paragraph to the next."""


def broken(words: str, width: float = WIDTH - 2 * MARGIN) -> list[str]:
    """Return the lines of a paragraph."""
    lines: list[str] = []
    for word in words.split(" "):
        if lines and measure(f"{lines[-1]} {word}", SMALL) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str = "none",
    stroke: str = "none",
    opacity: float = 1.0,
    radius: float = 3.0,
    dashes: str = "",
    thick: float = 1.0,
) -> str:
    """Return a rectangle; `opacity` is that of its inside."""
    more = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    if stroke != "none":
        more += f' stroke="{stroke}" stroke-width="{thick:g}"'
    if dashes:
        more += f' stroke-dasharray="{dashes}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" rx="{radius:g}"'
        f' fill="{fill}"{more}/>\n'
    )


def dot(x: float, y: float, radius: float, *, fill: str, opacity: float = 1.0) -> str:
    """Return a filled circle."""
    seen = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"{seen}/>\n'


def line(path: str, *, stroke: str = GREY, width: float = 1.2, dashes: str = "") -> str:
    """Return a path that is not filled."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashed}/>\n'


def shape(path: str, *, fill: str, opacity: float = 1.0) -> str:
    """Return a filled path."""
    seen = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
    return f'<path d="{path}" fill="{fill}"{seen}/>\n'


def arrow(x: float, y: float, to_x: float, to_y: float, *, stroke: str = GREY, width: float = 1.6) -> str:
    """Return a bent arrow from one height to another; it comes from above or below."""
    way = 1 if to_y > y else -1
    bend = max(14.0, abs(to_y - y) * 0.45) * way
    end = to_y - 7 * way
    head = f"M{to_x - 5:.1f} {end:.1f}L{to_x + 5:.1f} {end:.1f}L{to_x:.1f} {to_y:.1f}z"
    path = f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} {end - bend:.1f} {to_x:.1f} {end:.1f}"
    return line(path, stroke=stroke, width=width) + shape(head, fill=stroke)


def cross(x: float, y: float, radius: float, *, stroke: str = RED, width: float = 2.6) -> str:
    """Return an x."""
    r = radius
    return line(
        f"M{x - r:.1f} {y - r:.1f}L{x + r:.1f} {y + r:.1f}M{x - r:.1f} {y + r:.1f}L{x + r:.1f} {y - r:.1f}",
        stroke=stroke,
        width=width,
    )
