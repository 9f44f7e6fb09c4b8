"""A yardstick for gRPC: grpclib's own server, on asyncio, in one process and one thread.

It parses each request with protobuf, computes with numpy in the handler's coroutine and serialises the
answer. It does not validate, queue, batch, measure, log, limit or isolate: far less than a server. It prints
its port and serves until SIGTERM.

    python -m benchmarks.grpc.grpclib_reference
"""

from __future__ import annotations

import asyncio  # noqa: TID251  grpclib's server runs on nothing else, and this is a process of its own
import socket
from collections.abc import Mapping

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream
from grpclib.utils import graceful_exit

from benchmarks.grpc.model import Counts, Unknown, infer, statistics
from benchmarks.grpc.payloads import SERVICE
from protocols.kserve.proto import grpc_service_pb2 as pb


class Service:
    """The three methods that the benchmarks call."""

    def __init__(self) -> None:
        self._counts = Counts()

    def _infer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        try:
            response = infer(request)
        except Unknown as error:
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
        self._counts.success += 1
        return response

    async def model_infer(self, stream: Stream[pb.ModelInferRequest, pb.ModelInferResponse]) -> None:
        """Answer one request."""
        request = await stream.recv_message()
        if request is not None:
            await stream.send_message(self._infer(request))

    async def model_stream_infer(
        self, stream: Stream[pb.ModelInferRequest, pb.ModelStreamInferResponse]
    ) -> None:
        """Answer every request of a stream, in turn."""
        async for request in stream:
            await stream.send_message(pb.ModelStreamInferResponse(infer_response=self._infer(request)))

    async def model_statistics(
        self, stream: Stream[pb.ModelStatisticsRequest, pb.ModelStatisticsResponse]
    ) -> None:
        """Tell how many requests were answered."""
        request = await stream.recv_message()
        if request is not None:
            await stream.send_message(statistics(request.name, self._counts))

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return the methods by their paths, as grpclib wants them."""
        unary, both = Cardinality.UNARY_UNARY, Cardinality.STREAM_STREAM
        return {
            f"{SERVICE}ModelInfer": Handler(
                self.model_infer, unary, pb.ModelInferRequest, pb.ModelInferResponse
            ),
            f"{SERVICE}ModelStreamInfer": Handler(
                self.model_stream_infer, both, pb.ModelInferRequest, pb.ModelStreamInferResponse
            ),
            f"{SERVICE}ModelStatistics": Handler(
                self.model_statistics, unary, pb.ModelStatisticsRequest, pb.ModelStatisticsResponse
            ),
        }


async def main() -> None:
    """Serve on a free port of 127.0.0.1."""
    server = Server([Service()])
    with graceful_exit([server]):
        # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it every small answer
        # waits 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        await server.start(sock=listener)
        print(listener.getsockname()[1], flush=True)
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
