"""Copies and cuts between tensors and segments: many requests into one slot, one result back to all.

A request keeps its own input buffers until it is answered. So a retry never reads a dead worker's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, TritiumError, Unavailable
from actors.values.regions import RegionTensor, WrittenTensor, cut_off_at, device_place, too_short
from actors.values.requests import InferRequest
from actors.values.shapes import client_shape, reshaped
from actors.values.specs import InputSpec, ModelSpec
from actors.values.strings import walk, walk_at_once
from actors.values.tensors import DevicePlace, DeviceTensor, Tensor, element_count, packed_row_bounds
from actors.wire.arena import align
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Answer, GatheredInput, Part, Placed, Result
from actors.wire.frames import FrameError
from actors.wire.propagation import next_execution
from actors.wire.region_spans import RegionRead

if TYPE_CHECKING:
    from actors.values.tensors import Buffer

COPY_LIMIT: Final = 256 * 1024
"""A result of up to so many bytes is copied out in one piece, and its slot is free at once; see `Scatter`."""

_PIECE: Final = 128 * 1024
"""Bytes of a long input that are copied in one step: some tenth of a millisecond, if the pages are new."""

_STRINGS_AT_ONCE: Final = 2 * 1024 * 1024
"""Bytes of packed outputs that are copied and checked in one piece, in some 2 ms.

The rest of a longer result is done in slices.
"""

_ELEMENT_EFFORT: Final = 100
"""Bytes that are copied in the time of checking one packed element."""

_CUT_COPYING: Final = 16 * 1024
"""A private copy of up to so many bytes is cut by copying its parts.

That costs less than a view of each.
"""

_NO_READS: Final[Sequence[RegionRead]] = ()


class DeviceInput:
    """An input of request `index` that lies on a GPU."""

    __slots__ = ("index", "place", "tensor")

    def __init__(self, tensor: Tensor, place: DevicePlace) -> None:
        self.index = 0
        self.tensor = tensor
        self.place = place


_NO_DEVICES: Final[Sequence[DeviceInput]] = ()


class Gather:
    """A plan to put a batch's inputs one after the other.

    Sizes are known first; the inputs are copied once a segment is large enough. What lies in clients' regions
    is in `reads`, and `copied` are the bytes of all else. Either the worker reads it, or `reading` does. What
    lies on a GPU is in `devices`, takes no room, and is for the worker.
    """

    __slots__ = ("_devices", "_parts", "_reads", "copied", "devices", "inputs", "nbytes", "reads", "unread")

    def __init__(self, requests: Sequence[InferRequest], spec: ModelSpec) -> None:
        """Lay out the inputs of validated `requests`, which have equal batch keys."""
        self.inputs: list[GatheredInput] = []
        self.reads: Sequence[RegionRead] = _NO_READS
        self._reads: list[RegionRead] | None = None
        self.devices: Sequence[DeviceInput] = _NO_DEVICES
        self._devices: list[DeviceInput] | None = None
        # Of requests whose inputs could not be read, by their places in the batch.
        self.unread: dict[int, TritiumError] | None = None
        self._parts: list[tuple[int, list[Tensor]]] = []
        at = whole = 0
        sent = len(spec.inputs)
        for index, declared in enumerate(spec.backend_inputs):
            if index < sent or not requests[0].extra:  # a warmup brings controls and states as inputs
                tensors = _of_input(requests, declared, index)
            else:
                tensors = [request.extra[index - sent] for request in requests]
            if not tensors:
                continue
            offset = at = align(at)
            for tensor in tensors:
                at += len(tensor.data) or self._elsewhere(tensor, at)
            if at == offset and self._on_device(tensors):
                whole += len(tensors)
                self.inputs.append(_on_gpu(index, tensors))
                continue
            self._parts.append((offset, tensors))
            self.inputs.append(_placed(index, declared, tensors, offset, at - offset, batches=spec.batches))
        self.nbytes = self.copied = at
        if len(self.devices) != whole:
            raise ValueError(f"requests of one batch of '{spec.name}' differ in what lies on a GPU")
        if self.reads:
            self._find_requests(requests)

    def _elsewhere(self, tensor: Tensor, offset: int) -> int:
        """Note where a tensor lies that has no data here, and return how much room it takes."""
        place = device_place(tensor)
        if place is not None:
            if self._devices is None:
                self.devices = self._devices = []
            self._devices.append(DeviceInput(tensor, place))
            return 0
        if isinstance(tensor, RegionTensor):
            if self._reads is None:
                self.reads = self._reads = []
            self._reads.append(RegionRead(tensor, offset))
        return tensor.nbytes

    def _on_device(self, tensors: Sequence[Tensor]) -> bool:
        """Whether an input lies on a GPU; if so, note whose each tensor is.

        Requests with equal batch keys have it all there, or all here.
        """
        found = self._devices
        if found is None or found[-1].tensor is not tensors[-1]:
            return False
        # Two requests may have been given the very same tensor.
        for index, each in enumerate(found[-len(tensors) :]):
            each.index = index
        return True

    def _find_requests(self, requests: Sequence[InferRequest]) -> None:
        places = {tensor: index for index, request in enumerate(requests) for tensor in request.inputs}
        for read in self.reads:
            self.copied -= read.tensor.nbytes
            read.index = places[read.tensor]

    def copy_into(self, view: memoryview) -> None:
        """Copy every input to its place; `view` holds at least `nbytes`."""
        for at, tensors in self._parts:
            for tensor in tensors:
                data = tensor.data
                nbytes = len(data)
                if nbytes:
                    view[at : at + nbytes] = data
                    at += nbytes
                else:
                    at += tensor.nbytes

    def copying(self, view: memoryview) -> Iterator[None]:
        """Do as `copy_into` does. Yields before every piece."""
        for at, tensors in self._parts:
            for tensor in tensors:
                data = memoryview(tensor.data)
                for start in range(0, len(data), _PIECE):
                    yield
                    piece = data[start : start + _PIECE]
                    view[at + start : at + start + len(piece)] = piece
                at += len(data) or tensor.nbytes

    def reading(self, view: memoryview) -> Iterator[None]:
        """Read what lies in regions, straight to its place. Yields before every piece.

        A request that lies in a region which is too short is `unread`, and its rows are zeros.
        """
        unread: dict[int, TritiumError] = {}
        for read in self.reads:
            source, at = read.tensor.source, read.offset
            done, end = 0, source.nbytes
            while done < end:
                yield
                piece = view[at + done : at + min(done + _PIECE, end)]
                count = _read(source.region.fileno, piece, source.at + done)
                if count < len(piece):
                    source.region.counts.reads_failed += 1
                    unread.setdefault(read.index, _not_there(read.tensor, source.at + done + count))
                    for _ in _zeroing(view[at + done + count : at + end]):
                        yield
                    break
                done += count
            else:
                source.region.counts.read(source.nbytes)
        self.unread = unread or None


def lost_input(request: InferRequest, tensor: Tensor) -> Unavailable:
    """Return the error of a request whose input was left on a GPU by a worker that has ended since."""
    return Unavailable(
        f"{request.prefix}input '{tensor.name}' of model '{request.model_name}' is lost: the worker that left"
        " it on its GPU has ended; send the request again",
        retry_after=1.0,
    )


def _read(fileno: int, piece: memoryview, at: int) -> int:
    """Read into `piece` from byte `at` of a file; return how many bytes there are."""
    done = 0
    try:
        while done < len(piece):
            count = os.preadv(fileno, [piece[done:]], at + done)
            if not count:
                break
            done += count
    except OSError:  # its client has gone, and so has the region
        pass
    return done


def _not_there(tensor: RegionTensor, found: int) -> TritiumError:
    source = tensor.source
    ends = cut_off_at(source.region.fileno, found)
    what = f"input '{tensor.name}'"
    return InvalidArgument(too_short(source.region.name, what, ends=ends, needed=source.at + source.nbytes))


def _zeroing(view: memoryview) -> Iterator[None]:
    for start in range(0, len(view), _PIECE):
        piece = view[start : start + _PIECE]
        piece[:] = bytes(len(piece))
        yield


def _of_input(requests: Sequence[InferRequest], declared: InputSpec, index: int) -> list[Tensor]:
    name = declared.name
    found = []
    for request in requests:
        inputs = request.inputs
        # Sent in the configuration's order, as most are.
        if index < len(inputs) and inputs[index].name == name:
            found.append(inputs[index])
        else:
            found += [tensor for tensor in inputs if tensor.name == name]
    return found


def _placed(
    index: int, declared: InputSpec, tensors: Sequence[Tensor], offset: int, nbytes: int, *, batches: bool
) -> GatheredInput:
    first = tensors[0].shape
    if len(tensors) == 1:
        return GatheredInput(index, _backend_shape(first, declared, batches=batches), offset, nbytes)
    tail = tuple(first[1:])
    uneven = declared.ragged or declared.padded is not None
    rows = 0
    for tensor in tensors:
        rows += tensor.shape[0]
        if uneven and tuple(tensor.shape[1:]) != tail:
            parts = [(_backend_shape(part.shape, declared, batches=batches), part.nbytes) for part in tensors]
            return GatheredInput(index, None, offset, nbytes, parts)
    return GatheredInput(index, _backend_shape((rows, *tail), declared, batches=batches), offset, nbytes)


def _on_gpu(index: int, tensors: Sequence[Tensor]) -> GatheredInput:
    """Return an input whose bytes lie on a GPU: it is of one shape, but for the rows."""
    shape = tensors[0].shape
    if len(tensors) > 1:
        shape = (sum(tensor.shape[0] for tensor in tensors), *shape[1:])
    return GatheredInput(index, shape, 0, sum(tensor.nbytes for tensor in tensors), on_device=True)


def _backend_shape(shape: Sequence[int], declared: InputSpec, *, batches: bool) -> Sequence[int]:
    if declared.reshape is None:
        return shape
    return reshaped(shape, declared.dims, declared.reshape, batches=batches)


def default_metadata(request: InferRequest, spec: ModelSpec) -> dict[str, object]:
    """Return the metadata of `request` for the worker: only differences from the default.

    Its tensors are not part of it.
    """
    told: dict[str, object] = {}
    if request.id:
        told["id"] = request.id
    if request.parameters:
        told["parameters"] = dict(request.parameters)
    if request.requested_outputs is not spec.output_names:
        told["outputs"] = list(request.requested_outputs)
        if spec.state_names:
            told["outputs"] = list(dict.fromkeys((*request.requested_outputs, *spec.state_names)))
    if request.correlation_id:
        told["correlation_id"] = request.correlation_id
    if request.flags:
        told["flags"] = request.flags
    if request.timeout:
        told["timeout"] = round(request.timeout * 1e6)
    if request.priority:
        told["priority"] = request.priority
    if request.span is not None:
        told["trace"] = next_execution(request.span)
    return told


Cut = tuple[InferRequest, list[Tensor], Answer | None]
"""A request's share of a result: its outputs and, if the worker answered it by itself, that answer."""


class DeviceMemory(Protocol):
    """The buffers of one worker on its GPU."""

    def take(self, number: int, nbytes: int) -> DevicePlace:
        """Lease a buffer for an output of so many bytes. Raises FrameError."""


class Scatter:
    """A result, cut into the shares of its requests.

    Results of up to `COPY_LIMIT` bytes are copied once; then `borrowed` is false and the slot is free.
    Otherwise outputs view the slot's segment, which must stay leased until each response is released. Long
    packed outputs are left `unchecked` by `answers`, and must not be used before all of `checking` has been
    done.
    """

    __slots__ = ("_base", "_buffers", "_data", "_effort", "_result", "_spec", "borrowed", "unchecked")

    def __init__(
        self,
        result: Result,
        view: memoryview,
        spec: ModelSpec,
        *,
        copy_limit: int = COPY_LIMIT,
        buffers: DeviceMemory | None = None,
    ) -> None:
        """Check every offset and length of `result` against the segment. Raises FrameError.

        `buffers` are those of the worker; None if it can leave nothing on a GPU.
        """
        self._result = result
        self._buffers = buffers
        self._spec = spec
        self._effort = 0  # the cost of checking packed outputs, in bytes to copy
        self.unchecked: list[Tensor] = []
        low = high = -1
        for output in _all_outputs(result):
            if output.written or output.on_device:
                continue
            start = output.offset
            end = start + output.nbytes
            if low < 0 or start < low:
                low = start
            if end > high:
                high = end
        low, high = max(low, 0), max(high, 0)  # without outputs
        if high > len(view):
            raise FrameError(f"a result reaches to byte {high} of a segment of {len(view)} bytes")
        self.borrowed = high - low > copy_limit
        self._base = 0 if self.borrowed else low
        self._data: Buffer = view
        if not self.borrowed:
            private = bytes(view[low:high])
            self._data = private if len(private) <= _CUT_COPYING else memoryview(private)

    def answers(self, requests: Sequence[InferRequest]) -> list[Cut]:
        """Return each request with its output tensors and, if the worker answered one by one, its `Answer`.

        Raises FrameError before any share is handed out, if the result does not fit the requests.
        """
        if self._result.stacked is not None:
            return self._stacked_answers(requests, self._result.stacked)
        answers = self._result.answers or ()
        for request, answer in zip(requests, answers, strict=True):
            if answer.trouble:
                _count_trouble(request, answer.trouble)
        return [
            (request, [self._output(p, request) for p in answer.outputs], answer)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _output(self, placed: Placed, request: InferRequest) -> Tensor:
        """Return one output of a request that is alone in the result, or was answered by itself."""
        if placed.on_device:
            place = self._left(placed, (request,))
            return DeviceTensor(placed.name, placed.datatype, placed.shape, place)
        if not placed.written:
            return self._tensor(placed, placed.shape, placed.offset, placed.nbytes)
        target = (request.output_regions or {}).get(placed.name)
        if target is None or target.nbytes < placed.nbytes:
            room = 0 if target is None else target.nbytes
            raise FrameError(
                f"a worker says that it wrote {placed.nbytes} bytes of output '{placed.name}' to a region,"
                f" where the request has room for {room}"
            )
        target.region.counts.wrote(placed.nbytes)
        shape = self._client_shape(placed, placed.shape)
        return WrittenTensor(placed.name, placed.datatype, shape, placed.nbytes)

    def _left(self, placed: Placed, requests: Sequence[InferRequest]) -> DevicePlace:
        """Return where an output lies that was left on a GPU. Each of `requests` must have asked for that."""
        asked = all(placed.name in (request.device_outputs or ()) for request in requests)
        if self._buffers is None or not asked or placed.datatype is DataType.BYTES:
            raise FrameError(f"a worker left output '{placed.name}' on its GPU, unasked")
        return self._buffers.take(placed.offset, placed.nbytes)

    def _stacked_answers(self, requests: Sequence[InferRequest], stacked: Sequence[Placed]) -> list[Cut]:
        if len(requests) == 1:
            whole = [self._output(each, requests[0]) for each in stacked]
            return [(requests[0], self._wanted(requests[0], whole), None)]
        ends = list(accumulate([request.rows for request in requests]))
        spans = [
            (request.rows, end)
            for request, end in zip(requests, ends, strict=True)
            if not request.padding  # padding is never read
        ]
        columns = [self._column(each, requests, spans, ends[-1]) for each in stacked]
        outputs = zip(*columns, strict=True) if columns else repeat(())
        everything = self._spec.output_names
        cuts: list[Cut] = []
        for request in requests:
            share: list[Tensor] = []
            if not request.padding:
                share = list(next(outputs))
                if request.requested_outputs is not everything:
                    share = self._wanted(request, share)
            cuts.append((request, share, None))
        return cuts

    def _wanted(self, request: InferRequest, outputs: list[Tensor]) -> list[Tensor]:
        wanted, states = request.requested_outputs, self._spec.state_names
        if wanted is self._spec.output_names:
            return outputs
        return [tensor for tensor in outputs if tensor.name in wanted or tensor.name in states]

    def _column(
        self, placed: Placed, requests: Sequence[InferRequest], spans: Sequence[tuple[int, int]], total: int
    ) -> list[Tensor]:
        """Return each request's part of one output of `total` rows.

        `spans` are the number of rows of each request, and where they end.
        """
        tail = placed.shape[1:]
        name, datatype = placed.name, placed.datatype
        if datatype is DataType.BYTES and placed.sizes is not None:
            starts = accumulate(placed.sizes, initial=placed.offset)
            return [
                self._tensor(placed, (request.rows, *tail), start, size)
                for request, start, size in zip(requests, starts, placed.sizes, strict=False)
                if not request.padding
            ]
        if datatype is DataType.BYTES or not placed.shape or placed.shape[0] != total:
            raise FrameError(f"output '{name}' of shape {list(placed.shape)} can't be cut into {total} rows")
        row = placed.nbytes // total if total else 0
        if placed.on_device:
            left = self._left(placed, requests)
            return [
                DeviceTensor(
                    name,
                    datatype,
                    (rows, *tail),
                    DevicePlace(left.handle, left.device, (end - rows) * row, rows * row, left.keeper),
                )
                for rows, end in spans
            ]
        declared = self._spec.outputs_by_name.get(name)
        if declared is not None and declared.reshape is not None:
            return [
                self._tensor(placed, (rows, *tail), placed.offset + (end - rows) * row, rows * row)
                for rows, end in spans
            ]
        data, at = self._data, placed.offset - self._base
        return [
            Tensor(name, datatype, (rows, *tail), data[at + (end - rows) * row : at + end * row])
            for rows, end in spans
        ]

    def _tensor(self, placed: Placed, shape: Sequence[int], offset: int, nbytes: int) -> Tensor:
        at = offset - self._base
        shape = self._client_shape(placed, shape)
        tensor = Tensor(placed.name, placed.datatype, shape, self._data[at : at + nbytes])
        if placed.datatype is DataType.BYTES:
            self._effort += nbytes + _ELEMENT_EFFORT * min(element_count(shape), nbytes // 4)
            if self._effort > _STRINGS_AT_ONCE:
                self.unchecked.append(tensor)
            else:
                tensor.data = _checked_bytes(tensor.data, placed.name, shape)
        return tensor

    def _client_shape(self, placed: Placed, shape: Sequence[int]) -> Sequence[int]:
        declared = self._spec.outputs_by_name.get(placed.name)
        if declared is None or declared.reshape is None:
            return shape
        return client_shape(shape, declared, batches=self._spec.batches)

    def checking(self) -> Iterator[None]:
        """Copy and check the `unchecked` outputs, whose tensors then have data of their own.

        Yields between pieces of work.

        The work may be given up and done anew. Raises FrameError for a malformed output.
        """
        for tensor in self.unchecked:
            data = memoryview(tensor.data)
            # A bytearray would be filled with zeros first, in one piece.
            private = np.empty(len(data), np.uint8).data
            for start in range(0, len(data), _PIECE):
                private[start : start + _PIECE] = data[start : start + _PIECE]
                yield
            count = element_count(tensor.shape)
            found = yield from walk(private, count)
            if not found.whole or found.elements != count:
                raise FrameError(
                    f"a worker sent a malformed output: packed BYTES tensor '{tensor.name}' of {len(private)}"
                    f" bytes has {found.elements} of its {count} elements in its first {found.at} bytes"
                )
            tensor.data = private.toreadonly()


def _count_trouble(request: InferRequest, trouble: int) -> None:
    """Count a request that a region has failed, as its worker says."""
    for tensor in request.inputs:
        if trouble == READ_FAILED and isinstance(tensor, RegionTensor):
            tensor.source.region.counts.reads_failed += 1
            return
    for place in (request.output_regions or {}).values():
        if trouble == WRITE_FAILED:
            place.region.counts.writes_failed += 1
            return


def outputs_of(
    part: Part, request: InferRequest, spec: ModelSpec
) -> tuple[list[Tensor], Callable[[], Iterator[None]] | None]:
    """Return the tensors of a decoupled model's part, and how to check them if that takes long.

    The tensors view the part's data. Raises FrameError where they don't fit it.
    """
    if part.answer is None or not part.answer.outputs:
        return [], None
    if len(part.answer.outputs) == 1 and not part.answer.trouble:
        only = _plain_output(part.answer.outputs[0], part.data, spec)
        if only is not None:
            return [only], None
    result = Result(part.batch_id, 0, 1, (0, 0, 0), answers=[part.answer])
    scatter = Scatter(result, memoryview(part.data), spec, copy_limit=0)
    [(_, outputs, _)] = scatter.answers([request])
    return outputs, scatter.checking if scatter.unchecked else None


def _plain_output(placed: Placed, data: Buffer, spec: ModelSpec) -> Tensor | None:
    """Return a part's only output if that has a fixed size and keeps its shape, as most parts have."""
    start, end = placed.offset, placed.offset + placed.nbytes
    if placed.datatype is DataType.BYTES or placed.written or placed.on_device or end > len(data):
        return None
    declared = spec.outputs_by_name.get(placed.name)
    if declared is not None and declared.reshape is not None:
        return None
    return Tensor(placed.name, placed.datatype, placed.shape, memoryview(data)[start:end])


def _all_outputs(result: Result) -> Iterable[Placed]:
    if result.stacked is not None:
        return result.stacked
    return (placed for answer in result.answers or () for placed in answer.outputs)


def _checked_bytes(data: Buffer, name: str, shape: Sequence[int]) -> bytes:
    """Return a private copy of packed elements, known to be well-formed.

    A worker may overwrite the original.
    """
    private = bytes(data)
    count = element_count(shape)
    found = walk_at_once(private, count)
    if not found.whole or found.elements != count:
        try:
            packed_row_bounds(private, name, 1, count)
        except InvalidArgument as error:
            raise FrameError(f"a worker sent a malformed output: {error.message}") from error
    return private
