"""A refusal that was sent is forgotten: no exception keeps the frames that it passed or what they held."""

import contextlib
import gc
import types

import grpc
import numpy as np
import pytest

from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_calls import infer_request
from tests.protocols.grpc_serving import INFER, LIVE, STREAM, in_thread, serve

SERVICE = "/inference.GRPCInferenceService/"
GOOD = infer_request("nobody").SerializeToString()
ONES = np.ones((1, 16), np.float32)


def given(name="A", datatype="FP32", shape=(1, 16), **options):
    """A request to a model that is there, of which nothing is good but what is left out."""
    request = infer_request("add", [(name, datatype, ONES)], **options)
    request.inputs[0].shape[:] = shape
    return request.SerializeToString()


REFUSED = {
    "no message": (INFER, []),
    "two messages": (INFER, [GOOD, GOOD]),
    "two messages to a coroutine": (LIVE, [b"", b""]),
    "a long message and another": (INFER, [GOOD + b"\x3a\x80\x80\x04" + bytes(65_536), GOOD]),
    "no protobuf": (INFER, [b"\xff\xff"]),
    "no protobuf for a coroutine": (LIVE, [b"\xff\xff"]),
    "unknown model": (INFER, [GOOD]),
    "no model": (INFER, [infer_request("").SerializeToString()]),
    "too many fields": (INFER, [b"\x3a\0" * 10_000]),
    "too many parameters": (INFER, [given(parameters={str(n): True for n in range(1100)})]),
    "unknown input": (INFER, [given("C")]),
    "unknown datatype": (INFER, [given(datatype="FP33")]),
    "too many dimensions": (INFER, [given(shape=[1] * 100)]),
    "no version": (SERVICE + "ModelReady", [pb.ModelReadyRequest(name="m", version="x").SerializeToString()]),
    "no metadata": (SERVICE + "ModelMetadata", [pb.ModelMetadataRequest(name="m").SerializeToString()]),
    "no load": (
        SERVICE + "RepositoryModelLoad",
        [pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()],
    ),
    "no such method": (SERVICE + "ModelOutfer", [b""]),
    "no protobuf on a stream": (STREAM, [b"\xff\xff"]),
}


def tracebacks():
    gc.collect()
    # Compare types: `isinstance` asks objects of other libraries for their class, and some then warn.
    return sum(type(each) is types.TracebackType for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_leaves_no_traceback(kind):
    path, messages = REFUSED[kind]
    service = InferenceService(FakeServer().server)
    async with serve(service) as served:
        with served.channel() as channel:
            call = channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)

            def refuse(times):
                for _ in range(times):
                    with contextlib.suppress(grpc.RpcError):
                        list(call(iter(messages), timeout=20))

            await in_thread(refuse, 3)
            before = tracebacks()
            await in_thread(refuse, 30)
            assert tracebacks() < before + 15
        assert not served.crashes
