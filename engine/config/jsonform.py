"""The JSON form of a configuration, as the config endpoint and the python backend show it.

Contract: http.md section 3.2.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from protocols.kserve.proto.model_config_pb2 import ModelConfig

# protobuf renders 64-bit integers as strings; Triton turns all but these into numbers.
_LEFT_AS_STRINGS: Final = frozenset(
    (
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    )
)


def config_json(config: ModelConfig) -> bytes:
    """Return the body of the config endpoint.

    It has proto names, defaults written out, and unset sub-messages left out.
    """
    return json.dumps(json_value(config), ensure_ascii=False, separators=(",", ":")).encode()


def json_value(message: Any) -> dict[str, Any]:
    """Return a message as JSON values, its fields in the schema's order and map entries by key."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            result[field.name] = {str(key): _single(inner, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_single(field, element) for element in value]
        else:
            result[field.name] = _single(field, value)
    return result


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return json_value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.full_name in _LEFT_AS_STRINGS:
        return str(value)
    if isinstance(value, float):
        return _float(value, single=field.type == FieldDescriptor.TYPE_FLOAT)
    return value


def _float(value: float, *, single: bool) -> float | str:
    """Return a number as JSON has it: protobuf spells what JSON has no number for."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(str(np.float32(value))) if single else value
