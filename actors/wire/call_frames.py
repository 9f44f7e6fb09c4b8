"""The messages that a worker begins on a connection of their own: calls of models, questions, and news.

A letter is `Letter.packets`: one frame of its own kind, then `MORE` frames until its bytes are complete. No
other letter comes in between, so that the reader holds at most one incomplete letter. The answers are `PART`
frames with the call's number as the batch. `CREDIT` and `CANCEL` frames go the other way, as they do for a
decoupled model's parts. The roles are swapped: the server sends the parts, and the worker says what it has
taken.

    Call    number, inputs (offsets within the letter's bytes), on whose behalf it is made, JSON of all other
            fields of `CallRequest`
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
from functools import lru_cache
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

WHOLE_BATCH: Final = -1
"""In a letter's `parent`, in place of a request's: the call is made for all requests of the batch."""

_HEAD: Final = struct.Struct("<BBHIQQ")  # kind, flag, inputs, length of the JSON, number, nbytes
_ON_BEHALF: Final = 1  # the flag: a parent follows the head
_PARENT: Final = struct.Struct("<Qi")  # the number of the batch, the place in it

_SHORT: Final = 1024
"""Bytes of the longest JSON that is remembered. A model's calls mostly say the same but for their tensors."""

_KEPT: Final = 64
"""Texts that are remembered."""


class Letter:
    """A message that a worker begins.

    `data` is its `nbytes` bytes, or as many of them as the first frame held. `parent` is on whose behalf a
    call is made: a batch's number, and a place in it or `WHOLE_BATCH`. `text` is the JSON of its fields; they
    are not to be changed, since letters with the same text share them.
    """

    __slots__ = ("data", "fields", "inputs", "kind", "nbytes", "number", "parent", "text")

    def __init__(
        self,
        kind: int,
        number: int,
        fields: Mapping[str, Any],
        inputs: Sequence[Placed] = (),
        data: Buffer = b"",
        nbytes: int = 0,
        *,
        parent: tuple[int, int] | None = None,
        text: bytes = b"",
    ) -> None:
        """Without a `text` it is made of the fields when it is needed."""
        self.kind = kind
        self.number = number
        self.fields = fields
        self.inputs = inputs
        self.data = data
        self.nbytes = nbytes
        self.parent = parent
        self.text = text

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
        text = self.text or text_of(self.fields)
        flag = 0 if self.parent is None else _ON_BEHALF
        head = _HEAD.pack(self.kind, flag, len(self.inputs), len(text), self.number, self.nbytes)
        if self.parent is not None:
            head += _PARENT.pack(*self.parent)
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
            kind, flag, count, length, number, nbytes = _HEAD.unpack_from(frame)
            at = _HEAD.size
            parent: tuple[int, int] | None = None
            if flag:
                parent, at = _decode_parent(frame, flag, at)
            inputs, at = decode_placed(frame, at, count, 0)
            text = bytes(frame[at : at + length])
            fields = _known_fields(text) if length <= _SHORT else parse_json(text)
        except (struct.error, ValueError) as error:
            raise FrameError(f"a bad frame of kind {frame[0]}: {error}") from error
        data = frame[at + length :]
        high = max([placed.offset + placed.nbytes for placed in inputs], default=0)
        if not isinstance(fields, dict) or nbytes > LARGEST_LETTER or max(high, len(data)) > nbytes:
            raise FrameError(
                f"a frame of kind {kind} for {nbytes} bytes, with {len(data)} of them and inputs up to {high}"
            )
        return cls(kind, number, fields, inputs, data, nbytes, parent=parent, text=text)


def text_of(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON of a letter's fields."""
    return json.dumps(fields, separators=(",", ":")).encode()


@lru_cache(maxsize=_KEPT)
def _known_fields(text: bytes) -> Any:
    return parse_json(text)


def _decode_parent(frame: Buffer, flag: int, at: int) -> tuple[tuple[int, int], int]:
    """Return the parent that begins at `at`, and where it ends. Raises FrameError and struct.error."""
    batch, place = _PARENT.unpack_from(frame, at)
    if flag != _ON_BEHALF or place < WHOLE_BATCH:
        raise FrameError(f"a call with flag {flag} on behalf of request {place} of batch {batch}")
    return (batch, place), at + _PARENT.size


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
