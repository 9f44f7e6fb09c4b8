"""Inference over HTTP as bytes.

Every second request has binary tensors, as tritonclient writes them; the others are JSON alone.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from chaos.clients.tensors import datatype, numbers, to_bytes
from chaos.record.history import End
from chaos.record.outcome import UNREADABLE, code_of
from chaos.record.records import Fail, Invoke, Ok
from chaos.wires.http import Reply, request
from chaos.workload.answers import Tensor, inputs, values

_BINARY_SIZE: Final = "inference-header-content-length"


def encode(invoke: Invoke) -> bytes:
    """Return a request as it goes over the wire.

    `Invoke.deadline` becomes `timeout`, which bounds the wait in the queue only.
    """
    binary = invoke.n % 2 == 0
    arrays = inputs(invoke)
    described = [_described(name, array, binary) for name, array in arrays.items()]
    parameters = {**_parameters(invoke), **({"binary_data_output": True} if binary else {})}
    document = {"id": invoke.id, "inputs": described, "parameters": parameters}
    head = orjson.dumps(document)
    fields = {"x-tenant": invoke.tenant} if invoke.tenant else {}
    if not binary:
        return request("POST", f"/v2/models/{invoke.model}/infer", head, **fields)
    fields[_BINARY_SIZE] = str(len(head))
    body = head + b"".join(to_bytes(array) for array in arrays.values())
    return request("POST", f"/v2/models/{invoke.model}/infer", body, **fields)


def _described(name: str, array: Tensor, binary: bool) -> dict[str, Any]:
    described = {"name": name, "shape": array.shape, "datatype": datatype(array)}
    if binary:
        return {**described, "parameters": {"binary_data_size": len(to_bytes(array))}}
    return {
        **described,
        "data": [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()],
    }


def _parameters(invoke: Invoke) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if invoke.sequence:
        parameters |= {
            "sequence_id": invoke.sequence,
            "sequence_start": invoke.start,
            "sequence_end": invoke.end,
        }
    if invoke.priority:
        parameters["priority"] = invoke.priority
    if invoke.deadline is not None:
        parameters["timeout"] = max(1, int((invoke.deadline - invoke.t) * 1e6))
    return parameters


def end_of(invoke: Invoke, reply: Reply, at: float) -> End:
    """Return what an answer that was whole `at` says."""
    if reply.status != 200:
        return Fail(t=at, n=invoke.n, code=code_of(reply.status), message=_message(reply))
    try:
        document, outputs = _read(reply)
        said = values(invoke.model, outputs)
        attempts = int(document.get("parameters", {}).get("attempts", 1))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Fail(t=at, n=invoke.n, code=UNREADABLE, message=f"{error!r} in {reply.body[:500]!r}")
    if document.get("id") != invoke.id:
        return Fail(
            t=at, n=invoke.n, code=UNREADABLE, message=f"the answer to request {document.get('id')!r} came"
        )
    return Ok(t=at, n=invoke.n, values=said, first=at, attempts=attempts)


def _message(reply: Reply) -> str:
    try:
        return str(orjson.loads(reply.body)["error"])
    except (ValueError, TypeError, KeyError):
        return f"HTTP {reply.status}: {reply.body[:500]!r}"


def _read(reply: Reply) -> tuple[dict[str, Any], dict[str, Tensor]]:
    at = int(reply.fields.get(_BINARY_SIZE, len(reply.body)))
    document = orjson.loads(reply.body[:at])
    outputs = {}
    for output in document["outputs"]:
        name, kind, shape = output["name"], output["datatype"], output["shape"]
        if "data" in output:
            outputs[name] = numbers(kind, shape, output["data"])
            continue
        size = output["parameters"]["binary_data_size"]
        outputs[name] = numbers(kind, shape, memoryview(reply.body)[at : at + size])
        at += size
    return document, outputs
