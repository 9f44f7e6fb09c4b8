"""grpc.health.v1 over the server's readiness."""

import pytest

from actors.messages.errors import ErrorCode, TritiumError
from protocols.grpc.health import HealthService
from protocols.kserve.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.protocols.scripted_stream import ScriptedStream


class Probed:
    def __init__(self, *, ready=True, exiting=False):
        self.exiting = exiting
        self._ready = ready

    async def ready(self):
        return self._ready


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


async def test_watch_is_not_offered_and_the_refusal_says_what_is():
    stream = ScriptedStream(HealthCheckRequest())
    with pytest.raises(TritiumError, match="Health/Check") as refusal:
        await HealthService(Probed()).Watch(stream)
    assert refusal.value.code is ErrorCode.UNSUPPORTED
    assert stream.sent == []


def test_the_paths_are_the_standard_ones():
    assert set(HealthService(Probed()).__mapping__()) == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
    }
