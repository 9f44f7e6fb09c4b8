"""Tensors of one batch that lie on a GPU: where its inputs are read, and where its outputs are left.

Only a worker whose backend takes such tensors imports this. What goes wrong with memory of another process is
the trouble of the request that named it, and of no other of its batch. Whatever can go by host memory instead
does so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from actors.values.errors import ErrorCode
from actors.values.regions import too_small
from actors.values.tensors import element_count
from actors.wire import frames
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Answer, Placed
from actors.wire.device_spans import DEVICE, DeviceSpans
from engine.worker.backends.base import LoadError
from engine.worker.devices import cuda
from engine.worker.devices.arrays import HOST_DEVICES, DeviceArray
from engine.worker.devices.cuda import CudaError
from engine.worker.devices.exports import POOL_BYTES, Exports
from engine.worker.devices.imports import Imports
from engine.worker.regions import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeGuard

    from actors.values.datatypes import DataType
    from actors.values.tensors import Array, DevicePlace
    from actors.wire.batch_frames import Execute, Result
    from engine.worker.backends.base import AnyOutput, ModelInfo
    from engine.worker.devices.exports import Buffer
    from engine.worker.devices.imports import Opened
    from engine.worker.joining import BatchInputs

POOL_KEY = "tritium.gpu_tensor_pool_bytes"
"""The model's parameter for the bytes of its workers' buffers, each."""


class Devices:
    """Device memory that this worker shares with other processes: its own buffers, and those of others."""

    def __init__(self, model: ModelInfo, send: Callable[[bytes], None]) -> None:
        def tell(buffer: Buffer) -> None:
            send(frames.encode_exported(buffer.number, buffer.device, buffer.nbytes, buffer.handle))

        self.exports = Exports(
            cuda.driver,
            tell,
            lambda message: model.log("warning", message),
            most_bytes=_pool_bytes(model),
        )
        self.imports = Imports(cuda.driver)
        self.device = model.device_id

    def on_released(self, packet: bytes) -> None:
        """Take back what the server says that nothing reads any longer."""
        self.exports.give_back(frames.decode_released(packet))

    def on_unshared(self, packet: bytes) -> None:
        """Close what the server says is to be open no longer."""
        self.imports.forget(frames.decode_unshared(packet))

    def of(self, job: Execute, failed: dict[int, Answer]) -> BatchDevices | None:
        """Return what of a batch lies on a GPU, or is to lie there; None if nothing does.

        `failed` takes the answers of requests that fail by that, by their places in the batch.
        """
        if job.metadata is None or not any(DEVICE in metadata for metadata in job.metadata):
            return None
        return BatchDevices(self, [DeviceSpans(metadata) for metadata in job.metadata], failed)

    def close(self) -> None:
        """Give all memory back: the worker ends."""
        self.imports.close()
        self.exports.close()


class BatchDevices:
    """What of one batch lies on a GPU. `close` it once the batch is over."""

    def __init__(self, devices: Devices, spans: Sequence[DeviceSpans], failed: dict[int, Answer]) -> None:
        self._devices = devices
        self._spans = spans
        self._failed = failed
        self._found: dict[str, list[DeviceArray | None]] = {}  # of each input, the requests' own
        self._given: frozenset[str] = frozenset()  # inputs that the backend may have as they are
        self._lent: dict[int, DeviceArray] = {}  # by the buffers' numbers
        self.writes = any(each.targets for each in spans)
        """Whether an output of any request belongs into a region."""
        every = [each.outputs for each in spans]
        self._by_all = frozenset.intersection(*every)  # outputs that every request would have on the GPU
        self._by_some = frozenset().union(*every) - self._by_all

    # -- inputs

    def open(self, inputs: BatchInputs) -> None:
        """Find the inputs of all requests. Those whose inputs can't be reached have failed."""
        for name in inputs.on_device:
            datatype = inputs.datatype_of(name)
            self._found[name] = [
                self._find(index, name, datatype, shape) for index, shape in enumerate(inputs.shapes[name])
            ]
        self._given = frozenset(self._found) - inputs.reshaped

    def _find(self, index: int, name: str, datatype: DataType, shape: Sequence[int]) -> DeviceArray | None:
        spans = self._spans[index]
        place = spans.inputs.get(name)
        needed = element_count(shape) * datatype.size
        try:
            if place is None:
                raise CudaError("the server has not said where it lies")
            if place.nbytes != needed:
                raise CudaError(f"{datatype}{list(shape)} takes {needed} bytes, and there are {place.nbytes}")
            owner, address = self._reach(place)
            return DeviceArray(owner, address, shape, datatype, device_id=place.device)
        except CudaError as error:
            self._unread(index, name, error)
            return None

    def _unread(self, index: int, name: str, error: CudaError) -> None:
        region = self._spans[index].regions.get(name)
        if region is None:
            why = f"input '{name}' can't be read from the GPU, where another model has left it: {error}"
            answer = Answer(code=ErrorCode.UNAVAILABLE, message=why)
        else:
            why = f"input '{name}' can't be read from CUDA shared memory region '{region}': {error}"
            answer = Answer(code=ErrorCode.INTERNAL, message=why, trouble=READ_FAILED)
        self._failed.setdefault(index, answer)

    def _reach(self, place: DevicePlace) -> tuple[object, int]:
        """Return the address of a place in another process's memory, and what keeps it open.

        Raises CudaError.
        """
        # A process can't open what is its own: a model may be given its own output.
        found: Buffer | Opened | None = self._devices.exports.find(place.handle)
        if found is None:
            found = self._devices.imports.take(place.device, place.handle, time.monotonic())
        end = place.at + place.nbytes
        if end > found.nbytes:
            raise CudaError(f"it would end at byte {end}, and its allocation has {found.nbytes} bytes")
        return found, found.address + place.at

    def input(self, index: int, name: str) -> DeviceArray | None:
        """Return an input of request `index`; None if it is in host memory, or can't be read."""
        return self._found[name][index] if name in self._given else None

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that `input` gives for all requests."""
        return frozenset(name for name in self._given if None not in self._found[name])

    def on_host(self, name: str, sizes: Sequence[int]) -> memoryview:
        """Return a copy of an input of all requests, one after the other, which have `sizes` bytes.

        What can't be read is zeros. Raises RuntimeError once the batch is over.
        """
        if name not in self._found:
            raise RuntimeError(f"input '{name}' was on a GPU while its batch was executed, and that is over")
        memory = memoryview(bytearray(sum(sizes)))
        start = 0
        for index, (array, size) in enumerate(zip(self._found[name], sizes)):
            if array is not None:
                try:
                    array.copy_to(memory[start : start + size])
                except CudaError as error:
                    self._unread(index, name, error)
            start += size
        return memory

    # -- outputs

    def wanted(self, index: int) -> frozenset[str]:
        """Return the outputs that request `index` would have on the GPU: in a buffer, or in a region."""
        return self._spans[index].outputs.union(self._spans[index].targets)

    def apart(self, outputs: Sequence[AnyOutput]) -> bool:
        """Whether requests want these outputs in different places."""
        return self.writes or any(
            name in self._by_some and isinstance(array, DeviceArray) for name, _, array in outputs
        )

    def deliver(self, index: int, name: str, datatype: DataType, array: Array | DeviceArray) -> Placed | None:
        """Leave an output of request `index` where the request wants it on a GPU.

        Returns None where it is to go by host memory. If it can't be written to a region, the request has
        failed.
        """
        spans = self._spans[index]
        if name in spans.targets:
            return self._to_region(index, name, datatype, array)
        if name in spans.outputs:
            return self._lend(name, datatype, array)
        return None

    def stacked(self, name: str, datatype: DataType, array: Array | DeviceArray) -> Placed | None:
        """Leave an output of all requests in a buffer, if they all want it there. See `deliver`."""
        return self._lend(name, datatype, array) if name in self._by_all else None

    def rows(self, index: int, placed: Placed, start: int, end: int) -> Array:
        """Return rows of what `stacked` has left, which are request `index`'s, in host memory.

        If they can't be read, the request has failed.
        """
        array = self._lent[placed.offset].rows(start, end)
        try:
            return array.to_host()
        except CudaError as error:
            why = f"output '{placed.name}' can't be read from the GPU: {error}"
            self._failed.setdefault(index, Answer(code=ErrorCode.INTERNAL, message=why))
            return np.empty(array.shape, array.datatype.numpy)

    def _lend(self, name: str, datatype: DataType, array: Array | DeviceArray) -> Placed | None:
        # The server expects a worker's buffers on the GPU of its instance.
        if not _lies_on(array, self._devices.device, datatype) or not array.nbytes:
            return None
        exports = self._devices.exports
        buffer = exports.take(array.device_id, array.nbytes)
        if buffer is None:
            return None
        try:
            cuda.driver().copy_within(array.device_id, array.address, buffer.address, array.nbytes)
        except CudaError:  # the way by the host says what is wrong, if that doesn't work either
            exports.give_back(buffer.number)
            return None
        self._lent[buffer.number] = DeviceArray(
            buffer, buffer.address, array.shape, datatype, device_id=buffer.device
        )
        return Placed(name, datatype, array.shape, buffer.number, array.nbytes, on_device=True)

    def _to_region(
        self, index: int, name: str, datatype: DataType, array: Array | DeviceArray
    ) -> Placed | None:
        place, region = self._spans[index].targets[name]
        source = array if _lies_on(array, place.device, datatype) else bytes_of(datatype, array)
        nbytes = source.nbytes
        if nbytes > place.nbytes:
            self._unwritten(index, too_small(name, place.nbytes, nbytes))
        elif nbytes:
            try:
                opened, address = self._reach(place)
            except CudaError:  # the server reaches it by another process, and says what is wrong
                return None
            try:
                _copy(source, place.device, address)
                del opened  # it was open until here
            except CudaError as error:
                what = f"output '{name}' can't be written to CUDA shared memory region '{region}'"
                self._unwritten(index, f"{what}: {error}")
        return Placed(name, datatype, array.shape, 0, nbytes, written=True)

    def _unwritten(self, index: int, why: str) -> None:
        self._failed.setdefault(index, Answer(code=ErrorCode.INTERNAL, message=why, trouble=WRITE_FAILED))

    # -- the end

    def close(self, result: Result) -> None:
        """Keep no memory but that in which the `result` tells of outputs."""
        told = {placed.offset for placed in _placed(result) if placed.on_device}
        for number in self._lent.keys() - told:
            self._devices.exports.give_back(number)
        self._lent, self._found, self._given = {}, {}, frozenset()


def _lies_on(array: Array | DeviceArray, device: int, datatype: DataType) -> TypeGuard[DeviceArray]:
    """Whether an output lies on this GPU as it is to be left."""
    return (
        isinstance(array, DeviceArray)
        and array.datatype is datatype
        and array.device_id == device
        and array.device not in HOST_DEVICES
    )


def _pool_bytes(model: ModelInfo) -> int:
    said = model.parameters.get(POOL_KEY, POOL_BYTES)
    try:
        return int(said)
    except ValueError:
        raise LoadError(
            f"parameter '{POOL_KEY}' is a number of bytes, like {POOL_BYTES}, not {said!r}"
        ) from None


def _copy(source: DeviceArray | memoryview, device: int, target: int) -> None:
    if isinstance(source, DeviceArray):
        cuda.driver().copy_within(device, source.address, target, source.nbytes)
    else:
        host = np.frombuffer(source, np.uint8).ctypes.data
        cuda.driver().copy_to_device(device, host, target, source.nbytes)


def _placed(result: Result) -> Iterator[Placed]:
    yield from result.stacked or ()
    for answer in result.answers or ():
        yield from answer.outputs
