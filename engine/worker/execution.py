"""A batch as the backend sees it, over the slot's shared segments."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.tensors import element_count, pack_bytes
from actors.wire import batch_frames
from actors.wire.arena import INPUT, OUTPUT, ControlPage
from actors.wire.batch_frames import Answer, Placed, Result
from engine.worker.backends.base import Batch, BatchRequest, SenderClosed
from engine.worker.backends.raw import RawBatch, Room
from engine.worker.joining import BatchInputs
from engine.worker.parts import WorkerSender
from engine.worker.regions import BatchRegions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.requests import Parameter
    from actors.values.tensors import Array
    from engine.worker.backends.base import AnyOutput, ModelInfo
    from engine.worker.backends.raw import RawInput, RawOutput
    from engine.worker.devices.arrays import DeviceArray
    from engine.worker.devices.batches import Devices
    from engine.worker.joining import Joining
    from engine.worker.parts import OpenRequests, Window
    from engine.worker.slots import AskForRoom, Slot


_NO_METADATA: Mapping[str, Any] = {}
_NOT_TRACED: Mapping[int, Sequence[str]] = {}
_NO_NAMES: frozenset[str] = frozenset()
# Bytes of an output for which a copy more costs less than two calls of numpy's.
_SMALL = 4096


class WorkerRequest(BatchRequest):
    """One request of a batch in shared memory."""

    __slots__ = ("_batch", "_index", "_metadata", "_sender", "_start", "rows")

    def __init__(
        self, batch: WorkerBatch, index: int, start: int, rows: int, metadata: Mapping[str, Any]
    ) -> None:
        self._batch = batch
        self._index = index
        self._start = start  # its first row in the batch
        self._metadata = metadata
        self._sender: WorkerSender | None = None
        self.rows = rows

    @property
    def id(self) -> str:  # type: ignore[override]  # a read-only attribute
        """The client's request id, empty if it gave none."""
        return self._metadata.get("id", "")  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> int | str:  # type: ignore[override]
        """The sequence's id; 0 if there is none."""
        return self._metadata.get("correlation_id", 0)  # type: ignore[no-any-return]

    @property
    def flags(self) -> int:  # type: ignore[override]
        """Sequence flags: 1 start, 2 end."""
        return self._metadata.get("flags", 0)  # type: ignore[no-any-return]

    @property
    def timeout(self) -> int:  # type: ignore[override]
        """The client's timeout in microseconds, 0 for none."""
        return self._metadata.get("timeout", 0)  # type: ignore[no-any-return]

    @property
    def priority(self) -> int:  # type: ignore[override]
        """The client's priority, 0 for the default."""
        return self._metadata.get("priority", 0)  # type: ignore[no-any-return]

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """Custom request parameters."""
        return self._metadata.get("parameters", _NO_METADATA)  # type: ignore[no-any-return]

    @property
    def requested_outputs(self) -> Sequence[str]:  # type: ignore[override]
        """What the client wants; all declared outputs if it named none."""
        return self._metadata.get("outputs") or self._batch.declared_outputs

    @property
    def origin(self) -> tuple[int, int]:  # type: ignore[override, mutable-override]
        """Its batch, and its place in that: what a call names that is made on its behalf."""
        return self._batch.id, self._index

    @property
    def trace(self) -> Sequence[str] | None:  # type: ignore[override]
        """The W3C context of this execution, if the request is traced."""
        return self._metadata.get("trace")

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present, in the configuration's order."""
        return self._batch.input_names

    def input(self, name: str) -> Array:
        """Return one input as [rows, *dims]. See `BatchRequest.input`."""
        return self._batch.inputs.of(name, self._index, self._start, self.rows)

    def device_input(self, name: str) -> DeviceArray | None:
        """Return one input where it lies on the GPU. See `BatchRequest.device_input`."""
        on_device = self._batch.on_device
        return None if on_device is None else on_device.input(self._index, name)

    @property
    def device_outputs(self) -> frozenset[str]:
        """Outputs that had better stay on the GPU. See `BatchRequest.device_outputs`."""
        on_device = self._batch.on_device
        return _NO_NAMES if on_device is None else on_device.wanted(self._index)

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs of this request alone. See `BatchRequest.feeds`."""
        return self._batch.inputs.feeds_of(self._index, self._start, self.rows)

    def input_datatype(self, name: str) -> DataType:
        """Return an input's declared datatype."""
        return self._batch.inputs.datatype_of(name)

    def respond(
        self, outputs: Sequence[AnyOutput], parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        """Answer this request. See `BatchRequest.respond`."""
        wanted = self.requested_outputs
        batch_frames.check_parameters(parameters or {})
        outputs = self._batch.inputs.own(self._index, outputs)
        placed = [
            self._batch.deliver(self._index, name, datatype, array)
            for name, datatype, array in outputs
            if name in wanted
        ]
        self._batch.answer(self._index, Answer(placed, parameters))

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer this request with an error."""
        self._batch.answer(self._index, Answer(code=code, message=message))

    def sender(self) -> WorkerSender:
        """Return the sender of a decoupled model's responses. See `BatchRequest.sender`."""
        if self._sender is None:
            self._sender = self._batch.open(self._index, self.requested_outputs)
        return self._sender

    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._batch.cancelled(self._index)

    def reschedule(self) -> None:
        """Have this request run once more. See `BatchRequest.reschedule`."""
        self._batch.reschedule(self._index)


class WorkerBatch(Batch):
    """A batch in a slot. The reader thread may replace the slot's output segment while it runs."""

    def __init__(
        self,
        job: batch_frames.Execute,
        slot: Slot,
        model: ModelInfo,
        control: ControlPage,
        ask_for_room: AskForRoom,
        open_requests: OpenRequests | None = None,
        joining: Joining | None = None,
        devices: Devices | None = None,
    ) -> None:
        """`open_requests` is a decoupled model's: senders answer its requests, and its inputs are copied.

        `joining` is that of a model whose batches are not plain arrays. `devices` is there if the backend
        takes tensors on a GPU.
        """
        self._job = job
        self._slot = slot
        self._model = model
        self._control = control
        self._ask_for_room = ask_for_room
        self._allocated: dict[str, tuple[Array, int, int]] = {}  # array, offset, generation
        self._answers: list[Answer | None] = [None] * len(job.rows)
        self._any_answer = False
        self._stacked: list[Placed] | None = None
        self._each: list[Answer | None] | None = None  # in place of `_stacked`, if requests differ
        self._failed: dict[int, Answer] = {}  # by memory that is not the segment's
        self._regions = BatchRegions(job, self._failed) if job.descriptors else None
        self.on_device = None if devices is None else devices.of(job, self._failed)
        self._in_segment = self._regions is None and self.on_device is None  # all inputs and outputs
        self._requests: list[WorkerRequest] | None = None
        self._finished = False
        self.rows = sum(job.rows)
        slot.used = 0
        self._open_requests = open_requests
        self._windows: list[Window] = []
        self._senders: list[Any] = []  # a weak reference to each sender that was asked for
        if open_requests is None:
            memory = slot.segments[INPUT].view
        else:
            self._windows = [open_requests.open(job.batch_id, index) for index in range(len(job.rows))]
            for index, window in enumerate(self._windows):
                # What was cancelled before there was a window to be told of it.
                window.cancelled |= control.cancelled(slot.index, index)
            self._senders = [None] * len(job.rows)
            end = max((gathered.offset + gathered.nbytes for gathered in job.inputs), default=0)
            memory = memoryview(bytearray(slot.segments[INPUT].view[:end]))
        fetch = None if self.on_device is None else self.on_device.on_host
        self.inputs = BatchInputs(job, model, memory, joining, fetch)

    def read_regions(self) -> bool:
        """Find the inputs that are not in the segment; return whether the model has anything to do."""
        if self._in_segment:
            return True
        if self._regions is not None:
            self._regions.read_into(self._slot.segments[INPUT].view)
        if self.on_device is not None:
            self.on_device.open(self.inputs)
        return len(self._failed) < len(self._job.rows)

    @property
    def id(self) -> int:
        """The batch's number."""
        return self._job.batch_id

    @property
    def requests(self) -> Sequence[WorkerRequest]:  # type: ignore[override]
        """The batch's requests, in the order they were queued."""
        if self._requests is None:
            metadata = self._job.metadata or [_NO_METADATA] * len(self._job.rows)
            start = 0
            self._requests = []
            for index, rows in enumerate(self._job.rows):
                self._requests.append(WorkerRequest(self, index, start, rows, metadata[index]))
                start += rows
        return self._requests

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs present in this batch, in the configuration's order."""
        return self.inputs.names

    @property
    def traced(self) -> Mapping[int, Sequence[str]]:
        """The W3C contexts of the requests that are traced, by place."""
        if self._job.metadata is None:
            return _NOT_TRACED
        return {place: each["trace"] for place, each in enumerate(self._job.metadata) if "trace" in each}

    @property
    def wanted_outputs(self) -> frozenset[str]:
        """Outputs that at least one request wants."""
        if self._job.metadata is None:
            return self._model.output_names
        return super().wanted_outputs

    @property
    def declared_outputs(self) -> Sequence[str]:
        """All outputs of the configuration."""
        return [output.name for output in self._model.outputs]

    @property
    def device_inputs(self) -> frozenset[str]:
        """Inputs that lie on the GPU, for all requests."""
        return _NO_NAMES if self.on_device is None else self.on_device.inputs

    @property
    def device_outputs(self) -> frozenset[str]:
        """Outputs that every request would have on the GPU."""
        return _NO_NAMES if self.on_device is None else super().device_outputs

    def cancelled(self, index: int) -> bool:
        """Whether the client of request `index` has gone."""
        if self._windows:
            return self._windows[index].cancelled
        return self._control.cancelled(self._slot.index, index)

    def stacked(self, name: str) -> Array:
        """Return an input of all requests as [rows, *dims]. See `Batch.stacked`."""
        return self.inputs.stacked(name)

    def feeds(self) -> Mapping[str, Array]:
        """Return all inputs as a model gets them that takes whole batches. See `Batch.feeds`."""
        return self.inputs.feeds()

    def allocate(self, name: str, datatype: DataType, shape: Sequence[int]) -> Array:
        """Return an uninitialised output array in shared memory. See `Batch.allocate`."""
        nbytes = element_count(shape) * datatype.size
        offset = self._place(nbytes)
        view = self._slot.segments[OUTPUT].view[offset : offset + nbytes]
        array = np.frombuffer(view, dtype=datatype.numpy).reshape(shape)
        self._allocated[name] = array, offset, self._slot.generation
        return array

    def _place(self, nbytes: int) -> int:
        return self._slot.place(nbytes, self._job.batch_id, self._ask_for_room)

    def put(self, name: str, datatype: DataType, array: Array | DeviceArray) -> Placed:
        """Put an array into the output segment, unless it lies there already."""
        known = self._allocated.get(name)
        if known is not None and known[0] is array and known[2] == self._slot.generation:
            return Placed(name, datatype, array.shape, known[1], array.nbytes)
        if not isinstance(array, np.ndarray):
            return self._fetch(name, datatype, array)
        if datatype is DataType.BYTES:
            packed = pack_bytes(array.ravel().tolist())
            offset = self._place(len(packed))
            self._slot.segments[OUTPUT].view[offset : offset + len(packed)] = packed
            return Placed(name, datatype, array.shape, offset, len(packed))
        nbytes = array.size * datatype.size
        offset = self._place(nbytes)
        if nbytes <= _SMALL and array.dtype == datatype.numpy:
            # One call of numpy's in place of three.
            self._slot.segments[OUTPUT].view[offset : offset + nbytes] = array.tobytes()
        elif nbytes:
            view = self._slot.segments[OUTPUT].view[offset : offset + nbytes]
            np.frombuffer(view, dtype=datatype.numpy).reshape(array.shape)[...] = array
        return Placed(name, datatype, array.shape, offset, nbytes)

    def _fetch(self, name: str, datatype: DataType, array: DeviceArray) -> Placed:
        """Copy an array from the GPU into the output segment."""
        if array.datatype is not datatype:
            return self.put(name, datatype, array.to_host())
        nbytes = array.nbytes
        offset = self._place(nbytes)
        array.copy_to(self._slot.segments[OUTPUT].view[offset : offset + nbytes])
        return Placed(name, datatype, array.shape, offset, nbytes)

    def deliver(self, index: int, name: str, datatype: DataType, array: Array | DeviceArray) -> Placed:
        """Put an output of request `index` where the request wants it; into the segment if it doesn't say."""
        if self._in_segment:
            return self.put(name, datatype, array)
        if self.cancelled(index):
            # Its client has left, and may use a region for something else by now.
            self._failed.setdefault(index, Answer(code=ErrorCode.CANCELLED))
        if index in self._failed:
            return Placed(name, datatype, (0,), 0, 0)  # never sent
        if self.on_device is not None:
            placed = self.on_device.deliver(index, name, datatype, array)
            if placed is not None:
                return placed
        if self._regions is not None:
            nbytes = self._regions.write(index, name, datatype, array)
            if nbytes is not None:
                return Placed(name, datatype, array.shape, 0, nbytes, written=True)
        return self.put(name, datatype, array)

    def answer(self, index: int, answer: Answer) -> None:
        """Record the answer of request `index`.

        Raises RuntimeError at a second one, or if a sender is to answer.
        """
        if self._answers[index] is not None:
            raise RuntimeError("this request has been answered already")
        if self._senders and self._senders[index] is not None:
            raise RuntimeError("this request is answered by its sender")
        self._answers[index] = answer
        self._any_answer = True

    def reschedule(self, index: int) -> None:
        """Record that request `index` is to run again. Raises RuntimeError if it has been answered."""
        sender = self._senders[index]() if self._senders and self._senders[index] is not None else None
        taken = bool(self._senders) and self._senders[index] is not None
        if (
            self._finished
            or self._answers[index] is not None
            or (taken and (sender is None or not sender.abandon()))
        ):
            raise RuntimeError("this request has been answered already")
        if taken:
            self._senders[index] = None
        self.answer(index, Answer(rescheduled=True))

    def open(self, index: int, wanted: Sequence[str]) -> WorkerSender:
        """Leave request `index` to a sender. Raises RuntimeError if that can't be."""
        if self._open_requests is None:
            raise RuntimeError(
                f"model '{self._model.name}' is not decoupled: answer with `respond` or `fail`"
            )
        if self._finished or self._answers[index] is not None:
            raise RuntimeError("this request has been answered already")
        sender = WorkerSender(
            self._open_requests, self._windows[index], self._job.batch_id, index, list(wanted)
        )
        self._senders[index] = weakref.ref(sender)
        return sender

    @property
    def raw(self) -> WorkerRawBatch:
        """The batch as bytes. See `Batch.raw`."""
        return WorkerRawBatch(
            self,
            self._job,
            self._slot,
            self._control,
            self._place,
            decoupled=self._open_requests is not None,
            keeps_bytes=self._in_segment and not self.inputs.reshapes,
        )

    def respond_placed(self, stacked: list[Placed]) -> None:
        """Answer every request with its rows of what lies in the output segment already."""
        for placed in stacked:
            self._check_rows(placed.name, placed)
        self._stacked, self._each = stacked, None

    def respond(self, outputs: Sequence[AnyOutput]) -> None:
        """Answer every request with its rows. See `Batch.respond`."""
        columns: Sequence[Sequence[AnyOutput]] | None = self.inputs.shares(outputs)
        if columns is None and not self._in_segment and self._apart(outputs):
            columns = [self._parts(*output) for output in outputs]
        if columns is not None:
            self._respond_each(columns)
            return
        stacked = []
        for name, datatype, array in outputs:
            self._check_rows(name, array)
            placed = None if self.on_device is None else self.on_device.stacked(name, datatype, array)
            if placed is None:
                placed = self.put(name, datatype, array)
            if datatype is DataType.BYTES and len(self._job.rows) > 1 and isinstance(array, np.ndarray):
                placed.sizes = self._packed_sizes(array)
            stacked.append(placed)
        self._stacked, self._each = stacked, None

    def _apart(self, outputs: Sequence[AnyOutput]) -> bool:
        """Whether some requests want these outputs elsewhere than others do."""
        if self._regions is not None and self._regions.writes:
            return True
        return self.on_device is not None and self.on_device.apart(outputs)

    def _parts(self, name: str, datatype: DataType, array: Array | DeviceArray) -> Sequence[AnyOutput]:
        """Return of a stacked output what is each request's: its rows."""
        self._check_rows(name, array)
        if len(self._job.rows) == 1:
            return [(name, datatype, array)]
        parts: list[AnyOutput] = []
        start = 0
        for rows in self._job.rows:
            end = start + rows
            own = array[start:end] if isinstance(array, np.ndarray) else array.rows(start, end)
            parts.append((name, datatype, own))
            start = end
        return parts

    def _respond_each(self, columns: Sequence[Sequence[AnyOutput]]) -> None:
        """Answer every request that has no answer yet with its own outputs, each where it wants them."""
        each: list[Answer | None] = []
        for index, request in enumerate(self.requests):
            answer = None
            if self._answers[index] is None:
                wanted = request.requested_outputs
                answer = Answer(
                    [self.deliver(index, *column[index]) for column in columns if column[index][0] in wanted]
                )
            each.append(answer)
        self._stacked, self._each = None, each

    def _check_rows(self, name: str, array: Array | DeviceArray | Placed) -> None:
        shape = array.shape
        if self._model.max_batch_size and (not shape or shape[0] != self.rows):
            raise ValueError(
                f"output '{name}' has shape {list(shape)}; a batch of {self.rows} rows needs [{self.rows},"
                " ...]"
            )

    def _packed_sizes(self, array: Array) -> list[int]:
        sizes = []
        start = 0
        for rows in self._job.rows:
            sizes.append(len(pack_bytes(array[start : start + rows].ravel().tolist())))
            start += rows
        return sizes

    def fail(self, code: ErrorCode, message: str) -> None:
        """Answer every request not yet answered with an error."""
        self._stacked = self._each = None
        for index, answer in enumerate(self._answers):
            if self._senders and self._senders[index] is not None:
                self._fail_sender(index, code, message)
            elif answer is None:
                self.answer(index, Answer(code=code, message=message))

    def _fail_sender(self, index: int, code: ErrorCode, message: str) -> None:
        sender = self._senders[index]()
        if sender is not None:
            with contextlib.suppress(SenderClosed):
                sender.fail(code, message)

    def finish(self) -> Result:
        """Return the batch's result; a request that the model left unanswered gets an error."""
        job = self._job
        times = (0, 0, 0)
        self._finished = True
        self._requests = None  # they hold this, and their senders
        failed = self._failed
        if self._regions is not None:
            self._regions.close()
        if self._open_requests is not None:
            return self._finish_decoupled(self._open_requests)
        if self._stacked is not None and not self._any_answer and not failed:
            return Result(job.batch_id, job.slot, len(job.rows), times, stacked=self._stacked)
        answers = []
        start = 0
        for index, (answer, rows) in enumerate(zip(self._answers, job.rows)):
            own = failed.get(index) or answer or self._rows_of(index, start, rows)
            answers.append(failed.get(index, own))
            start += rows
        return Result(job.batch_id, job.slot, len(job.rows), times, answers=answers)

    def _finish_decoupled(self, open_requests: OpenRequests) -> Result:
        """Return a result in which every request that a sender answers is open."""
        job = self._job
        answers = []
        start = 0
        for index, (answer, rows) in enumerate(zip(self._answers, job.rows)):
            if self._senders[index] is not None:
                answers.append(Answer(open=True))
            else:
                open_requests.forget(job.batch_id, index)
                answers.append(answer or self._rows_of(index, start, rows))
            start += rows
        return Result(job.batch_id, job.slot, len(job.rows), (0, 0, 0), answers=answers)

    def _rows_of(self, index: int, start: int, rows: int) -> Answer:
        own = None if self._each is None else self._each[index]
        if own is not None:
            return own
        if self._stacked is None:
            return Answer(
                code=ErrorCode.INTERNAL,
                message=f"model '{self._model.name}' finished the batch without a response to this request",
            )
        parts = []
        for placed in self._stacked:
            if placed.on_device and self.on_device is not None:
                # What was left for all requests in one buffer can't be told to some of them.
                array = self.on_device.rows(index, placed, start, start + rows)
                parts.append(self.put(placed.name, placed.datatype, array))
                continue
            if placed.sizes is not None:
                offset = placed.offset + sum(placed.sizes[:index])
                nbytes = placed.sizes[index]
            else:
                row = placed.nbytes // max(1, self.rows)
                offset, nbytes = placed.offset + start * row, rows * row
            shape = (rows, *placed.shape[1:]) if self._model.max_batch_size else placed.shape
            parts.append(Placed(placed.name, placed.datatype, shape, offset, nbytes))
        return Answer(parts)

    def release(self, result: Result) -> None:
        """Let go of memory on the GPU: the result has been sent."""
        if self.on_device is not None:
            self.on_device.close(result)


class WorkerRawBatch(RawBatch):
    """A batch as bytes: the slot's segments as they are mapped here."""

    def __init__(
        self,
        batch: WorkerBatch,
        job: batch_frames.Execute,
        slot: Slot,
        control: ControlPage,
        place: Callable[[int], int],
        *,
        decoupled: bool,
        keeps_bytes: bool,
    ) -> None:
        """`place` finds so many bytes in the output segment. Inputs of a decoupled model are copies.

        `keeps_bytes`: outputs are sent as they lie in the output segment, cut by rows.
        """
        self._batch = batch
        self._slot = slot
        self._place = place
        self._decoupled = decoupled
        self._keeps_bytes = keeps_bytes
        self.plain = job.metadata is None
        if not self._decoupled:
            self.cancel_flags = control.flags(slot.index)

    def inputs(self) -> Sequence[RawInput]:
        """Return all inputs, those in the segment where they are. See `RawBatch.inputs`."""
        inputs = self._batch.inputs
        return inputs.raw(inputs.address if self._decoupled else self._slot.segments[INPUT].address)

    def room(self, nbytes: int) -> Room:
        """Return memory in the output segment. See `RawBatch.room`."""
        if nbytes == 0:
            return Room.apart(0)
        offset = self._place(nbytes)
        segment = self._slot.segments[OUTPUT]
        return Room(segment.address + offset, nbytes, segment.view[offset : offset + nbytes], offset)

    def respond(self, outputs: Sequence[RawOutput], room: Room) -> None:
        """Answer every request with its rows. See `RawBatch.respond`."""
        if self._keeps_bytes:
            self._batch.respond_placed([self._put(output, room) for output in outputs])
        else:
            self._batch.respond([output.array(room) for output in outputs])

    def respond_to(
        self,
        index: int,
        outputs: Sequence[RawOutput],
        room: Room,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Answer one request. See `RawBatch.respond_to`."""
        request = self._batch.requests[index]
        if not self._keeps_bytes:
            request.respond([output.array(room) for output in outputs], parameters)
            return
        wanted = request.requested_outputs
        batch_frames.check_parameters(parameters or {})
        placed = [self._put(output, room) for output in outputs if output.name in wanted]
        self._batch.answer(index, Answer(placed, parameters))

    def _put(self, output: RawOutput, room: Room) -> Placed:
        """Put an output's bytes into the output segment, unless they lie there already.

        If the segment has been replaced since, the room was copied with it.
        """
        if output.at >= 0 and room.nbytes:
            offset = room.offset + output.at
        else:
            offset = self._place(output.nbytes)
            self._slot.segments[OUTPUT].view[offset : offset + output.nbytes] = output.data
        return Placed(output.name, output.datatype, output.shape, offset, output.nbytes)
