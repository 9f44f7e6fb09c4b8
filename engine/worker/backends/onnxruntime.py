"""ONNX models through ONNX Runtime, on the CPU or on a CUDA device.

Theory of operation. Names, datatypes and shapes are compared with the configuration once, at load, and turned
into `_Port` values. An execution then is a dictionary of arrays and one call. Three ways lead through that
call:

- *run*: small outputs. ONNX Runtime makes the arrays, and the batch copies them out.
- *bind*: outputs whose shapes are known beforehand and that together reach `_BIND_FROM` bytes are computed
  straight into the batch's output memory. Binding costs about 10 µs more than `run` and saves a copy; the two
  break even near 256 KiB.
- *values*: BF16, which numpy cannot express, travels as bit patterns in `OrtValue`s.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the
error. A kernel that fails on a CUDA device takes the process's CUDA context with it, and nothing would ever
succeed there again. Such a worker ends and is started anew.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError
from engine.worker.backends import onnx_providers, onnx_weights
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.onnx_texts import control_dims, no_such_control, unsupported
from engine.worker.backends.shape_texts import misfit, spelt, unbatchable
from engine.worker.devices.losing import is_short
from engine.worker.joining import Joining, made_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.base import Batch, ModelInfo, Output, TensorInfo

    Allocate = Callable[[str, DataType, Sequence[int]], Array]

_BIND_FROM = 256 * 1024  # bytes of all outputs together; see the theory of operation
# What ONNX Runtime says of a file that it can make nothing of.
_DAMAGED = ("Protobuf parsing failed", "does not have a graph", "No graph was found", "ModelProto corruption")
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16

_DATATYPES = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}
_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
# CUDA's errors that stay, by number and by name, in the two forms in which ONNX Runtime tells of them.
_LOST = re.compile(
    r"CUDA failure (?:214|700|702|709|710|71[4-9])\b|CUDA error cudaError(?:ECCUncorrectable|IllegalAddress|LaunchTimeout"
    r"|ContextIsDestroyed|Assert|HardwareStackError|IllegalInstruction|MisalignedAddress|InvalidAddressSpace|InvalidPc"
    r"|LaunchFailure)\b"
)


class _Port:
    """One input or output as the session wants it."""

    __slots__ = ("datatype", "name", "row_bytes", "row_shape", "scalar")

    def __init__(self, tensor: TensorInfo, *, scalar: bool = False, joined: bool = False) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.scalar = scalar  # rank 0 in the model, [1] in the configuration
        self.row_shape = list(tensor.backend_dims)
        fixed = not (scalar or joined) and tensor.datatype.size and min(self.row_shape, default=1) >= 0
        # Bytes of one row, or of the whole tensor if the model does not batch; 0 if only the model can tell.
        self.row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * tensor.datatype.size if fixed else 0


class OnnxRuntimeBackend(Backend):
    """Runs `model.onnx`, whatever its opset, as far as the installed ONNX Runtime knows it."""

    name = "onnxruntime"
    default_artifact = "model.onnx"
    platforms: Sequence[str] = ("onnxruntime_onnx",)
    limits_gpu_memory = True
    runs_model_code = False  # but for custom operators, which are refused by themselves

    _session: Any
    _run_options: Any

    @classmethod
    def prepare(cls) -> None:
        """Import ONNX Runtime. See `Backend.prepare`."""
        import onnxruntime  # noqa: F401

    def load(self, model: ModelInfo) -> None:
        """Make the session and check it against the configuration (contract, model_config.md section 8.1)."""
        import onnxruntime

        path = _artifact(model)
        options = _session_options(onnxruntime, model)
        threads = _integer(model, "intra_op_thread_count") or model.threads
        asked = onnx_providers.providers(onnxruntime, model, threads)
        try:
            for library in model.config.get("model_operations", {}).get("op_library_filename", ()):
                options.register_custom_ops_library(_inside(model, library))

            def make() -> Any:
                # It must not fall back to providers that were not asked for.
                return onnxruntime.InferenceSession(path, options, providers=asked, enable_fallback=0)

            self._session = onnx_weights.session_of(path, options, make)
        except LoadError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise LoadError(f"unable to load model '{model.name}', {_describe(error)}") from error
        onnx_providers.check_started(self._session, model, asked)
        self._run_options = _run_options(onnxruntime, model)
        self._value = onnxruntime.OrtValue
        self._log = model.log
        self._on_gpu = model.kind == "GPU"
        self._batches = model.max_batch_size > 0
        self._inputs = {port.name: port for port in _check_inputs(self._session, model)}
        self._outputs = _check_outputs(self._session, model)
        self._selections: dict[frozenset[str], list[_Port]] = {}
        self._bindable = True

    def unload(self) -> None:
        """Drop the session and what it holds on a device."""
        self._session = None

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        outputs = self._select(batch)
        try:
            results = self._compute(batch.feeds(), outputs, batch.rows, batch.allocate)
        except TritiumError as error:
            if self._on_gpu and is_short(error.message):
                batch.note_shortage()
            if len(batch.requests) == 1:
                batch.fail(error.code, error.message)
            else:
                self._execute_apart(batch)
            return
        batch.respond(results)

    def _execute_apart(self, batch: Batch) -> None:
        for request in batch.requests:
            outputs = [port for port in self._outputs if port.name in request.requested_outputs]
            try:
                request.respond(self._compute(request.feeds(), outputs, request.rows, None))
            except TritiumError as error:
                request.fail(error.code, error.message)

    def _select(self, batch: Batch) -> list[_Port]:
        """Return the outputs that a request asks for; the graph's other outputs are not computed."""
        if len(self._outputs) == 1:
            return self._outputs
        wanted = batch.wanted_outputs
        selected = self._selections.get(wanted)
        if selected is None:
            selected = [port for port in self._outputs if port.name in wanted]
            self._selections[wanted] = selected
        return selected

    def _compute(
        self, inputs: Mapping[str, Array], outputs: Sequence[_Port], rows: int, allocate: Allocate | None
    ) -> list[Output]:
        """Return the outputs of one run.

        Raises InvalidArgument for inputs that can't be passed, and Internal for other failures.
        """
        feeds = {}
        values = False
        for name, array in inputs.items():
            port = self._inputs[name]
            if port.datatype is DataType.BYTES:
                array = _decoded(name, array)
            elif port.datatype is DataType.BF16:
                values = True
            feeds[name] = array.reshape(()) if port.scalar else array
        try:
            if values or any(port.datatype is DataType.BF16 for port in outputs):
                return self._run_values(feeds, outputs)
            if allocate is not None and self._bindable:
                per_row = [port.row_bytes for port in outputs]
                if all(per_row) and sum(per_row) * rows >= _BIND_FROM:
                    return self._run_bound(feeds, outputs, rows, allocate)
            return self._run(feeds, outputs)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if loses_device(str(error)):
                self._log("error", f"the CUDA device is lost to this process: {error}")
                raise SystemExit(1) from error
            raise Internal(_describe(error)) from error

    def _run(self, feeds: Mapping[str, Array], outputs: Sequence[_Port]) -> list[Output]:
        results = self._session.run([port.name for port in outputs], feeds, self._run_options)
        return [
            (port.name, port.datatype, result.reshape(1) if port.scalar else result)
            for port, result in zip(outputs, results)
        ]

    def _run_bound(
        self, feeds: Mapping[str, Array], outputs: Sequence[_Port], rows: int, allocate: Allocate
    ) -> list[Output]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            if array.dtype == object:
                binding.bind_ortvalue_input(name, self._value.ortvalue_from_numpy(array))
            else:
                binding.bind_cpu_input(name, array)
        results = []
        for port in outputs:
            shape = [rows, *port.row_shape] if self._batches else port.row_shape
            array = allocate(port.name, port.datatype, shape)
            binding.bind_output(port.name, "cpu", 0, port.datatype.numpy.type, shape, array.ctypes.data)
            results.append((port.name, port.datatype, array))
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception:  # noqa: BLE001
            # Either the request is at fault, and `_run` says so, or the shapes are.
            results = self._run(feeds, outputs)
            self._bindable = False  # the model's outputs are not of the shape that its configuration gives
        return results

    def _run_values(self, feeds: Mapping[str, Array], outputs: Sequence[_Port]) -> list[Output]:
        values = {}
        for name, array in feeds.items():
            if self._inputs[name].datatype is DataType.BF16:
                values[name] = self._value.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
            else:
                values[name] = self._value.ortvalue_from_numpy(array)
        results = self._session.run_with_ort_values(
            [port.name for port in outputs], values, self._run_options
        )
        return [
            (port.name, port.datatype, result.reshape(1) if port.scalar else result)
            for port, result in zip(outputs, map(_array, results))
        ]


def _array(value: Any) -> Array:
    """Return the elements of an `OrtValue` in CPU memory; bfloat16 as the bit patterns in `uint16`."""
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = value.shape()
    nbytes = 2 * int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(ctypes.string_at(value.data_ptr(), nbytes), dtype=np.uint16).reshape(shape)


def _decoded(name: str, array: Array) -> Array:
    """Return BYTES elements as the `str` objects that ONNX Runtime takes.

    Raises InvalidArgument if one is not UTF-8.
    """
    texts = np.empty(array.size, dtype=object)
    try:
        texts[:] = [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"input '{name}' holds an element that is not UTF-8, which ONNX string tensors can't carry:"
            f" {error}"
        ) from error
    return texts.reshape(array.shape)


def loses_device(text: str) -> bool:
    """Whether an error of ONNX Runtime means that the process can no longer use CUDA."""
    return _LOST.search(text) is not None


def _describe(error: Exception) -> str:
    """Return an ONNX Runtime error the way Triton's clients know it: `onnx runtime error <n>: <text>`."""
    match = _ORT_ERROR.search(str(error))
    text = f"onnx runtime error {match[1]}: {match[2]}" if match else f"onnx runtime error: {error}"
    if not any(each in text for each in _DAMAGED):
        return text
    return (
        f"{text} (it is damaged, cut short, or no ONNX model: export it again, or copy it again and compare"
        " its checksum with the original's)"
    )


def _artifact(model: ModelInfo) -> str:
    """Return the path of the model file.

    A directory of that name holds a `model.onnx` beside its external data.
    """
    path = os.path.join(model.version_directory, model.artifact or OnnxRuntimeBackend.default_artifact)
    if os.path.isdir(path):
        path = os.path.join(path, OnnxRuntimeBackend.default_artifact)
    if not os.path.isfile(path):
        raise LoadError(f"unable to find '{path}' for model '{model.name}'")
    return path


def _integer(model: ModelInfo, key: str) -> int | None:
    """Return the parameter `key`, or the backend setting of that name, as an integer; None if not set."""
    text = model.parameters.get(key, model.settings.get(key))
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise LoadError(f"model '{model.name}': parameter '{key}' must be an integer, got '{text}'") from None


def _switch(model: ModelInfo, key: str) -> bool | None:
    text = model.parameters.get(key, model.settings.get(key))
    if text is None:
        return None
    if text.lower() in ("true", "on", "1"):
        return True
    if text.lower() in ("false", "off", "0"):
        return False
    raise LoadError(f"model '{model.name}': parameter '{key}': failed to convert '{text}' to boolean")


def _is_parallel(model: ModelInfo) -> bool:
    text = model.parameters.get("execution_mode", "0")
    if text not in ("0", "1"):
        # The blanks are Triton's.
        raise LoadError(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got"
            f" {text} ."
        )
    return text == "1"


def _session_options(onnxruntime: Any, model: ModelInfo) -> Any:
    """Translate the configuration.

    A global thread pool needs no translation, because one worker holds one session.
    """
    options = onnxruntime.SessionOptions()
    options.logid = model.instance_name
    # Errors. Warnings are about the graph's making and repeat at every load.
    options.log_severity_level = 3
    intra = _integer(model, "intra_op_thread_count")
    options.intra_op_num_threads = model.threads if intra is None else intra
    inter = _integer(model, "inter_op_thread_count")
    if inter is not None:
        options.inter_op_num_threads = inter
    if _is_parallel(model):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    arena = _switch(model, "enable_mem_arena")
    if arena is not None:
        options.enable_cpu_mem_arena = arena
    pattern = _switch(model, "enable_mem_pattern")
    if pattern is not None:
        options.enable_mem_pattern = pattern
    options.graph_optimization_level = _graph_level(onnxruntime, model)
    # Spinning burns the cores that other instances want; a `session.…` parameter may switch it on again.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in model.parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def _graph_level(onnxruntime: Any, model: ModelInfo) -> Any:
    levels = onnxruntime.GraphOptimizationLevel
    level = int(model.config.get("optimization", {}).get("graph", {}).get("level", 0))
    known = {
        -1: levels.ORT_ENABLE_BASIC,
        0: levels.ORT_ENABLE_ALL,  # what an unset field reads as
        1: levels.ORT_ENABLE_EXTENDED,
        2: levels.ORT_DISABLE_ALL,
    }
    if level not in known:
        raise LoadError(f"model '{model.name}': optimization.graph.level must be -1, 0, 1 or 2, got {level}")
    return known[level]


def _inside(model: ModelInfo, filename: str) -> str:
    """Return the path of a file in the model directory.

    The server has decided where links may lead. Raises LoadError if the file's name leads elsewhere, or it is
    missing.
    """
    root = os.path.abspath(model.model_directory)
    path = os.path.normpath(os.path.join(root, filename))
    if not path.startswith(root + os.sep) or not os.path.isfile(path):
        raise LoadError(f"model '{model.name}': no operator library '{filename}' in the model directory")
    return path


def _run_options(onnxruntime: Any, model: ModelInfo) -> Any:
    shrink = model.parameters.get("memory.enable_memory_arena_shrinkage")
    if not shrink:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrink)
    return options


def _check_inputs(session: Any, model: ModelInfo) -> list[_Port]:
    required = {node.name: node for node in session.get_inputs()}
    defaulted = {node.name: node for node in session.get_overridable_initializers()}
    for tensor in model.inputs:
        if tensor.optional and model.max_batch_size:
            raise LoadError(
                f"unable to load model '{model.name}', optional input '{tensor.name}' is not supported for"
                " models"
                " that support batching"
            )
        if tensor.optional and tensor.ragged:
            raise LoadError(
                f"unable to load model '{model.name}', configuration expects model provides input with"
                " shape [-1] for"
                f" ragged input '{tensor.name}', which is not supported for optional input"
            )
    made = made_tensors(model)
    _check_controls(model, required)
    expected = sum(tensor.name not in defaulted for tensor in model.inputs) + len(made)
    if expected != len(required):
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects {expected} inputs,"
            f" model provides {len(required)}"
        )
    nodes = {**defaulted, **required}
    return [_check(tensor, nodes, model, "input") for tensor in model.inputs] + [
        _check(tensor, nodes, model, "input", made=True) for tensor in made
    ]


def _check_controls(model: ModelInfo, nodes: Mapping[str, Any]) -> None:
    """Compare what a scheduler sends with each request. Raises LoadError."""
    sequences = model.config.get("sequence_batching") or {}
    for control in sequences.get("control_input", ()):
        name = control.get("name", "")
        node = nodes.get(name)
        if node is None:
            raise LoadError(no_such_control(name))
        dims = [dim if isinstance(dim, int) else -1 for dim in node.shape][model.max_batch_size > 0 :]
        if dims and dims not in ([1], [-1]):
            raise LoadError(control_dims(model.name, name, dims))


def _check_outputs(session: Any, model: ModelInfo) -> list[_Port]:
    nodes = {node.name: node for node in session.get_outputs()}
    joining = Joining.of(model)
    scattered = joining.scattered if joining is not None else ()
    ports = []
    for tensor in model.outputs:
        if tensor.name in scattered:  # 1-D, and cut later
            _check_kind(tensor, nodes, model, "output")
            ports.append(_Port(tensor, joined=True))
        else:
            ports.append(_check(tensor, nodes, model, "output"))
    return ports


def _check(
    tensor: TensorInfo, nodes: Mapping[str, Any], model: ModelInfo, side: str, *, made: bool = False
) -> _Port:
    """Compare one configured tensor with the session's. Raises LoadError if they can't meet.

    The dims of one `made` for the batch are all that it has.
    """
    node = _check_kind(tensor, nodes, model, side)
    shape = [dim if isinstance(dim, int) else -1 for dim in node.shape]
    if tensor.ragged:
        if shape != [-1]:
            raise LoadError(
                f"unable to load model '{model.name}', configuration expects model provides input with"
                " shape [-1]  for ragged"
                f" input '{tensor.name}', model provides {spelt(shape)}"
            )
        return _Port(tensor, joined=True)
    batches = bool(model.max_batch_size) and not made
    configured = [-1] * batches + tensor.backend_dims
    # ONNX Runtime shows a scalar and a tensor of unknown rank alike, as []. Only inputs of one element can be
    # scalars.
    scalar = not shape and configured == [1]
    if shape and (
        len(shape) != len(configured)
        or any(
            theirs not in (-1, ours) and not _is_padded_to(tensor, axis, theirs)
            for axis, (theirs, ours) in enumerate(zip(shape, configured))
        )
    ):
        if batches and shape[0] != -1:
            raise LoadError(unbatchable(model.name, tensor.name, shape))
        raise LoadError(misfit(model.name, tensor.name, shape, configured, batches=batches))
    return _Port(tensor, scalar=scalar)


def _is_padded_to(tensor: TensorInfo, axis: int, size: int) -> bool:
    """Whether a dimension of any size is this one where the model meets it.

    An input may be padded to one size only. An output that is cut is compared when it is there.
    """
    if any(cut.axis == axis for cut in tensor.cuts):
        return True
    buckets = tensor.padded.buckets.get(axis) if tensor.padded is not None else None
    return buckets is not None and not buckets.longer and list(buckets.sizes) == [size]


def _check_kind(tensor: TensorInfo, nodes: Mapping[str, Any], model: ModelInfo, side: str) -> Any:
    """Return the session's tensor of that name and datatype. Raises LoadError if there is none."""
    node = nodes.get(tensor.name)
    if node is None:
        raise LoadError(
            f"unable to load model '{model.name}', unexpected inference {side} '{tensor.name}',"
            f" allowed {side}s are: {', '.join(sorted(nodes))}"
        )
    if not node.type.startswith("tensor("):
        raise LoadError(unsupported(tensor.name, node.type))
    provided = _DATATYPES.get(node.type)
    if provided is not tensor.datatype:
        spelt = "TYPE_INVALID" if provided is None else provided.config_name
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype"
            f" {tensor.datatype.config_name} for {side} '{tensor.name}', model provides {spelt}"
        )
    return node
