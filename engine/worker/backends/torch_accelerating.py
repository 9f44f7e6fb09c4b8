"""PyTorch models through TensorRT: Torch-TensorRT compiles one at the load, or has compiled it before.

An execution accelerator named `tensorrt` has a TorchScript module or an exported program compiled for the
instance's GPU when it is loaded, which takes long. A file that Torch-TensorRT has saved holds engines
already, and needs its package to be loaded at all. Nothing is imported unless one of the two is so.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from actors.values.datatypes import DataType
from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo, TensorInfo

DTYPES = {
    DataType.BOOL: "bool",
    DataType.UINT8: "uint8",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.UINT64: "uint64",
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.INT32: "int32",
    DataType.INT64: "int64",
    DataType.FP16: "float16",
    DataType.FP32: "float32",
    DataType.FP64: "float64",
    DataType.BF16: "bfloat16",
}
"""Names of torch's element types."""

_PRECISIONS = {"FP32": (), "FP16": ("float16",), "BF16": ("bfloat16",)}
_WORKSPACE_BYTES = 1 << 30
_SEGMENT = 3
_NUMBERS = {"max_workspace_size_bytes": _WORKSPACE_BYTES, "minimum_segment_size": _SEGMENT}
# How code in a saved file names what Torch-TensorRT brings.
_MARKS = (b"torch.classes.tensorrt", b"torch.ops.tensorrt", b"tensorrt.execute_engine")
_MOST_BYTES = 64 << 20  # of one member that is searched
_COMPILES = ("torch_tensorrt", "tensorrt")  # names of its backend for torch.compile


class Accelerator:
    """What a model asks of Torch-TensorRT."""

    __slots__ = ("_model", "_precisions", "_segment", "_workspace")

    def __init__(self, model: ModelInfo, parameters: Mapping[str, str]) -> None:
        unknown = sorted(set(parameters) - {"precision_mode", *_NUMBERS})
        if unknown:
            raise LoadError(
                f"unknown parameter '{unknown[0]}' is provided for TensorRT Execution Accelerator"
            )
        mode = parameters.get("precision_mode", "FP32")
        if mode not in _PRECISIONS:
            raise LoadError(f"unsupported precision mode '{mode}' is requested")
        self._model = model
        self._precisions = _PRECISIONS[mode]
        numbers = {key: _number(parameters, key, default) for key, default in _NUMBERS.items()}
        self._workspace = numbers["max_workspace_size_bytes"]
        self._segment = numbers["minimum_segment_size"]

    def of_script(self, torch: Any, module: Any, inputs: Sequence[TensorInfo]) -> Any:
        """Compile a TorchScript module whose arguments are these, in order."""
        package = runtime(self._model)
        device = package.Device(gpu_id=self._model.device_id)
        given = self._inputs(torch, package, inputs)
        return package.compile(module, ir="ts", inputs=given, device=device, **self._options(torch))

    def of_program(self, torch: Any, program: Any, inputs: Sequence[TensorInfo], tree: Any) -> Any:
        """Compile an exported program whose tensors are these, in the order of `tree`."""
        package = runtime(self._model)
        given = self._inputs(torch, package, inputs)
        pytree = torch.utils._pytree  # noqa: SLF001  # no public name
        arguments, keywords = pytree.tree_unflatten(given, tree)
        return package.dynamo.compile(
            program,
            arg_inputs=tuple(arguments),
            kwarg_inputs=keywords,
            device=torch.device("cuda", self._model.device_id),
            **self._options(torch),
        )

    def _options(self, torch: Any) -> dict[str, Any]:
        return {
            "enabled_precisions": {torch.float32, *(getattr(torch, name) for name in self._precisions)},
            "workspace_size": self._workspace,
            "min_block_size": self._segment,
        }

    def _inputs(self, torch: Any, package: Any, inputs: Sequence[TensorInfo]) -> list[Any]:
        return [self._input(torch, package, tensor) for tensor in inputs]

    def _input(self, torch: Any, package: Any, tensor: TensorInfo) -> Any:
        model, dims = self._model, tensor.backend_dims
        if min(dims, default=1) < 0 or tensor.ragged or tensor.datatype is DataType.BYTES:
            raise LoadError(
                f"unable to load model '{model.name}', execution accelerator 'tensorrt' needs sizes for all"
                f" dimensions but the batch, and input '{tensor.name}' is {tensor.datatype.config_name}"
                f" {dims}"
            )
        dtype = getattr(torch, DTYPES[tensor.datatype])
        most = model.max_batch_size
        if not most:
            return package.Input(shape=tuple(dims), dtype=dtype)
        shapes = {"min_shape": (1, *dims), "opt_shape": (most, *dims), "max_shape": (most, *dims)}
        return package.Input(**shapes, dtype=dtype)


def accelerator_of(model: ModelInfo) -> Accelerator | None:
    """Return what `gpu_execution_accelerator` asks for on a GPU. Raises LoadError for what there is not."""
    written: Mapping[str, Any] = model.config.get("optimization", {}).get("execution_accelerators", {})
    asked: Sequence[Mapping[str, Any]] = written.get("gpu_execution_accelerator", ())
    if asked and model.kind != "GPU":
        model.log(
            "warning",
            f"model '{model.name}': 'gpu_execution_accelerator' has no effect for instance"
            f" '{model.instance_name}' of kind KIND_{model.kind}",
        )
        return None
    found = None
    for each in asked:
        name = each.get("name", "")
        if name != "tensorrt":
            raise LoadError(f"unknown Execution Accelerator '{name}' is requested")
        found = Accelerator(model, each.get("parameters", {}))
    return found


def runtime(model: ModelInfo) -> Any:
    """Import and return Torch-TensorRT. Raises LoadError with what to install."""
    try:
        import torch_tensorrt
    except (ImportError, OSError) as error:  # OSError for a library that it loads
        raise LoadError(
            f"unable to load model '{model.name}', it needs Torch-TensorRT, which can't be imported: {error};"
            " install torch-tensorrt in the version that belongs to the installed torch"
        ) from error
    return torch_tensorrt


def was_compiled(path: str, members: Sequence[str]) -> bool:
    """Whether Torch-TensorRT has saved this archive."""
    with zipfile.ZipFile(path) as archive:
        for name in members:
            if name.endswith((".py", ".json")) and archive.getinfo(name).file_size <= _MOST_BYTES:
                content = archive.read(name)
                if any(mark in content for mark in _MARKS):
                    return True
    return False


def is_compiler(name: object) -> bool:
    """Whether `torch.compile` knows this backend only once Torch-TensorRT has been imported."""
    return name in _COMPILES


def _number(parameters: Mapping[str, str], key: str, default: int) -> int:
    text = parameters.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise LoadError(f"failed to convert '{text}' to integral number")
    return int(text)
