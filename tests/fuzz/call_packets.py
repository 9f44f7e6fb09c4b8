"""The moves of the target for calls: what a calling worker says, and what happens meanwhile.

An input is a `series`. A part's tag tells its sort. `PACKET` plus a descriptor's sort is a packet. A tag from
`MOVES` on is a move of the worker, of its requests or of the host, which the part's first byte picks.
"""

import json
from collections.abc import Iterator
from random import Random

from actors.values.datatypes import DataType
from actors.wire import frames
from actors.wire.batch_frames import Placed
from actors.wire.call_frames import Letter
from tests.fuzz.descriptor_sorts import SORTS
from tests.fuzz.mutation import damaged
from tests.fuzz.played_host import MODELS, SUBJECTS

PACKET = 0  # without a descriptor; with one of sort n it is 1 + n
OVERSIZED = 63
MOVES = 64
READ, PAY, ANSWER, PART, ROOM, REPLY, PARENT, OVER, SHUT, SETTLE = range(MOVES, MOVES + 10)

_KINDS = (
    *(frames.CALL, frames.ASK, frames.TELL, frames.TAKEN, frames.MORE, frames.CREDIT, frames.CANCEL),
    *(frames.SEGMENT, frames.PART, frames.RESULT, frames.READY, 0, 68, 255),
)
_QUIET = (READ, PAY, PAY, ANSWER, ANSWER, PART, PART, ROOM, REPLY, PARENT, OVER, SETTLE)
_LONGEST = 0xFFFF

Step = tuple[int, bytes]


class Script:
    """Makes up what one worker says and what happens to it."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._number = 0

    def steps(self, count: int, *, damage: float) -> Iterator[Step]:
        """Yield steps; `damage` is the share of packets that no honest worker sends."""
        for _ in range(count):
            for tag, content in self._honest():
                if tag < MOVES and self._chance.random() < damage:
                    yield self._damaged(tag, content)
                else:
                    yield tag, content[:_LONGEST]

    def _damaged(self, tag: int, packet: bytes) -> Step:
        match self._chance.randrange(6):
            case 0:
                return self._chance.choice((PACKET, OVERSIZED, 1 + self._chance.randrange(SORTS))), packet
            case 1:
                return tag, bytes((self._chance.choice(_KINDS),)) + packet[1:]
            case 2:
                return tag, bytes((self._chance.choice(_KINDS),)) + self._chance.randbytes(
                    self._chance.randrange(60)
                )
            case 3:
                frame = frames.encode_segment(0, 0, self._size())
                if self._chance.random() < 0.3:
                    frame = bytes((frames.BRANCH,))
                return 1 + self._chance.randrange(SORTS), frame
            case _:
                return tag, (packet[:1] + damaged(packet[1:], self._chance, [packet]))[:_LONGEST]

    def _size(self) -> int:
        return self._chance.choice((0, 1, 8, 4096, 5000, 140_000, 2**31, 2**63))

    def _honest(self) -> Iterator[Step]:
        match self._chance.randrange(12):
            case 0 | 1 | 2 | 3:
                yield from self._letter(frames.CALL, *self._call())
            case 4:
                yield from self._letter(
                    frames.ASK, *self._attached((*SUBJECTS, "now", "later", "later", "wrong", "none"))
                )
            case 5:
                yield from self._letter(frames.TELL, *self._attached((*["heard"] * 9, "odd")))
            case 6:
                yield PACKET, self._about_a_call()
            case 7 if self._chance.random() < 0.2:
                yield SHUT, self._chance.randbytes(1)
            case _:
                yield self._chance.choice(_QUIET), self._chance.randbytes(1)

    def _about_a_call(self) -> bytes:
        number = self._chance.randrange(self._number + 1)
        match self._chance.randrange(12):
            case 0:
                return bytes((frames.TAKEN,))
            case 1 | 2 | 3:
                return frames.encode_credit(
                    number, 0, self._chance.randrange(3), self._chance.choice((0, 4, 8))
                )
            case _:
                return frames.encode_cancel(number, self._chance.randrange(2))

    def _call(self) -> tuple[dict[str, object], list[Placed], bytes]:
        model = self._chance.choice((*MODELS, "parts", "parts", "later", "full", "none", "unready"))
        fields: dict[str, object] = {"model": model, "decoupled": self._chance.random() < 0.9}
        more: dict[str, object] = {
            "blocking": True,
            "parent": self._chance.choice(([4, 0], [4, 1], [4, -1], [5, 0], [6, 0])),
            "id": "é",
            "version": self._chance.choice((-1, 1, 2)),
            "outputs": ["OUTPUT"],
            "parameters": {"a": 1, "b": [True, 2.5, "c"][self._chance.randrange(3)]},
            "correlation_id": self._chance.choice((7, "seven")),
            "timeout": 1_000_000,
            "priority": 1,
            "flags": 3,
            "trace": "{}",
        }
        fields.update({key: value for key, value in more.items() if self._chance.random() < 0.3})
        nbytes = 4 * self._chance.choice((0, 1, 2, 500, 1000, 35_000))
        placed = [
            Placed(f"INPUT{at}", DataType.FP32, (nbytes // 4,), 0, nbytes)
            for at in range(self._chance.randrange(3))
        ]
        return fields, placed, bytes(nbytes if placed else 0)

    def _attached(self, subjects: tuple[str, ...]) -> tuple[dict[str, object], list[Placed], bytes]:
        body = json.dumps({"a": list(range(self._chance.choice((0, 3, 300))))}).encode()
        sizes = [(name, self._chance.choice((0, 5, 3000))) for name in "xy"[: self._chance.randrange(3)]]
        data = body + bytes(sum(size for _, size in sizes))
        return {"subject": self._chance.choice(subjects), "attachments": sizes}, [], data

    def _letter(
        self, kind: int, fields: dict[str, object], placed: list[Placed], data: bytes
    ) -> Iterator[Step]:
        number = 0
        if kind != frames.TELL:
            number = self._number = self._number + 1
        # The head alone, as it is before its bytes are added.
        head = bytes(next(Letter(kind, number, fields, placed, b"", len(data)).packets())[0])
        if data and (len(data) > 4 * 1000 * 3 or self._chance.random() < 0.3):
            yield 1, frames.encode_segment(0, 0, len(data))
            yield PACKET, head
            return
        at = self._chance.randrange(len(data) + 1) if self._chance.random() < 0.3 else len(data)
        yield PACKET, head + data[:at]
        while at < len(data):
            size = self._chance.choice((1 + len(data) // 3, len(data)))
            yield PACKET, bytes((frames.MORE,)) + frames.encode_cancel(number, 0)[1:] + data[at : at + size]
            at += size
