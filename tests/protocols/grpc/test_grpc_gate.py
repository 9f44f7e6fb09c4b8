"""The gate in front of the v2 API over gRPC: how much a caller may send, and what is kept from models."""

import re

import grpc
import numpy as np
import pytest

from actors.values.callers import Action
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.caps import REPOSITORY_BODY
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_calls import infer_request
from tests.protocols.grpc_serving import INFER, LIVE, bidi, in_thread, serve, unary
from tests.support.callers import KnownCaller, ListedGate
from tests.support.shared_memory import PAGE, an_object

LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
KEY = (("authorization", "Bearer alice"),)
RIGHTS = {(action, model) for action in Action for model in ("", "add")}


def load_of(size):
    request = pb.RepositoryModelLoadRequest(model_name="add")
    request.parameters["file:1/model.py"].bytes_param = bytes(size)
    return request.SerializeToString()


@pytest.fixture
def alice():
    return KnownCaller("alice", RIGHTS)


@pytest.fixture
def backend():
    server = FakeServer()
    server.repository.explicit = True
    return server


def offered(backend, caller, **more):
    options = GrpcOptions(gate=ListedGate({b"Bearer alice": caller}), **more)
    return serve(InferenceService(backend.server, options), options)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_caller_that_may_bring_no_files_sends_short_messages(backend, alice, compression):
    async with offered(backend, alice) as served:
        with served.channel() as channel:

            def ask(path, message):
                unary(channel, path)(message, metadata=KEY, timeout=20, compression=compression)

            await in_thread(ask, LOAD, load_of(REPOSITORY_BODY))
            assert len(backend.repository.loaded) == 1
            alice.allowed = RIGHTS - {(Action.UPLOAD, ""), (Action.UPLOAD, "add")}
            for path in (LOAD, LIVE):
                with pytest.raises(grpc.RpcError, match="Received message larger than max") as caught:
                    await in_thread(ask, path, load_of(REPOSITORY_BODY))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.RpcError, match="alice may not upload add"):
                await in_thread(ask, LOAD, load_of(REPOSITORY_BODY - 100))
            assert len(backend.repository.loaded) == 1


async def test_models_are_not_told_the_credentials_that_the_gate_judges(backend, alice):
    ones = np.ones((1, 16), np.float32)
    message = infer_request("add", [("A", "FP32", ones), ("B", "FP32", ones)]).SerializeToString()
    async with offered(backend, alice, header_forward_pattern=re.compile(".")) as served:
        with served.channel() as channel:
            await in_thread(unary(channel, INFER), message, metadata=(*KEY, ("x-user", "u")), timeout=20)
    (request,) = backend.model("add").submitted
    assert request.parameters["x-user"] == "u"
    assert "authorization" not in request.parameters


async def test_regions_in_a_request_need_the_right_to_shared_memory(backend, alice):
    message = infer_request("add")
    for name in ("A", "B"):
        given = message.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        given.parameters["shared_memory_region"].string_param = "R"
        given.parameters["shared_memory_byte_size"].int64_param = 64
    with an_object(PAGE) as memory:
        await backend.regions.register_system("R", memory.key, offset=0, byte_size=PAGE)
        async with offered(backend, alice) as served:
            with served.channel() as channel:

                def asked():
                    unary(channel, INFER)(message.SerializeToString(), metadata=KEY, timeout=20)

                def streamed():
                    stream = bidi(channel)(iter([message.SerializeToString()]), metadata=KEY, timeout=20)
                    return [pb.ModelStreamInferResponse.FromString(each).error_message for each in stream]

                await in_thread(asked)
                assert await in_thread(streamed) == [""]
                alice.allowed = RIGHTS - {(Action.SHARED_MEMORY, ""), (Action.SHARED_MEMORY, "add")}
                for counted in (True, False):
                    alice.counted = counted
                    with pytest.raises(grpc.RpcError, match="alice may not shared-memory") as caught:
                        await in_thread(asked)
                    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                    assert await in_thread(streamed) == ["alice may not shared-memory"]
                # Whether there is such a region is not told either.
                message.inputs[0].parameters["shared_memory_region"].string_param = "Q"
                with pytest.raises(grpc.RpcError, match="alice may not shared-memory"):
                    await in_thread(asked)
                assert await in_thread(streamed) == ["alice may not shared-memory"]
        assert len(backend.model("add").submitted) == 2
        assert (alice.running, backend.regions.table.find("R").users) == (0, 0)
