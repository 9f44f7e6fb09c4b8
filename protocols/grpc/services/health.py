"""grpc.health.v1: the standard health service, on the server's readiness (contract, grpc.md 5.7)."""

from __future__ import annotations

from actors.values.errors import Unavailable
from actors.values.interfaces import Health
from protocols.grpc.call import ServerStream
from protocols.grpc.generated.health_base import HealthBase
from protocols.kserve.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse


class HealthService(HealthBase):
    """Answers for the whole server, whichever service a probe names.

    As `ServerReady`, so never SERVICE_UNKNOWN.
    """

    def __init__(self, health: Health) -> None:
        self._health = health

    async def Check(self, stream: ServerStream[HealthCheckRequest, HealthCheckResponse]) -> None:
        """Say SERVING or NOT_SERVING. Raises Unavailable `Server exiting` once shutdown has begun."""
        await stream.recv_message()
        if self._health.exiting:
            raise Unavailable("Server exiting")
        ready = await self._health.ready()
        status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
        await stream.send_message(HealthCheckResponse(status=status))

    async def Watch(self, stream: ServerStream[HealthCheckRequest, HealthCheckResponse]) -> None:
        """Say SERVING or NOT_SERVING, and again each time that this changes.

        Triton has no such method. Here it tells clients that watch to go elsewhere, at the moment at which
        the server begins to end. Raises Unavailable `Server exiting` once shutdown has begun.
        """
        await stream.recv_message()
        health = self._health
        while not health.exiting:
            ready = await health.ready()
            status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
            await stream.send_message(HealthCheckResponse(status=status))
            await health.wait_turned(ready)
        await stream.send_message(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))
        raise Unavailable("Server exiting")
