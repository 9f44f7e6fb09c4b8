"""Asks a server by KServe's own Python client, and prints what it said as JSON.

    PYTHON tests/support/kserve_calls.py http://HOST:PORT HOST:PORT MODEL

Run by path, on a Python that has `kserve` (`tests.support.environments.KSERVE`). The model doubles X, FP32
[n].
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - KServe's client runs on nothing else
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    RESTConfig,
)
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

ASKED = np.arange(4, dtype=np.float32)
IN_WORDS = {"accept": "application/json"}


def request(model: str, *, binary: bool) -> InferRequest:
    """Return a request for `ASKED` doubled, its tensors binary or in JSON."""
    tensor = InferInput("X", list(ASKED.shape), "FP32")
    tensor.set_data_from_numpy(ASKED, binary_data=binary)
    wanted = [RequestedOutput("Y", {"binary_data": True})] if binary else None
    return InferRequest(
        model_name=model, infer_inputs=[tensor], request_id="by kserve", request_outputs=wanted
    )


def told(response: InferResponse) -> dict[str, Any]:
    """Return what a response has."""
    outputs: list[InferOutput] = response.outputs
    return {
        "id": response.id,
        "model": response.model_name,
        "outputs": {each.name: [each.datatype, each.as_numpy().tolist()] for each in outputs},
    }


async def refusal(call: Awaitable[Any]) -> str:
    """Return what a call that fails is told."""
    try:
        return f"no refusal but {await call}"
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code} {error}"
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    except json.JSONDecodeError:
        return "no JSON"


async def over_http(url: str, model: str) -> dict[str, Any]:
    """Ask what the client for HTTP can ask."""
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=30)) as client:
        wrong = {"inputs": [{"name": "Z", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
        plain = {"inputs": [{"name": "X", "shape": [4], "datatype": "FP32", "data": ASKED.tolist()}]}
        return {
            "live": await client.is_server_live(url, headers=IN_WORDS),
            "ready": await client.is_server_ready(url, headers=IN_WORDS),
            "ready without a header": await refusal(client.is_server_ready(url)),
            "model": await client.is_model_ready(url, model),
            "other model": await client.is_model_ready(url, "unknown"),
            "json": told(await client.infer(url, request(model, binary=False), model_name=model)),
            "binary": told(await client.infer(url, request(model, binary=True), model_name=model)),
            "mapping": told(await client.infer(url, plain, model_name=model)),
            "wrong": await refusal(client.infer(url, wrong, model_name=model)),
            "unknown": await refusal(client.infer(url, plain, model_name="unknown")),
        }


async def over_grpc(target: str, model: str) -> dict[str, Any]:
    """Ask what the client for gRPC can ask, and KServe's stubs for metadata."""
    async with InferenceGRPCClient(target, timeout=30) as client:
        answers = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model": await client.is_model_ready(model),
            "json": told(await client.infer(request(model, binary=False))),
            "binary": told(await client.infer(request(model, binary=True))),
            "unknown": await refusal(client.infer(request("unknown", binary=True))),
        }
    async with grpc.aio.insecure_channel(target) as channel:
        stubs = GRPCInferenceServiceStub(channel)
        server = await stubs.ServerMetadata(messages.ServerMetadataRequest())
        described = await stubs.ModelMetadata(messages.ModelMetadataRequest(name=model))
        return {
            **answers,
            "server": server.name,
            "extensions": list(server.extensions),
            "inputs": [[each.name, each.datatype, list(each.shape)] for each in described.inputs],
            "versions": list(described.versions),
        }


async def main() -> None:
    """Ask over both protocols."""
    logging.disable(logging.CRITICAL)  # the client logs each refusal, with a traceback
    url, target, model = sys.argv[1:]
    answers = {"http": await over_http(url, model), "grpc": await over_grpc(target, model)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
