"""A yardstick for gRPC: grpcio's own server, whose HTTP/2 and framing are in C++.

It parses each request with protobuf, computes with numpy in the handler and serialises the answer. It does
not validate, queue, batch, measure, log or isolate: far less than a server. `threads` is `grpc.server` on a
pool of threads, `aio` is `grpc.aio.server`. It prints its port and serves until SIGTERM.

    python -m benchmarks.grpc.grpcio_reference threads
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251  grpc.aio runs on nothing else, and this is a process of its own
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from benchmarks.grpc.model import Counts, infer, statistics
from benchmarks.grpc.payloads import SERVICE
from protocols.kserve.proto import grpc_service_pb2 as pb

# A stream keeps a thread for as long as it lasts, and no row has more streams.
THREADS: Final = 16
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


class Service:
    """The three methods that the benchmarks call.

    An exception from `infer` ends a call with UNKNOWN and its text.
    """

    def __init__(self) -> None:
        self._counts = Counts()

    def model_infer(self, request: pb.ModelInferRequest, context: object) -> pb.ModelInferResponse:
        """Answer one request."""
        response = infer(request)
        self._counts.success += 1
        return response

    def model_stream_infer(
        self, requests: Iterator[pb.ModelInferRequest], context: object
    ) -> Iterator[pb.ModelStreamInferResponse]:
        """Answer every request of a stream, in turn."""
        for request in requests:
            yield pb.ModelStreamInferResponse(infer_response=self.model_infer(request, context))

    def model_statistics(
        self, request: pb.ModelStatisticsRequest, context: object
    ) -> pb.ModelStatisticsResponse:
        """Tell how many requests were answered."""
        return statistics(request.name, self._counts)


class AsyncService:
    """The same as coroutines."""

    def __init__(self) -> None:
        self._service = Service()

    async def model_infer(self, request: pb.ModelInferRequest, context: object) -> pb.ModelInferResponse:
        """Answer one request."""
        return self._service.model_infer(request, context)

    async def model_stream_infer(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: object
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Answer every request of a stream, in turn."""
        async for request in requests:
            yield pb.ModelStreamInferResponse(infer_response=self._service.model_infer(request, context))

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest, context: object
    ) -> pb.ModelStatisticsResponse:
        """Tell how many requests were answered."""
        return self._service.model_statistics(request, context)


def _handlers(service: Service | AsyncService) -> Any:
    def method(make: Callable[..., Any], behaviour: object, request: Any, response: Any) -> Any:
        return make(
            behaviour,
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )

    unary, both = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    methods = {
        "ModelInfer": method(unary, service.model_infer, pb.ModelInferRequest, pb.ModelInferResponse),
        "ModelStreamInfer": method(
            both, service.model_stream_infer, pb.ModelInferRequest, pb.ModelStreamInferResponse
        ),
        "ModelStatistics": method(
            unary, service.model_statistics, pb.ModelStatisticsRequest, pb.ModelStatisticsResponse
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE.strip("/"), methods)


def serve_threads() -> None:
    """Serve on a free port of 127.0.0.1 with a pool of threads."""
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in every thread to come
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[_handlers(Service())], options=_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    signal.sigwait(signals)
    server.stop(0).wait()


async def serve_aio() -> None:
    """Serve on a free port of 127.0.0.1 from an event loop."""
    server = grpc.aio.server(handlers=[_handlers(AsyncService())], options=_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    await stop.wait()
    await server.stop(0)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc.grpcio_reference")
    parser.add_argument("kind", choices=["threads", "aio"])
    if parser.parse_args(argv).kind == "aio":
        asyncio.run(serve_aio())
    else:
        serve_threads()


if __name__ == "__main__":
    main()
