"""How one input becomes another: damage to bytes, and damage to what the bytes mean as HTTP/2 frames."""

from collections.abc import Sequence
from random import Random

from tests.fuzz import h2wire as wire

_TELLING = bytes((0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x20, 0x3A))
_TELLING_NUMBERS = (
    0,
    1,
    5,
    8,
    16_383,
    16_384,
    65_535,
    65_536,
    (1 << 24) - 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
_LONGEST = 1 << 15


def damaged(octets: bytes, chance: Random, others: Sequence[bytes]) -> bytes:
    """Return `octets` with one to four wounds, some of them grafts from `others`."""
    changed = bytearray(octets)
    for _ in range(1 + int(chance.random() ** 2 * 4)):
        _wound(changed, chance, others)
    return bytes(changed[:_LONGEST])


def _wound(octets: bytearray, chance: Random, others: Sequence[bytes]) -> None:
    at = chance.randrange(len(octets) + 1)
    size = 1 + int(chance.random() ** 3 * 64)
    match chance.randrange(8):
        case 0 if octets:
            octets[at % len(octets)] ^= 1 << chance.randrange(8)
        case 1 if octets:
            octets[at % len(octets)] = chance.choice(_TELLING)
        case 2 if octets:
            octets[at % len(octets)] = chance.randrange(256)
        case 3:
            del octets[at : at + size]
        case 4:
            octets[at:at] = octets[at : at + size]
        case 5:
            octets[at:at] = chance.randbytes(size)
        case 6:
            del octets[at:]
        case _:
            graft = chance.choice(others)
            start = chance.randrange(len(graft) + 1)
            octets[at:at] = graft[start : start + size * 4]


def frames_of(octets: bytes) -> list[bytes]:
    """Cut what follows the preface into frames; the last one may be cut short."""
    cut = []
    at = len(wire.PREFACE)
    while at < len(octets):
        end = at + 9 + int.from_bytes(octets[at : at + 3], "big")
        cut.append(octets[at:end])
        at = end
    return cut


def reframed(octets: bytes, chance: Random, others: Sequence[bytes]) -> bytes:
    """Return a connection's bytes with some of its frames dropped, doubled, moved, damaged or borrowed."""
    frames = frames_of(octets)
    for _ in range(1 + int(chance.random() ** 2 * 6)):
        _wound_frames(frames, chance, others)
    return (wire.PREFACE + b"".join(frames))[:_LONGEST]


def _wound_frames(frames: list[bytes], chance: Random, others: Sequence[bytes]) -> None:
    if not frames:
        frames.append(wire.settings())
    at = chance.randrange(len(frames))
    match chance.randrange(7):
        case 0:
            del frames[at]
        case 1:
            frames.insert(chance.randrange(len(frames) + 1), frames[at])
        case 2:
            frames.insert(chance.randrange(len(frames)), frames.pop(at))
        case 3:
            frames[at] = _with_other_head(frames[at], chance)
        case 4:
            frames[at] = _with_other_number(frames[at], chance)
        case 5:
            frames[at] = frames[at][:9] + damaged(frames[at][9:], chance, others)
            frames[at] = _resized(frames[at])
        case _:
            lender = frames_of(chance.choice(others))
            if lender:
                frames.insert(at, chance.choice(lender))


def _with_other_head(frame: bytes, chance: Random) -> bytes:
    changed = bytearray(frame)
    match chance.randrange(4):
        case 0:
            changed[3:4] = bytes((chance.randrange(12),))
        case 1:
            changed[4:5] = bytes((changed[4:5] or b"\0")[0] ^ 1 << chance.choice((0, 2, 3, 5)) for _ in "f")
        case 2:
            changed[5:9] = chance.choice((0, 1, 2, 3, 5, 7, 1 << 31 | 1, (1 << 31) - 1)).to_bytes(4, "big")
        case _:
            changed[0:3] = chance.randrange(64).to_bytes(3, "big")
    return bytes(changed)


def _with_other_number(frame: bytes, chance: Random) -> bytes:
    """Set four bytes of the payload to a number that limits are about."""
    changed = bytearray(frame)
    at = 9 + chance.choice((0, 2, 4))
    changed[at : at + 4] = chance.choice(_TELLING_NUMBERS).to_bytes(4, "big")
    return _resized(bytes(changed))


def _resized(frame: bytes) -> bytes:
    return max(0, len(frame) - 9).to_bytes(3, "big") + frame[3:]
