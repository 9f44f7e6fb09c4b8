"""The messages that a worker begins on a connection of their own: calls of models, questions, and news.

A letter is `Letter.packets`: one frame of its own kind, then `MORE` frames until its bytes are complete. No
other letter comes in between, so that the reader holds at most one incomplete letter. The answers are `PART`
frames with the call's number as the batch. `CREDIT` and `CANCEL` frames go the other way, as they do for a
decoupled model's parts. The roles are swapped: the server sends the parts, and the worker says what it has
taken.

    Call    number, inputs (offsets within the letter's bytes), JSON of all other fields of `CallRequest`
    Ask     number, JSON with the subject and the sizes of the attachments; the bytes are a JSON body, then
            the attachments
    Tell    the same without a number, since it has no answer

If there are many bytes, a `SEGMENT` frame with a descriptor comes first (`actors.wire.call_segments`). Then the
bytes are in that segment, and the letter or part is complete with its first frame. A worker sends `TAKEN` for
each segment that it has received.

The answer to an `Ask` is one part: an error, or a single output whose bytes are a JSON object.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from actors.wire.arena import align
from actors.wire.batch_frames import Placed, decode_placed, encode_placed
from actors.wire.frames import ADDRESS, ASK, CALL, MAX_FRAME, MORE, TELL, FrameError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from actors.values.tensors import Tensor
    from actors.wire.frames import Buffer

KINDS: Final = frozenset({CALL, ASK, TELL})
"""Frames that begin a letter."""

LARGEST_LETTER: Final = 2**31
"""Bytes of one letter; no frontend could bring more in one message."""

LARGEST_BODY: Final = 2**20
"""Bytes of the JSON in a question or message. Parsing more would hold up the server's other tasks."""

GIVE_UP: Final = 0
STOP_SENDING: Final = 1
"""Values of a `CANCEL` frame's index.

`GIVE_UP`: the answer is no longer read. `STOP_SENDING`: the callee is to end, and its answer is read until
then.
"""

_HEAD: Final = struct.Struct("<BBHIQQ")  # kind, zero, inputs, length of the JSON, number, nbytes


class Letter:
    """A message that a worker begins.

    `data` is its `nbytes` bytes, or as many of them as the first frame held.
    """

    __slots__ = ("data", "fields", "inputs", "kind", "nbytes", "number")

    def __init__(
        self,
        kind: int,
        number: int,
        fields: Mapping[str, Any],
        inputs: Sequence[Placed] = (),
        data: Buffer = b"",
        nbytes: int = 0,
    ) -> None:
        self.kind = kind
        self.number = number
        self.fields = fields
        self.inputs = inputs
        self.data = data
        self.nbytes = nbytes

    @property
    def complete(self) -> bool:
        """Whether all of its bytes are here."""
        return len(self.data) >= self.nbytes

    def packets(self) -> Iterator[tuple[bytes, Buffer]]:
        """Return its frames in order, each in two pieces. Raises ValueError where it is too large."""
        if self.nbytes > LARGEST_LETTER:
            raise ValueError(
                f"{self.nbytes} bytes in one message to the server; at most {LARGEST_LETTER} fit"
            )
        text = json.dumps(self.fields, separators=(",", ":")).encode()
        head = _HEAD.pack(self.kind, 0, len(self.inputs), len(text), self.number, self.nbytes)
        head = b"".join((head, *map(encode_placed, self.inputs), text))
        if len(head) > MAX_FRAME:
            raise ValueError(
                f"names, shapes and parameters of a message to the server take {len(head)} bytes, more than {MAX_FRAME}"
            )
        return self._packets(head)

    def _packets(self, head: bytes) -> Iterator[tuple[bytes, Buffer]]:
        view = memoryview(self.data)
        at = min(MAX_FRAME - len(head), self.nbytes)
        yield head, view[:at]
        more = ADDRESS.pack(MORE, 0, 0, 0, self.number)
        step = MAX_FRAME - len(more)
        for start in range(at, self.nbytes, step):
            yield more, view[start : start + step]

    @classmethod
    def decode(cls, frame: Buffer) -> Letter:
        """Return what its first frame holds, checked. Raises FrameError."""
        try:
            kind, _, count, length, number, nbytes = _HEAD.unpack_from(frame)
            inputs, at = decode_placed(frame, _HEAD.size, count, 0)
            fields = parse_json(frame[at : at + length])
        except (struct.error, ValueError) as error:
            raise FrameError(f"a bad frame of kind {frame[0]}: {error}") from error
        data = frame[at + length :]
        high = max((placed.offset + placed.nbytes for placed in inputs), default=0)
        if not isinstance(fields, dict) or nbytes > LARGEST_LETTER or max(high, len(data)) > nbytes:
            raise FrameError(
                f"a frame of kind {kind} for {nbytes} bytes, with {len(data)} of them and inputs up to {high}"
            )
        return cls(kind, number, fields, inputs, data, nbytes)


def laid_out(tensors: Iterable[Tensor]) -> tuple[list[Placed], list[Buffer], int]:
    """Return the place of each tensor in the joined bytes, those bytes in pieces, and their number."""
    placed = []
    pieces: list[Buffer] = []
    at = 0
    for tensor in tensors:
        start = align(at)
        if start > at:
            pieces.append(bytes(start - at))
        pieces.append(tensor.data)
        placed.append(Placed(tensor.name, tensor.datatype, tensor.shape, start, tensor.nbytes))
        at = start + tensor.nbytes
    return placed, pieces, at
