"""ModelStreamInfer for decoupled models: a stream for each request under way, kept for those after it.

grpcio gives the messages of a stream only to a thread that waits for them. So each stream has a thread that
waits, as it has in tritonclient, however many requests it serves in its life.

A stream carries one request at a time. The server tells the code of an error only with `triton_grpc_error`.
With it an error ends its stream, and would end every other request on it.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict, deque
from functools import partial
from typing import Any

import grpc
import trio

from chaos.clients import grpc_messages
from chaos.clients.bridge import Bridge
from chaos.clients.idle import Idle
from chaos.record.history import End
from chaos.record.outcome import NO_ANSWER, now
from chaos.record.records import Invoke, Ok, Unknown
from chaos.wires.frames import SERVICE
from protocols.kserve.proto import grpc_service_pb2 as pb

_JOIN = 2.0  # seconds that a thread has to end once its call was cancelled

Came = tuple[float, pb.ModelStreamInferResponse | grpc.RpcError]
"""A message, or the end of the stream, and when it came."""


class Stream:
    """One ModelStreamInfer call and the thread that reads it."""

    def __init__(self, method: Any, bridge: Bridge, metadata: list[tuple[str, str]]) -> None:
        self._bridge = bridge
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self._came: deque[Came] = deque()
        self._bell = trio.lowlevel.ParkingLot()
        self._call = method(
            iter(self._requests.get, None), metadata=[("triton_grpc_error", "true"), *metadata]
        )
        self._thread = threading.Thread(target=self._read, name="chaos-stream", daemon=True)
        self._thread.start()

    def send(self, message: pb.ModelInferRequest) -> None:
        """Send a request. What comes of it is told by `next`."""
        self._requests.put(message)

    async def next(self) -> Came:
        """Wait for the next message, or the end."""
        while not self._came:
            await self._bell.park()
        return self._came.popleft()

    @property
    def quiet(self) -> bool:
        """Whether `next` has given everything that came.

        Asked before a request is sent: what has come by then is not for that request.
        """
        return not self._came

    def messages(self) -> int:
        """How many messages have come that `next` has not given; the end does not count."""
        return sum(not isinstance(came, grpc.RpcError) for _, came in self._came)

    def close(self) -> None:
        """End it, whatever is under way."""
        self._call.cancel()
        self._requests.put(None)

    def join(self) -> None:
        """Wait for its thread, which ends soon after `close`."""
        self._thread.join(_JOIN)

    def _read(self) -> None:
        try:
            for message in self._call:
                self._tell((now(), message))
        except grpc.RpcError as error:
            self._tell((now(), error))
        else:
            self._tell((now(), _EndedWell()))
        # Otherwise the thread in which grpcio takes requests from the queue would wait for ever.
        self._requests.put(None)

    def _tell(self, came: Came) -> None:
        self._bridge.hand_over(partial(self._arrive, came))

    def _arrive(self, came: Came) -> None:
        self._came.append(came)
        self._bell.unpark_all()


class _EndedWell(grpc.RpcError):  # type: ignore[misc]  # grpcio has no types
    """The server has ended a stream that the client had not ended."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "the server ended the stream without an error before all parts had come"


class StreamClient:
    """Asks decoupled models over one channel."""

    def __init__(self, channel: grpc.Channel, bridge: Bridge, *, patience: float) -> None:
        self._method = channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        self._bridge = bridge
        self._patience = patience
        self._idle: dict[str, Idle[Stream]] = defaultdict(Idle)  # by tenant, which belongs to the whole call
        self._all: set[Stream] = set()
        self.surplus = 0  # messages that came on idle streams

    def close(self) -> None:
        """Give up what is under way, and end all streams."""
        for stream in self._all:
            stream.close()
        for stream in self._all:
            stream.join()
        self._all.clear()
        self._idle.clear()

    def tidy(self) -> None:
        """End streams that have not been used for a while."""
        for idle in self._idle.values():
            for stream in idle.expired(now()):
                self.surplus += stream.messages()
                self._let_go(stream)

    async def ask(self, invoke: Invoke) -> End:
        """Send a request and return what came of it, after `patience` seconds at the latest.

        The request must have no deadline.
        """
        idle = self._idle[invoke.tenant]
        stream = self._waiting(idle) or self._opened(invoke)
        end: End | None = None
        try:
            with trio.move_on_after(self._patience):
                stream.send(_message(invoke))
                end = await _answer(invoke, stream)
        finally:
            if isinstance(end, Ok) and stream in self._all:
                idle.put(stream, now())
            else:
                self._let_go(stream)
        return end or Unknown(t=now(), n=invoke.n, reason=f"{NO_ANSWER} within {self._patience:g} s")

    def _waiting(self, idle: Idle[Stream]) -> Stream | None:
        while stream := idle.take():
            if stream.quiet:
                return stream
            self.surplus += stream.messages()
            self._let_go(stream)
        return None

    def _let_go(self, stream: Stream) -> None:
        stream.close()
        self._all.discard(stream)

    def _opened(self, invoke: Invoke) -> Stream:
        stream = Stream(self._method, self._bridge, grpc_messages.metadata(invoke))
        self._all.add(stream)
        return stream


def _message(invoke: Invoke) -> pb.ModelInferRequest:
    message = grpc_messages.encode(invoke)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


async def _answer(invoke: Invoke, stream: Stream) -> End:
    said: tuple[int, ...] = ()
    first: float | None = None
    while True:
        at, came = await stream.next()
        if isinstance(came, grpc.RpcError):
            return grpc_messages.end_of_error(invoke, came, at, said)
        try:
            part, attempts = _read(invoke, came)
        except ValueError as error:
            return grpc_messages.unreadable(invoke, error, at)
        first = at if first is None else first
        said += part
        if came.infer_response.parameters["triton_final_response"].bool_param:
            return Ok(t=at, n=invoke.n, values=said, first=first, attempts=attempts)


def _read(invoke: Invoke, came: pb.ModelStreamInferResponse) -> tuple[tuple[int, ...], int]:
    if came.error_message:
        raise ValueError(f"an error without a code, though one was asked for: {came.error_message}")
    return grpc_messages.read(invoke, came.infer_response)
