"""The RPCs about clients' shared memory. Contract: shared_memory.md section 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.values.interfaces import SharedMemory
from protocols.grpc.generated.grpc_service_base import GRPCInferenceServiceBase
from protocols.grpc.services.unary import only_request
from protocols.kserve.proto import grpc_service_pb2 as pb

if TYPE_CHECKING:
    from protocols.grpc.call import ServerStream


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
        for region in self.shared_memory.system_regions(request.name):
            answer.regions[region.name].CopyFrom(
                pb.SystemSharedMemoryStatusResponse.RegionStatus(
                    name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
                )
            )
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
        for region in self.shared_memory.cuda_regions(request.name):
            answer.regions[region.name].CopyFrom(
                pb.CudaSharedMemoryStatusResponse.RegionStatus(
                    name=region.name, device_id=region.device_id, byte_size=region.byte_size
                )
            )
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
