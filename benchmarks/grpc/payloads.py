"""Inference messages as protobuf writes and reads them.

They are apart from the server's own codec, so that they can judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np

from benchmarks.grpc.scenarios import Asked
from benchmarks.payloads import DATATYPE_NAMES, DATATYPES, WrongAnswer
from benchmarks.scenarios import Tensors
from protocols.kserve.proto import grpc_service_pb2 as pb

SERVICE: Final = "/inference.GRPCInferenceService/"
_LENGTH: Final = Struct(">I")
# The prefix of a gRPC message: a byte that says whether it is compressed, and its length.
PREFIX_SIZE: Final = 5


def encode(asked: Asked, inputs: Tensors) -> pb.ModelInferRequest:
    """Return a request whose inputs are in `raw_input_contents`."""
    request = pb.ModelInferRequest(model_name=asked.model)
    for key, value in asked.parameters.items():
        if isinstance(value, bool):
            request.parameters[key].bool_param = value
        elif isinstance(value, int):
            request.parameters[key].int64_param = value
        else:
            request.parameters[key].string_param = value
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=DATATYPE_NAMES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def decode(response: pb.ModelInferResponse) -> Tensors:
    """Return an answer's outputs. Raises WrongAnswer if it contradicts itself."""
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


def packed(scripts: Sequence[Sequence[bytes]]) -> bytes:
    """Return lists of messages as the load client's file.

    The file holds the number of each list's messages, then each message with its length.
    """
    parts = []
    for script in scripts:
        parts.append(_LENGTH.pack(len(script)))
        for message in script:
            parts += _LENGTH.pack(len(message)), message
    return b"".join(parts)


def unpacked(data: bytes) -> list[list[bytes]]:
    """Return what `packed` was given."""
    scripts = []
    at = 0

    def length() -> int:
        nonlocal at
        at += _LENGTH.size
        return int(_LENGTH.unpack_from(data, at - _LENGTH.size)[0])

    while at < len(data):
        script = []
        for _ in range(length()):
            size = length()
            script.append(data[at : at + size])
            at += size
        scripts.append(script)
    return scripts
