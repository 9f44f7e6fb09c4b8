"""PyTorch models: TorchScript (`model.pt`), torch.export programs and AOTInductor packages (`model.pt2`).

Theory of operation. A `_Program` is what was loaded, seen from outside: a callable, the place of every input and the path of every
output. An execution wraps the batch's memory as tensors without a copy, calls the program and copies its results out once. On
a CUDA device each lane has a stream of its own, and tensors pass through pinned memory on it.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the error, unless the
program had written into its inputs by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.messages.datatypes import DataType
from actors.messages.errors import Internal, InvalidArgument, TritiumError
from engine.backends.base import Backend, LoadError
from engine.backends.torch_names import output_paths, package_inputs, script_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Union

    from engine.backends.base import Batch, ModelInfo, TensorInfo
    from engine.backends.torch_names import Path, Place

    Array = np.ndarray[Any, Any]
    Output = tuple[str, DataType, Array]

_TORCH_NAMES = {
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
_AMP = {"bf16": "bfloat16", "fp16": "float16"}
# What an AOTInductor package calls a CPU feature, and what /proc/cpuinfo does.
_CPU_FLAGS = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AMX": "amx_tile", "ASIMD": "asimd"}


class _Program:
    """A loaded model: call it with `places` filled, find outputs at `paths`."""

    __slots__ = ("call", "mapping", "paths", "places")

    def __init__(
        self,
        call: Callable[..., Any],
        places: Sequence[Place],
        paths: Sequence[int | Path],
        *,
        mapping: Sequence[str] = (),
    ) -> None:
        self.call = call
        self.places = places
        self.paths = paths
        self.mapping = mapping  # keys of the one dictionary that the program takes, if it takes one


class PyTorchBackend(Backend):
    """Runs `model.pt` and `model.pt2`. AOTInductor packages hold the interpreter lock for a whole execution."""

    name = "pytorch"
    default_artifact = "model.pt"
    platforms: Sequence[str] = ("pytorch_libtorch", "torch_aoti")

    def load(self, model: ModelInfo) -> None:
        """Load the artifact by its kind, onto the instance's device."""
        import torch

        self._torch = torch
        path = _artifact(model)
        self._device = _device(torch, model)
        _set_process_options(torch, model)
        self._inference = torch.inference_mode if _flag(model, "INFERENCE_MODE", default=True) else torch.no_grad
        self._optimized = not _flag(model, "DISABLE_OPTIMIZED_EXECUTION")
        self._clean_cache = _flag(model, "ENABLE_CACHE_CLEANING")
        self._amp = _amp(torch, model)
        self._inputs = {tensor.name: index for index, tensor in enumerate(model.inputs)}
        self._outputs = list(model.outputs)
        self._dtypes = {datatype: getattr(torch, name) for datatype, name in _TORCH_NAMES.items()}
        self._lanes = threading.local()
        if not zipfile.is_zipfile(path) or _is_script(path):
            self._program = _load_script(torch, path, model, self._device)
        elif any("/data/aotinductor/" in name for name in _members(path)):
            self._program = _load_package(torch, path, model)
        else:
            self._program = _load_export(torch, path, model, self._device)

    def unload(self) -> None:
        """Drop the model and what it holds on a device."""
        del self._program
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        wanted: Collection[str] = batch.wanted_outputs if len(self._outputs) > 1 else (self._outputs[0].name,)
        try:
            arguments = self._arguments({name: batch.stacked(name) for name in batch.input_names})
        except TritiumError as error:
            self._execute_apart(batch, error, intact=True)
            return
        try:
            results = self._compute(arguments, wanted)
        except TritiumError as error:
            # `_version` counts in-place writes; a program that wrote into its inputs can't be given them again.
            intact = all(getattr(argument, "_version", 0) == 0 for argument in arguments)
            self._execute_apart(batch, error, intact=intact)
            return
        batch.respond(results)

    def _execute_apart(self, batch: Batch, error: TritiumError, *, intact: bool) -> None:
        if len(batch.requests) == 1 or not intact:
            batch.fail(error.code, error.message)
            return
        for request in batch.requests:
            try:
                arguments = self._arguments({name: request.input(name) for name in request.input_names})
                request.respond(self._compute(arguments, request.requested_outputs))
            except TritiumError as own:
                request.fail(own.code, own.message)

    def _arguments(self, inputs: Mapping[str, Array]) -> list[Any]:
        """Return the inputs in the configuration's order, as tensors over the same memory or lists of text.

        An input that was not sent is None. Raises InvalidArgument for BYTES that are not UTF-8.
        """
        arguments: list[Any] = [None] * len(self._inputs)
        for name, array in inputs.items():
            if array.dtype == object:
                arguments[self._inputs[name]] = _texts(name, array)
                continue
            if not array.flags.writeable:
                array = array.copy()  # torch has no read-only tensors, and models may write into their inputs
            arguments[self._inputs[name]] = self._torch.from_numpy(array)
        return arguments

    def _compute(self, arguments: Sequence[Any], wanted: Collection[str]) -> list[Output]:
        """Return the wanted outputs of one call. Raises Internal for whatever goes wrong in it."""
        try:
            with self._lane() as stream:
                results = self._call([self._placed(argument) for argument in arguments])
                outputs = [
                    (tensor, self._fetched(tensor, _follow(results, path)))
                    for tensor, path in zip(self._outputs, self._program.paths)
                    if tensor.name in wanted
                ]
                if stream is not None:
                    stream.synchronize()
            return [(tensor.name, tensor.datatype, self._array(result)) for tensor, result in outputs]
        except TritiumError:
            raise
        except Exception as error:  # anything that the model's code raises
            raise Internal(f"PyTorch execute failure: {error}") from error
        finally:
            if self._clean_cache and self._device.type == "cuda":
                self._torch.cuda.empty_cache()

    def _call(self, tensors: Sequence[Any]) -> Any:
        for tensor, name in zip(tensors, self._inputs):
            if tensor is not None and isinstance(tensor, self._torch.Tensor):
                continue
        program = self._program
        if program.mapping:
            return program.call({key: tensor for key, tensor in zip(program.mapping, tensors) if tensor is not None})
        return program.call(tensors)
