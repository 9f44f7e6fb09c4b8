"""KServe v2 requests and answers with numpy.

They are written apart from the server's own codec, so that they can judge it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from benchmarks.scenarios import Array, Scenario, Tensors

HEADER_LENGTH: Final = "Inference-Header-Content-Length"

DATATYPES: Final[Mapping[str, type[np.generic]]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
DATATYPE_NAMES: Final = {np.dtype(kind): name for name, kind in DATATYPES.items()}


class WrongAnswer(Exception):
    """The server answered, and not with what the model computes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A POST as a load client sends it."""

    body: bytes
    headers: Mapping[str, str]


def encode(inputs: Tensors, encoding: Literal["binary", "json"]) -> Request:
    """Build an inference request that asks for all outputs in the encoding of its inputs."""
    if encoding == "json":
        entries = [_entry(name, array) | {"data": array.ravel().tolist()} for name, array in inputs.items()]
        return Request(json.dumps({"inputs": entries}).encode(), {"Content-Type": "application/json"})
    entries = [
        _entry(name, array) | {"parameters": {"binary_data_size": array.nbytes}}
        for name, array in inputs.items()
    ]
    head = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in inputs.values())
    return Request(body, {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))})


def _entry(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": DATATYPE_NAMES[array.dtype]}


def decode(body: bytes, header_length: int | None) -> Tensors:
    """Return an answer's outputs; `header_length` is None if the whole body is JSON.

    Raises WrongAnswer if the body contradicts itself.
    """
    try:
        head = json.loads(body if header_length is None else body[:header_length])
        offset = len(body) if header_length is None else header_length
        outputs = {}
        for entry in head["outputs"]:
            kind = np.dtype(DATATYPES[entry["datatype"]])
            size = entry.get("parameters", {}).get("binary_data_size")
            if size is None:
                array = np.array(entry["data"], kind)
            else:
                array = np.frombuffer(body[offset : offset + size], kind)
                offset += size
            outputs[entry["name"]] = array.reshape(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise WrongAnswer(
            f"the answer is no inference response: {error!r}; it begins with {body[:200]!r}"
        ) from error
    if offset != len(body):
        raise WrongAnswer(f"the answer holds {len(body)} bytes and accounts for {offset}")
    return outputs


def check(outputs: Tensors, expected: Tensors | None) -> None:
    """Compare an answer with what the model computes (None: finite numbers). Raises WrongAnswer."""
    if expected is None:
        wrong = [name for name, array in outputs.items() if not np.isfinite(array).all()]
        if wrong or not outputs:
            raise WrongAnswer(
                f"expected outputs of finite numbers, got {sorted(outputs)}, not finite: {wrong}"
            )
        return
    if outputs.keys() != expected.keys():
        raise WrongAnswer(f"expected the outputs {sorted(expected)}, got {sorted(outputs)}")
    for name, array in expected.items():
        if outputs[name].dtype != array.dtype or not np.array_equal(outputs[name], array):
            raise WrongAnswer(
                f"output {name!r}: expected {array.dtype}{list(array.shape)} {array.ravel()[:4]}…, "
                f"got {outputs[name].dtype}{list(outputs[name].shape)} {outputs[name].ravel()[:4]}…"
            )


def inputs_from_metadata(metadata: Mapping[str, Any]) -> Tensors:
    """Return inputs of ones for any model with fixed-size datatypes.

    There is one row, and 1 for every other free dimension. `metadata` is the body of the model metadata
    endpoint. Raises ValueError for a datatype without fixed size.
    """
    inputs = {}
    for entry in metadata["inputs"]:
        if entry["datatype"] not in DATATYPES:
            raise ValueError(
                f"input {entry['name']!r} has datatype {entry['datatype']}, which has no fixed size"
            )
        inputs[entry["name"]] = np.ones(
            [max(1, size) for size in entry["shape"]], DATATYPES[entry["datatype"]]
        )
    return inputs


def build(scenario: Scenario, metadata: Mapping[str, Any] | None = None) -> tuple[Request, Tensors | None]:
    """Return a scenario's request and the outputs its answer must hold (None: only finite numbers).

    `metadata` is needed where the scenario leaves its inputs to the model.
    """
    inputs = (
        inputs_from_metadata(metadata or {"inputs": []}) if scenario.inputs is None else scenario.inputs()
    )
    expected = None if scenario.expected is None else scenario.expected(inputs)
    return encode(inputs, scenario.encoding), expected
