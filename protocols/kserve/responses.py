"""Turns `InferResponse`s into bodies of the infer endpoint.

A body is a JSON text, followed by the bytes of the binary outputs in the order of `outputs`. Contract:
http.md section 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.values.errors import Unsupported
from actors.values.requests import InferResponse
from actors.values.specs import ModelSpec
from actors.values.tensors import Buffer, Tensor
from protocols.kserve.classification import classified
from protocols.kserve.documents import Verbatim, dump, number, text
from protocols.kserve.elements import render
from protocols.kserve.meanings import OutputPlan

COPIED: Final = 64 * 1024
NO_BYTES_PARAMETER: Final = (
    "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported"
)


class Body:
    """An encoded answer: the buffers to send, and how long the JSON text in front is.

    `json_size` is None where no binary bytes follow. Where `borrowed`, buffers view the response's outputs,
    which must not be released before the bytes are sent or copied.
    """

    __slots__ = ("borrowed", "buffers", "json_size", "size")

    def __init__(self, buffers: list[Buffer], size: int, json_size: int | None, *, borrowed: bool) -> None:
        self.buffers = buffers
        self.size = size
        self.json_size = json_size
        self.borrowed = borrowed


def encode(response: InferResponse, plan: OutputPlan, spec: ModelSpec) -> Body:
    """Return the body that answers with `response`, outputs in the form that `plan` asks for.

    Binary outputs of up to 64 KiB together are copied; more is borrowed. Raises InvalidArgument for outputs
    that can't be written as asked, Internal where an output contradicts itself, and Unsupported.
    """
    outputs: list[dict[str, Any]] = []
    binary: list[Buffer] = []
    binary_size = 0
    named = plan.named
    as_binary = plan.binary
    for tensor in response.outputs:
        if named is not None:
            choice = named.get(tensor.name)
            if choice is None:
                continue  # the backend made it, and the client did not ask for it
            if choice.shared:
                outputs.append(described(tensor))
                continue
            as_binary = choice.binary
            if choice.classes:
                tensor = classified(tensor, choice.classes, spec)
        # As `described` has it; a call would cost as much as the rest of this turn.
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype.protocol_name,
            "shape": tensor.shape,
        }
        if as_binary:
            data = tensor.data
            output["parameters"] = {"binary_data_size": len(data)}
            if data:
                binary.append(data)
                binary_size += len(data)
        else:
            output["data"] = Verbatim(render(tensor.name, tensor.datatype, tensor.shape, tensor.data))
        outputs.append(output)
    head = _head(response, outputs)
    size = len(head) + binary_size
    if not binary_size:
        return Body([head], size, None, borrowed=False)
    if binary_size <= COPIED:
        return Body([b"".join((head, *binary))], size, len(head), borrowed=False)
    return Body([head, *binary], size, len(head), borrowed=True)


def described(tensor: Tensor) -> dict[str, Any]:
    """Return what an answer says of an output besides its data. One in shared memory has no more."""
    return {"name": tensor.name, "datatype": tensor.datatype.protocol_name, "shape": tensor.shape}


def _head(response: InferResponse, outputs: list[dict[str, Any]]) -> bytes:
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = parameter_values(response.parameters)
    document["outputs"] = outputs
    try:
        return dump(document)
    except TypeError:  # a string that is not UTF-8; the id came from the client
        document["id"] = text(response.id)
        return dump(document)


def parameter_values(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Return a response's parameters in the form that `documents.dump` writes.

    Raises Unsupported for bytes.
    """
    document: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, bytes):
            raise Unsupported(NO_BYTES_PARAMETER)
        if isinstance(value, float):
            document[key] = number(value)
        elif isinstance(value, str):
            document[key] = text(value)
        else:
            document[key] = value
    return document
