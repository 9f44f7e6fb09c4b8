"""The RPCs about clients' shared memory. Contract: shared_memory.md section 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from actors.values.interfaces import SharedMemory
from protocols.grpc.generated.grpc_service_base import GRPCInferenceServiceBase
from protocols.grpc.services.unary import only_request
from protocols.kserve.proto import grpc_service_pb2 as pb

if TYPE_CHECKING:
    from protocols.grpc.call import ServerStream

_AT_ONCE: Final = 64
"""Regions that are told before other tasks have a turn; that takes a third of a millisecond."""


class SharedMemoryService(GRPCInferenceServiceBase):
    """The part of the inference service that tells and changes regions. Heirs set `shared_memory`."""

    shared_memory: SharedMemory

    async def SystemSharedMemoryStatus(
        self,
        stream: ServerStream[pb.SystemSharedMemoryStatusRequest, pb.SystemSharedMemoryStatusResponse],
    ) -> None:
        """Tell the regions of system shared memory. Raises NotFound."""
        request = await only_request(stream)
        answer = pb.SystemSharedMemoryStatusResponse()
        for number, system in enumerate(self.shared_memory.system_regions(request.name), 1):
            told = answer.regions[system.name]
            told.name, told.key = system.name, system.key
            told.offset, told.byte_size = system.offset, system.byte_size
            if not number % _AT_ONCE:
                await trio.lowlevel.checkpoint()
        await stream.send_message(answer)

    async def SystemSharedMemoryRegister(
        self,
        stream: ServerStream[pb.SystemSharedMemoryRegisterRequest, pb.SystemSharedMemoryRegisterResponse],
    ) -> None:
        """Register a region of system shared memory."""
        request = await only_request(stream)
        await self.shared_memory.register_system(
            request.name, request.key, offset=request.offset, byte_size=request.byte_size
        )
        await stream.send_message(pb.SystemSharedMemoryRegisterResponse())

    async def SystemSharedMemoryUnregister(
        self,
        stream: ServerStream[pb.SystemSharedMemoryUnregisterRequest, pb.SystemSharedMemoryUnregisterResponse],
    ) -> None:
        """Unregister a region of system shared memory, or all."""
        request = await only_request(stream)
        self.shared_memory.unregister_system(request.name)
        await stream.send_message(pb.SystemSharedMemoryUnregisterResponse())

    async def CudaSharedMemoryStatus(
        self, stream: ServerStream[pb.CudaSharedMemoryStatusRequest, pb.CudaSharedMemoryStatusResponse]
    ) -> None:
        """Tell the regions of CUDA shared memory. Raises NotFound."""
        request = await only_request(stream)
        answer = pb.CudaSharedMemoryStatusResponse()
        for number, cuda in enumerate(self.shared_memory.cuda_regions(request.name), 1):
            told = answer.regions[cuda.name]
            told.name, told.device_id, told.byte_size = cuda.name, cuda.device_id, cuda.byte_size
            if not number % _AT_ONCE:
                await trio.lowlevel.checkpoint()
        await stream.send_message(answer)

    async def CudaSharedMemoryRegister(
        self, stream: ServerStream[pb.CudaSharedMemoryRegisterRequest, pb.CudaSharedMemoryRegisterResponse]
    ) -> None:
        """Register a region of CUDA shared memory."""
        request = await only_request(stream)
        await self.shared_memory.register_cuda(
            request.name, request.raw_handle, device_id=request.device_id, byte_size=request.byte_size
        )
        await stream.send_message(pb.CudaSharedMemoryRegisterResponse())

    async def CudaSharedMemoryUnregister(
        self,
        stream: ServerStream[pb.CudaSharedMemoryUnregisterRequest, pb.CudaSharedMemoryUnregisterResponse],
    ) -> None:
        """Unregister a region of CUDA shared memory, or all."""
        request = await only_request(stream)
        self.shared_memory.unregister_cuda(request.name)
        await stream.send_message(pb.CudaSharedMemoryUnregisterResponse())
