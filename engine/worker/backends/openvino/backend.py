"""Models through OpenVINO: its own IR, ONNX, TensorFlow, PaddlePaddle and TensorFlow Lite.

Theory of operation. Names, datatypes and shapes are compared with the configuration once, at load. There is
one compiled model, and a `_Run` for each lane: an infer request, which one execution has at a time. An
execution lays OpenVINO's tensors over the batch's memory, inputs and outputs alike, and nothing is copied.
Where the size of an output is only known afterwards, OpenVINO writes into memory of its own, and the batch
copies that out.

OpenVINO does not write an output that is an input as it came: to set the tensor of one sets the other's. So
such an output is never set, and the batch copies it from the input.

OpenVINO keeps the addresses of an infer request's tensors and nothing that keeps their memory alive. So every
execution sets them all, those of outputs that no request wants included.

Each execution is a `start_async` and a `wait`, so that it runs on one of OpenVINO's streams. `infer` computes
on the calling thread as well, which belongs to none, and with one thread it keeps errors to itself. A model of
one lane and one thread has no streams: `start_async` then computes, on the calling thread, and saves two
switches of threads.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the
error. Where shapes within a model depend on its inputs' elements, a failed execution leaves its shapes in the
compiled model, and executions of the same input shapes then fail that would not have. So each lane of such a
model has a compiled model to itself, and makes a new one after a failure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.errors import Internal, TritiumError
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.openvino import completing, reading
from engine.worker.backends.openvino.parameters import Options
from engine.worker.backends.openvino.ports import check_inputs, check_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.datatypes import DataType
    from actors.values.tensors import Array
    from engine.worker.backends.base import Batch, ModelInfo, Output
    from engine.worker.backends.openvino.ports import Port
    from engine.worker.backends.openvino.reading import Maker

    Allocate = Callable[[str, DataType, Sequence[int]], Array]


class OpenVinoBackend(Backend):
    """Runs `model.xml`, or another file that OpenVINO reads and `default_model_filename` names."""

    name = "openvino"
    default_artifact = reading.DEFAULT_ARTIFACT
    runs_model_code = False  # but for a library of operators, which is refused by its parameter
    completes_the_complete = False

    @classmethod
    def prepare(cls) -> None:
        """Import OpenVINO. See `Backend.prepare`."""
        import openvino  # noqa: F401

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Fill in a missing side and the batch size from the model's file. See `completing`."""
        import openvino

        _, graph = reading.read(openvino, model, Options(model))
        return completing.complete(openvino, graph, model)

    def load(self, model: ModelInfo) -> None:
        """Compile the model and check it against the configuration."""
        import openvino

        if model.kind != "CPU":
            raise LoadError(
                f"unable to load model '{model.name}', Triton OpenVINO backend supports only Kind CPU"
                " and AUTO;"
                " parameter 'TARGET_DEVICE' names another device"
            )
        options = Options(model)
        for text in options.ineffective:
            model.log("warning", f"model '{model.name}': {text}")
        core, graph = reading.read(openvino, model, options)
        reading.fit(graph, model, options)
        self._inputs = {port.name: port for port in check_inputs(model, graph.inputs)}
        self._outputs = check_outputs(model, graph.outputs)
        make = reading.compiler(core, graph, model, options)
        _warn_of_emulation(core, model, options)
        self._tensor = openvino.Tensor
        self._batches = model.max_batch_size > 0
        self._exact = model.max_batch_size if options.fixed_batch else 0
        self._pads = options.pads
        self._idle = deque(_Run(make) for _ in range(model.lanes))
        if self._idle[0].stateful:
            model.log(
                "warning",
                f"model '{model.name}' has variables of its own; they are reset before every execution, since"
                " the next request may be another client's ('sequence_batching.state' keeps state)",
            )
        self._placing = True

    def unload(self) -> None:
        """Drop the infer requests, and with them the compiled model."""
        self._idle.clear()

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        run = self._idle.pop()  # there is one for each lane
        try:
            try:
                results = self._compute(run, batch.feeds(), batch.wanted_outputs, batch.rows, batch.allocate)
            except TritiumError as error:
                if len(batch.requests) == 1:
                    batch.fail(error.code, error.message)
                else:
                    self._execute_apart(run, batch)
                return
            batch.respond(results)
        finally:
            self._idle.append(run)

    def _execute_apart(self, run: _Run, batch: Batch) -> None:
        for request in batch.requests:
            wanted = frozenset(request.requested_outputs)
            try:
                request.respond(self._compute(run, request.feeds(), wanted, request.rows, None))
            except TritiumError as error:
                request.fail(error.code, error.message)

    def _compute(
        self,
        run: _Run,
        inputs: Mapping[str, Array],
        wanted: frozenset[str],
        rows: int,
        allocate: Allocate | None,
    ) -> list[Output]:
        """Return the outputs of one execution. Raises Internal for a failure of OpenVINO's."""
        if self._exact and rows != self._exact:
            inputs = self._filled_up(inputs, rows)
        feeds = [(self._inputs[name], array) for name, array in inputs.items()]
        places: dict[int, Array] = {}
        if allocate is not None and self._placing and (not self._exact or rows == self._exact):
            places = self._places(run, wanted, rows, allocate)
        try:
            self._run(run, feeds, places)
        except Exception as error:  # OpenVINO raises RuntimeError for everything
            if not places:
                raise Internal(f"openvino error: {reading.describe(error)}") from error
            # Either the request is at fault, and it fails again, or the shapes of outputs are.
            places = {}
            try:
                self._run(run, feeds, places)
            except Exception as again:
                raise Internal(f"openvino error: {reading.describe(again)}") from again
            self._placing = False
        given = {port.index: array for port, array in feeds}
        passed = {at: given[source] for at, source in run.passed.items()}
        return [
            self._output(run, port, places, passed, rows) for port in self._outputs if port.name in wanted
        ]

    def _places(self, run: _Run, wanted: frozenset[str], rows: int, allocate: Allocate) -> dict[int, Array]:
        """Return memory of the batch for the outputs whose size is known, by their place in the model."""
        lead = [rows] if self._batches else []
        return {
            port.index: allocate(port.name, port.datatype, [*lead, *port.row_shape])
            for port in self._outputs
            if port.name in wanted
            and port.row_shape is not None
            and not port.scalar
            and port.index not in run.passed
        }

    def _run(self, run: _Run, feeds: Sequence[tuple[Port, Array]], places: Mapping[int, Array]) -> None:
        inputs = [(port.index, self._over(port, array)) for port, array in feeds]
        outputs = {
            port.index: self._over(port, places[port.index]) for port in self._outputs if port.index in places
        }
        run.infer(inputs, outputs)

    def _over(self, port: Port, array: Array) -> Any:
        """Return a tensor of OpenVINO's over the memory of an array, which has to outlive it."""
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return self._tensor(array, () if port.scalar else array.shape, port.element_type)

    def _output(
        self,
        run: _Run,
        port: Port,
        places: Mapping[int, Array],
        passed: Mapping[int, Array],
        rows: int,
    ) -> Output:
        array = places.get(port.index)
        if array is not None and run.shape(port.index) == array.shape:
            return port.name, port.datatype, array
        array = passed[port.index] if port.index in passed else run.array(port.index, port.datatype)
        if port.scalar:
            array = array.reshape(1)
        if self._exact and rows != self._exact:
            array = array[:rows]
        return port.name, port.datatype, array

    def _filled_up(self, inputs: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
        """Return the inputs with as many rows as the model is made for; those that are added are zeros."""
        if not self._pads:
            raise Internal(
                f"expected requests with batch size '{self._exact}', got '{rows}'... this error can be"
                " avoided by"
                " setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a"
                " performance cost."
            )
        filled = {}
        for name, array in inputs.items():
            filled[name] = np.zeros((self._exact, *array.shape[1:]), array.dtype)
            filled[name][:rows] = array
        return filled


class _Run:
    """One infer request. One thread has it at a time.

    `passed` are the outputs that are an input as it came, each with that input's place.
    """

    def __init__(self, make: Maker) -> None:
        self._make = make
        self._renew()
        self.stateful = bool(self._request.query_state())

    def _renew(self) -> None:
        self._request = request = self._make()
        # OpenVINO gives an input and an output the same names only where they are one tensor.
        self.passed = {
            at: source
            for at, output in enumerate(request.model_outputs)
            for source, given in enumerate(request.model_inputs)
            if output.names & given.names
        }
        # Memory of OpenVINO's own, which grows as an output does.
        self._own = {
            at: request.get_output_tensor(at)
            for at in range(len(request.model_outputs))
            if at not in self.passed
        }
        self._spoilt = False

    def infer(self, inputs: Sequence[tuple[int, Any]], outputs: Mapping[int, Any]) -> None:
        """Compute. Outputs that are not given go to memory of the request's own."""
        if self._spoilt:
            self._renew()
        request = self._request
        try:
            for at, tensor in inputs:
                request.set_input_tensor(at, tensor)
            for at, own in self._own.items():
                request.set_output_tensor(at, outputs.get(at, own))
            if self.stateful:
                request.reset_state()
            request.start_async()
            request.wait()
        except Exception:
            self._spoilt = self._make.again
            raise

    def shape(self, at: int) -> tuple[int, ...]:
        """Return the shape that an output has got."""
        # That of its array: to take a shape of OpenVINO's apart costs a C++ exception, which is 10 µs.
        shape: tuple[int, ...] = self._request.get_output_tensor(at).data.shape
        return shape

    def array(self, at: int, datatype: DataType) -> Array:
        """Return an output that lies in the request's own memory; the next execution overwrites it."""
        data: Array = self._own[at].data
        return data.view(datatype.numpy) if data.dtype != datatype.numpy else data


def _warn_of_emulation(core: Any, model: ModelInfo, options: Options) -> None:
    if {**options.properties, **options.cpu}.get(
        "INFERENCE_PRECISION_HINT"
    ) != "bf16" or options.target != "CPU":
        return
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        model.log(
            "warning",
            f"model '{model.name}': this CPU has no bf16, which is emulated and takes far longer than f32",
        )
