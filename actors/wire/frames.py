"""The protocol between a server and its worker: typed frames over SOCK_SEQPACKET, no pickle.

A frame is one packet: a kind byte and a body, never empty, at most `MAX_FRAME` bytes. A larger frame is
written into the slot's segment and announced by a `Spilled` frame. Cold bodies are JSON, hot ones are packed:
those of batches and their answers are in `actors.wire.batch_frames`. Here is what all frames share, and those
of fixed length. `Skipped` says that the worker has skipped a batch that the server took back
(`actors.wire.arena`).

Decoding trusts no input: every count and length is checked against the packet, and any mismatch raises
`FrameError`, which the server answers by killing the worker (`protocol_error`). Offsets are checked against
segments where those are known.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Union

    Buffer = Union[bytes, bytearray, memoryview]
    Parameter = Union[bool, int, float, str]

MAX_FRAME: Final = 64 * 1024
# Bytes of a result's names, shapes, parameters and error texts. It never holds tensors.
MAX_SPILLED: Final = 16 * 1024 * 1024

LOAD: Final = 1
SEGMENT: Final = 2
EXECUTE: Final = 3
STOP: Final = 4
PROBE: Final = 5
CREDIT: Final = 6
CANCEL: Final = 7
RELEASED: Final = 8
UNSHARED: Final = 9
READY: Final = 16
LOAD_FAILED: Final = 17
RESULT: Final = 18
ROOM: Final = 19
LOG: Final = 20
PROBED: Final = 22
PART: Final = 23
MORE: Final = 24
SKIPPED: Final = 25
EXPORTED: Final = 26
PARTS: Final = 27
PHASE: Final = 28
SHORT: Final = 29
# From here on, kinds of `actors.wire.call_frames`, which travel on their own connection.
CALL: Final = 64
ASK: Final = 65
TELL: Final = 66
TAKEN: Final = 67
BRANCH: Final = 68
SPILLED: Final = 32

WINDOW_PARTS: Final = 32
"""Responses of one request that may be on their way from a worker to their reader."""

WINDOW_BYTES: Final = 128 * 1024
"""Bytes of tensors of such responses.

While there are fewer, one more response may be sent, however large it is.
"""

_SEGMENT = struct.Struct("<BBHQ")  # kind, side, slot, size
_ROOM = struct.Struct("<BBHQQ")  # kind, zero, slot, batch id, nbytes
_SKIPPED = struct.Struct("<BBHQ")  # kind, zero, slot, batch id
_SHORT = struct.Struct("<BBHQ")  # likewise
_SPILLED = struct.Struct("<BBHQQ")  # kind, side, slot, offset, nbytes
ADDRESS: Final = struct.Struct("<BBHIQ")  # of MORE and CANCEL: kind, two zeros, request, batch id
_EXPORTED = struct.Struct("<BBHIQ64s")  # kind, zero, device, number, nbytes, handle
_RELEASED = struct.Struct("<BBHI")  # kind, two zeros, number
_UNSHARED = struct.Struct("<BBH64s")  # kind, two zeros, handle
_CREDIT = struct.Struct("<BBHIQIQ")  # kind, two zeros, request, batch id, parts, nbytes


class FrameError(Exception):
    """A packet that is not a well-formed frame: the other side is broken or hostile."""


def decode_more(frame: Buffer) -> tuple[int, int, Buffer]:
    """Return batch id, request, and the bytes that follow those of this part's last frame.

    Raises FrameError.
    """
    if len(frame) <= ADDRESS.size:
        raise FrameError(f"a frame of {len(frame)} bytes brings nothing more")
    _, _, _, index, batch_id = ADDRESS.unpack_from(frame)
    return batch_id, index, frame[ADDRESS.size :]


def encode_credit(batch_id: int, index: int, parts: int, nbytes: int) -> bytes:
    """Server: so many more parts, with so many bytes of tensors, of this request have been taken."""
    return _CREDIT.pack(CREDIT, 0, 0, index, batch_id, parts, nbytes)


def decode_credit(frame: Buffer) -> tuple[int, int, int, int]:
    """Return batch id, request, parts, nbytes."""
    _, _, _, index, batch_id, parts, nbytes = _unpack(_CREDIT, frame)
    return batch_id, index, parts, nbytes


def encode_cancel(batch_id: int, index: int) -> bytes:
    """Server: the client of this request of a decoupled model has gone."""
    return ADDRESS.pack(CANCEL, 0, 0, index, batch_id)


def decode_cancel(frame: Buffer) -> tuple[int, int]:
    """Return batch id, request."""
    _, _, _, index, batch_id = _unpack(ADDRESS, frame)
    return batch_id, index


def parse_json(data: Buffer) -> Any:
    """Return a JSON value that the other side sent.

    Raises ValueError, for one that nests too deeply as well.
    """
    try:
        return json.loads(bytes(data))
    except RecursionError:
        raise ValueError("JSON that nests too deeply") from None


def encode_json(kind: int, body: Mapping[str, Any]) -> bytes:
    """Return a cold frame: `LOAD`, `READY`, `LOAD_FAILED`, `PHASE` or `LOG`."""
    return bytes((kind,)) + json.dumps(body, separators=(",", ":")).encode()


def decode_json(frame: Buffer) -> dict[str, Any]:
    """Return a cold frame's body. Raises FrameError where it is not a JSON object."""
    try:
        body = parse_json(frame[1:])
    except ValueError as error:
        raise FrameError(f"frame of kind {frame[0]} is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise FrameError(f"frame of kind {frame[0]} holds {type(body).__name__}, not an object")
    return body


def encode_segment(slot: int, side: int, size: int) -> bytes:
    """Server: the descriptor that comes with this packet is the slot's new segment on `side`."""
    return _SEGMENT.pack(SEGMENT, side, slot, size)


def decode_segment(frame: Buffer) -> tuple[int, int, int]:
    """Return slot, side, size."""
    _, side, slot, size = _unpack(_SEGMENT, frame)
    return slot, side, size


def encode_room(slot: int, batch_id: int, nbytes: int) -> bytes:
    """Worker: this slot's output segment must hold `nbytes`; the answer is a `SEGMENT` frame."""
    return _ROOM.pack(ROOM, 0, slot, batch_id, nbytes)


def decode_room(frame: Buffer) -> tuple[int, int, int]:
    """Return slot, batch id, nbytes."""
    _, _, slot, batch_id, nbytes = _unpack(_ROOM, frame)
    return slot, batch_id, nbytes


def encode_skipped(slot: int, batch_id: int) -> bytes:
    """Worker: the server has taken this batch back, and nothing of it was executed."""
    return _SKIPPED.pack(SKIPPED, 0, slot, batch_id)


def decode_skipped(frame: Buffer) -> tuple[int, int]:
    """Return slot, batch id. Raises FrameError."""
    _, _, slot, batch_id = _unpack(_SKIPPED, frame)
    return slot, batch_id


def encode_short(slot: int, batch_id: int) -> bytes:
    """Worker: a batch, whose result follows, found too little memory on its GPU."""
    return _SHORT.pack(SHORT, 0, slot, batch_id)


def decode_short(frame: Buffer) -> tuple[int, int]:
    """Return (slot, batch id)."""
    _, _, slot, batch_id = _unpack(_SHORT, frame)
    return slot, batch_id


def encode_spilled(slot: int, side: int, offset: int, nbytes: int) -> bytes:
    """Either side: the frame you should read next lies in the slot's segment."""
    return _SPILLED.pack(SPILLED, side, slot, offset, nbytes)


def decode_spilled(frame: Buffer) -> tuple[int, int, int, int]:
    """Return slot, side, offset, nbytes."""
    _, side, slot, offset, nbytes = _unpack(_SPILLED, frame)
    return slot, side, offset, nbytes


def encode_exported(number: int, device: int, nbytes: int, handle: bytes) -> bytes:
    """Worker: buffer `number`, `nbytes` of a GPU's memory, can be opened by this handle (64 bytes).

    It is told once, before the first result that names the buffer. A number that is told again is another
    buffer's from then on: the one before was `RELEASED`, and the worker has freed it.
    """
    return _EXPORTED.pack(EXPORTED, 0, device, number, nbytes, handle)


def decode_exported(frame: Buffer) -> tuple[int, int, int, bytes]:
    """Return number, device, nbytes, handle. Raises FrameError."""
    if len(frame) != _EXPORTED.size:
        raise FrameError(f"frame of kind {frame[0]} has {len(frame)} bytes, not {_EXPORTED.size}")
    _, _, device, number, nbytes, handle = _EXPORTED.unpack(frame)
    return number, device, nbytes, handle


def encode_released(number: int) -> bytes:
    """Server: nothing reads buffer `number` of this worker any longer."""
    return _RELEASED.pack(RELEASED, 0, 0, number)


def decode_released(frame: Buffer) -> int:
    """Return the buffer's number. Raises FrameError."""
    return _unpack(_RELEASED, frame)[3]


def encode_unshared(handle: bytes) -> bytes:
    """Server: the allocation with this handle (64 bytes) is no longer to be kept open.

    Its owner may free it now, and another one may get the same handle.
    """
    return _UNSHARED.pack(UNSHARED, 0, 0, handle)


def decode_unshared(frame: Buffer) -> bytes:
    """Return the handle. Raises FrameError."""
    if len(frame) != _UNSHARED.size:
        raise FrameError(f"frame of kind {frame[0]} has {len(frame)} bytes, not {_UNSHARED.size}")
    handle: bytes = _UNSHARED.unpack(frame)[3]
    return handle


def _unpack(layout: struct.Struct, frame: Buffer) -> tuple[int, ...]:
    if len(frame) != layout.size:
        raise FrameError(f"frame of kind {frame[0]} has {len(frame)} bytes, not {layout.size}")
    return layout.unpack(frame)


def encode_probed(*, ready: bool) -> bytes:
    """Worker: what the model says of its own readiness; the answer to a `PROBE` frame."""
    return bytes((PROBED, ready))


def decode_probed(frame: Buffer) -> bool:
    """Return whether the model says it is ready."""
    if len(frame) != 2 or frame[1] > 1:
        raise FrameError(f"a readiness answer of {len(frame)} bytes")
    return bool(frame[1])
