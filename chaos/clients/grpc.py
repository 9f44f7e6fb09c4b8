"""The gRPC half of the load, by grpcio.

Calls are futures. Decoupled models are asked over streams, each of which has a thread that waits for its
messages, as it has in tritonclient.
"""

from __future__ import annotations

import itertools
import math
import queue
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc
import trio

from chaos.clients import grpc_messages
from chaos.record.history import End
from chaos.record.outcome import NO_ANSWER, now
from chaos.record.records import Fail, Invoke, Ok, Unknown
from chaos.wires.frames import SERVICE
from chaos.wires.http import LOOPBACK
from protocols.kserve.proto import grpc_service_pb2 as pb

INFER: Final = f"{SERVICE}ModelInfer"
STREAM: Final = f"{SERVICE}ModelStreamInfer"

CHANNELS: Final = 2
"""Connections over which the load is spread, so that one lost connection does not lose all of it."""

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal channels share a connection
    # A server that is back is to be noticed at once, not after a minute.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # is what an attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
)


class GrpcClient:
    """Sends requests to one port of the loopback address. Use it inside one trio run, and close it."""

    def __init__(self, port: int, *, patience: float) -> None:
        self._patience = patience
        self._threads = trio.CapacityLimiter(math.inf)
        self._lasting: Stream | None = None
        # Parts that came after the last of an answer.
        self.surplus = 0
        self._open(port)

    def _open(self, port: int) -> None:
        # The lasting stream shares its connection with no other client: the server counts by connection what
        # it puts up with.
        self._channels = [grpc.insecure_channel(f"{LOOPBACK}:{port}", _OPTIONS) for _ in range(CHANNELS + 1)]
        self._calls = itertools.cycle([model_infer(channel) for channel in self._channels[:CHANNELS]])

    def retarget(self, port: int) -> None:
        """Send what comes from now on to another port, because the server was started again.

        What is under way is given up.
        """
        self.close()
        self._open(port)

    def close(self) -> None:
        """Give up what is under way, and end all connections."""
        if self._lasting is not None:
            self._lasting.close()
        for channel in self._channels:
            channel.close()

    async def ask_lasting(self, invoke: Invoke) -> End:
        """Send a request on the lasting stream, one at a time.

        The stream is opened at the first request, and again after an error.
        """
        stream = self._lasting = self._lasting or Stream(self._channels[-1])
        end: End | None = None
        try:
            end = await self._waited(invoke, partial(stream.answer, invoke))
        finally:
            if not isinstance(end, Ok):
                stream.close()
                self._lasting = None
        return end

    async def ask(self, invoke: Invoke, *, decoupled: bool) -> End:
        """Send a request and return what came of it, after `patience` seconds at the latest."""
        if decoupled:
            stream = Stream(self._channels[0], grpc_messages.metadata(invoke))
            try:
                return await self._waited(invoke, partial(stream.only_answer, invoke))
            finally:
                self.surplus += stream.surplus
                stream.close()
        future = next(self._calls).future(
            grpc_messages.encode(invoke),
            timeout=grpc_messages.timeout(invoke),
            metadata=grpc_messages.metadata(invoke),
        )
        done = _Ended()
        future.add_done_callback(done.tell)
        try:
            with trio.move_on_after(self._patience):
                await done.event.wait()
                return ended(invoke, future, done.at)
        finally:
            future.cancel()  # of no effect on one that has ended
        return self._no_answer(invoke)

    async def _waited(self, invoke: Invoke, answer: Callable[[], End]) -> End:
        with trio.move_on_after(self._patience):
            return await trio.to_thread.run_sync(answer, abandon_on_cancel=True, limiter=self._threads)
        return self._no_answer(invoke)

    def _no_answer(self, invoke: Invoke) -> End:
        return Unknown(t=now(), n=invoke.n, reason=f"{NO_ANSWER} within {self._patience:g} s")


class _Ended:
    """When a call ended, as gRPC's own thread saw it."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.event = trio.Event()
        self.at = 0.0

    def tell(self, _: grpc.Future) -> None:
        self.at = now()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.event.set)


class Stream:
    """One ModelStreamInfer call, on which one request is sent after the other.

    The server tells the code of an error only with `triton_grpc_error`. With it an error ends its stream, and
    would end every other request on it.
    """

    def __init__(self, channel: grpc.Channel, metadata: list[tuple[str, str]] | None = None) -> None:
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        method = channel.stream_stream(
            STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        told = [("triton_grpc_error", "true"), *(metadata or ())]
        self._call = method(iter(self._requests.get, None), metadata=told)
        self.surplus = 0

    def close(self) -> None:
        """End it, whatever is under way."""
        self._call.cancel()
        self._requests.put(None)

    def only_answer(self, invoke: Invoke) -> End:
        """Send a request behind which no other comes, and wait for the stream's end.

        The request must have no deadline.
        """
        end = self.answer(invoke)
        self._requests.put(None)
        with suppress(grpc.RpcError):
            for _ in self._call:
                self.surplus += 1
        return end

    def answer(self, invoke: Invoke) -> End:
        """Send a request and wait for what comes of it."""
        message = grpc_messages.encode(invoke)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        self._requests.put(message)
        said: tuple[int, ...] = ()
        first = math.inf
        try:
            for came in self._call:
                at = now()
                first = min(first, at)
                if came.error_message:
                    raise ValueError(
                        f"an error without a code, though one was asked for: {came.error_message}"
                    )
                part, attempts = grpc_messages.read(invoke, came.infer_response)
                said += part
                if came.infer_response.parameters["triton_final_response"].bool_param:
                    return Ok(t=at, n=invoke.n, values=said, first=first, attempts=attempts)
        except grpc.RpcError as error:
            return grpc_messages.end_of_error(invoke, error, now(), said)
        except ValueError as error:
            return grpc_messages.unreadable(invoke, error, now())
        told = "the server ended the stream without an error before all parts had come"
        return Fail(t=now(), n=invoke.n, code="UNKNOWN", message=told, values=said)


def model_infer(channel: grpc.Channel) -> Any:
    """Return the method of a unary inference."""
    return channel.unary_unary(
        INFER,
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )


def ended(invoke: Invoke, future: Any, at: float | None = None) -> End:
    """Return what came of a call, which ended `at` some time; without one, wait for its end."""
    try:
        response = future.result()
        at = now() if at is None else at
        said, attempts = grpc_messages.read(invoke, response)
    except grpc.RpcError as error:
        return grpc_messages.end_of_error(invoke, error, now() if at is None else at)
    except ValueError as error:
        return grpc_messages.unreadable(invoke, error, now())
    return Ok(t=at, n=invoke.n, values=said, first=at, attempts=attempts)
