"""What an engine tells of its inputs, outputs and batches, as the fields of a configuration.

Contract: backends.md section 7 and model_config.md section 7.1. A side is filled in where it is missing. The
largest batch is the largest first dimension over the profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.backends.base import LoadError
from engine.worker.backends.tensorrt.ports import Port, largest_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.backends.base import ModelInfo


def complete(model: ModelInfo, ports: Sequence[Port], profiles: Sequence[int]) -> Mapping[str, Any]:
    """Return the configuration with what the engine tells.

    Raises LoadError where the two contradict each other.
    """
    config: dict[str, Any] = dict(model.config)
    if any(each.get("allow_ragged_batch") for each in config.get("input", ())):
        return config  # the first dimension counts elements there, and no rows
    size = int(config.get("max_batch_size", 0))
    most = largest_batch(ports, profiles)
    hint = _hint(config, ports)
    failed = f"autofill failed for model '{model.name}'"
    if hint and not most:
        raise LoadError(
            f"{failed}: model tensor shape configuration hints for dynamic batching but the underlying engine"
            " doesn't support batching."
        )
    if size and not most:
        raise LoadError(
            f"{failed}: model does not support batching while non-zero max_batch_size is specified"
        )
    if size > most:
        raise LoadError(
            f"{failed}: configuration specified max-batch {size} but TensorRT engine only supports max-batch"
            f" {most}"
        )
    batched = bool(most) and not any(port.is_shape for port in ports)
    if not size and batched and hint is not False:
        size = most
    if size > 1 and "dynamic_batching" not in config and "sequence_batching" not in config:
        config["dynamic_batching"] = {}
    config["max_batch_size"] = size
    supplied = _supplied_by_the_server(config)
    if not config.get("input") and not config.get("batch_input"):
        taken = [port for port in ports if port.is_input and port.name not in supplied]
        config["input"] = [_field(model, port, size) for port in taken]
    if not config.get("output"):
        config["output"] = [_field(model, port, size) for port in ports if not port.is_input]
    return config


def _hint(config: Mapping[str, Any], ports: Sequence[Port]) -> bool | None:
    """Return whether the configured dims leave a batch dimension out; None if none are configured."""
    by_name = {port.name: port for port in ports if not port.is_shape}
    for each in [*config.get("input", ()), *config.get("output", ())]:
        port = by_name.get(each.get("name", ""))
        dims = each.get("dims", ())
        if port is None or each.get("allow_ragged_batch") or not dims:
            continue
        if "reshape" in each:
            dims = each["reshape"].get("shape", ())
        return len(dims) == len(port.shape) - 1
    return None


def _supplied_by_the_server(config: Mapping[str, Any]) -> set[str]:
    """Return the inputs that clients do not send: a scheduler's controls and states."""
    sequences = config.get("sequence_batching") or {}
    controls = {each.get("name", "") for each in sequences.get("control_input", ())}
    return controls | {each.get("input_name", "") for each in sequences.get("state", ())}


def _field(model: ModelInfo, port: Port, max_batch_size: int) -> Mapping[str, Any]:
    if port.datatype is None:
        raise LoadError(
            f"unsupported datatype TYPE_INVALID for {'input' if port.is_input else 'output'} '{port.name}'"
            " for"
            f" model '{model.name}': it is of TensorRT's type {port.type_name}, which requests can't carry"
        )
    field: dict[str, Any] = {"name": port.name, "data_type": port.datatype.config_name}
    if port.is_shape:
        field["is_shape_tensor"] = True
    if not port.linear:
        field["is_non_linear_format_io"] = True
    if not max_batch_size:
        return {**field, "dims": port.shape or [1]}
    if len(port.shape) > 1:
        return {**field, "dims": port.shape[1:]}
    # One element a row, which has a dimension here and none in the engine.
    return {**field, "dims": [1], "reshape": {"shape": []}}
