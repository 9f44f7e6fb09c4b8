"""The RPCs of extensions that this version lacks. Over HTTP their endpoints say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from actors.values.errors import Unsupported
from protocols.grpc.generated.grpc_service_base import GRPCInferenceServiceBase

if TYPE_CHECKING:
    from protocols.grpc.call import ServerStream


def _refuse(what: str) -> NoReturn:
    raise Unsupported(f"{what} is not supported by this version of Tritium")


class UnofferedExtensions(GRPCInferenceServiceBase):
    """The part of the inference service that refuses: each of these raises Unsupported."""

    async def SystemSharedMemoryStatus(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to tell the regions of system shared memory."""
        _refuse("system shared memory")

    async def SystemSharedMemoryRegister(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to register a region of system shared memory."""
        _refuse("system shared memory")

    async def SystemSharedMemoryUnregister(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to unregister a region of system shared memory."""
        _refuse("system shared memory")

    async def CudaSharedMemoryStatus(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to tell the regions of CUDA shared memory."""
        _refuse("CUDA shared memory")

    async def CudaSharedMemoryRegister(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to register a region of CUDA shared memory."""
        _refuse("CUDA shared memory")

    async def CudaSharedMemoryUnregister(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to unregister a region of CUDA shared memory."""
        _refuse("CUDA shared memory")

    async def TraceSetting(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to read or change trace settings."""
        _refuse("the trace extension")

    async def LogSettings(self, _stream: ServerStream[Any, Any]) -> None:
        """Refuse to read or change log settings."""
        _refuse("the logging extension")
