"""One lane of a TensorRT model: a stream, the contexts of its profiles, buffers and captured graphs.

Theory of operation. An execution brings its inputs to the GPU on the lane's stream, enqueues the engine
there, and leaves the outputs in buffers of the lane; the backend copies from those what the host wants.
Buffers grow and stay. An input that lies on the GPU already, in one piece and where TensorRT may read it, is
read there.

Profiles. There is an execution context for each profile of the instance. A batch goes to the profile that
takes its shapes, the one whose best shapes are nearest.

Graphs. Where they are asked for, executions of certain shapes are captured at load. A graph holds addresses:
so the lane's buffers are made as large as the profiles can want first, and inputs of a graph are always
copied into them. A graph for more rows may serve fewer, with zeros in the rest.

Shape tensors are read and written in the host's memory, when shapes are inferred and again during the
execution: the arrays live until that is over. Where the size of an output follows from elements, TensorRT
asks for memory during the execution (`_Growing`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.tensors import element_count
from engine.worker.backends.base import LoadError
from engine.worker.devices.arrays import DeviceArray
from engine.worker.devices.cuda import CudaError
from engine.worker.devices.streams import Buffer, Graph, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.tensorrt.graphs import Spec
    from engine.worker.backends.tensorrt.parameters import Options
    from engine.worker.backends.tensorrt.ports import Port
    from engine.worker.backends.tensorrt.reading import Opened

    Source = Array | list[DeviceArray]
    Shape = tuple[int, ...]

_ALIGNED = 256  # bytes: what TensorRT wants of an address


class _Captured:
    __slots__ = ("graph", "outputs", "shapes", "spec")

    def __init__(
        self, graph: Graph, spec: Spec, shapes: Mapping[str, Shape], outputs: dict[str, Shape]
    ) -> None:
        self.graph = graph
        self.spec = spec
        self.shapes = shapes
        self.outputs = outputs

    def serves(self, shapes: Mapping[str, Shape]) -> bool:
        if not self.spec.rows:
            return shapes == self.shapes
        return all(
            shape[1:] == self.shapes[name][1:] and self.spec.least <= shape[0] <= self.spec.rows
            for name, shape in shapes.items()
        )


class Lane:
    """See the module. One thread has it at a time, within the context of its device."""

    def __init__(self, opened: Opened, model: ModelInfo, options: Options) -> None:
        self._opened = opened
        self._device = model.device_id
        self._instance = model.instance_name
        self._log = model.log
        self._driver = opened.driver
        self.inputs = [port for port in opened.ports if port.is_input]
        self.outputs = [port for port in opened.ports if not port.is_input]
        self._stream = Stream(self._driver, priority=options.priority, spins=options.spins)
        self.copies = self._stream
        if options.copies_apart:
            self.copies = Stream(self._driver, priority=options.priority, spins=options.spins)
        self._buffers = {port.name: Buffer(self._driver, self._device) for port in opened.ports}
        self._held: dict[str, Array] = {}
        self._growing: dict[str, Any] = {}
        self._graphs: dict[int, list[_Captured]] = {}
        self._contexts = {profile: self._context(profile, options) for profile in options.profiles}
        self._stream.wait()

    def _context(self, profile: int, options: Options) -> Any:
        strategies = self._opened.module.ExecutionContextAllocationStrategy
        context = self._opened.engine.create_execution_context(getattr(strategies, options.strategy))
        if context is None or not context.set_optimization_profile_async(profile, self._stream.handle):
            raise LoadError(
                f"unable to create TensorRT context for '{self._instance}', profile {profile}:"
                f" {self._opened.said()}"
            )
        return context

    def close(self) -> None:
        """Give back what the lane has on the device."""
        for captured in self._graphs.values():
            for each in captured:
                each.graph.close()
        self._graphs.clear()
        self._contexts.clear()
        self._growing.clear()
        for buffer in self._buffers.values():
            buffer.close()
        if self.copies is not self._stream:
            self.copies.close()
        self._stream.close()

    # -- executions

    def run(self, sources: Mapping[str, Source], shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Start an execution of inputs that have these shapes in the engine; return the outputs' shapes.

        The outputs are ready once what is given to `copies` afterwards is done. Raises InvalidArgument for
        shapes that the engine does not take, and Internal for what else TensorRT refuses.
        """
        profile = self._profile(sources, shapes)
        captured = next((each for each in self._graphs.get(profile, ()) if each.serves(shapes)), None)
        if captured is not None:
            found = self._launch(captured, sources, shapes)
        else:
            found = self._enqueue(self._contexts[profile], sources, shapes)
        if self.copies is not self._stream:
            self.copies.after(self._stream)
        return found

    def _enqueue(
        self, context: Any, sources: Mapping[str, Source], shapes: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        for port in self.inputs:
            source = sources[port.name]
            address = self._hold(port, source) if port.on_host else self._place(port, source, in_buffer=False)
            self._set_input(context, port, shapes[port.name], address)
        found = self._set_outputs(context)
        self._execute(context)
        if self._growing:
            self._stream.wait()
            found.update({name: each.shape for name, each in self._growing.items()})
        return found

    def _launch(
        self, captured: _Captured, sources: Mapping[str, Source], shapes: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        rows = 0
        for port in self.inputs:
            self._place(port, sources[port.name], in_buffer=True)
            shape, whole = shapes[port.name], captured.shapes[port.name]
            if shape != whole:
                rows = shape[0]
                used = _nbytes(port, shape)
                rest = _nbytes(port, whole) - used
                self._stream.zero(self._buffers[port.name].address + used, rest)
        self._stream.launch(captured.graph)
        if not rows:
            return captured.outputs
        return {name: (rows, *shape[1:]) for name, shape in captured.outputs.items()}

    def _place(self, port: Port, source: Source, *, in_buffer: bool) -> int:
        """Bring an input to the device; return its address there."""
        buffer = self._buffers[port.name]
        if not isinstance(source, list):
            address = buffer.reserve(source.nbytes)
            if source.nbytes:
                self._held[port.name] = source
                self._stream.to_device(source.ctypes.data, address, source.nbytes)
            return address
        alone = source[0] if len(source) == 1 else None
        if alone is not None and alone.nbytes and not in_buffer and not alone.address % _ALIGNED:
            return alone.address
        at = address = buffer.reserve(sum(part.nbytes for part in source))
        for part in source:
            if part.nbytes:
                self._stream.within(part.address, at, part.nbytes)
                at += part.nbytes
        return address

    def _hold(self, port: Port, source: Source) -> int:
        """Keep a shape tensor in memory of the host, and return its address."""
        array = source if not isinstance(source, list) else _fetched(source)
        self._held[port.name] = np.array(array, order="C", ndmin=1)
        return int(self._held[port.name].ctypes.data)

    def _set_input(self, context: Any, port: Port, shape: Shape, address: int) -> None:
        if not context.set_input_shape(port.name, shape) or not context.set_tensor_address(
            port.name, address
        ):
            raise InvalidArgument(
                f"request specifies invalid shape for input '{port.name}' for {self._instance}. Error"
                " details:"
                f" {self._opened.said()}"
            )

    def _set_outputs(self, context: Any) -> dict[str, Shape]:
        """Give each output memory; return the shapes of those whose size is known beforehand."""
        missing = context.infer_shapes()
        if missing:
            raise Internal(f"failed to specify the dimensions of {', '.join(missing)}: {self._opened.said()}")
        found: dict[str, Shape] = {}
        for port in self.outputs:
            shape = tuple(context.get_tensor_shape(port.name))
            if port.on_host:
                self._held[port.name] = np.zeros(max(1, element_count(shape)), _type(port).numpy)
                context.set_tensor_address(port.name, int(self._held[port.name].ctypes.data))
                found[port.name] = shape
            elif min(shape, default=0) < 0:
                if port.name not in self._growing:
                    self._growing[port.name] = _growing(self._opened.module, self._buffers[port.name])
                context.set_output_allocator(port.name, self._growing[port.name])
            else:
                address = self._buffers[port.name].reserve(_nbytes(port, shape))
                context.set_tensor_address(port.name, address)
                found[port.name] = shape
        return found

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.handle):
            self._stream.wait()  # raises if it is the device that has failed
            raise Internal(f"TensorRT failed to run '{self._instance}': {self._opened.said()}")

    # -- results

    def address(self, name: str) -> int:
        """Return where an output lies on the device."""
        return self._buffers[name].address

    def on_host(self, name: str) -> Array | None:
        """Return the elements of an output that TensorRT has written to host memory, once it is done."""
        return self._held.get(name)

    def wait(self) -> None:
        """Return once the execution and what was given to `copies` is done. Raises CudaError."""
        self.copies.wait()
        self._held.clear()

    def abandon(self) -> None:
        """Wait for whatever a failed execution may have started."""
        for stream in (self._stream, self.copies):
            with contextlib.suppress(CudaError):  # why the execution has failed is told already
                stream.wait()
        self._held.clear()

    # -- profiles

    def _profile(self, sources: Mapping[str, Source], shapes: Mapping[str, Shape]) -> int:
        fitting = []
        misfits: dict[int, tuple[str, str]] = {}
        for profile in self._contexts:
            wrong = self._misfit(profile, sources, shapes)
            if wrong is None:
                fitting.append(profile)
            else:
                misfits[profile] = wrong
        if not fitting:
            first = next(iter(self._contexts))
            name, details = misfits[first]
            raise InvalidArgument(
                f"request specifies invalid shape for input '{name}' for {self._instance}. Error details:"
                f" {details}"
            )
        if len(fitting) == 1:
            return fitting[0]
        return min(fitting, key=lambda profile: self._distance(profile, shapes))

    def _misfit(
        self, profile: int, sources: Mapping[str, Source], shapes: Mapping[str, Shape]
    ) -> tuple[str, str] | None:
        for port in self.inputs:
            wrong = port.misfit(profile, shapes[port.name])
            if not wrong and port.on_host and port.values:
                wrong = _value_misfit(port, profile, sources[port.name])
            if wrong:
                return port.name, wrong
        return None

    def _distance(self, profile: int, shapes: Mapping[str, Shape]) -> int:
        return sum(
            abs(size - best)
            for port in self.inputs
            for size, best in zip(shapes[port.name], port.bounds[profile][1])
        )

    # -- graphs

    def capture(self, specs: Sequence[Spec]) -> None:
        """Capture an execution for each of these, in every profile that takes it."""
        if not self._capturable():
            return
        for profile, context in self._contexts.items():
            self._reserve(profile, context)
        for profile, context in self._contexts.items():
            for spec in specs:
                shapes = spec.shapes(self.inputs, profile)
                if shapes is not None:
                    self._capture(profile, context, spec, shapes)
                elif spec.inputs:
                    self._log(
                        "warning", f"CUDA graph of {spec.rows} rows: profile {profile} has no such inputs"
                    )
        for captured in self._graphs.values():
            captured.sort(key=lambda each: each.spec.rows)

    def _capturable(self) -> bool:
        """Whether shapes alone determine an execution."""
        by_values = [port.name for port in self._opened.ports if port.on_host or port.is_shape]
        if by_values:
            self._log("warning", f"no CUDA graphs: '{by_values[0]}' is a shape tensor, whose elements count")
        return not by_values

    def _reserve(self, profile: int, context: Any) -> None:
        """Make the buffers as large as a profile can want: a graph holds their addresses."""
        for port in self.inputs:
            largest = tuple(port.bounds[profile][2])
            address = self._buffers[port.name].reserve(_nbytes(port, largest))
            self._set_input(context, port, largest, address)
        self._set_outputs(context)

    def _capture(self, profile: int, context: Any, spec: Spec, shapes: Mapping[str, Shape]) -> None:
        for port in self.inputs:
            self._set_input(context, port, shapes[port.name], self._buffers[port.name].address)
        outputs = self._set_outputs(context)
        if self._growing:
            self._log("warning", "no CUDA graphs: the size of an output is only known after an execution")
            return
        self._execute(context)  # what TensorRT does once for new shapes must not be captured
        self._stream.wait()
        able = getattr(context, "is_stream_capturable", None)  # TensorRT-RTX compiles kernels when it runs
        if able is not None and not able(self._stream.handle):
            self._log(
                "warning", f"no CUDA graph of {spec.rows} rows: TensorRT says that it can't be captured"
            )
            return
        try:
            with self._stream.capture() as graph:
                self._execute(context)
        except (Internal, RuntimeError) as error:
            # The execution works without; Triton goes on as well.
            self._log("warning", f"no CUDA graph of {spec.rows} rows: {error}")
            return
        self._graphs.setdefault(profile, []).append(_Captured(graph, spec, shapes, outputs))


def _value_misfit(port: Port, profile: int, source: Source) -> str:
    low, _, high = port.values[profile]
    values = np.ravel(source if not isinstance(source, list) else _fetched(source)).tolist()
    for at, (value, least, most) in enumerate(zip(values, low, high)):
        if not least <= value <= most:
            return (
                f"The shape value at index {at} is expected to be in range from {least} to {most}, Got:"
                f" {value}"
            )
    return ""


def _fetched(parts: Sequence[DeviceArray]) -> Array:
    return np.concatenate([part.to_host().reshape(-1) for part in parts])


def _type(port: Port) -> DataType:
    found = port.datatype
    if found is None:
        raise Internal(f"'{port.name}' is of TensorRT's type {port.type_name}, which has no size here")
    return found


def _nbytes(port: Port, shape: Sequence[int]) -> int:
    return element_count(shape) * _type(port).size


def _growing(module: Any, buffer: Buffer) -> Any:
    """Return what gives TensorRT memory for an output whose size it only learns while it computes."""

    class Growing(module.IOutputAllocator):  # type: ignore[misc]  # known here only
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.shape: Shape = ()

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            del name, memory, alignment  # the driver aligns to 256 bytes
            return buffer.reserve(size)

        def reallocate_output_async(
            self, name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            del stream
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            del name
            self.shape = tuple(shape)

    return Growing()
