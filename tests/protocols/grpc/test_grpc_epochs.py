"""Loads and unloads over gRPC show the epoch of their controller."""

import pytest

from actors.values.errors import ErrorCode, TritiumError
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import grpc_service_pb2 as pb
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_calls import make_call
from tests.protocols.scripted_stream import ScriptedStream


@pytest.fixture
def server():
    server = FakeServer()
    server.repository.explicit = True
    server.register.begin(5)
    return server


async def change(server, rpc, epoch):
    """Ask for a change; return its code and its text, or None for one that was made."""
    stream = ScriptedStream(getattr(pb, f"{rpc}Request")(model_name="add"))
    metadata = {} if epoch is None else {"tritium-epoch": epoch}
    stream.call = make_call(stream.call.wire, metadata=metadata)
    try:
        await getattr(InferenceService(server.server), rpc)(stream)
    except TritiumError as error:
        return error.code, error.message
    return None


RPCS = pytest.mark.parametrize("rpc", ["RepositoryModelLoad", "RepositoryModelUnload"])


@RPCS
@pytest.mark.parametrize(("epoch", "after"), [(None, 5), ("5", 5), ("6", 6)])
async def test_a_change_of_an_epoch_as_high_is_made(server, rpc, epoch, after):
    assert await change(server, rpc, epoch) is None
    assert len(server.repository.loaded) + len(server.repository.unloaded) == 1
    assert server.register.epoch == after


@RPCS
@pytest.mark.parametrize(
    ("epoch", "code", "text"),
    [
        ("4", ErrorCode.TAKEN_OVER, "has seen epoch 5, and the request shows epoch 4: another controller"),
        ("four", ErrorCode.INVALID_ARG, "'tritium-epoch' is a whole number from 1 to "),
    ],
)
async def test_a_change_of_a_lower_epoch_or_of_none_that_is_a_number_is_not_made(
    server, rpc, epoch, code, text
):
    refused = await change(server, rpc, epoch)
    assert refused is not None
    assert (refused[0], text in refused[1]) == (code, True)
    assert server.repository.loaded == server.repository.unloaded == []
