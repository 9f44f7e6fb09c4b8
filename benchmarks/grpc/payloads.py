"""Inference messages as protobuf writes and reads them, apart from the server's own codec so that it can judge it."""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.payloads import DATATYPE_NAMES, DATATYPES, WrongAnswer
from benchmarks.scenarios import Tensors
from protocols.kserve.proto import grpc_service_pb2 as pb

SERVICE: Final = "/inference.GRPCInferenceService/"
PREFIX_SIZE: Final = 5  # of a gRPC message: a byte that says whether it is compressed, and its length


def encode(model: str, inputs: Tensors) -> pb.ModelInferRequest:
    """Return a request whose inputs are in `raw_input_contents`."""
    request = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=DATATYPE_NAMES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def decode(response: pb.ModelInferResponse) -> Tensors:
    """Return an answer's outputs. Raises WrongAnswer where it contradicts itself."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise WrongAnswer(
            f"the answer holds {len(response.outputs)} outputs and {len(response.raw_output_contents)} contents"
        )
    outputs = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        try:
            outputs[output.name] = np.frombuffer(raw, DATATYPES[output.datatype]).reshape(output.shape)
        except (KeyError, ValueError) as error:
            raise WrongAnswer(f"output {output.name!r} can't be read: {error!r}") from error
    return outputs


def framed(message: bytes) -> bytes:
    """Return a gRPC message: not compressed, its length, itself."""
    return b"\0" + len(message).to_bytes(4, "big") + message
