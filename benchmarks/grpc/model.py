"""What the reference servers compute.

These are the models of `benchmarks.repository`, by numpy, one request at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.scenarios import Array, Tensors
from protocols.kserve.proto import grpc_service_pb2 as pb


@dataclass(slots=True)
class Counts:
    """What a reference knows of its past, for `ModelStatistics`."""

    success: int = 0


class Unknown(Exception):
    """There is no such model here, or it does not take such inputs."""


def infer(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    """Answer one request. Raises Unknown for a model or inputs that the benchmarks do not use."""
    raw = request.raw_input_contents
    if any(each.datatype != "FP32" for each in request.inputs) or len(raw) != len(request.inputs):
        raise Unknown("a reference takes FP32 inputs in raw_input_contents only")
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, array in _compute(
        request.model_name, [np.frombuffer(each, np.float32) for each in raw]
    ).items():
        response.outputs.add(name=name, datatype="FP32", shape=request.inputs[0].shape)
        response.raw_output_contents.append(array.tobytes())
    return response


def _compute(model: str, inputs: Sequence[Array]) -> Tensors:
    match model, inputs:
        case "onnx_add_sub", [left, right]:
            return {"OUTPUT0": left + right, "OUTPUT1": left - right}
        case "onnx_identity", [only]:
            return {"OUTPUT0": only}
        case _:
            raise Unknown(f"a reference has no model {model!r} of {len(inputs)} inputs")


def statistics(name: str, counts: Counts) -> pb.ModelStatisticsResponse:
    """Answer what was computed so far."""
    response = pb.ModelStatisticsResponse()
    response.model_stats.add(name=name, version="1").inference_stats.success.count = counts.success
    return response
