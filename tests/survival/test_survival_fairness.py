"""Fair queues and latency promises on a real server, over HTTP and over gRPC."""

import json
from functools import partial

import grpc
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.survival.repository import instances, parameter
from tests.survival.server import until

PENDING = "nv_inference_pending_request_count"
ONE_AT_A_TIME = instances(1)


def setting(key, **value):
    return parameter(key, json.dumps(value).replace('"', '\\"'))


async def ask(server, ticket, **headers):
    """Send a request of the gated model over a connection of its own."""
    tensor = {"name": "TICKET", "shape": [1, 1], "datatype": "INT32", "data": [ticket]}
    async with await server.connect() as connection:
        body = json.dumps({"inputs": [tensor]}).encode()
        return await connection.request("POST", "/v2/models/gated/infer", body, **headers)


def call(server, ticket, *, timeout=30.0, **metadata):
    """Make a call of ModelInfer; return its status, details, and trailing metadata."""
    request = service_pb2.ModelInferRequest(model_name="gated")
    tensor = request.inputs.add(name="TICKET", datatype="INT32", shape=[1, 1])
    tensor.contents.int_contents.append(ticket)
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            stub.ModelInfer(
                request, timeout=timeout, metadata=[(k.replace("_", "-"), v) for k, v in metadata.items()]
            )
        except grpc.RpcError as error:
            return error.code(), error.details(), dict(error.trailing_metadata() or ())
    return grpc.StatusCode.OK, "", {}


async def test_a_tenant_beyond_its_bound_is_told_when_to_come_back(tritium_server, repository, gates):
    fairness = setting(
        "tritium.fairness",
        tenant={"header": "X-Tenant"},
        max_queued=2,
        when_full="refuse",
        weights={"gold": 4},
    )
    repository.gated(gates.directory, config=ONE_AT_A_TIME + fairness)
    async with tritium_server() as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, 0)
        await until(lambda: gates.began() == [0])
        sent = 0
        while await server.metric("tritium_tenant_queued", model="gated", tenant="gold") < 2:
            sent += 1
            nursery.start_soon(partial(ask, server, sent, x_tenant="gold"))
            await server.until_metric(sent, PENDING, model="gated")
        refused = await ask(server, 99, x_tenant="gold")
        assert refused.status == 503
        assert "Exceeds maximum queue size: 2 requests of tenant 'gold' wait already" in refused.error
        assert refused.fields["retry-after"] == "1"

        code, details, trailers = await trio.to_thread.run_sync(lambda: call(server, 99, x_tenant="gold"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "requests of tenant 'gold' wait already" in details
        assert trailers["retry-after"] == "1"
        assert await server.metric("tritium_tenant_refused_total", model="gated", tenant="gold") == 2

        nursery.start_soon(lambda: ask(server, 50, x_tenant="free"))
        # Tenants that are not listed wait under "other" until a request of theirs has been handed to an
        # instance.
        await server.until_metric(1, "tritium_tenant_queued", model="gated", tenant="other")
        gates.open()
    assert 50 in gates.began()
