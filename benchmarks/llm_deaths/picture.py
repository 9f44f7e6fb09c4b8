"""Streams that survive their engine, drawn from what a run has recorded, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.llm_deaths.findings import Found, Kill, Pause, Stream
from benchmarks.pictures import ink

_WIDTH: Final = 1180
_LEFT, _RIGHT = 132, 1160  # of the time axis
_ROW: Final = 26
_BEFORE: Final = 0.8  # seconds that are shown before the kill
_LEAST_AFTER: Final = 1.2
_AT_ONCE: Final = 0.1  # seconds from a kill to a pause that is surely of it
_MOVED, _OWN = 3, 2  # streams that are shown: of the engine that died, and of the other
_AROUND: Final = 52  # characters that are shown before and behind the seam

_DEAD, _OTHER = ink.BLUE, ink.PURPLE
_TITLE: Final = "Streams that survive their engine, from a run"


class NothingToDraw(Exception):
    """The run has no kill under streams beside another engine."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """A kill, and the streams at it."""

    kill: Kill
    hits: int  # streams of the engine that died
    moved: Sequence[tuple[Stream, Pause]]
    own: Sequence[Stream]  # of the other engine
    after: float  # seconds that are shown behind the kill

    def x(self, at: float) -> float:
        """Return where a time is drawn."""
        share = (at - self.kill.at + _BEFORE) / (_BEFORE + self.after)
        return _LEFT + share * (_RIGHT - _LEFT)

    def shows(self, at: float) -> bool:
        """Whether a time is in the picture."""
        return -_BEFORE <= at - self.kill.at <= self.after


def drawn(found: Found) -> str:
    """Return the picture of the first kill that several streams survive. Raises NothingToDraw."""
    scene = _scene(found)
    lane = 34 + _ROW * len(scene.moved)
    tops = (66, 66 + lane + 22)
    bottom = tops[1] + 34 + _ROW * (len(scene.moved) + len(scene.own))
    parts = [
        ink.text(
            12, 26, "An engine is killed under its streams, and another goes on with them", size=15, bold=True
        ),
        *_lane("engine A", tops[0], lane, _DEAD, _LEFT, scene.x(scene.kill.at)),
        *_lane("engine B", tops[1], bottom - tops[1], _OTHER, _LEFT, _RIGHT),
        *_start(scene, tops[0], lane),
    ]
    rows = [tops[0] + 40 + _ROW * place for place in range(len(scene.moved))]
    taken = [tops[1] + 40 + _ROW * (len(scene.own) + place) for place in range(len(scene.moved))]
    for place, (stream, pause) in enumerate(scene.moved):
        parts += _moved(scene, stream, pause, place, (rows[place], taken[place]))
    for place, (_, pause) in enumerate(scene.moved):
        parts += _told(scene, pause, (rows[place], taken[place]))
    for place, stream in enumerate(scene.own):
        row = tops[1] + 40 + _ROW * place
        parts.append(ink.text(_LEFT - 10, row + 4, f"stream {len(scene.moved) + place + 1}", anchor="end"))
        parts += _ticks([at for at, _ in stream.texts if scene.shows(at)], scene, row, _OTHER)
    parts += _axis(scene, tops[0], bottom)
    top = bottom + 62
    parts.append(ink.text(12, top, "What clients have got around the seam", size=13, bold=True))
    parts.append(ink.text(_RIGHT, top, _caption(scene), size=11, fill=ink.GREY, anchor="end"))
    for place, (stream, pause) in enumerate(scene.moved):
        parts.append(_seam(stream, pause, place, top + 28 + 26 * place))
    height = top + 28 + 26 * len(scene.moved)
    return (
        ink.head(_WIDTH, height, _TITLE, "python -m benchmarks.llm_deaths")
        + "".join(f"{part}\n" for part in parts)
        + "</svg>\n"
    )


def _scene(found: Found) -> _Scene:
    """Return the first of the kills at which most streams can be shown."""
    scenes = [_at(found, kill) for kill in found.kills if kill.others]
    best = max(scenes, key=lambda scene: (len(scene.moved), len(scene.own)), default=None)
    if best is None or not best.moved:
        raise NothingToDraw("no stream went on in another engine that stood; let two engines serve")
    return best


def _at(found: Found, kill: Kill) -> _Scene:
    hits = [(stream, pause) for stream in found.streams if (pause := found.hit(stream, kill)) is not None]
    moved = [each for each in hits if _talks(each[0], kill, each[1])][:_MOVED]
    of_others = [each for each in found.streams if found.hit(each, kill) is None]
    own = [each for each in of_others if each.streamed and _spans(each, kill)]
    ends = [pause.begin + pause.seconds - kill.at for _, pause in moved]
    return _Scene(kill, len(hits), moved, own[:_OWN], max([_LEAST_AFTER, *(2 * end for end in ends)]))


def _talks(stream: Stream, kill: Kill, pause: Pause) -> bool:
    """Whether there is enough of a stream on both sides to be seen."""
    end = pause.begin + pause.seconds
    before = {at for at, _ in stream.texts if kill.at - _BEFORE <= at <= pause.begin}
    return (
        pause.begin - kill.at < _AT_ONCE and len(before) > 3 and sum(at >= end for at, _ in stream.texts) > 3
    )


def _spans(stream: Stream, kill: Kill) -> bool:
    return (
        bool(stream.texts)
        and stream.texts[0][0] < kill.at - _BEFORE / 2
        and stream.texts[-1][0] > kill.at + _LEAST_AFTER / 2
    )


def _caption(scene: _Scene) -> str:
    return (
        f"From a run: {scene.hits} streams had this engine, and {len(scene.moved)} of them are shown."
        " Each tick is an event, with one token or several."
    )


def _lane(name: str, top: float, height: float, colour: str, begin: float, end: float) -> Iterator[str]:
    yield (
        f'<rect x="{begin:.1f}" y="{top}" width="{end - begin:.1f}" height="{height}" rx="8" fill="{colour}"'
        ' fill-opacity="0.08"/>'
    )
    yield ink.text(12, top + 20, name, size=13, bold=True, fill=colour)


def _start(scene: _Scene, top: float, height: float) -> Iterator[str]:
    """Draw what is in the place of the dead engine: another one that starts, and serves when it is ready."""
    kill = scene.kill
    begin = scene.x(kill.at)
    ready = kill.ready if kill.ready >= 0.0 and scene.shows(kill.ready) else -1.0
    end = scene.x(ready) if ready >= 0.0 else _RIGHT
    yield (
        f'<rect x="{begin:.1f}" y="{top}" width="{end - begin:.1f}" height="{height}" rx="8" fill="none"'
        f' stroke="{ink.GREY}" stroke-dasharray="3 4"/>'
    )
    after = f"{kill.ready - kill.at:.1f} s after the kill" if kill.ready >= 0.0 else "later"
    yield ink.text(begin + 12, top + 20, f"starts again: ready {after}", fill=ink.GREY)
    if ready >= 0.0:
        yield from _lane("", top, height, _DEAD, end, _RIGHT)


def _moved(
    scene: _Scene, stream: Stream, pause: Pause, place: int, rows: tuple[float, float]
) -> Iterator[str]:
    end = pause.begin + pause.seconds
    before = [at for at, _ in stream.texts if scene.shows(at) and at <= pause.begin]
    behind = [at for at, _ in stream.texts if scene.shows(at) and at >= end]
    yield ink.text(_LEFT - 10, rows[0] + 4, f"stream {place + 1}", anchor="end")
    yield from _ticks(before, scene, rows[0], _DEAD)
    yield from _ticks(behind, scene, rows[1], _OTHER)
    yield ink.text(_LEFT - 10, rows[1] + 4, f"stream {place + 1}", anchor="end")
    x, y = scene.x(pause.begin) + 3, scene.x(end) - 3
    middle = (x + y) / 2
    yield (
        f'<path d="M{x:.1f} {rows[0]} C{middle:.1f} {rows[0]} {middle:.1f} {rows[1]} {y:.1f} {rows[1]}"'
        f' fill="none" stroke="{ink.GREY}" stroke-width="1.2" stroke-dasharray="4 3"/>'
    )


def _told(scene: _Scene, pause: Pause, rows: tuple[float, float]) -> Iterator[str]:
    """Write the length of a pause on its line."""
    end = pause.begin + pause.seconds
    middle = (scene.x(pause.begin) + scene.x(end)) / 2
    yield f'<rect x="{middle - 19:.1f}" y="{sum(rows) / 2 - 8}" width="38" height="16" fill="{ink.PAPER}"/>'
    yield ink.text(
        middle, sum(rows) / 2 + 4, f"{pause.seconds:.2f} s", size=11, fill=ink.GREY, anchor="middle"
    )


def _ticks(times: Sequence[float], scene: _Scene, row: float, colour: str) -> Iterator[str]:
    path = "".join(f"M{scene.x(at):.1f} {row - 8}v16" for at in times)
    yield f'<path d="{path}" stroke="{colour}" stroke-width="1.6"/>'


def _axis(scene: _Scene, top: float, bottom: float) -> Iterator[str]:
    x = scene.x(scene.kill.at)
    yield f'<path d="M{x:.1f} {top - 14}V{bottom + 8}" stroke="{ink.RED}" stroke-width="2"/>'
    yield ink.text(x, top - 20, "killed", size=12, bold=True, fill=ink.RED, anchor="middle")
    yield f'<path d="M{_LEFT} {bottom + 8}H{_RIGHT}" stroke="{ink.GREY}" stroke-width="1"/>'
    step = 0.2 if scene.after < 3 else 1.0
    for count in range(-int(_BEFORE / step), int(scene.after / step) + 1):
        at = scene.x(scene.kill.at + count * step)
        yield f'<path d="M{at:.1f} {bottom + 8}v5" stroke="{ink.GREY}" stroke-width="1"/>'
        yield ink.text(
            at,
            bottom + 27,
            f"{count * step:.1f}" if count else "0 s",
            size=11,
            fill=ink.GREY,
            anchor="middle",
        )


def _seam(stream: Stream, pause: Pause, place: int, y: float) -> str:
    """Return the text around a pause, each side in the colour of its engine."""
    before = "".join(text for at, text in stream.texts if at <= pause.begin)[-_AROUND:]
    behind = "".join(text for at, text in stream.texts if at > pause.begin)[:_AROUND]
    before, behind = (escape(each.replace("\n", "⏎")) for each in (before, behind))
    return (
        f'<text x="12" y="{y}" font-size="12" fill="{ink.GREY}">stream {place + 1}</text>'
        f'<text x="596" y="{y}" font-size="13" font-family="monospace" text-anchor="end" fill="{_DEAD}"'
        f' xml:space="preserve">…{before}</text>'
        f'<path d="M600 {y - 14}v19" stroke="{ink.RED}" stroke-width="2"/>'
        f'<text x="604" y="{y}" font-size="13" font-family="monospace" fill="{_OTHER}"'
        f' xml:space="preserve">{behind}…</text>'
    )
