"""PyTorch models: TorchScript (`model.pt`), torch.export programs and AOTInductor packages (`model.pt2`).

And modules in Python, by `runtime: "model.py"`.

Theory of operation. Whatever was loaded becomes a `Program`: a callable that takes the configured inputs in
their order, and the path of every output in what it returns. An execution wraps the batch's memory as tensors
without a copy, calls the program and copies its results out once. On a CUDA device each lane has a stream of
its own, and tensors pass through pinned memory on it. What lies on another device than the instance's is
fetched with an ordinary, blocking copy.

Inputs that lie on the instance's GPU already stay there. They are joined on the lane's stream, which is a
copy within the GPU. One alone is copied as well, because others may read the same memory and a model may
write into its inputs. Outputs that others read there (`Batch.device_outputs`) are given as they lie, once the
stream is synchronised. Batches that are not plain arrays (ragged, padded) go through the host.

A batch that fails as a whole is run again request by request, so that only the request at fault gets the
error. It is not run again if the program had written into its inputs by then. A kernel that fails takes the
process's CUDA context with it, and nothing would ever succeed there again. Such a worker ends and is started
anew.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.torch_accelerating import DTYPES
from engine.worker.backends.torch_loading import (
    DEFAULT_ARTIFACTS,
    amp_dtype,
    check_device,
    device_of,
    flag,
    load_program,
    set_process_options,
)
from engine.worker.backends.torch_modules import RUNTIME, is_module, load_module
from engine.worker.devices import dlpack
from engine.worker.devices.arrays import DeviceArray
from engine.worker.joining import Joining, made_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from actors.values.tensors import Array
    from engine.worker.backends.base import (
        AnyOutput,
        Batch,
        BatchRequest,
        ModelInfo,
        TensorInfo,
    )
    from engine.worker.backends.torch_names import Path

_NOTHING: frozenset[str] = frozenset()


class PyTorchBackend(Backend):
    """Runs `model.pt` and `model.pt2`, and `model.py` where a model's `runtime` says so.

    AOTInductor packages hold the interpreter lock for a whole execution.
    """

    name = "pytorch"
    device_tensors = True
    default_artifact = DEFAULT_ARTIFACTS[0]
    platforms: Sequence[str] = ("pytorch_libtorch", "torch_aoti")
    runtimes: Sequence[str] = (RUNTIME,)
    environments = True

    @classmethod
    def prepare(cls) -> None:
        """Import PyTorch. See `Backend.prepare`."""
        import torch  # noqa: F401

    def load(self, model: ModelInfo) -> None:
        """Load the artifact by its kind, onto the instance's device."""
        import torch

        self._torch = torch
        self._log = model.log
        self._dtypes = {datatype: getattr(torch, name) for datatype, name in DTYPES.items()}
        fed = [*model.inputs, *made_tensors(model)]
        self._positions = {tensor.name: position for position, tensor in enumerate(fed)}
        self._bfloat16 = {tensor.name for tensor in model.inputs if tensor.datatype is DataType.BF16}
        self._outputs = list(model.outputs)
        self._streams = threading.local()
        set_process_options(torch, model)
        self._gradless = (
            torch.inference_mode if flag(model, "INFERENCE_MODE", default=True) else torch.no_grad
        )
        self._optimized = not flag(model, "DISABLE_OPTIMIZED_EXECUTION")
        self._amp = amp_dtype(torch, model)
        try:
            if is_module(model):
                self._program, self._device = load_module(torch, model)
            else:
                self._device = device_of(torch, model)
                self._program = load_program(torch, model, self._device)
        except (LoadError, MemoryError):
            raise
        except Exception as error:  # torch's loaders raise what they like
            raise LoadError(
                f"unable to load model '{model.name}', {type(error).__name__}: {error}"
            ) from error
        self._by_device = self._device.type == "cuda" and Joining.of(model) is None
        self._cleans_cache = flag(model, "ENABLE_CACHE_CLEANING") and self._device.type == "cuda"
        if self._device.type == "cuda":
            # Lanes' streams do not wait for this thread's, on which weights may still be on their way.
            torch.cuda.synchronize(self._device)

    def unload(self) -> None:
        """Drop the model and what it holds on a device."""
        del self._program
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def execute(self, batch: Batch) -> None:
        """Run one batch; if it fails, its requests one by one."""
        outputs = self._outputs
        wanted: Collection[str] = batch.wanted_outputs if len(outputs) > 1 else (outputs[0].name,)
        there = self._by_device
        arguments: list[Any] = []
        try:
            arguments = self._arguments_there(batch) if there else self._arguments(batch.feeds())
            results = self._compute(arguments, wanted, batch.device_outputs if there else _NOTHING)
        except TritiumError as error:
            # A program that wrote into its inputs (`_version` counts that) can't be given them again.
            if len(batch.requests) == 1 or any(getattr(argument, "_version", 0) for argument in arguments):
                batch.fail(error.code, error.message)
            else:
                self._execute_apart(batch)
            return
        batch.respond(results)

    def _execute_apart(self, batch: Batch) -> None:
        there = self._by_device
        for request in batch.requests:
            try:
                arguments = self._arguments_alone(request) if there else self._arguments(request.feeds())
                kept = request.device_outputs if there else _NOTHING
                request.respond(self._compute(arguments, request.requested_outputs, kept))
            except TritiumError as error:
                request.fail(error.code, error.message)

    def _arguments_there(self, batch: Batch) -> list[Any]:
        """Return a batch's inputs as `_arguments` does, those on the device as `_OnDevice`."""
        on_device = batch.device_inputs
        if not on_device:
            return self._arguments(batch.feeds())
        host = {name: batch.stacked(name) for name in batch.input_names if name not in on_device}
        return self._with_devices(host, {name: self._lent(name, batch.requests) for name in on_device})

    def _arguments_alone(self, request: BatchRequest) -> list[Any]:
        """Return one request's inputs as `_arguments` does, those on the device as `_OnDevice`."""
        on_device = {name for name in request.input_names if request.device_input(name) is not None}
        host = {name: request.input(name) for name in request.input_names if name not in on_device}
        return self._with_devices(host, {name: self._lent(name, [request]) for name in on_device})

    def _with_devices(self, host: Mapping[str, Array], on_device: Mapping[str, _OnDevice]) -> list[Any]:
        arguments = self._arguments(host)
        for name, lent in on_device.items():
            arguments[self._positions[name]] = lent
        return arguments

    def _lent(self, name: str, requests: Sequence[BatchRequest]) -> _OnDevice:
        """Return an input of these requests as tensors over the memory in which it lies."""
        parts = []
        for request in requests:
            array = request.device_input(name)
            if array is None:
                raise Internal(f"input '{name}' lies on the device for some requests of its batch only")
            parts.append(self._over(array))
        return _OnDevice(parts)

    def _over(self, array: DeviceArray) -> Any:
        if not array.nbytes:  # there may be no address
            return self._torch.empty(array.shape, dtype=self._dtypes[array.datatype], device=self._device)
        return self._torch.from_dlpack(dlpack.share(array))

    def _arguments(self, inputs: Mapping[str, Array]) -> list[Any]:
        """Return the inputs in the configuration's order.

        They are tensors over the same memory, and lists of text for BYTES.

        An input that was not sent is None. Raises InvalidArgument for BYTES that are not UTF-8.
        """
        arguments: list[Any] = [None] * len(self._positions)
        for name, array in inputs.items():
            position = self._positions[name]
            if array.dtype == object:
                arguments[position] = _texts(name, array)
                continue
            if not array.flags.writeable:
                # Torch has no read-only tensors, and a model may write into its inputs.
                array = array.copy()
            if name in self._bfloat16:
                arguments[position] = self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
            else:
                arguments[position] = self._torch.from_numpy(array)
        return arguments

    def _compute(
        self, arguments: Sequence[Any], wanted: Collection[str], kept: Collection[str]
    ) -> list[AnyOutput]:
        """Return the wanted outputs of one call; those `kept` on the device are left there.

        Raises Internal for whatever goes wrong in it.
        """
        try:
            with self._surroundings() as stream:
                results = self._program.call([self._placed(argument) for argument in arguments])
                fetched = [
                    (tensor, self._fetched(tensor, _follow(results, path, tensor.name), tensor.name in kept))
                    for tensor, path in zip(self._outputs, self._program.paths)
                    if tensor.name in wanted
                ]
                if stream is not None:
                    stream.synchronize()
                del results  # before the memory cache is emptied, if that is asked for
            return [
                (tensor.name, tensor.datatype, self._given(tensor, result, tensor.name in kept))
                for tensor, result in fetched
            ]
        except TritiumError:
            raise
        except Exception as error:  # whatever the model's code raises
            check_device(self._torch, self._device, error, self._log)
            raise Internal(f"PyTorch execute failure: {error}") from error

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[Any]:
        """Set the modes of one execution; yield the lane's CUDA stream, or None on the CPU."""
        torch = self._torch
        with contextlib.ExitStack() as stack:
            if self._cleans_cache:
                stack.callback(torch.cuda.empty_cache)
            stack.enter_context(self._gradless())
            if self._amp is not None:
                # Its cache of weights is the process's. It would hand one lane what another lane's stream is
                # still computing.
                stack.enter_context(torch.autocast(self._device.type, dtype=self._amp, cache_enabled=False))
            if not self._optimized:
                stack.enter_context(torch.jit.optimized_execution(False))
            if self._device.type == "cuda":
                stream = getattr(self._streams, "own", None)
                if stream is None:
                    stream = self._streams.own = torch.cuda.Stream(self._device)
                stack.enter_context(torch.cuda.stream(stream))
                yield stream
            else:
                yield None

    def _placed(self, argument: Any) -> Any:
        """Return an argument on the model's device."""
        if argument is None or isinstance(argument, list):
            return argument
        if isinstance(argument, _OnDevice):
            # Copied by either: the memory is read by others, and is theirs to use again after this call.
            parts = argument.parts
            return parts[0].clone() if len(parts) == 1 else self._torch.cat(parts)
        if self._device.type == "cuda":
            return argument.pin_memory().to(self._device, non_blocking=True)
        return argument

    def _fetched(self, tensor: TensorInfo, result: Any, keep: bool) -> Any:
        """Return a result in CPU memory, or on the instance's GPU if it lies there and is to be kept.

        What comes from that GPU, or stays on it, is ready once the lane's stream is synchronised.
        """
        torch = self._torch
        if tensor.datatype is DataType.BYTES:
            if not isinstance(result, list) or not all(isinstance(text, str) for text in result):
                raise Internal(
                    f"output '{tensor.name}' is configured as TYPE_STRING, the model gives no list of str"
                )
            return result
        if not isinstance(result, torch.Tensor):
            raise Internal(
                f"output '{tensor.name}' must be a tensor, the model gives {type(result).__name__}"
            )
        expected = self._dtypes[tensor.datatype]
        if result.dtype != expected:
            if self._amp is None or not (result.is_floating_point() and expected.is_floating_point):
                raise Internal(
                    f"unexpected datatype {result.dtype} for inference output '{tensor.name}', expecting"
                    f" {tensor.datatype.config_name}"
                )
            result = result.to(expected)
        if tensor.datatype is DataType.BF16:
            result = result.contiguous().view(torch.int16)
        result = result.detach().contiguous()
        if keep and result.device == self._device:
            return result
        if result.device.type == "cpu" or result.device != self._device:
            # As it is, or copied before the call returns: no stream of ours leads there.
            return result.cpu()
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        return host.copy_(result, non_blocking=True)

    def _given(self, tensor: TensorInfo, result: Any, keep: bool) -> Array | DeviceArray:
        """Return a fetched result as an array. One on the device lives until the array has gone."""
        if not keep or isinstance(result, list) or result.device != self._device:
            return _as_numpy(result)
        device, number = result.__dlpack_device__()
        shape = tuple(result.shape)
        return DeviceArray(
            result, result.data_ptr(), shape, tensor.datatype, device=int(device), device_id=number
        )


class _OnDevice:
    """An input of a batch on the device: a tensor for each request, over memory that others read as well."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts


def _texts(name: str, array: Array) -> list[str]:
    try:
        return [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"input '{name}' holds an element that is not UTF-8, which TorchScript strings can't carry: {error}"
        ) from error


def _as_numpy(result: Any) -> Array:
    if isinstance(result, list):
        texts = np.empty(len(result), dtype=object)
        texts[:] = [text.encode() for text in result]
        return texts
    array: Array = result.numpy()
    return array


def _follow(results: Any, path: int | Path, name: str) -> Any:
    """Return the part of a returned value that lies at `path`. Raises Internal if there is none."""
    try:
        if isinstance(path, int):
            return results[name] if isinstance(results, dict) and name in results else _leaves(results)[path]
        for key in path:
            results = results[key]
    except (LookupError, TypeError):
        raise Internal(f"the model returned nothing for output '{name}'") from None
    return results


def _leaves(results: Any) -> list[Any]:
    """Return the tensors and lists of text in a returned value, depth first."""
    if isinstance(results, dict):
        results = list(results.values())
    elif not isinstance(results, (tuple, list)) or (
        results and all(isinstance(text, str) for text in results)
    ):
        return [results]
    return [leaf for result in results for leaf in _leaves(result)]
