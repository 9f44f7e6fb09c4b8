"""Draw the house from its import graph: `python -m tests.house.picture` writes docs/house.svg.

A box is a room, with the number of its modules and lines; it stands on its floor. An arrow is an import. An
arrow that follows from others is left out: where a room imports a second one, and that one a third, the
first may import the third. The floors of the engine are those of the contract in pyproject.toml; elsewhere
a room stands one floor above the highest one that it imports.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.pictures import ink
from tests.house.graph import ROOT, Graph, House, cycles, read

PICTURE: Final = ROOT / "docs" / "house.svg"

_PACKAGES: Final = ("engine", "protocols", "actors")
_COLOURS: Final = {"tritium": ink.PURPLE, "engine": ink.BLUE, "protocols": ink.ORANGE, "actors": ink.GREEN}
_WIDTH: Final = 1340
_LEFT: Final = 90  # of the boxes; the packages' names stand before them
_BOX: Final = (142, 42)
_FLOOR: Final = 92  # from one floor to the next
_BETWEEN: Final = 36  # packages
_COUNTS: Final = re.compile(r"[\d,]+ modules?, [\d,]+ lines")

_TITLE: Final = "The rooms of Tritium and what they import"
_TIP: Final = f"""\
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0.5 L7.5 4 L0 7.5 z" fill="{ink.GREY}"/></marker></defs>
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """The top left corner of a box."""

    x: float
    y: float


def drawn(house: House) -> str:
    """Return the picture as SVG."""
    rooms = [room for room in house.rooms if _package(room) in _COLOURS]
    arrows = _reduced({room: house.arrows[room] & set(rooms) for room in rooms})
    floors = list(_floors(house, rooms))
    places, bands, height = _places(floors, arrows)
    parts = [ink.head(_WIDTH, height, _TITLE, "python -m tests.house.picture"), _TIP]
    parts += [_band(package, top, bottom) for package, top, bottom in bands]
    parts += _lines(arrows, places)
    parts += [_box(house, room, places[room]) for room in rooms]
    return "".join(parts) + "</svg>\n"


def without_counts(picture: str) -> str:
    """Return a picture without its numbers, which every change moves."""
    return _COUNTS.sub("", picture)


def _package(room: str) -> str:
    return room.partition(".")[0]


def _floors(house: House, rooms: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (package, rooms) from the top of the house down."""
    yield "engine", [room for room in rooms if _package(room) == "tritium"]
    for package in _PACKAGES:
        own = [room for room in rooms if _package(room) == package]
        levels = _declared(house, package, own) or _computed(own, house.arrows)
        for level in sorted(set(levels.values()), reverse=True):
            yield package, [room for room in own if levels[room] == level]


def _declared(house: House, package: str, rooms: Sequence[str]) -> dict[str, int]:
    """Return the floor of each room by the contract that gives a package its layers; nothing if none does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract.get("containers") == [package]:
            layers = [re.split(r"[|:]", layer) for layer in reversed(contract["layers"])]
            floor = {
                f"{package}.{name.strip()}": level for level, names in enumerate(layers) for name in names
            }
            # A contract names the modules that lie loose in a package.
            loose = max((floor.get(module.name, 0) for module in house.rooms.get(package, ())), default=0)
            return {room: floor.get(room, loose) for room in rooms}
    return {}


def _computed(rooms: Sequence[str], arrows: Graph) -> dict[str, int]:
    """Return the floor of each room: one above the highest that it imports. Rooms of a cycle share one."""
    own = {room: arrows[room] & set(rooms) for room in rooms}
    together = _together(own)
    levels: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in levels:
            below = {other for each in together[room] for other in own[each]} - together[room]
            found = 1 + max(map(level, sorted(below)), default=-1)
            levels.update(dict.fromkeys(together[room], found))
        return levels[room]

    return {room: level(room) for room in rooms}


def _together(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Return the rooms of the cycle in which each room stands, itself included."""
    found = {room: frozenset([room]) for room in graph}
    for cycle in cycles(graph):
        found.update(dict.fromkeys(cycle, frozenset(cycle)))
    return found


def _reduced(graph: Graph) -> Graph:
    """Return the arrows that do not follow from others; all of those inside a cycle."""
    together = _together(graph)
    reached: dict[str, frozenset[str]] = {}

    def reach(room: str) -> frozenset[str]:
        if room not in reached:
            below = {other for each in together[room] for other in graph[each]} - together[room]
            reached[room] = frozenset(below).union(*map(reach, sorted(below)))
        return reached[room]

    def needed(room: str, other: str) -> bool:
        if other in together[room]:
            return True
        between = {each for one in together[room] for each in graph[one]} - together[room] - together[other]
        return not any(other in reach(each) for each in between)

    return {room: frozenset(other for other in graph[room] if needed(room, other)) for room in graph}


def _places(
    floors: Sequence[tuple[str, list[str]]], arrows: Graph
) -> tuple[dict[str, _Place], list[tuple[str, float, float]], float]:
    """Return where each box is, (package, top, bottom) of each package, and the height of it all."""
    rows = [list(rooms) for _, rooms in floors]
    middle = _ordered(rows, arrows)
    places: dict[str, _Place] = {}
    bands: list[tuple[str, float, float]] = []
    y = 24.0
    for package, rooms in floors:
        if bands and bands[-1][0] == package:
            bands[-1] = (package, bands[-1][1], y + _BOX[1])
        else:
            y += _BETWEEN if bands else 0
            bands.append((package, y, y + _BOX[1]))
        places.update({room: _Place(middle[room] - _BOX[0] / 2, y) for room in rooms})
        y += _FLOOR
    return places, bands, y - _FLOOR + _BOX[1] + 24


def _ordered(rows: list[list[str]], arrows: Graph) -> dict[str, float]:
    """Return the middle of each box. Rooms stand near those that they are tied to: few arrows cross."""
    ties: dict[str, list[str]] = {room: [] for row in rows for room in row}
    for room, others in arrows.items():
        for other in sorted(others):
            ties[room].append(other)
            ties[other].append(room)
    middle = {room: x for row in rows for room, x in zip(row, _spread(len(row)), strict=True)}
    for _ in range(12):
        for row in rows:
            row.sort(
                key=lambda room: (sum(middle[each] for each in ties[room]) / max(1, len(ties[room])), room)
            )
            middle.update(zip(row, _spread(len(row)), strict=True))
    return middle


def _spread(count: int) -> list[float]:
    step = (_WIDTH - _LEFT) / max(1, count)
    return [round(_LEFT + step * (number + 0.5), 1) for number in range(count)]


def _band(package: str, top: float, bottom: float) -> str:
    colour, middle = _COLOURS[package], (top + bottom) / 2
    return (
        f'<rect x="8" y="{top - 16:g}" width="{_WIDTH - 16}" height="{bottom - top + 32:g}" rx="10" '
        f'fill="{colour}" fill-opacity="0.07"/>\n'
        f'<text x="26" y="{middle:g}" fill="{colour}" font-size="15" font-weight="bold" '
        f'text-anchor="middle" transform="rotate(-90 26 {middle:g})" '
        f'dominant-baseline="central">{package}</text>\n'
    )


def _lines(arrows: Graph, places: Mapping[str, _Place]) -> Iterator[str]:
    """Yield the arrows. Those of one box leave and arrive side by side, in the order of their other ends."""
    pairs = [(room, other) for room in sorted(arrows) for other in sorted(arrows[room])]
    out: dict[tuple[str, str], float] = {}
    into: dict[tuple[str, str], float] = {}
    for room, place in places.items():
        for ends, side in ((out, 0), (into, 1)):
            here = sorted((pair for pair in pairs if pair[side] == room), key=lambda p: places[p[1 - side]].x)
            step = _BOX[0] / (len(here) + 1)
            ends.update({pair: place.x + step * (number + 1) for number, pair in enumerate(here)})
    for pair in pairs:
        way, wrong = _way(places[pair[0]], places[pair[1]], out[pair], into[pair])
        colour = ink.RED if wrong else _COLOURS[_package(pair[0])]
        dash = ' stroke-dasharray="5 3"' if wrong else ""
        yield (
            f'<path d="{way}" fill="none" stroke="{colour}" stroke-opacity="0.55" stroke-width="1.3" '
            f'marker-end="url(#tip)"{dash}><title>{pair[0]} imports {pair[1]}</title></path>\n'
        )


def _way(start: _Place, end: _Place, leaves: float, arrives: float) -> tuple[str, bool]:
    """Return the path of an arrow, and whether it goes up, which it should not."""
    if start.y == end.y:
        right = start.x < end.x
        x, other, y = (
            start.x + (_BOX[0] if right else 0),
            end.x + (-2 if right else _BOX[0] + 2),
            start.y + _BOX[1] / 2,
        )
        return f"M{x:.1f} {y:g} L{other:.1f} {y:g}", False
    if start.y < end.y:
        top, bottom, down = start.y + _BOX[1], end.y - 2, 1
    else:
        top, bottom, down = start.y, end.y + _BOX[1] + 2, -1
    bend = max(24.0, abs(bottom - top) * 0.45) * down
    path = f"M{leaves:.1f} {top:g} C{leaves:.1f} {top + bend:.1f} {arrives:.1f} {bottom - bend:.1f} "
    return f"{path}{arrives:.1f} {bottom:g}", down < 0


def _box(house: House, room: str, place: _Place) -> str:
    modules = house.rooms[room]
    lines, number = sum(module.lines for module in modules), len(modules)
    colour, middle = _COLOURS[_package(room)], place.x + _BOX[0] / 2
    name = room.partition(".")[2]
    if not name:
        # What lies loose in a package is named.
        loose = ", ".join(sorted(module.name.rpartition(".")[2] for module in modules))
        name = room if room == "tritium" else loose
    return (
        f'<g><rect x="{place.x:g}" y="{place.y:g}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" '
        f'fill="{ink.PAPER}" '
        f'stroke="{colour}" stroke-width="1.5"/>\n'
        f'<text x="{middle:g}" y="{place.y + 18:g}" font-size="14" font-weight="bold" '
        f'text-anchor="middle" fill="{ink.INK}">'
        f"{escape(name)}</text>\n"
        f'<text x="{middle:g}" y="{place.y + 33:g}" font-size="10.5" text-anchor="middle" fill="{ink.GREY}">'
        f"{number} module{'' if number == 1 else 's'}, {lines:,} lines</text></g>\n"
    )


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(drawn(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
