"""grpc.health.v1 over the server's readiness."""

import pytest
from trio.testing import wait_all_tasks_blocked

from actors.values.errors import ErrorCode, TritiumError
from protocols.grpc.services.offered import HealthService
from protocols.kserve.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.protocols.fakes import FakeHealth
from tests.protocols.scripted_stream import ScriptedStream


def Probed(*, ready=True, exiting=False):
    health = FakeHealth()
    health.is_ready, health.exiting = ready, exiting
    return health


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "nobody.knows.It"])
async def test_a_ready_server_is_serving_whatever_service_is_named(service):
    stream = ScriptedStream(HealthCheckRequest(service=service))
    await HealthService(Probed()).Check(stream)
    assert stream.sent == [HealthCheckResponse(status=HealthCheckResponse.SERVING)]


async def test_a_server_that_is_not_ready_is_not_serving():
    stream = ScriptedStream(HealthCheckRequest(service="nobody.knows.It"))
    await HealthService(Probed(ready=False)).Check(stream)
    assert stream.sent == [HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)]


async def test_while_the_server_exits_the_call_itself_fails():
    stream = ScriptedStream(HealthCheckRequest())
    with pytest.raises(TritiumError) as refusal:
        await HealthService(Probed(exiting=True)).Check(stream)
    assert (refusal.value.code, refusal.value.message) == (ErrorCode.UNAVAILABLE, "Server exiting")
    assert stream.sent == []


async def test_who_watches_is_told_at_once_and_again_at_each_change_until_the_server_exits(nursery):
    health = Probed()
    stream = ScriptedStream(HealthCheckRequest())
    refusals = []

    async def watch():
        with pytest.raises(TritiumError) as refusal:
            await HealthService(health).Watch(stream)
        refusals.append((refusal.value.code, refusal.value.message))

    nursery.start_soon(watch)
    await wait_all_tasks_blocked()
    assert [answer.status for answer in stream.sent] == [HealthCheckResponse.SERVING]
    health.turn(is_ready=True)  # nothing new
    await wait_all_tasks_blocked()
    health.turn(is_ready=False)
    await wait_all_tasks_blocked()
    health.turn(is_ready=True)
    await wait_all_tasks_blocked()
    serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
    assert [answer.status for answer in stream.sent] == [serving, not_serving, serving]
    assert refusals == []
    health.turn(exiting=True)
    await wait_all_tasks_blocked()
    assert [answer.status for answer in stream.sent[3:]] == [not_serving]
    assert refusals == [(ErrorCode.UNAVAILABLE, "Server exiting")]


def test_the_paths_are_the_standard_ones():
    assert set(HealthService(Probed()).__mapping__()) == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
