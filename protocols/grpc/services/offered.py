"""The services of the gRPC frontend, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.values.interfaces import Server
from protocols.grpc.options import GrpcOptions
from protocols.grpc.services.health import HealthService
from protocols.grpc.services.inference import InferenceService
from protocols.grpc.services.reflection import ReflectionAlphaService, ReflectionService, Reflector


def services(server: Server, options: GrpcOptions | None = None) -> Sequence[Any]:
    """Return what a `GrpcListener` serves of `server`: inference, health, and reflection of all three.

    Each has grpclib's `__mapping__`; one may have `unary_methods`, by path, which go before its mapping.
    """
    inference, health = InferenceService(server, options), HealthService(server.health)
    reflector = Reflector(
        (
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
        )
    )
    return (inference, health, ReflectionService(reflector), ReflectionAlphaService(reflector))
