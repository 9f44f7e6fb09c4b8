"""What the settings say of gRPC is what its listener does."""

from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from actors.supervision.supervisor import Supervisor
from actors.values.errors import TritiumError
from actors.values.events import Event
from actors.values.requests import Endings
from engine.server.frontends import Frontend, grpc_listener
from engine.server.sockets import bind
from engine.settings.listening import GrpcSettings, RestrictedHeader
from tests.fuzz import h2wire as wire
from tests.protocols.fakes import FakeServer
from tests.support.logged import Logged
from tests.support.trees import serving


@asynccontextmanager
async def served(server, settings=None, *, on_finished=None):
    log = Logged()
    listener = grpc_listener(
        settings or GrpcSettings(), server.server, tls=None, endings=Endings(on_finished), log=log
    )
    with bind("127.0.0.1", 0) as sock:
        frontend = Frontend("grpc", "GRPCInferenceService", sock, listener, log=log)
        async with serving(Supervisor([frontend.spec()])):
            yield frontend.address, log


async def call(address, rpc, request, **options):
    def ask():
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return getattr(stub, rpc)(request, timeout=30, **options)

    return await trio.to_thread.run_sync(ask)


async def test_a_restricted_api_wants_its_metadata():
    settings = GrpcSettings(restricted_protocol={"health": RestrictedHeader("Key", "secret")})
    async with served(FakeServer(), settings) as (address, _):
        live = partial(call, address, "ServerLive", service_pb2.ServerLiveRequest())
        with pytest.raises(grpc.RpcError) as caught:
            await live()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == (
            "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
        )
        assert (await live(metadata=[("triton-grpc-protocol-key", "secret")])).live
        assert await call(address, "ServerMetadata", service_pb2.ServerMetadataRequest())


async def test_a_bug_is_told_with_its_call_and_costs_no_other():
    server = FakeServer()
    bug = ZeroDivisionError("a bug")

    async def broken():
        raise bug

    vars(server.health)["ready"] = broken
    async with served(server) as (address, log):
        with pytest.raises(grpc.RpcError) as caught:
            await call(address, "ServerReady", service_pb2.ServerReadyRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "a bug" not in caught.value.details()
        assert (await call(address, "ServerLive", service_pb2.ServerLiveRequest())).live
        assert log[1:] == [
            (
                Event.CHILD_EXITED,
                "error",
                {
                    "call": "/inference.GRPCInferenceService/ServerReady",
                    "reason": "crashed: ZeroDivisionError('a bug')",
                    "exc_info": bug,
                },
            )
        ]


async def test_a_client_that_is_sent_away_costs_one_line_of_the_verbose_log():
    async with served(FakeServer()) as (address, log):
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as client:
            peer = "ipv4:{}:{}".format(*client.socket.getsockname())
            await client.send_all(wire.PREFACE + wire.settings() + wire.data(0, b"x"))
            with trio.fail_after(10):
                assert b"DATA on stream 0" in b"".join([part async for part in client])
        assert (await call(address, "ServerLive", service_pb2.ServerLiveRequest())).live
        about = {"peer": peer, "reason": "DATA on stream 0 (PROTOCOL_ERROR)"}
        assert log[1:] == [(Event.CONNECTION_REFUSED, "debug", about)]


async def test_what_came_of_a_request_is_told_to_the_request_log():
    finished = []
    server = FakeServer()
    async with served(
        server, on_finished=lambda request, outcome, _: finished.append((request, outcome))
    ) as (
        address,
        _,
    ):
        with pytest.raises(grpc.RpcError):
            await call(address, "ModelInfer", service_pb2.ModelInferRequest(model_name="add", id="r1"))
    ((request, outcome),) = finished
    assert (request.id, request.model_name) == ("r1", "add")
    assert isinstance(outcome, TritiumError)


async def test_metadata_that_match_the_pattern_become_parameters():
    finished = []
    server = FakeServer()
    settings = GrpcSettings(header_forward_pattern="^X-Tenant")
    metadata = [("x-tenant", "acme"), ("x-other", "1")]
    async with served(
        server, settings, on_finished=lambda request, *_: finished.append(request.parameters)
    ) as (address, _):
        request = service_pb2.ModelInferRequest(model_name="add")
        with pytest.raises(grpc.RpcError):
            await call(address, "ModelInfer", request, metadata=metadata)
    assert finished == [{"x-tenant": "acme"}]
