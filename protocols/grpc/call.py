"""One RPC as methods see it: `Call` for methods answered without a task, `ServerStream` for coroutines.

A `Call` is the reply port of its inference, so nothing else is made for one. What methods ask of the
connection goes to the parts of the `Wire` it was opened on. Those drop what comes for a call that is closed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import trio
from google.protobuf.message import DecodeError
from grpclib.const import Handler

from actors.seams.slices import in_slices
from actors.seams.threads import in_thread
from actors.values.callers import Action, Caller, Peer
from actors.values.errors import Internal, TritiumError, Unavailable
from actors.values.native import mypyc_attr
from actors.values.requests import InferResponse, ReplyPort, release
from protocols.grpc.call_states import ANSWER, RECEIVING
from protocols.grpc.codec.protobuf import Malformed, counting, schema_of
from protocols.grpc.policy import LargestLately
from protocols.transport.receiving import Claim

if TYPE_CHECKING:
    from actors.values.tensors import Buffer
    from actors.values.tracing.spans import Trace
    from protocols.grpc.codec.heads import CallHead
    from protocols.grpc.codec.messages import Message, MessageReader
    from protocols.http2.streams import Stream

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Metadata = Mapping[str, "str | bytes"]

STREAM_LIMIT: Final = 512 * 1024
"""How many bytes of answers may wait on one streaming call before its method is asked for no more."""

FIRST_ANSWER: Final = 64 * 1024
"""How many bytes an answer of a streaming call is expected to have before the first one has come."""

# Bytes of a message that is parsed on the loop, where that takes a millisecond.
_PARSED_AT_ONCE: Final = 16 * 1024
# Bytes of a request that brings neither tensors nor parameters: names, and little else. HTTP allows as much.
_LONGEST_QUESTION: Final = 64 * 1024

SHUTTING_DOWN: Final = "GRPC server is shutting down and has stopped accepting new requests."


class Leaving(Unavailable):
    """The server shuts down: a streaming call gets no more requests.

    It ends once it has answered those it got.
    """


@mypyc_attr(allow_interpreted_subclasses=True)
class UnaryMethod(ABC):
    """A unary method that is answered without a task. All of it is synchronous and runs on the loop.

    For a call that reached `begin`, `finished` is called exactly once. An exception that is no TritiumError
    is a bug: it is reported, and costs the call. The client is told INTERNAL.
    """

    __slots__ = ()

    @abstractmethod
    def begin(self, call: Call, message: Buffer) -> None:
        """Raise TritiumError at once, or see to it that `call.put(..., final=True)` is called exactly once.

        `message` is the request's bytes, decompressed; it stays valid.
        """

    @abstractmethod
    def encode(self, call: Call, response: InferResponse) -> tuple[Sequence[Buffer], int]:
        """Return the answer's buffers without a prefix, which may view the response's memory, and their size.

        Raises TritiumError where the response can't be told.
        """

    @abstractmethod
    def cancel(self, call: Call) -> None:
        """Learn that the client left, or that the deadline passed, before the answer came."""

    @abstractmethod
    def finished(self, call: Call, outcome: InferResponse | TritiumError) -> None:
        """Learn the outcome of the call, before the memory of `outcome` is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One RPC: answered by `unary` without a task, or by `handler` in one of its own.

    `infer` says whether it is one of the two inference RPCs. `action` is what a caller must be allowed to do
    with the model that the request's field `names_model` names; empty: with none in particular.
    """

    infer: bool
    unary: UnaryMethod | None
    handler: Handler
    action: Action = Action.METADATA
    names_model: str = ""

    def admit(self, caller: Caller, message: object, size: int) -> None:
        """Let a parsed request of `size` bytes pass. Raises as `Caller.admit`."""
        caller.admit(self.action, self.model_in(message), size=size)

    def model_in(self, message: object) -> str:
        """Return the model that a parsed request names, if any."""
        return str(getattr(message, self.names_model)) if self.names_model else ""


@mypyc_attr(allow_interpreted_subclasses=True)
class CallWriter(ABC):
    """What a call sends. Every method is synchronous and does nothing for a closed call."""

    __slots__ = ()

    @abstractmethod
    def put(self, call: Call, outcome: InferResponse | TritiumError) -> None:
        """Have the one outcome of a unary call, which is closed by it, encoded and sent."""

    @abstractmethod
    def send_part(
        self, call: Call, buffers: Sequence[Buffer], size: int, lease: InferResponse | None
    ) -> None:
        """Send one message; `lease` is released as soon as `buffers` are no longer read."""

    @abstractmethod
    def send_status(self, call: Call, status: int, message: str, metadata: Metadata | None) -> None:
        """Send trailers behind everything else, and close the call."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CallReader(ABC):
    """What a call of a coroutine takes."""

    __slots__ = ()

    @abstractmethod
    def taken(self, call: Call) -> None:
        """Let the client send again what the method has taken."""

    @abstractmethod
    async def unfolded(self, call: Call, message: Buffer) -> Buffer:
        """Return a compressed message's content. Raises TritiumError and GRPCError."""


class Wire(Protocol):
    """The parts of its connection that a call uses."""

    client: Peer
    threads: trio.CapacityLimiter
    now: float
    """When the request that begins was whole, on trio's clock."""

    @property
    def writer(self) -> CallWriter:
        """Where its answers go."""

    @property
    def reader(self) -> CallReader:
        """Where its requests come from."""

    def expire(self, call: Call) -> None:
        """The deadline of a unary call has passed."""

    def run(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Start `body` as a task that is cancelled with the call, and whose TritiumError answers it."""

    def tell_denied(self, call: Call, error: TritiumError, model: str = "") -> None:
        """Tell the audit log, if there is one, that `error` denies something to the client."""


class Call(ReplyPort):
    """One RPC, in one of the states of `protocols.grpc.call_states`.

    `client` made it. `deadline` is absolute on trio's clock, inf for none; `context` is for the method's own
    use.
    """

    __slots__ = (
        "_first",
        "_parts",
        "caller",
        "came_at",
        "claim",
        "client",
        "context",
        "credited",
        "deadline",
        "granted",
        "head",
        "incoming",
        "message",
        "scopes",
        "server_stream",
        "state",
        "stream",
        "ticket",
        "trace",
        "unary",
        "wire",
    )

    def __init__(self, wire: Wire, stream: Stream, head: CallHead[Method]) -> None:
        self.wire = wire
        self.client = wire.client
        self.stream = stream
        self.head = head
        self.unary: UnaryMethod | None = None if head.method is None else head.method.unary
        self.deadline = math.inf
        self.came_at = 0.0  # when its head came
        self.trace: Trace | None = None  # of its request, if it is a unary one that is traced
        self.caller: Caller | None = None  # if the server tells identities apart
        self.context: Any = None
        self.state = RECEIVING
        # The rest is the connection's. A unary request, once it is whole: a `Message` while it is compressed.
        self.message: Buffer | Message | None = None
        self.incoming: MessageReader | None = None  # gathers messages that come in pieces
        # Bytes received, or to come, that the connection's window has already got back.
        self.credited = 0
        # The number of the message that holds, or waits for, a grant; 0 for none.
        self.granted = 0
        self.claim: Claim | None = None  # what that message holds of the server's room
        self.ticket: Ticket | None = None  # for the content of a compressed message
        self.scopes: set[trio.CancelScope] | None = None  # of its tasks
        self.server_stream: ServerStream[Any, Any] | None = None
        self._first: InferResponse | TritiumError | None = None
        self._parts = 0

    @property
    def closed(self) -> bool:
        """Whether it is answered, or its client left: later parts are dropped."""
        return self.state.closed

    @property
    def stalled(self) -> bool:
        """Whether nothing can be done for it before its client sends, or takes, more."""
        if self.state.closed:
            return True
        if self.claim is not None and self.claim.waiting:
            return False
        if self.server_stream is not None:
            return self.server_stream.stalled
        return self.state is RECEIVING and self.stream.remote_open

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part of a unary answer (`actors.values.requests.ReplyPort`). Never raises."""
        if self.state.closed:
            release(part)
        elif final:
            self.state = self.state.after[ANSWER]
            if self._first is not None:
                part = self._counted(part)
            self.wire.writer.put(self, part)
        elif self._first is None:
            self._first = part
            self._parts = 1
        else:
            self._parts += 1
            release(part)

    def _counted(self, last: InferResponse | TritiumError) -> InferResponse | TritiumError:
        self.drop()
        release(last)
        return Internal(f"expected a single response, got {self._parts + 1}")

    def drop(self) -> None:
        """Let go of a part that waits for the final one."""
        first, self._first = self._first, None
        if first is not None:
            release(first)

    def start(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run` as a task that is cancelled with the call.

        A TritiumError that it raises is the answer.
        """
        self.wire.run(self, run)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """The place of what a compressed message unfolds to: on its connection, once `open`, and in the server."""

    claim: Claim
    open: trio.Event


@mypyc_attr(allow_interpreted_subclasses=True)
class ServerStream(Generic[Request, Reply]):
    """One RPC as a coroutine method sees it: what ours use of `grpclib.server.Stream`, and some more.

    The method runs as a task that is cancelled when the client leaves or the deadline passes. While the
    method takes no requests, the client can't go on sending. `send_message` waits while `STREAM_LIMIT` bytes
    of answers wait for the client.
    """

    def __init__(
        self, call: Call, request_type: type[Request], *, unary_request: bool, unary_reply: bool
    ) -> None:
        self.call = call
        self.in_flight = 0
        self.unary_request = unary_request
        self._request_type = request_type
        self._unary_reply = unary_reply
        self._messages: deque[Message] = deque()
        self._ended = False
        self._leaving = False
        self._sizes = LargestLately(FIRST_ANSWER)
        self._sent = 0
        # The requests of which the method still owes an answer, if it says so.
        self.owed: Collection[object] | None = None
        self._arrivals = trio.lowlevel.ParkingLot()
        self._departures = trio.lowlevel.ParkingLot()
        self.on_departure: Callable[[], object] | None = None  # called when something that waited has left
        # The connection's account of requests.
        self.fed = 0
        self.taken = 0
        self.held = 0  # bytes on the wire of the messages that wait here
        self._held_back = False

    @property
    def metadata(self) -> Mapping[str, str | bytes]:
        """The request's metadata, its keys in lower case; binary values are decoded."""
        return self.call.head.metadata

    @property
    def peer(self) -> str:
        """The client's address, as gRPC writes it: `ipv4:127.0.0.1:1234`, `unix:`."""
        return self.call.client.text

    @property
    def pending(self) -> int:
        """Bytes of answers that wait for the client to make room."""
        return self.call.stream.pending

    @property
    def stalled(self) -> bool:
        """Whether the method owes the client nothing before that sends more, as far as it says."""
        if self._messages:
            return False
        if self.owed is not None:
            return not self.owed and not self._ended
        if self._unary_reply or not self._sent:
            return not self.taken and not self._ended
        # Reflection answers each request once. A watch goes on although its client's side is over.
        return self.taken <= self._sent

    # Requests

    def feed(self, message: Message) -> None:
        """Take a whole message. For the connection."""
        self._messages.append(message)
        self.fed += 1
        self.held += message.wire_size
        self._arrivals.unpark_all()

    def hold_back(self) -> bool:
        """Whether a long request must not come yet, as it could not begin before answers leave.

        For the connection.
        """
        self._held_back = self.pending >= STREAM_LIMIT
        return self._held_back

    def end(self) -> None:
        """Learn that no more requests will come. For the connection."""
        self._ended = True
        self._arrivals.unpark_all()

    def leave(self) -> None:
        """Learn that the server shuts down. For the connection."""
        self._leaving = not self.unary_request
        self._arrivals.unpark_all()

    async def recv_raw(self) -> Buffer | None:
        """Return the next request's bytes, decompressed; None after the last.

        Raises TritiumError, and Leaving where there would be more to wait for while the server shuts down.
        """
        while not self._messages:
            if self._ended:
                return None
            if self._leaving:
                raise Leaving(SHUTTING_DOWN)
            await self._arrivals.park()
        message = self._messages.popleft()
        self.taken += 1
        self.held -= message.wire_size
        self.call.wire.reader.taken(self.call)
        if message.compressed:
            return await self.call.wire.reader.unfolded(self.call, message.data)
        return message.data

    async def recv_message(self) -> Request | None:
        """Return the next request; None after the last.

        Raises TritiumError where it can't be parsed, or its caller may not ask it.
        """
        message = await self.recv_raw()
        if message is None:
            return None
        request = await self._read(message)
        caller, method = self.call.caller, self.call.head.method
        if caller is not None and method is not None:
            try:
                method.admit(caller, request, len(message))
            except TritiumError as error:
                self.call.wire.tell_denied(self.call, error, method.model_in(request))
                raise
        return request

    async def _read(self, message: Buffer) -> Request:
        descriptor = getattr(self._request_type, "DESCRIPTOR", None)
        if len(message) <= _PARSED_AT_ONCE or descriptor is None:
            return self._parsed(message)
        if len(message) > _LONGEST_QUESTION and "parameters" not in descriptor.fields_by_name:
            raise Internal(
                f"Exception deserializing request! {descriptor.name} has {len(message)} bytes, "
                f"and may have {_LONGEST_QUESTION} at most"
            )
        try:
            await in_slices(counting(message, schema_of(descriptor)))
        except Malformed as error:
            raise Internal(f"Exception deserializing request! {error}") from error
        return await in_thread(self._parsed, message, limiter=self.call.wire.threads)

    def _parsed(self, message: Buffer) -> Request:
        try:
            whole = message if isinstance(message, (bytes, bytearray)) else bytes(message)
            return cast("Request", cast("Any", self._request_type).FromString(whole))
        except DecodeError as error:
            raise Internal("Exception deserializing request!") from error

    def __aiter__(self) -> AsyncIterator[Request]:
        return self

    async def __anext__(self) -> Request:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def wait_admissible(self) -> None:
        """Wait until the next request may be begun: an answer as large as the largest lately would find room.

        Counts `in_flight`, which the method keeps: add one for a
        request begun, and call `answered` at its end.
        """
        while self._busy and self.pending + (self.in_flight + 1) * self._sizes.expected > STREAM_LIMIT:
            await self._departures.park()

    @property
    def _busy(self) -> bool:
        """Whether any answer is to come or to leave. A single answer may have any size."""
        return self.in_flight > 0 or self.pending > 0

    def answered(self) -> None:
        """Learn that one request in flight has got its last answer."""
        self.in_flight -= 1
        self._departures.unpark_all()

    # Answers

    async def send_message(self, message: Reply) -> None:
        """Send one answer; wait while too much waits for the client.

        Raises TritiumError where it is too large.
        """
        serialized = cast("Any", message).SerializeToString()
        self.send_raw_nowait((serialized,), len(serialized))
        await self.wait_sendable()

    def send_raw_nowait(
        self, buffers: Sequence[Buffer], size: int, lease: InferResponse | None = None
    ) -> None:
        """Send one answer of `size` bytes. `lease` is released as soon as `buffers` are no longer read.

        After the call is over everything is dropped, its lease released. Raises TritiumError, with the lease
        released, where the answer is too large.
        """
        self._sent += 1
        expected = self._sizes.expected
        self._sizes.saw(size)
        if self._sizes.expected < expected:
            self._departures.unpark_all()  # less room is expected to be needed from now on
        self.call.wire.writer.send_part(self.call, buffers, size, lease)

    async def wait_sendable(self) -> None:
        """Wait until less than `STREAM_LIMIT` bytes of this call's answers wait."""
        while not self.sendable:
            await self._departures.park()

    @property
    def sendable(self) -> bool:
        """Whether less than `STREAM_LIMIT` bytes of this call's answers wait, or the call is closed.

        What is sent to a closed call is dropped.
        """
        return self.pending < STREAM_LIMIT or self.call.closed

    def departed(self) -> None:
        """Learn that some of the waiting answers have left. For the connection."""
        self._departures.unpark_all()
        if self.on_departure is not None:
            self.on_departure()
        if self._held_back:
            self._held_back = False
            self.call.wire.reader.taken(self.call)

    def conclude(self) -> None:
        """End a call whose method has returned without a status. For the connection."""
        if self._unary_reply and not self._sent and not self.call.closed:
            raise RuntimeError(f"{self.call.head.path} returned without an answer")
        self.call.wire.writer.send_status(self.call, 0, "", None)
