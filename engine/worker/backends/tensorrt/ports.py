"""Inputs and outputs of an engine, and whether a configuration fits them. Imports nothing of TensorRT's.

Contract: backends.md sections 1.3 and 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.values.datatypes import DataType
from engine.worker.backends.agreement import check_all_inputs
from engine.worker.backends.base import LoadError
from engine.worker.backends.shape_texts import misfit, spelt, unbatchable
from engine.worker.joining import Joining

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo, TensorInfo

    Bounds = tuple[Sequence[int], Sequence[int], Sequence[int]]
    """The smallest, the best and the largest, of one profile."""

# By the names of `tensorrt.DataType`. Its other types have no place in a request: numbers of fewer than 8
# bits, and FP8.
DATATYPES: Mapping[str, DataType] = {
    "FLOAT": DataType.FP32,
    "HALF": DataType.FP16,
    "BF16": DataType.BF16,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
    "INT32": DataType.INT32,
    "INT64": DataType.INT64,
    "BOOL": DataType.BOOL,
}


class Port:
    """One input or output of an engine.

    `shape` has -1 for what an execution says. `bounds` are those of its shape in each profile, and `values`
    those of its elements if it is a shape tensor: an input of both is empty. What is `on_host` is read and
    written in host memory. An element of one that is not `linear` has `components` of dimension `vectorised`.
    """

    __slots__ = (
        "bounds",
        "components",
        "is_input",
        "is_shape",
        "linear",
        "name",
        "on_host",
        "shape",
        "type_name",
        "values",
        "vectorised",
    )

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        type_name: str,
        *,
        is_input: bool,
        is_shape: bool = False,
        on_host: bool = False,
        linear: bool = True,
        components: int = 1,
        vectorised: int = -1,
        bounds: Sequence[Bounds] = (),
        values: Sequence[Bounds] = (),
    ) -> None:
        self.name = name
        self.shape = list(shape)
        self.type_name = type_name
        self.is_input = is_input
        self.is_shape = is_shape
        self.on_host = on_host
        self.linear = linear
        self.components = components
        self.vectorised = vectorised
        self.bounds = bounds
        self.values = values

    @property
    def datatype(self) -> DataType | None:
        """The datatype that requests have for it; None if they have none."""
        return DATATYPES.get(self.type_name)

    @property
    def batches(self) -> bool:
        """Whether the first dimension may be the batch."""
        return bool(self.shape) and self.shape[0] == -1

    def misfit(self, profile: int, shape: Sequence[int]) -> str:
        """Return why such a shape is none of a profile's; nothing if it is one."""
        smallest, _, largest = self.bounds[profile]
        if len(shape) != len(smallest):
            return f"model expected a shape of {len(smallest)} dimensions but received {list(shape)}"
        for at, (size, low, high) in enumerate(zip(shape, smallest, largest)):
            if not low <= size <= high:
                return (
                    f"model expected the shape of dimension {at} to be between {low} and {high} but received"
                    f" {size}"
                )
        return ""


class Fit:
    """How the configuration has a port. A `scalar` has rank 0 in the engine and dims [1] in requests."""

    __slots__ = ("datatype", "joined", "port", "scalar")

    def __init__(self, port: Port, datatype: DataType, *, scalar: bool = False, joined: bool = False) -> None:
        self.port = port
        self.datatype = datatype
        self.scalar = scalar
        self.joined = joined


def largest_batch(ports: Sequence[Port], profiles: Sequence[int]) -> int:
    """Return how many rows an engine takes in the best of its profiles; 0 if it has no batch dimension."""
    inputs = [port for port in ports if port.is_input and not port.is_shape]
    if not inputs or not all(port.batches for port in inputs):
        return 0
    return max(min(port.bounds[profile][2][0] for port in inputs) for profile in profiles)


def fit(model: ModelInfo, ports: Sequence[Port], profiles: Sequence[int]) -> tuple[list[Fit], list[Fit]]:
    """Return the configured inputs and outputs. Raises LoadError if they and the engine can't meet."""
    inputs = {port.name: port for port in ports if port.is_input}
    outputs = {port.name: port for port in ports if not port.is_input}
    made = check_all_inputs(model, inputs, "a TensorRT engine")
    marks = _marks(model)
    fed = [_fit(model, tensor, inputs, "input", marks) for tensor in model.inputs]
    fed += [_fit(model, tensor, inputs, "input", marks, whole=True) for tensor in made]
    joining = Joining.of(model)
    scattered = joining.scattered if joining is not None else ()
    given = [
        _fit(model, tensor, outputs, "output", marks, flat=tensor.name in scattered)
        for tensor in model.outputs
    ]
    most = largest_batch(ports, profiles)
    joins = joining is not None and bool(joining.flat)
    if model.max_batch_size > most and not joins:
        raise LoadError(
            f"unexpected configuration maximum batch size {model.max_batch_size} for '{model.name}', model"
            f" maximum is {most}"
        )
    return fed, given


def _marks(model: ModelInfo) -> Mapping[str, Mapping[str, Any]]:
    """Return what the configuration says of each tensor."""
    sides = [*model.config.get("input", ()), *model.config.get("output", ())]
    return {each.get("name", ""): each for each in sides}


def _fit(
    model: ModelInfo,
    tensor: TensorInfo,
    ports: Mapping[str, Port],
    side: str,
    marks: Mapping[str, Mapping[str, Any]],
    *,
    whole: bool = False,
    flat: bool = False,
) -> Fit:
    port = ports.get(tensor.name)
    if port is None:
        raise LoadError(
            f"unable to load model '{model.name}', unexpected inference {side} '{tensor.name}', allowed"
            f" {side}s are: {', '.join(sorted(ports))}"
        )
    if port.datatype is not tensor.datatype:
        spelt = port.datatype.config_name if port.datatype else f"TensorRT's type {port.type_name}"
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype"
            f" {tensor.datatype.config_name} for {side} '{tensor.name}', model provides {spelt}"
        )
    mark = marks.get(tensor.name, {})
    _check_shape_tensor(model, port, side, bool(mark.get("is_shape_tensor", False)))
    _check_format(model, port, side, bool(mark.get("is_non_linear_format_io", False)))
    joined = tensor.ragged or flat
    if joined:
        _check_joined(model, tensor, port, side)
        return Fit(port, tensor.datatype, joined=True)
    batches = model.max_batch_size > 0 and not whole
    configured = [-1] * batches + tensor.backend_dims
    if not port.shape and configured == [1]:
        return Fit(port, tensor.datatype, scalar=True)
    if batches and not port.batches:
        raise LoadError(unbatchable(model.name, tensor.name, port.shape))
    _compare(model, tensor, port.shape, configured, batches=batches)
    return Fit(port, tensor.datatype)


def _check_shape_tensor(model: ModelInfo, port: Port, side: str, marked: bool) -> None:
    if port.is_shape == marked:
        if marked and model.max_batch_size:
            raise LoadError(
                f"unable to load model '{model.name}', {side} '{port.name}' is a shape tensor, which batches"
                " of several requests can't have; write max_batch_size: 0, and dims with the batch's"
            )
        return
    if marked:
        raise LoadError(
            f"{side} '{port.name}' for model '{model.name}' is incorrectly marked as a shape tensor in the"
            " model configuration."
        )
    if port.is_input or model.max_batch_size:
        raise LoadError(
            f"{side} '{port.name}' for model '{model.name}' is a shape tensor but the model configuration"
            " doesn't mark it as a shape tensor."
        )


def _check_format(model: ModelInfo, port: Port, side: str, marked: bool) -> None:
    if port.linear == marked:
        said = "true" if marked else "false"
        a_format = "a linear" if port.linear else "a non-linear"
        raise LoadError(
            f"{side} '{port.name}' for model '{model.name}' uses {a_format} IO format, but"
            f" 'is_non_linear_format_io' is incorrectly set to {said} in the model configuration."
        )
    size = port.shape[port.vectorised] if port.vectorised >= 0 else port.components
    if not port.linear and size % port.components:
        raise LoadError(
            f"unable to load model '{model.name}', {side} '{port.name}' has a format that pads dimension"
            f" {port.vectorised} from {size} to a multiple of {port.components}, which requests have no"
            " bytes for"
        )


def _check_joined(model: ModelInfo, tensor: TensorInfo, port: Port, side: str) -> None:
    if not port.linear:
        raise LoadError(
            f"unable to load model '{model.name}', {side} '{port.name}' has a non-linear format, which"
            " requests can't be joined in"
        )
    if port.is_input and port.shape != [-1]:
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects model provides input with shape [-1]"
            f"  for ragged input '{tensor.name}', model provides {spelt(port.shape)}"
        )


def _compare(
    model: ModelInfo, tensor: TensorInfo, shape: Sequence[int], configured: Sequence[int], *, batches: bool
) -> None:
    """Compare loosely: a dimension of any size in the engine fits all, as does one that is padded or cut."""
    free = {each.axis for each in tensor.cuts}
    if tensor.padded is not None:
        free |= set(tensor.padded.buckets)
    fits = len(shape) == len(configured) and all(
        theirs in (-1, ours) or axis in free for axis, (theirs, ours) in enumerate(zip(shape, configured))
    )
    if fits:
        return
    raise LoadError(misfit(model.name, tensor.name, shape, configured, batches=batches))
