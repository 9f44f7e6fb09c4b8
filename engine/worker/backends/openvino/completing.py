"""What a model's file tells of its inputs and outputs, as the fields of a configuration.

Contract: backends.md section 4. A side is filled in where it is missing. The model batches if the layouts of
all its inputs and outputs begin with a batch dimension; files of other formats than OpenVINO's own have no
layouts. A configuration that says more than the layouts is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.agreement import default_batch_size, supplied_by_the_server
from engine.worker.backends.base import LoadError
from engine.worker.backends.openvino.ports import datatype_of, name_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo


def complete(openvino: Any, graph: Any, model: ModelInfo) -> Mapping[str, Any]:
    """Return the configuration with what the graph tells.

    Raises LoadError for ports that requests can't have.
    """
    config: dict[str, Any] = dict(model.config)
    size = int(config.get("max_batch_size", 0))
    if _batches(openvino, [*graph.inputs, *graph.outputs]):
        if size == 0:
            size = default_batch_size(model)
        if size > 1 and "dynamic_batching" not in config and "sequence_batching" not in config:
            config["dynamic_batching"] = {}
    elif size > 0:
        model.log(
            "warning",
            f"model '{model.name}': max_batch_size is {size}, and no layout in the model's file says"
            " that the first"
            " dimension is the batch",
        )
    config["max_batch_size"] = size
    supplied = supplied_by_the_server(config)
    if not config.get("input") and not config.get("batch_input"):
        taken = [port for port in graph.inputs if name_of(port) not in supplied]
        config["input"] = [_field(model, port, "input", size) for port in taken]
    if not config.get("output"):
        config["output"] = [_field(model, port, "output", size) for port in graph.outputs]
    return config


def _batches(openvino: Any, ports: Sequence[Any]) -> bool:
    layouts = [port.get_node().layout for port in ports]
    has_batch, index = openvino.layout_helpers.has_batch, openvino.layout_helpers.batch_idx
    return bool(layouts) and all(
        not layout.empty and has_batch(layout) and index(layout) == 0 for layout in layouts
    )


def _field(model: ModelInfo, port: Any, side: str, max_batch_size: int) -> Mapping[str, Any]:
    name, shape, datatype = name_of(port), shape_of(port), datatype_of(port)
    if datatype is None:
        raise LoadError(
            f"unsupported datatype TYPE_INVALID for {side} '{name}' for model '{model.name}': it is of"
            " OpenVINO's"
            f" type {port.get_element_type().get_type_name()}, which requests can't carry"
        )
    if shape is None:
        raise LoadError(
            f"autofill failed for model '{model.name}': the model file gives no shape for {side}"
            f" '{name}'; write"
            " 'input' and 'output' into config.pbtxt"
        )
    field = {"name": name, "data_type": datatype.config_name}
    if not max_batch_size:
        return {**field, "dims": [*shape] or [1]}
    if len(shape) > 1:
        return {**field, "dims": shape[1:]}
    # One element a row, which has a dimension here and none in the model.
    return {**field, "dims": [1], "reshape": {"shape": []}}
