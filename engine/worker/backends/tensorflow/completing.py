"""What a SavedModel's signature tells, as the fields of a configuration.

Contract: backends.md section 5 and model_config.md section 7.1. What the configuration has is kept; inputs
and outputs are merged by their names. A GraphDef tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.worker.backends.agreement import default_batch_size, supplied_by_the_server
from engine.worker.backends.base import LoadError
from engine.worker.backends.tensorflow.ports import DATATYPES, type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from engine.worker.backends.base import ModelInfo
    from engine.worker.backends.tensorflow.signatures import CallSignature, GraphTensor


def complete(signature: CallSignature, model: ModelInfo) -> Mapping[str, Any]:
    """Return the configuration with what the signature tells. Raises LoadError where they contradict."""
    config: dict[str, Any] = dict(model.config)
    size = int(config.get("max_batch_size", 0))
    tensors = [*signature.inputs, *signature.outputs]
    ragged = {each.get("name") for each in config.get("input", ()) if each.get("allow_ragged_batch")}
    apart = ragged | _made(config)
    batches = _batches([each for each in tensors if each.name not in apart])
    if size > 0 and not batches:
        raise LoadError(
            f"unable to autofill for '{model.name}', configuration specified max-batch {size} but model"
            " signature does not support batching"
        )
    if batches and size == 0:
        size = default_batch_size(model)
        if size > 1 and "dynamic_batching" not in config and "sequence_batching" not in config:
            config["dynamic_batching"] = {}
    config["max_batch_size"] = size
    supplied = supplied_by_the_server(config) | _made(config)
    config["input"] = _merged(model, config.get("input", ()), signature.inputs, supplied, size, "input")
    config["output"] = _merged(
        model, config.get("output", ()), signature.outputs, _states(config), size, "output"
    )
    return config


def refuse_to_guess(model: ModelInfo) -> None:
    """Raise LoadError if a side of a GraphDef's configuration is missing, which the graph does not tell."""
    has_input = model.config.get("input") or model.config.get("batch_input")
    if not has_input or not model.config.get("output"):
        raise LoadError(
            f"unable to auto-complete model configuration for '{model.name}', a GraphDef does not say"
            " which of its tensors are inputs and outputs; write both into config.pbtxt"
        )


def _batches(tensors: Sequence[GraphTensor]) -> bool:
    """Whether all begin with a dimension of any size. A tensor of unknown rank may have one."""
    return bool(tensors) and all(each.shape is None or list(each.shape[:1]) == [-1] for each in tensors)


def _made(config: Mapping[str, Any]) -> set[str]:
    return {name for each in config.get("batch_input", ()) for name in each.get("target_name", ())}


def _states(config: Mapping[str, Any]) -> set[str]:
    sequences = config.get("sequence_batching") or {}
    return {each.get("output_name", "") for each in sequences.get("state", ())}


def _merged(
    model: ModelInfo,
    written: Sequence[Mapping[str, Any]],
    tensors: Sequence[GraphTensor],
    left_out: Collection[str],
    size: int,
    side: str,
) -> list[Mapping[str, Any]]:
    """Return what is written, completed, and then what is not written."""
    by_name = {each.name: each for each in tensors}
    merged: list[Mapping[str, Any]] = []
    for entry in written:
        tensor = by_name.get(entry.get("name", ""))
        known = entry.get("dims") and entry.get("data_type", "TYPE_INVALID") != "TYPE_INVALID"
        if tensor is None or known:
            merged.append(entry)
            continue
        told = _field(model, tensor, side, size, dims=entry.get("dims"))
        has_type = entry.get("data_type", "TYPE_INVALID") != "TYPE_INVALID"
        merged.append({**entry, **told, **({"data_type": entry["data_type"]} if has_type else {})})
    names = {each.get("name") for each in written} | set(left_out)
    return merged + [_field(model, each, side, size) for each in tensors if each.name not in names]


def _field(
    model: ModelInfo, tensor: GraphTensor, side: str, size: int, *, dims: Sequence[int] | None = None
) -> Mapping[str, Any]:
    datatype = DATATYPES.get(tensor.number) if tensor.place else None
    if datatype is None:
        kind = type_name(tensor) if tensor.place else "sparse or composed of several tensors"
        raise LoadError(
            f"unsupported datatype TYPE_INVALID for {side} '{tensor.name}' for model '{model.name}': it is"
            f" {kind}, which requests can't carry"
        )
    field: dict[str, Any] = {"name": tensor.name, "data_type": datatype.config_name}
    if dims:
        return {**field, "dims": dims}
    if tensor.shape is None:
        raise LoadError(
            f"unable to autofill for '{model.name}', the signature gives no shape for {side}"
            f" '{tensor.name}'; write its dims into config.pbtxt"
        )
    shape = list(tensor.shape)
    if not size:
        return {**field, "dims": shape or [1]}
    if len(shape) > 1:
        return {**field, "dims": shape[1:]}
    # One element a row, which has a dimension here and none in the model.
    return {**field, "dims": [1], "reshape": {"shape": []}}
