"""A model's inputs and outputs beside those of its configuration.

Contract: backends.md sections 1.3 and 4. Shapes are lists in which -1 is a dimension of any size; None is a
shape of any number of dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.values.datatypes import DataType
from engine.worker.backends.agreement import check_all_inputs, check_first_dimension, check_shape
from engine.worker.backends.base import LoadError
from engine.worker.joining import Joining

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo, TensorInfo

    Shape = Sequence[int] | None

# By the names of `openvino.Type`. OpenVINO's other types have no place in a request: strings, and numbers of
# fewer than 8 bits.
DATATYPES: Mapping[str, DataType] = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "bf16": DataType.BF16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
}


class Port:
    """One configured input or output, where the model has it.

    `row_shape` is the shape of an output whose size is known beforehand, without the batch dimension if the
    model batches, and None otherwise. A `scalar` has rank 0 in the model and dims [1] in the configuration.
    """

    __slots__ = ("datatype", "element_type", "index", "name", "row_shape", "scalar")

    def __init__(
        self,
        tensor: TensorInfo,
        index: int,
        element_type: Any,
        *,
        row_shape: Shape = None,
        scalar: bool = False,
    ) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.index = index
        self.element_type = element_type
        self.row_shape = row_shape
        self.scalar = scalar


def name_of(port: Any) -> str:
    """Return the name by which a port is shown: its shortest, or its node's where it has none."""
    return min(port.names, key=lambda name: (len(name), name)) if port.names else _node_name(port)


def all_names(port: Any) -> set[str]:
    """Return every name by which a configuration may call a port."""
    return {*port.names, _node_name(port)}


def _node_name(port: Any) -> str:
    return str(port.get_node().get_friendly_name())


def shape_of(port: Any) -> Shape:
    """Return a port's shape."""
    shape = port.get_partial_shape()
    return None if shape.rank.is_dynamic else [dim.get_length() if dim.is_static else -1 for dim in shape]


def datatype_of(port: Any) -> DataType | None:
    """Return the datatype that requests have for a port; None if they have none."""
    return DATATYPES.get(port.get_element_type().get_type_name())


def check_inputs(model: ModelInfo, ports: Sequence[Any]) -> list[Port]:
    """Return the model's inputs as the configuration has them.

    Raises LoadError if they can't meet.
    """
    for tensor in model.inputs:
        if tensor.ragged:
            # OpenVINO's inputs would be 1-D, as ONNX Runtime's are; Triton's backend does not have it.
            raise LoadError(
                f"unable to load model '{model.name}', ragged input '{tensor.name}' is not supported by the"
                " OpenVINO backend; leave 'allow_ragged_batch' out"
            )
    made = check_all_inputs(model, [*map(name_of, ports)], "an OpenVINO model")
    batches = model.max_batch_size > 0
    return [_checked(model, tensor, ports, "input", batches=batches) for tensor in model.inputs] + [
        _checked(model, tensor, ports, "input", batches=False) for tensor in made
    ]


def check_outputs(model: ModelInfo, ports: Sequence[Any]) -> list[Port]:
    """Return the configured outputs. Raises LoadError if the model has none such."""
    joining = Joining.of(model)
    scattered = joining.scattered if joining is not None else ()
    batches = model.max_batch_size > 0
    found = []
    for tensor in model.outputs:
        if tensor.name in scattered:  # 1-D, and cut later
            at = _find(model, tensor, ports, "output")
            found.append(Port(tensor, at, ports[at].get_element_type()))
        else:
            found.append(_checked(model, tensor, ports, "output", batches=batches))
    return found


def find(name: str, ports: Sequence[Any]) -> int | None:
    """Return the place of the port of that name, None if there is none."""
    return next((at for at, port in enumerate(ports) if name in all_names(port)), None)


def _find(model: ModelInfo, tensor: TensorInfo, ports: Sequence[Any], side: str) -> int:
    at = find(tensor.name, ports)
    if at is None:
        allowed = ", ".join(sorted(map(name_of, ports)))
        raise LoadError(
            f"unable to load model '{model.name}', unexpected inference {side} '{tensor.name}', allowed"
            f" {side}s"
            f" are: {allowed}"
        )
    provided = datatype_of(ports[at])
    if provided is not tensor.datatype:
        own = ports[at].get_element_type().get_type_name()
        spelt = f"OpenVINO's type {own}" if provided is None else provided.config_name
        raise LoadError(
            f"unable to load model '{model.name}', configuration expects datatype"
            f" {tensor.datatype.config_name}"
            f" for {side} '{tensor.name}', model provides {spelt}"
        )
    return at


def _checked(model: ModelInfo, tensor: TensorInfo, ports: Sequence[Any], side: str, *, batches: bool) -> Port:
    at = _find(model, tensor, ports, side)
    shape = shape_of(ports[at])
    element_type = ports[at].get_element_type()
    configured = [-1] * batches + tensor.backend_dims
    if shape == [] and configured == [1]:
        return Port(tensor, at, element_type, row_shape=[] if side == "output" else None, scalar=True)
    if shape is None:
        return Port(tensor, at, element_type)
    if batches:
        check_first_dimension(model, tensor, shape, (-1, model.max_batch_size))
    check_shape(model, tensor, shape, configured, batches=batches)
    own = shape[batches:]
    known = min(own, default=1) >= 0
    return Port(tensor, at, element_type, row_shape=own if side == "output" and known else None)
