"""Every kind of refusal, again and again, over both protocols: each has its error and leaves nothing behind.

As many rounds as would show a leak of a hundred bytes. `tests/protocols` has a few rounds in memory.
"""

from __future__ import annotations

import gzip
import http.client
import json
import sys

import grpc
import numpy as np
import psutil
import pytest
import trio

from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.survival.repository import WIDTH, instances

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
SERVICE = "/inference.GRPCInferenceService/"
ROW = np.ones((1, WIDTH), np.float32)


def request(**changes):
    """A request to onnx_add_sub that would be answered without `changes` to its first input."""
    message = pb.ModelInferRequest(model_name=changes.pop("model", "onnx_add_sub"))
    for name in ("A", "B"):
        message.inputs.add(name=name, datatype="FP32", shape=ROW.shape)
        message.raw_input_contents.append(ROW.tobytes())
    for key, value in changes.items():
        if key == "shape":
            message.inputs[0].shape[:] = value
        else:
            setattr(message.inputs[0], key, value)
    return message.SerializeToString()


def with_parameters(count):
    message = pb.ModelInferRequest.FromString(request())
    for number in range(count):
        message.parameters[str(number)].bool_param = True
    return message.SerializeToString()


# By the fault: the method, and the messages of the call.
GRPC = {
    "no message": ("ModelInfer", []),
    "two messages": ("ModelInfer", [request(), request()]),
    "no protobuf": ("ModelInfer", [b"\xff\xff\xff"]),
    "too many fields": ("ModelInfer", [b"\x3a\0" * 10_000]),
    "too many parameters": ("ModelInfer", [with_parameters(1100)]),
    "unknown model": ("ModelInfer", [request(model="nobody")]),
    "unknown input": ("ModelInfer", [request(name="C")]),
    "unknown datatype": ("ModelInfer", [request(datatype="FP33")]),
    "another datatype": ("ModelInfer", [request(datatype="INT32")]),
    "wrong shape": ("ModelInfer", [request(shape=[1, 3])]),
    "too many dimensions": ("ModelInfer", [request(shape=[1] * 100)]),
    "no model": ("ModelInfer", [request(model="")]),
    "no metadata": ("ModelMetadata", [pb.ModelMetadataRequest(name="nobody").SerializeToString()]),
    "no configuration": ("ModelConfig", [pb.ModelConfigRequest(name="nobody").SerializeToString()]),
    "no version": ("ModelReady", [pb.ModelReadyRequest(name="m", version="x").SerializeToString()]),
    "no statistics": ("ModelStatistics", [pb.ModelStatisticsRequest(name="nobody").SerializeToString()]),
    "no load": ("RepositoryModelLoad", [pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()]),
    "no such method": ("ModelOutfer", [b""]),
}

INFER = "/v2/models/onnx_add_sub/infer"
BODY = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH} for name in "AB"
    ]
}


def changed(**changes):
    inputs = [{**BODY["inputs"][0], **changes}, BODY["inputs"][1]]
    return json.dumps({"inputs": inputs}).encode()


GOOD = json.dumps(BODY).encode()

# By the fault: the method, the path, the body and the headers.
HTTP = {
    "no such path": ("GET", "/v3", None, {}),
    "no such method": ("PUT", INFER, GOOD, {}),
    "no JSON": ("POST", INFER, b'{"inputs":', {}),
    "no object": ("POST", INFER, b"[]", {}),
    "no body": ("POST", INFER, b"", {}),
    "unknown model": ("POST", "/v2/models/nobody/infer", GOOD, {}),
    "unknown version": ("POST", "/v2/models/onnx_add_sub/versions/9/infer", GOOD, {}),
    "unknown input": ("POST", INFER, changed(name="C"), {}),
    "unknown datatype": ("POST", INFER, changed(datatype="FP33"), {}),
    "wrong shape": ("POST", INFER, changed(shape=[1, 3]), {}),
    "too many dimensions": ("POST", INFER, changed(shape=[1] * 100), {}),
    "too little data": ("POST", INFER, changed(data=[1.0]), {}),
    "a string for a number": ("POST", INFER, changed(data=["x"] * WIDTH), {}),
    "a length beyond the body": ("POST", INFER, GOOD, {"Inference-Header-Content-Length": "99999"}),
    "unknown coding": ("POST", INFER, GOOD, {"Content-Encoding": "br"}),
    "broken gzip": ("POST", INFER, gzip.compress(GOOD)[:-5], {"Content-Encoding": "gzip"}),
    "no load": ("POST", "/v2/repository/models/m/load", b"{}", {}),
    "no metadata": ("GET", "/v2/models/nobody", None, {}),
    "no configuration": ("GET", "/v2/models/nobody/config", None, {}),
    "no statistics": ("GET", "/v2/models/nobody/stats", None, {}),
}


def ask_grpc(channel, method, messages):
    """Return the status of a call that sends these messages, however many its method takes."""
    call = channel.stream_unary(SERVICE + method, request_serializer=bytes, response_deserializer=bytes)
    try:
        call(iter(messages), timeout=30)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def ask_stream(channel, messages):
    """Return the texts of a stream's errors."""
    call = channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        request_serializer=bytes,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
    return [answer.error_message for answer in call(iter(messages), timeout=30)]


def ask_http(connection, method, path, body, headers):
    """Return the status of a request; reopen the connection if the server has closed it."""
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def refuse_all(server, rounds):
    """Have everything refused `rounds` times."""
    kinds = (
        "no protobuf",
        "unknown model",
        "unknown input",
        "another datatype",
        "wrong shape",
        "too many dimensions",
    )
    streamed = [GRPC[kind][1][0] for kind in kinds]
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    with grpc.insecure_channel(server.grpc_url) as channel:
        for _ in range(rounds):
            for name, (method, messages) in GRPC.items():
                assert ask_grpc(channel, method, messages) is not grpc.StatusCode.OK, name
            assert all(ask_stream(channel, streamed))
            for name, (method, path, body, headers) in HTTP.items():
                assert ask_http(connection, method, path, body, headers) >= 400, name
    connection.close()


def memory_of(server):
    return psutil.Process(server.pid).memory_full_info().uss


@pytest.mark.long
@pytest.mark.usefixtures("own_interpreter")
async def test_refusals_leave_nothing_behind(tritium_server, repository):
    """A traceback that is kept costs 9 KiB a refusal, with the message and the connection that it holds."""
    repository.onnx_add_sub(config=instances(1))
    async with tritium_server() as server:
        await trio.to_thread.run_sync(refuse_all, server, 40)
        before = memory_of(server)
        await trio.to_thread.run_sync(refuse_all, server, 5000)
        grown = memory_of(server) - before
        print(f"\n5,000 rounds of refusals: {grown / MIB:.2f} MiB more", file=sys.stderr)
        assert grown < 20 * MIB
