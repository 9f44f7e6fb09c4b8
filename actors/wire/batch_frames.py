"""Frames of batches: what a worker is to execute, and what it answers.

    Execute   slot, batch id, [input: declared index, dims, offset, nbytes, per-request parts if ragged],
              rows per request, and, where any request differs from the default, JSON metadata per request
    Result    slot, batch id, three durations, then either stacked outputs (one run of bytes per output, cut
              by rows or by given sizes) or one answer per request
    Part      batch id, request, flags, the number of tensor bytes, then one answer whose offsets are within
              those bytes, then the first of the bytes; the rest come in `More` frames. Only from decoupled
              models
    Parts     several short `Part` frames, each behind its length: what an engine has made in one step for
              many requests

The parts of a decoupled model have no slot: there may be any number of them, for any request, and they may
come long after the batch's slot was given to another batch. So their tensors travel in the frames themselves.
For each request a worker may have as much on its way as `WINDOW_PARTS` and `WINDOW_BYTES` say; `Credit`
frames say how much has been taken.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from actors.values.datatypes import BY_NUMBER, DataType
from actors.values.errors import ErrorCode
from actors.wire.frames import ADDRESS, EXECUTE, MAX_FRAME, MORE, PART, PARTS, RESULT, FrameError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from actors.wire.frames import Buffer, Parameter

MAX_DIMS: Final = 64

_EXECUTE = struct.Struct("<BBHHHIQ")  # kind, zero, slot, requests, inputs, metadata length, batch id
_INPUT = struct.Struct("<HBBQQ")  # declared index, dims, flags, offset, nbytes
# Kind, layout, slot, requests, outputs, batch id, three durations in ns.
_RESULT = struct.Struct("<BBHHHQQQQ")
# Name length, datatype (highest bit: it was written to a region, next: it lies on a GPU), dims (highest bit:
# sizes follow), offset, nbytes.
_OUTPUT = struct.Struct("<HBBQQ")
# Status (0 or an error's number), what failed with a client's region, outputs, text length.
_ANSWER = struct.Struct("<BBHI")
_PART = struct.Struct("<BBHIQQ")  # kind, flags, zero, request, batch id, nbytes
_LENGTH = struct.Struct("<H")
_PARTS_HEAD: Final = bytes((PARTS,))

# Elements. Times the size of one, they still fit numpy's 63 bits.
_LARGEST_ARRAY: Final = 2**60

_STACKED: Final = 0
_EACH: Final = 1
_RAGGED: Final = 1
_DEVICE: Final = 2

MOST_TOGETHER: Final = 64
"""Parts in one frame. Handling so many takes some milliseconds."""

LARGEST_TOGETHER: Final = 512
"""Bytes of a part's frame that may share one: it is handled at once, whatever its tensors are."""

READ_FAILED: Final = 1
WRITE_FAILED: Final = 2
_SIZES: Final = 0x80
_WRITTEN: Final = 0x80  # beside the number of the datatype
_ON_DEVICE: Final = 0x40  # likewise
_OPEN: Final = 0xFF  # the status of an answer that comes in parts
# The status where there is no answer yet: the request is to run again.
_RESCHEDULED: Final = 0xFE
_FINAL: Final = 1
_EMPTY: Final = 2

# `struct.pack` with a format that is put together anew takes twice as long.
_DIMS: Final = [struct.Struct(f"<{dims}q") for dims in range(MAX_DIMS + 1)]

# What the layout of a batch means, by its bytes. Batches of a model repeat them: only ids and times differ.
_MOST_KNOWN: Final = 1024  # when there are as many, all are forgotten
_LONGEST_KNOWN: Final = 512  # bytes
_batches: Final[dict[bytes, tuple[Sequence[int], Sequence[GatheredInput]]]] = {}
_results: Final[dict[bytes, Sequence[Placed]]] = {}
_parts: Final[dict[bytes, tuple[Answer, int]]] = {}

_ERROR_NUMBER: Final = {code: number for number, code in enumerate(ErrorCode, start=1)}
_ERROR_OF: Final = dict(enumerate(ErrorCode, start=1))


class Placed:
    """A tensor in a segment: its place, its type and its shape.

    `sizes`, if given, are the bytes of each request's part, in order; else the bytes divide evenly by rows.

    One that is `written` lies in the region that the request named for it, and not in the segment. One that
    is `on_device` fills the beginning of a buffer on a GPU, whose number is its `offset`.
    """

    __slots__ = ("datatype", "name", "nbytes", "offset", "on_device", "shape", "sizes", "written")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        shape: Sequence[int],
        offset: int,
        nbytes: int,
        sizes: Sequence[int] | None = None,
        *,
        written: bool = False,
        on_device: bool = False,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.offset = offset
        self.nbytes = nbytes
        self.sizes = sizes
        self.written = written
        self.on_device = on_device


class GatheredInput:
    """One input of a whole batch in the input segment.

    `shape` is that of all rows together, or None where requests differ. Then `parts` has each request's
    (shape, nbytes). If it is `on_device`, no byte of it is in the segment: the requests' metadata say where
    each one's is (`actors.wire.device_spans`).
    """

    __slots__ = ("index", "nbytes", "offset", "on_device", "parts", "shape")

    def __init__(
        self,
        index: int,
        shape: Sequence[int] | None,
        offset: int,
        nbytes: int,
        parts: Sequence[tuple[Sequence[int], int]] | None = None,
        *,
        on_device: bool = False,
    ) -> None:
        self.index = index  # position among the model's declared inputs
        self.shape = shape
        self.offset = offset
        self.nbytes = nbytes
        self.parts = parts
        self.on_device = on_device


class Execute:
    """Run this batch.

    `metadata` is None, or a list with one mapping per request of its differences from the default.
    `descriptors` came with the frame: they are open for the regions that the metadata names by their numbers
    (`actors.wire.region_spans`). The side that has the job closes them.
    """

    __slots__ = ("batch_id", "descriptors", "inputs", "metadata", "rows", "slot")

    def __init__(
        self,
        batch_id: int,
        slot: int,
        rows: Sequence[int],
        inputs: Sequence[GatheredInput],
        metadata: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        self.batch_id = batch_id
        self.slot = slot
        self.rows = rows
        self.inputs = inputs
        self.metadata = metadata
        self.descriptors: Sequence[int] = ()

    def encode(self) -> bytes:
        """Return the frame; it may be longer than `MAX_FRAME`."""
        requests = len(self.rows)
        metadata = b"" if self.metadata is None else json.dumps(self.metadata, separators=(",", ":")).encode()
        parts = [
            _EXECUTE.pack(EXECUTE, 0, self.slot, requests, len(self.inputs), len(metadata), self.batch_id),
            struct.pack(f"<{requests}I", *self.rows),
        ]
        for placed in self.inputs:
            if placed.parts is None:
                shape = placed.shape or ()
                flags = _DEVICE if placed.on_device else 0
                parts.append(_INPUT.pack(placed.index, len(shape), flags, placed.offset, placed.nbytes))
                parts.append(_DIMS[len(shape)].pack(*shape))
            else:
                flags = _RAGGED | _DEVICE if placed.on_device else _RAGGED
                parts.append(_INPUT.pack(placed.index, 0, flags, placed.offset, placed.nbytes))
                for shape, nbytes in placed.parts:
                    parts.append(struct.pack(f"<QB{len(shape)}q", nbytes, len(shape), *shape))
        parts.append(metadata)
        return b"".join(parts)

    @classmethod
    def decode(cls, frame: Buffer) -> Execute:
        """Return what `encode` packed. Raises FrameError."""
        try:
            _, _, slot, requests, inputs, metadata_length, batch_id = _EXECUTE.unpack_from(frame)
            if not metadata_length:
                rows, gathered = _known_batch(frame, requests, inputs)
                return cls(batch_id, slot, rows, gathered, None)
            rows, gathered, at = _decode_batch(frame, requests, inputs)
            metadata = parse_json(frame[at : at + metadata_length])
        except (struct.error, ValueError) as error:
            raise FrameError(f"bad execute frame: {error}") from error
        return cls(batch_id, slot, rows, gathered, metadata)


def _known_batch(frame: Buffer, requests: int, inputs: int) -> tuple[Sequence[int], Sequence[GatheredInput]]:
    # Behind kind and slot: the numbers of requests and inputs, then, behind length and id, everything else.
    key = b"".join((frame[4:8], frame[_EXECUTE.size :]))
    known = _batches.get(key)
    if known is None:
        known = _decode_batch(frame, requests, inputs)[:2]
        if len(key) <= _LONGEST_KNOWN:
            if len(_batches) >= _MOST_KNOWN:
                _batches.clear()
            _batches[key] = known
    return known


def _decode_batch(
    frame: Buffer, requests: int, inputs: int
) -> tuple[Sequence[int], Sequence[GatheredInput], int]:
    at = _EXECUTE.size
    rows = struct.unpack_from(f"<{requests}I", frame, at)
    at += 4 * requests
    gathered = []
    for _ in range(inputs):
        index, dims, flags, offset, nbytes = _INPUT.unpack_from(frame, at)
        at += _INPUT.size
        if flags & _RAGGED:
            parts = []
            for _ in range(requests):
                part_nbytes, part_dims = struct.unpack_from("<QB", frame, at)
                parts.append((struct.unpack_from(f"<{part_dims}q", frame, at + 9), part_nbytes))
                at += 9 + 8 * part_dims
            on_device = bool(flags & _DEVICE)
            gathered.append(GatheredInput(index, None, offset, nbytes, parts, on_device=on_device))
        else:
            shape = struct.unpack_from(f"<{dims}q", frame, at)
            gathered.append(GatheredInput(index, shape, offset, nbytes, on_device=bool(flags & _DEVICE)))
            at += 8 * dims
    return rows, gathered, at


class Answer:
    """One request's answer: outputs and parameters, or an error.

    In a result, an `open` answer stands for a request of a decoupled model whose answer comes in parts,
    before or after the result. A `rescheduled` one stands for a request that is to run once more, and has no
    answer yet. An error has a `trouble`, `READ_FAILED` or `WRITE_FAILED`, if a client's region caused it.
    """

    __slots__ = ("code", "message", "open", "outputs", "parameters", "rescheduled", "trouble")

    def __init__(
        self,
        outputs: Sequence[Placed] = (),
        parameters: Mapping[str, Parameter] | None = None,
        code: ErrorCode | None = None,
        message: str = "",
        *,
        open: bool = False,  # noqa: A002  # what it is called everywhere else, too
        rescheduled: bool = False,
        trouble: int = 0,
    ) -> None:
        self.outputs = outputs
        self.parameters = parameters
        self.code = code
        self.message = message
        self.open = open
        self.rescheduled = rescheduled
        self.trouble = trouble


class Result:
    """A batch is done.

    Either `stacked` holds the outputs of all requests, or `answers` has one entry each.
    """

    __slots__ = ("answers", "batch_id", "infer_ns", "input_ns", "output_ns", "requests", "slot", "stacked")

    def __init__(
        self,
        batch_id: int,
        slot: int,
        requests: int,
        times: tuple[int, int, int],
        stacked: Sequence[Placed] | None = None,
        answers: Sequence[Answer] | None = None,
    ) -> None:
        self.batch_id = batch_id
        self.slot = slot
        self.requests = requests
        self.input_ns, self.infer_ns, self.output_ns = times
        self.stacked = stacked
        self.answers = answers

    def encode(self) -> bytes:
        """Return the frame; it may be longer than `MAX_FRAME`."""
        layout = _EACH if self.stacked is None else _STACKED
        parts = [
            _RESULT.pack(
                RESULT,
                layout,
                self.slot,
                self.requests,
                len(self.stacked or ()),
                self.batch_id,
                self.input_ns,
                self.infer_ns,
                self.output_ns,
            )
        ]
        if self.stacked is not None:
            parts += map(encode_placed, self.stacked)
        parts += map(_encode_answer, self.answers or ())
        return b"".join(parts)

    @classmethod
    def decode(cls, frame: Buffer, *, decoupled: bool = False) -> Result:
        """Return what `encode` packed, checked; only a `decoupled` model's may have open answers.

        Raises FrameError.
        """
        try:
            _, layout, slot, requests, outputs, batch_id, input_ns, infer_ns, output_ns = _RESULT.unpack_from(
                frame
            )
            at = _RESULT.size
            if layout == _STACKED:
                stacked = _known_result(frame, outputs, requests)
                return cls(batch_id, slot, requests, (input_ns, infer_ns, output_ns), stacked)
            if layout != _EACH:
                raise FrameError(f"result of unknown layout {layout}")
            answers = []
            for _ in range(requests):
                answer, at = _decode_answer(frame, at, decoupled=decoupled, regions=not decoupled)
                answers.append(answer)
        except (
            struct.error,
            ValueError,
        ) as error:  # json.JSONDecodeError and UnicodeDecodeError are ValueErrors
            raise FrameError(f"bad result frame: {error}") from error
        _check_end(frame, at)
        return cls(batch_id, slot, requests, (input_ns, infer_ns, output_ns), None, answers)


def _known_result(frame: Buffer, outputs: int, requests: int) -> Sequence[Placed]:
    # Behind kind, layout and slot: the numbers of requests and outputs; behind id and times: the outputs.
    key = b"".join((frame[4:8], frame[_RESULT.size :]))
    known = _results.get(key)
    if known is None:
        stacked, at = decode_placed(frame, _RESULT.size, outputs, requests, devices=True)
        _check_end(frame, at)
        known = tuple(stacked)
        if len(key) <= _LONGEST_KNOWN:
            if len(_results) >= _MOST_KNOWN:
                _results.clear()
            _results[key] = known
    return known


def _check_end(frame: Buffer, at: int) -> None:
    if at != len(frame):
        raise FrameError(f"result frame of {len(frame)} bytes says it has {at}")


def _encode_answer(answer: Answer) -> bytes:
    if answer.open or answer.rescheduled:
        return _ANSWER.pack(_RESCHEDULED if answer.rescheduled else _OPEN, 0, 0, 0)
    if answer.code is not None:
        text = answer.message.encode(errors="replace")
        return _ANSWER.pack(_ERROR_NUMBER[answer.code], answer.trouble, 0, len(text)) + text
    text = json.dumps(answer.parameters, separators=(",", ":")).encode() if answer.parameters else b""
    head = _ANSWER.pack(0, 0, len(answer.outputs), len(text))
    return b"".join((head, *map(encode_placed, answer.outputs), text))


def encode_placed(output: Placed) -> bytes:
    """Return a tensor's description in frames."""
    name = output.name.encode()
    dims = len(output.shape)
    flag = 0 if output.sizes is None else _SIZES
    number = output.datatype.number
    if output.written:
        number |= _WRITTEN
    elif output.on_device:
        number |= _ON_DEVICE
    head = _OUTPUT.pack(len(name), number, dims | flag, output.offset, output.nbytes)
    tail = _DIMS[dims].pack(*output.shape)
    if output.sizes is None:
        return head + name + tail
    return head + name + tail + struct.pack(f"<{len(output.sizes)}Q", *output.sizes)


def decode_placed(
    frame: Buffer, at: int, count: int, requests: int, *, regions: bool = False, devices: bool = False
) -> tuple[list[Placed], int]:
    """Return `count` tensors that begin at `at`, and where they end.

    With `regions`, some may have been written to regions. Only the answer to one request can have such. With
    `devices`, some may lie on a GPU.
    Raises FrameError, struct.error and ValueError.
    """
    outputs = []
    for _ in range(count):
        name_length, number, dims, offset, nbytes = _OUTPUT.unpack_from(frame, at)
        at += _OUTPUT.size
        name = str(frame[at : at + name_length], "utf-8")
        at += name_length
        has_sizes, dims = dims & _SIZES, dims & ~_SIZES
        written = regions and number >= _WRITTEN
        on_device = devices and not written and number >= _ON_DEVICE
        datatype = BY_NUMBER.get(number - _WRITTEN * written - _ON_DEVICE * on_device)
        if datatype is None or dims > MAX_DIMS:
            raise FrameError(f"output {name!r} has datatype {number} and {dims} dims")
        shape = _DIMS[dims].unpack_from(frame, at)
        at += 8 * dims
        if not _is_array_shape(shape):
            raise FrameError(f"output {name!r} has shape {list(shape)}")
        sizes = None
        if has_sizes:
            sizes = struct.unpack_from(f"<{requests}Q", frame, at)
            at += 8 * requests
            if sum(sizes) != nbytes:
                raise FrameError(f"the parts of output {name!r} have {sum(sizes)} bytes, the whole {nbytes}")
        if datatype.size:
            expected = datatype.size
            for dim in shape:
                expected *= dim
            if expected != nbytes:
                raise FrameError(
                    f"output {name!r} of {datatype}{list(shape)} takes {expected} bytes, not {nbytes}"
                )
        placed = Placed(name, datatype, shape, offset, nbytes, sizes, written=written, on_device=on_device)
        outputs.append(placed)
    return outputs, at


def _decode_answer(
    frame: Buffer, at: int, *, decoupled: bool = False, regions: bool = False
) -> tuple[Answer, int]:
    status, trouble, outputs, text_length = _ANSWER.unpack_from(frame, at)
    at += _ANSWER.size
    placed, at = decode_placed(frame, at, outputs, 0, regions=regions, devices=regions)
    text = bytes(frame[at : at + text_length])
    if len(text) != text_length:
        raise FrameError(f"an answer's text is cut short at {len(text)} of {text_length} bytes")
    at += text_length
    if status:
        if status == _OPEN and decoupled and not (outputs or text):
            return Answer(open=True), at
        if status == _RESCHEDULED and not (outputs or text):
            return Answer(rescheduled=True), at
        code = _ERROR_OF.get(status)
        if code is None:
            raise FrameError(f"an answer has the unknown status {status}")
        return Answer(code=code, message=text.decode(errors="replace"), trouble=trouble), at
    parameters = parse_json(text) if text else None
    if parameters is not None and not isinstance(parameters, dict):
        raise FrameError("response parameters are not an object")
    check_parameters(parameters or {})
    return Answer(placed, parameters), at


class Part:
    """One part of a decoupled model's answer to request `index` of a batch.

    `answer` is None where only the end is told.

    `data` is `nbytes` of tensors, or as much of their beginning as the frame held. The offsets of the
    answer's outputs are within them.
    """

    __slots__ = ("answer", "batch_id", "data", "final", "index", "nbytes")

    def __init__(
        self, batch_id: int, index: int, answer: Answer | None, data: Buffer, nbytes: int, *, final: bool
    ) -> None:
        self.batch_id = batch_id
        self.index = index
        self.answer = answer
        self.data = data
        self.nbytes = nbytes
        self.final = final

    def packets(self) -> Iterator[bytes]:
        """Return the frames that carry it, in order.

        Raises ValueError where the answer without tensors is too large.
        """
        return self._packets(self._head())

    def packet(self) -> bytes | None:
        """Return the frame that carries all of it; None where it takes several. Raises as `packets` does."""
        head = self._head()
        return head + self.data if len(head) + self.nbytes <= MAX_FRAME else None

    def _head(self) -> bytes:
        flags = _FINAL * self.final | _EMPTY * (self.answer is None)
        head = _PART.pack(PART, flags, 0, self.index, self.batch_id, self.nbytes)
        if self.answer is not None:
            head += _encode_answer(self.answer)
        if len(head) > MAX_FRAME:
            raise ValueError(
                f"a response's names, shapes, parameters and error text take {len(head)} bytes, more than {MAX_FRAME}"
            )
        return head

    def _packets(self, head: bytes) -> Iterator[bytes]:
        at = min(MAX_FRAME - len(head), self.nbytes)
        yield head + self.data[:at]
        more = ADDRESS.pack(MORE, 0, 0, self.index, self.batch_id)
        step = MAX_FRAME - len(more)
        for start in range(at, self.nbytes, step):
            yield more + self.data[start : start + step]

    @classmethod
    def decode(cls, frame: Buffer) -> Part:
        """Return what the first of `packets` holds, checked. Raises FrameError."""
        try:
            _, flags, _, index, batch_id, nbytes = _PART.unpack_from(frame)
            at = _PART.size
            answer, high = None, 0
            if not flags & _EMPTY:
                answer, high, at = _known_part(frame, nbytes)
        except (struct.error, ValueError) as error:
            raise FrameError(f"bad part frame: {error}") from error
        if flags not in (0, _FINAL, _FINAL | _EMPTY) or (nbytes and (answer is None or not answer.outputs)):
            raise FrameError(f"a part with flags {flags} and {nbytes} bytes of nothing")
        if high > nbytes or len(frame) - at > nbytes:
            raise FrameError(
                f"a part of {nbytes} bytes has outputs up to byte {high} and {len(frame) - at} bytes"
            )
        return cls(batch_id, index, answer, frame[at:], nbytes, final=bool(flags & _FINAL))


def _known_part(frame: Buffer, nbytes: int) -> tuple[Answer, int, int]:
    """Return a part's answer, where its outputs end among the tensors, and where it ends itself."""
    end = len(frame) - nbytes  # if all tensors are here
    key = bytes(frame[_PART.size : max(end, 0)])
    known = _parts.get(key)
    if known is not None:
        return *known, end
    answer, at = _decode_answer(frame, _PART.size)
    high = max([output.offset + output.nbytes for output in answer.outputs], default=0)
    # What has parameters or a text is not likely to come again.
    if at == end and answer.code is None and answer.parameters is None and len(key) <= _LONGEST_KNOWN:
        if len(_parts) >= _MOST_KNOWN:
            _parts.clear()
        _parts[key] = answer, high
    return answer, high, at


def join_parts(packets: Sequence[bytes]) -> bytes:
    """Return the frame of parts of up to `LARGEST_TOGETHER` bytes each, at most `MOST_TOGETHER` of them."""
    pieces = [_PARTS_HEAD]
    for packet in packets:
        pieces += (_LENGTH.pack(len(packet)), packet)
    return b"".join(pieces)


def split_parts(frame: bytes) -> list[bytes]:
    """Return the frames that `join_parts` put together. Raises FrameError."""
    found: list[bytes] = []
    at, end = len(_PARTS_HEAD), len(frame)
    while at < end:
        length = int.from_bytes(frame[at : at + _LENGTH.size], "little")
        at += _LENGTH.size
        packet = frame[at : at + length]
        at += length
        if len(packet) != length or not 0 < length <= LARGEST_TOGETHER or packet[0] != PART:
            raise FrameError(f"part {len(found)} of several, of {length} bytes, is none")
        found.append(packet)
    if not 0 < len(found) <= MOST_TOGETHER:
        raise FrameError(f"{len(found)} parts in one frame")
    return found


def _is_array_shape(shape: Sequence[int]) -> bool:
    """Whether an array can have this shape; its elements are counted without the zeros, as numpy does."""
    count = 1
    for dim in shape:
        if dim < 0:
            return False
        count *= dim or 1
    return count < _LARGEST_ARRAY


def check_parameters(parameters: Mapping[str, Parameter]) -> None:
    """Raise ValueError if response parameters have values that no frontend can write: only scalars travel."""
    for key, value in parameters.items():
        key.encode()
        if isinstance(value, str):
            value.encode()  # a lone surrogate is a UnicodeEncodeError, and so a ValueError
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"response parameter {key!r} does not fit into 64 bits")
        elif not isinstance(value, float):
            raise ValueError(  # noqa: TRY004  # a ValueError is what makes a frame a bad frame
                f"response parameter {key!r} is of type {type(value).__name__}"
            )
