"""The services of the gRPC frontend put together, with health and reflection.

grpc.health.v1 answers on the server's readiness (contract, grpc.md 5.7). Reflection is what a client without
a service's `.proto` needs to call it (grpcurl, Postman, ...). Both its versions are offered, because older
clients ask for v1alpha alone. Their messages differ in nothing but the package, so there is one
implementation, and v1alpha's messages pass through it as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from actors.values.errors import InvalidArgument, NotFound, TritiumError, Unavailable
from actors.values.interfaces import Health, Server
from protocols.grpc.call import ServerStream
from protocols.grpc.generated import reflection_v1_base, reflection_v1alpha_base
from protocols.grpc.generated.health_base import HealthBase
from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.inference import InferenceService
from protocols.kserve.proto import reflection_v1_pb2 as v1
from protocols.kserve.proto import reflection_v1alpha_pb2 as v1alpha
from protocols.kserve.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from protocols.kserve.proto.pool import POOL
from protocols.status import grpc_status


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


class Reflector:
    """Answers reflection requests on `services`, by full name in this order, and the descriptors in `pool`.

    It keeps no state for a client: every answer is complete, whatever was sent on the same stream before.
    """

    def __init__(self, services: Iterable[str], pool: DescriptorPool = POOL) -> None:
        self._services = tuple(services)
        self._pool = pool

    def answer(self, request: v1.ServerReflectionRequest) -> v1.ServerReflectionResponse:
        """Return the response to `request`; it may name a fault: NOT_FOUND, INVALID_ARGUMENT."""
        response = v1.ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except TritiumError as error:
            response.error_response.error_code = grpc_status(error.code)
            response.error_response.error_message = error.message
        return response

    def _fill(self, response: v1.ServerReflectionResponse, request: v1.ServerReflectionRequest) -> None:
        match request.WhichOneof("message_request"):
            case "list_services":
                names = [v1.ServiceResponse(name=name) for name in self._services]
                response.list_services_response.service.extend(names)
            case "file_by_filename":
                _put_files(response, self._file(request.file_by_filename))
            case "file_containing_symbol":
                _put_files(response, self._file_of_symbol(request.file_containing_symbol))
            case "file_containing_extension":
                asked = request.file_containing_extension
                _put_files(response, self._file_of_extension(asked.containing_type, asked.extension_number))
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                found = self._pool.FindAllExtensions(self._message(name))
                response.all_extension_numbers_response.base_type_name = name
                response.all_extension_numbers_response.extension_number.extend(each.number for each in found)
            case _:
                raise InvalidArgument(
                    "the request asks for nothing: set list_services, file_by_filename, file_containing_symbol, "
                    "file_containing_extension or all_extension_numbers_of_type"
                )

    def _file(self, name: str) -> FileDescriptor:
        try:
            return self._pool.FindFileByName(name)
        except KeyError:
            raise NotFound(f"no file '{name}'; ask for a symbol's file with file_containing_symbol") from None

    def _file_of_symbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            pass  # the pool does not search the methods of services
        parent, _, method = symbol.rpartition(".")
        try:
            service: ServiceDescriptor = self._pool.FindServiceByName(parent)
            return service.methods_by_name[method].containing_service.file
        except KeyError:
            raise NotFound(f"no symbol '{symbol}'; names are in full, with their package") from None

    def _file_of_extension(self, extended: str, number: int) -> FileDescriptor:
        message = self._message(extended)
        try:
            extension = self._pool.FindExtensionByNumber(message, number)
        except KeyError:
            raise NotFound(f"no extension {number} of message '{extended}'") from None
        return self._file_of_symbol(extension.full_name)

    def _message(self, name: str) -> Descriptor:
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise NotFound(f"no message '{name}'; names are in full, with their package") from None


def _put_files(response: v1.ServerReflectionResponse, file: FileDescriptor) -> None:
    files = [each.serialized_pb for each in _with_dependencies(file)]
    response.file_descriptor_response.file_descriptor_proto.extend(files)


def _with_dependencies(file: FileDescriptor) -> list[FileDescriptor]:
    """Return `file` and all files that it imports, directly or not, each once."""
    found = {file.name: file}
    pending = [file]
    while pending:
        for each in pending.pop().dependencies:
            if each.name not in found:
                found[each.name] = each
                pending.append(each)
    return list(found.values())


class ReflectionService(reflection_v1_base.ServerReflectionBase):
    """grpc.reflection.v1."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector

    async def ServerReflectionInfo(
        self, stream: ServerStream[v1.ServerReflectionRequest, v1.ServerReflectionResponse]
    ) -> None:
        """Answer each request, in order, until the client ends its side."""
        while (request := await stream.recv_message()) is not None:
            await stream.send_message(self._reflector.answer(request))


class ReflectionAlphaService(reflection_v1alpha_base.ServerReflectionBase):
    """grpc.reflection.v1alpha."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector

    async def ServerReflectionInfo(
        self, stream: ServerStream[v1alpha.ServerReflectionRequest, v1alpha.ServerReflectionResponse]
    ) -> None:
        """Answer each request, in order, until the client ends its side."""
        while (request := await stream.recv_message()) is not None:
            asked = v1.ServerReflectionRequest.FromString(request.SerializeToString())
            answer = self._reflector.answer(asked)
            await stream.send_message(v1alpha.ServerReflectionResponse.FromString(answer.SerializeToString()))


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
