"""Keys of a terminal: which bytes mean which. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final


class Key(Enum):
    """What a viewer may ask for."""

    UP = auto()
    DOWN = auto()
    PAGE_UP = auto()
    PAGE_DOWN = auto()
    FIRST = auto()
    LAST = auto()
    OPEN = auto()
    CLOSE = auto()
    TURN = auto()  # open what is closed, and the other way round
    ALL = auto()
    QUIT = auto()


# A terminal sends arrows as `ESC [ A`, or as `ESC O A` where a program before us left it so.
_SEQUENCES: Final = {
    **{
        f"\x1b{lead}{end}".encode(): key
        for lead in "[O"
        for end, key in zip(
            "ABCDHF", (Key.UP, Key.DOWN, Key.OPEN, Key.CLOSE, Key.FIRST, Key.LAST), strict=True
        )
    },
    b"\x1b[5~": Key.PAGE_UP,
    b"\x1b[6~": Key.PAGE_DOWN,
    b"\x1b[1~": Key.FIRST,
    b"\x1b[4~": Key.LAST,
}
_LETTERS: Final = {
    **dict.fromkeys(b"qQ\x03\x04", Key.QUIT),
    **dict.fromkeys(b"k", Key.UP),
    **dict.fromkeys(b"j", Key.DOWN),
    **dict.fromkeys(b"g", Key.FIRST),
    **dict.fromkeys(b"G", Key.LAST),
    **dict.fromkeys(b"l", Key.OPEN),
    **dict.fromkeys(b"h", Key.CLOSE),
    **dict.fromkeys(b"\r\n ", Key.TURN),
    **dict.fromkeys(b"aA", Key.ALL),
}


def keys(pressed: bytes) -> Iterator[Key]:
    """Yield what the bytes of a terminal ask for; others are passed over."""
    at = 0
    while at < len(pressed):
        found = next((each for each in _SEQUENCES if pressed.startswith(each, at)), None)
        if found is not None:
            yield _SEQUENCES[found]
            at += len(found)
            continue
        if pressed[at] == 0x1B:
            at = _behind(pressed, at)
            continue
        if (key := _LETTERS.get(pressed[at])) is not None:
            yield key
        at += 1


def _behind(pressed: bytes, at: int) -> int:
    """Return where a sequence that means nothing here has ended."""
    at += 1
    if pressed[at : at + 1] in (b"[", b"O"):
        at += 1
        while at < len(pressed) and not 0x40 <= pressed[at] <= 0x7E:
            at += 1
        at += 1
    return at
