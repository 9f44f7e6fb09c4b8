"""TensorFlow models: SavedModels by their signatures, and GraphDefs.

Theory of operation. Both become a graph in a session of TensorFlow's, as in Triton's backend, because a
session is what the parameters speak of: its threads, its devices, its share of instances. A set of outputs
is a callable of that session, made when it is asked for the first time: arrays go in, arrays come out, and
nothing is looked up by name. Text is `bytes` on both sides.

TensorFlow reads a batch's tensors where they lie, if they are aligned as it likes. It never writes into
them: it does not own that memory. Outputs are in its memory, and the batch copies them out.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the
error.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, TritiumError
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.tensorflow import completing, reading
from engine.worker.backends.tensorflow.parameters import TensorFlowOptions
from engine.worker.backends.tensorflow.ports import check_inputs, check_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.base import Batch, ModelInfo, Output
    from engine.worker.backends.tensorflow.ports import TensorFlowPort

_MOST_CALLABLES = 32  # of one session; TensorFlow keeps a pruned graph for each


class TensorFlowBackend(Backend):
    """Runs `model.savedmodel`, a folder, or `model.graphdef`, a file."""

    name = "tensorflow"
    platforms: Sequence[str] = ("tensorflow_savedmodel", "tensorflow_graphdef")
    environments = True
    limits_gpu_memory = True

    @classmethod
    def prepare(cls) -> None:
        """Import TensorFlow. See `Backend.prepare`."""
        reading.import_tensorflow()

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Fill in what a SavedModel's signature tells. TensorFlow is not needed for it."""
        options = TensorFlowOptions(model)
        if options.graph_def:
            completing.refuse_to_guess(model)
            return None
        path = reading.artifact(model, options)
        try:
            _, signature = reading.signature_of(model, path, options)
        except LoadError as error:
            text = str(error).removeprefix(f"unable to load model '{model.name}', ")
            raise LoadError(
                f"unable to auto-complete model configuration for '{model.name}', failed to load model:"
                f" {text}"
            ) from error
        return completing.complete(signature, model)

    def load(self, model: ModelInfo) -> None:
        """Load the graph into its sessions, and check it against the configuration."""
        options = TensorFlowOptions(model)
        for text in options.ineffective:
            model.log("warning", f"model '{model.name}': {text}")
        path = reading.artifact(model, options)
        sessions = -(-model.lanes // options.share)
        load = self._load_graph_def if options.graph_def else self._load_saved_model
        opened = [_Session(each) for each in load(model, path, options, sessions)]
        # An instance has a session to itself, or shares it.
        self._idle = deque(opened[at % sessions] for at in range(model.lanes))

    def _load_saved_model(
        self, model: ModelInfo, path: str, options: TensorFlowOptions, sessions: int
    ) -> list[Any]:
        tags, signature = reading.signature_of(model, path, options)
        self._inputs = check_inputs(model, signature.inputs)
        self._outputs = check_outputs(model, signature.outputs)
        model.phase("importing TensorFlow")
        tensorflow = reading.import_tensorflow()
        config = reading.configured(tensorflow, model, options)
        model.phase("restoring the SavedModel")
        return [reading.open_saved_model(tensorflow, model, path, tags, config) for _ in range(sessions)]

    def _load_graph_def(
        self, model: ModelInfo, path: str, options: TensorFlowOptions, sessions: int
    ) -> list[Any]:
        init_ops = reading.init_ops_of(model, options.init_ops_file)
        model.phase("importing TensorFlow")
        tensorflow = reading.import_tensorflow()
        config = reading.configured(tensorflow, model, options)
        model.phase("reading the graph")
        graph = reading.read_graph_def(tensorflow, model, path)
        tensors = reading.tensors_of(graph)
        self._inputs = check_inputs(model, tensors.inputs)
        self._outputs = check_outputs(model, tensors.outputs)
        return [reading.open_graph_def(tensorflow, model, graph, init_ops, config) for _ in range(sessions)]

    def unload(self) -> None:
        """Close the sessions, and with them their variables."""
        for session in set(self._idle):
            session.close()
        self._idle.clear()

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        session = self._idle.pop()  # there is an entry for each lane
        try:
            try:
                results = self._compute(session, batch.feeds(), batch.wanted_outputs)
            except TritiumError as error:
                if len(batch.requests) == 1:
                    batch.fail(error.code, error.message)
                else:
                    self._execute_apart(session, batch)
                return
            batch.respond(results)
        finally:
            self._idle.append(session)

    def _execute_apart(self, session: _Session, batch: Batch) -> None:
        for request in batch.requests:
            wanted = frozenset(request.requested_outputs)
            try:
                request.respond(self._compute(session, request.feeds(), wanted))
            except TritiumError as error:
                request.fail(error.code, error.message)

    def _compute(
        self, session: _Session, inputs: Mapping[str, Array], wanted: frozenset[str]
    ) -> list[Output]:
        """Return the outputs of one execution. Raises Internal for a failure of TensorFlow's."""
        outputs, run = session.call(wanted, self._inputs, self._outputs)
        feeds = [inputs[port.name].reshape(()) if port.scalar else inputs[port.name] for port in self._inputs]
        try:
            results = run(*feeds)
        except Exception as error:  # TensorFlow's errors, and those of passing arrays
            raise Internal(reading.describe(error)) from error
        return [(port.name, port.datatype, _whole(port, result)) for port, result in zip(outputs, results)]


class _Session:
    """One session, and what it has been asked for. Several threads may use it at once."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._made: dict[frozenset[str], tuple[Sequence[TensorFlowPort], Callable[..., Sequence[Any]]]] = {}

    def call(
        self, wanted: frozenset[str], inputs: Sequence[TensorFlowPort], outputs: Sequence[TensorFlowPort]
    ) -> tuple[Sequence[TensorFlowPort], Callable[..., Sequence[Any]]]:
        """Return the outputs that are computed for those that are wanted, and what computes them."""
        found = self._made.get(wanted)
        if found is None and len(self._made) >= _MOST_CALLABLES:
            wanted = frozenset(port.name for port in outputs)
            found = self._made.get(wanted)
        if found is None:
            ports = [port for port in outputs if port.name in wanted]
            found = self._made[wanted] = ports, self._callable(inputs, ports)
        return found

    def _callable(
        self, inputs: Sequence[TensorFlowPort], outputs: Sequence[TensorFlowPort]
    ) -> Callable[..., Sequence[Any]]:
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        # `Session.run` takes 0.1 ms to find out each time what it is asked for.
        options = CallableOptions()
        options.feed.extend(port.place for port in inputs)
        options.fetch.extend(port.place for port in outputs)
        make = self._session._make_callable_from_options  # noqa: SLF001  # as Keras does
        made: Callable[..., Sequence[Any]] = make(options)
        return made

    def close(self) -> None:
        self._made.clear()
        self._session.close()


def _whole(port: TensorFlowPort, result: Any) -> Array:
    if not port.scalar:
        array: Array = result
        return array
    if port.datatype is DataType.BYTES:
        array = np.empty(1, object)
        array[0] = result if isinstance(result, bytes) else result.item()
        return array
    return np.asarray(result).reshape(1)
