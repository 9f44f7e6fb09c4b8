"""Compares a configuration with a model's inputs and outputs. Imports nothing of TensorFlow's.

Contract: backends.md sections 1.3 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.values.datatypes import DataType
from engine.worker.backends.agreement import check_all_inputs, check_first_dimension, check_shape, spell
from engine.worker.backends.base import LoadError
from engine.worker.joining import Joining

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo, TensorInfo
    from engine.worker.backends.tensorflow.signatures import GraphTensor

# By TensorFlow's numbers (types.proto).
DATATYPES: Mapping[int, DataType] = {
    1: DataType.FP32,
    2: DataType.FP64,
    3: DataType.INT32,
    4: DataType.UINT8,
    5: DataType.INT16,
    6: DataType.INT8,
    7: DataType.BYTES,
    9: DataType.INT64,
    10: DataType.BOOL,
    17: DataType.UINT16,
    19: DataType.FP16,
    22: DataType.UINT32,
    23: DataType.UINT64,
}
_OTHERS = {
    8: "complex64",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    18: "complex128",
    20: "resource",
    21: "variant",
}


class TensorFlowPort:
    """One configured input or output, where the model has it.

    A `scalar` has rank 0 in the model and dims [1] in the configuration.
    """

    __slots__ = ("datatype", "name", "place", "scalar")

    def __init__(self, tensor: TensorInfo, place: str, *, scalar: bool = False) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.place = place
        self.scalar = scalar


def type_name(tensor: GraphTensor) -> str:
    """Return a tensor's type for a message."""
    known = DATATYPES.get(tensor.number)
    if known is not None:
        return known.config_name
    return f"TensorFlow's type {_OTHERS.get(tensor.number, tensor.number)}"


def check_inputs(model: ModelInfo, tensors: Sequence[GraphTensor]) -> list[TensorFlowPort]:
    """Return the configured inputs where the model has them.

    Raises LoadError if the two can't meet.
    """
    _check_controls(model, tensors)
    made = check_all_inputs(model, [each.name for each in tensors], "a TensorFlow model")
    batches = model.max_batch_size > 0
    return [_checked(model, tensor, tensors, "input", batches=batches) for tensor in model.inputs] + [
        _checked(model, tensor, tensors, "input", batches=False) for tensor in made
    ]


def check_outputs(model: ModelInfo, tensors: Sequence[GraphTensor]) -> list[TensorFlowPort]:
    """Return the configured outputs where the model has them. Raises LoadError if it has none such."""
    joining = Joining.of(model)
    scattered = joining.scattered if joining is not None else ()
    batches = model.max_batch_size > 0
    return [
        TensorFlowPort(tensor, find(model, tensor, tensors, "output").place)  # 1-D, and cut later
        if tensor.name in scattered
        else _checked(model, tensor, tensors, "output", batches=batches)
        for tensor in model.outputs
    ]


def _check_controls(model: ModelInfo, tensors: Sequence[GraphTensor]) -> None:
    there = {each.name for each in tensors}
    for control in (model.config.get("sequence_batching") or {}).get("control_input", ()):
        if control.get("name") not in there:
            raise LoadError(
                f"configuration specified sequence control '{control.get('name')}', but model does not"
                f" provide that input (model '{model.name}')"
            )


def find(model: ModelInfo, tensor: TensorInfo, tensors: Sequence[GraphTensor], side: str) -> GraphTensor:
    """Return the model's tensor of that name. Raises LoadError if it has none, or one of another type."""
    if tensor.datatype is DataType.BF16:
        raise LoadError(f"unsupported datatype TYPE_BF16 for {side} '{tensor.name}' for model '{model.name}'")
    found = next((each for each in tensors if each.name == tensor.name), None)
    if found is None:
        allowed = ", ".join(sorted(each.name for each in tensors))
        raise LoadError(
            f"unable to load model '{model.name}', unexpected inference {side} '{tensor.name}', allowed"
            f" {side}s are: {allowed}"
        )
    if not found.place:
        raise LoadError(
            f"unable to load model '{model.name}', {side} '{tensor.name}' is sparse or composed of several"
            " tensors, which requests can't carry"
        )
    if DATATYPES.get(found.number) is not tensor.datatype:
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype"
            f" {tensor.datatype.config_name} for {side} '{tensor.name}', model provides {type_name(found)}"
        )
    return found


def _checked(
    model: ModelInfo, tensor: TensorInfo, tensors: Sequence[GraphTensor], side: str, *, batches: bool
) -> TensorFlowPort:
    found = find(model, tensor, tensors, side)
    shape = found.shape
    if shape is None:
        return TensorFlowPort(tensor, found.place)
    if tensor.ragged:
        if list(shape) != [-1]:
            raise LoadError(
                f"unable to load model '{model.name}', configuration expects model provides input with"
                f" shape [-1]  for ragged input '{tensor.name}', model provides {spell(shape)}"
            )
        return TensorFlowPort(tensor, found.place)
    configured = [-1] * batches + tensor.backend_dims
    if not shape and configured == [1]:
        return TensorFlowPort(tensor, found.place, scalar=True)
    if batches:
        check_first_dimension(model, tensor, shape)
    check_shape(model, tensor, shape, configured, batches=batches)
    return TensorFlowPort(tensor, found.place)
