"""gRPC answers name the server, and requests of another server's sequence are refused."""

from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from protocols.grpc.codec.heads import read_head, read_more
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_calls import infer_request
from tests.protocols.grpc_serving import INFER, STREAM, in_thread, serve

A, B = np.arange(16, dtype=np.float32).reshape(1, 16), np.ones((1, 16), np.float32)
ARRAYS = [("A", "FP32", A), ("B", "FP32", B)]


def sequence(*, start=False, correlation_id=7):
    parameters = {"sequence_id": correlation_id, "sequence_start": start}
    return infer_request(arrays=ARRAYS, id="r1", parameters=parameters)


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def serving(backend):
    def serving(**changes):
        options = GrpcOptions(**changes)
        return serve(InferenceService(backend.server, options), options)

    return serving


@contextmanager
def calls(served):
    with served.channel() as channel:
        yield (
            channel.unary_unary(
                INFER,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            ),
            channel.stream_stream(
                STREAM,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelStreamInferResponse.FromString,
            ),
        )


async def asked(served, request, shown=""):
    """Return the status of ModelInfer, its details, and the name in its answer's metadata."""
    metadata = [("tritium-replica", shown)] if shown else []

    def ask():
        with calls(served) as (unary, _):
            _, call = unary.with_call(request, metadata=metadata, timeout=20)
            return call.code(), "", dict(call.initial_metadata()).get("tritium-replica")

    try:
        return await in_thread(ask)
    except grpc.RpcError as error:
        return error.code(), error.details(), None


@pytest.mark.parametrize("compression", ["none", "low"])
async def test_answers_name_the_server(serving, compression):
    async with serving(replica="b", compression=compression) as served:
        assert await asked(served, sequence(start=True)) == (grpc.StatusCode.OK, "", "b")

        def stream():
            with calls(served) as (_, streamed):
                call = streamed(iter([sequence(start=True)]), timeout=20)
                return len(list(call)), dict(call.initial_metadata())["tritium-replica"]

        assert await in_thread(stream) == (1, "b")


async def test_a_server_without_a_name_says_none(serving):
    async with serving() as served:
        assert await asked(served, sequence()) == (grpc.StatusCode.OK, "", None)


async def test_a_request_that_goes_on_with_another_servers_sequence_is_refused(serving, backend):
    said = (
        "[request id: r1] the sequence 7 to model 'add' began on the replica 'a', and this is 'b': begin it"
        " anew, with the START flag"
    )
    async with serving(replica="b") as served:
        refused = (grpc.StatusCode.FAILED_PRECONDITION, said, None)
        assert await asked(served, sequence(), "a") == refused

        def stream():
            with calls(served) as (_, streamed):
                metadata = [("tritium-replica", "a")]
                requests = iter([sequence(), sequence(start=True)])
                return [answer.error_message for answer in streamed(requests, metadata=metadata, timeout=20)]

        assert await in_thread(stream) == [said, ""]
    assert len(backend.model().submitted) == 1
    assert not served.crashes


@pytest.mark.parametrize(
    ("request_", "shown"),
    [
        (sequence(start=True), "a"),
        (sequence(), "b"),
        (sequence(), ""),
        (infer_request(arrays=ARRAYS), "a"),
    ],
)
async def test_all_others_are_served(serving, request_, shown):
    async with serving(replica="b") as served:
        assert (await asked(served, request_, shown))[0] is grpc.StatusCode.OK


def test_the_name_is_found_also_where_a_head_is_the_one_before_and_more():
    fields = (
        (b":method", b"POST"),
        (b":path", b"/a/B"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    head = read_head(fields, {"/a/B": 1})
    shown = (b"tritium-replica", b"a")
    assert head.replica == b""
    assert read_head((*fields, shown), {"/a/B": 1}).replica == b"a"
    for more, replica in (((shown,), b"a"), (((b"x", b"y"),), b"")):
        found = read_more(head, more)
        assert found is not None
        assert found.replica == replica
