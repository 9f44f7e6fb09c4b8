"""The gRPC half of the load, by grpcio.

Calls are futures, whose ends come back in batches. Decoupled models are asked over streams.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import grpc
import trio

from chaos.clients import grpc_messages
from chaos.clients.bridge import Bridge
from chaos.clients.streams import StreamClient
from chaos.record.history import End
from chaos.record.outcome import NO_ANSWER, now
from chaos.record.records import Invoke, Ok, Unknown
from chaos.wires.frames import SERVICE
from chaos.wires.http import LOOPBACK
from protocols.kserve.proto import grpc_service_pb2 as pb

CHANNELS: Final = 2
"""Connections over which the load is spread, so that one lost connection does not lose all of it."""

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal channels share a connection
    # A server that is back is to be noticed at once, not after a minute.
    (
        "grpc.initial_reconnect_backoff_ms",
        100,
    ),
    ("grpc.min_reconnect_backoff_ms", 5000),  # is what an attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
)


class GrpcClient:
    """Sends requests to one port of the loopback address. Use it inside one trio run, and close it."""

    def __init__(self, port: int, *, patience: float) -> None:
        self._patience = patience
        self._bridge = Bridge()
        self._open(port)

    def _open(self, port: int) -> None:
        self._channels = [grpc.insecure_channel(f"{LOOPBACK}:{port}", _OPTIONS) for _ in range(CHANNELS)]
        self._calls = itertools.cycle([_model_infer(channel) for channel in self._channels])
        self._streams = StreamClient(self._channels[0], self._bridge, patience=self._patience)
        # The lasting stream shares its connection with no other client: the server counts by connection what
        # it puts up with.
        self._channels.append(grpc.insecure_channel(f"{LOOPBACK}:{port}", _OPTIONS))
        self._lasting = StreamClient(self._channels[-1], self._bridge, patience=self._patience)

    def retarget(self, port: int) -> None:
        """Send what comes from now on to another port, because the server was started again.

        What is under way is given up.
        """
        self.close()
        self._open(port)

    @property
    def surplus(self) -> int:
        """Answers that no request had asked for, since the last `retarget`."""
        return self._streams.surplus + self._lasting.surplus

    def close(self) -> None:
        """Give up what is under way, and end all connections."""
        self._streams.close()
        self._lasting.close()
        for channel in self._channels:
            channel.close()

    def tidy(self) -> None:
        """Let go of what has not been used for a while."""
        self._streams.tidy()
        self._lasting.tidy()

    async def ask_lasting(self, invoke: Invoke) -> End:
        """Send a request on the lasting stream, one at a time.

        The stream is opened at the first request, and again after an error.
        """
        return await self._lasting.ask(invoke)

    async def ask(self, invoke: Invoke, *, decoupled: bool) -> End:
        """Send a request and return what came of it, after `patience` seconds at the latest."""
        if decoupled:
            return await self._streams.ask(invoke)
        future = next(self._calls).future(
            grpc_messages.encode(invoke),
            timeout=grpc_messages.timeout(invoke),
            metadata=grpc_messages.metadata(invoke),
        )
        ended = _Ended(self._bridge)
        future.add_done_callback(ended.tell)
        try:
            with trio.move_on_after(self._patience) as patience:
                await ended.event.wait()
        finally:
            future.cancel()  # of no effect on one that has ended
        if patience.cancelled_caught:
            return Unknown(t=now(), n=invoke.n, reason=f"{NO_ANSWER} within {self._patience:g} s")
        return _end_of(invoke, future, ended.at)


class _Ended:
    """When a call ended, as gRPC's own thread saw it."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.event = trio.Event()
        self.at = 0.0

    def tell(self, _: grpc.Future) -> None:
        self.at = now()
        self._bridge.hand_over(self.event.set)


def _model_infer(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        f"{SERVICE}ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )


def _end_of(invoke: Invoke, future: Any, at: float) -> End:
    try:
        response = future.result()
    except grpc.RpcError as error:
        return grpc_messages.end_of_error(invoke, error, at)
    try:
        said, attempts = grpc_messages.read(invoke, response)
    except ValueError as error:
        return grpc_messages.unreadable(invoke, error, at)
    return Ok(t=at, n=invoke.n, values=said, first=at, attempts=attempts)
