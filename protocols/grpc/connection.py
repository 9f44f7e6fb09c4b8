"""One gRPC connection: it makes calls of what HTTP/2 reports, gives them to methods, and ends all together.

Its own task reads. A second one, in `protocols.grpc.writer`, writes. A unary method of the fast kind needs
no more than those. Coroutine methods, and the slow parts of a unary one, run as tasks beside them.

What a client may make the server hold is bounded in three ways (`protocols.grpc.admission`). Windows open
again only when a call is over or a method took its message. Grants let large messages in one after the other.
And no more answers are begun than might find room. A request that is not begun waits in `_parked`, and its
bytes count against the windows.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio
from grpclib.exceptions import GRPCError

from actors.seams import faults
from actors.values.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    TritiumError,
    Unavailable,
)
from protocols.grpc.admission import AnswerRoom
from protocols.grpc.call import SHUTTING_DOWN, Call, Metadata, Method, ServerStream
from protocols.grpc.codec import messages
from protocols.grpc.codec.request_head import CallHead
from protocols.grpc.keepalive import Action, Keepalive
from protocols.grpc.methods import HeadReader
from protocols.grpc.options import GrpcOptions
from protocols.grpc.reader import Arrivals, more_than_one
from protocols.grpc.writer import BUG, Answers, status_of, trailing_metadata
from protocols.http2.connection import Http2Connection, Http2Limits, Stream
from protocols.http2.frames import LARGEST_STREAM, ConnectionViolation, ErrorCode
from protocols.transport.listening import LAST_CALL
from protocols.transport.sockets import ConnectionLost, Transport

if TYPE_CHECKING:
    from actors.values.requests import InferResponse
    from actors.values.tensors import Buffer

# Bytes that every client sends first: the preface and the head of its SETTINGS.
_PREFACE: Final = 24 + 9
# Bytes read before other connections get a turn. That is some sixty small requests, or as many milliseconds
# of the loop as a flood of the smallest frames should cost its neighbours. A large message is taken in larger
# pieces.
_TURN: Final = 16 * 1024
# Seconds for which a client's remaining bytes are read and dropped,
# so that the client can read our last frames.
_LINGER: Final = 2.0
_LINGER_SIZE: Final = 4 * 1024 * 1024
# Bytes of refusals and the like that wait for a client that reads nothing.
_MOST_UNREAD: Final = 16 * 1024 * 1024
# Seconds that a client has to close a connection that ends for another.
_GIVING_WAY: Final = 0.25
# Seconds that a client has to answer the ping behind the first GOAWAY.
_GOODBYE: Final = 1.0

_RETIRING: Final = b"goodbye?"  # payloads of our pings
_ALIVE: Final = b"anybody?"

_TOO_LATE: Final = "Deadline Exceeded"
_LEFT: Final = "the client left"
_ENDING: Final = "Server exiting"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Environment:
    """What all connections of a listener share.

    Reads go into `scratch`, and nothing in it outlives a read. `deadlines` has the `expire` of a call's
    connection called. `on_crash` is told the path and the exception of a method's bug. `on_violation` is told
    the address of a client that is sent away, with which code and what text. `on_unsecured` is told the
    address of a client whose TLS handshake failed, and why.
    """

    options: GrpcOptions
    heads: HeadReader
    limits: Http2Limits
    scratch: memoryview
    threads: trio.CapacityLimiter
    deadlines: Deadlines
    on_crash: Callable[[str, Exception], None]
    on_violation: Callable[[str, ErrorCode, str], None]
    on_unsecured: Callable[[str, str], None]


class Deadlines(Protocol):
    """Watches the deadlines of unary calls."""

    def add(self, call: Call, deadline: float) -> None:
        """Have `call` expire once `deadline` has passed."""

    def discard(self, call: Call) -> None:
        """Forget the deadline of `call`."""


class GrpcConnection:
    """Serves one client. `jitter`, in [-1, 1], makes its age differ from others'.

    It is the `Handler` of its HTTP/2 state, the `Wire` of its calls and the `Owner` of its answers.
    """

    def __init__(
        self, transport: Transport, environment: Environment, *, now: float, jitter: float = 0.0
    ) -> None:
        options = environment.options
        self.peer = transport.peer
        self.threads = environment.threads
        # When the sweep shuts the socket, whatever goes on.
        self.deadline = now + options.handshake_timeout
        self._environment = environment
        self._options = options
        self._transport = transport
        self._keepalive = Keepalive(options, now=now, jitter=jitter)
        self._room = AnswerRoom(options.connection_bytes)
        self._h2: Http2Connection[CallHead[Method]] = Http2Connection(self, environment.limits)
        self._answers = Answers(transport, self._h2, self, options, self._room)
        self._arrivals = Arrivals(self._h2, self, options)
        self._calls: dict[Call, None] = {}  # those that are not over
        self._parked: dict[Call, None] = {}  # whole requests that may not begin yet, in their order
        self._nursery: trio.Nursery | None = None
        self._now = now
        self._limit = options.max_receive_message
        self._unproven = _PREFACE  # bytes until the client has shown that it speaks HTTP/2
        self._refusing = False  # the server shuts down
        # While the server shuts down: how many bytes of a call have come, and since when.
        self._hurried: dict[Call, tuple[int, float]] = {}
        self._goodbye_by = math.inf  # when the second GOAWAY is due
        self._leaving = False  # the last GOAWAY is out: ends with the last call
        self.served = False  # it brought a call
        self._yielding = False  # it was told to give way to another
        self._closing = False  # answers have been told to end

    # For statistics

    @property
    def streams(self) -> int:
        """How many calls are open."""
        return len(self._h2.streams)

    @property
    def pending(self) -> int:
        """How many bytes of answers wait here for the client."""
        return self._h2.waiting + self._answers.stalled_bytes

    @property
    def idle_since(self) -> float:
        """Since when no call has been open, as of the last sweep; inf while there is one.

        `withdraw` ends such a connection gracefully.
        """
        return self._keepalive.idle_since(calls=len(self._h2.streams))

    @property
    def yields_at(self) -> float:
        """The time from which on it may be ended for another connection (`protocols.transport.room.Occupant`)."""
        return math.inf if self._yielding else self.idle_since

    # The task

    async def serve(self) -> None:
        """Serve until the client leaves or is sent away.

        A bug of this connection is raised; a bug of a method is not.
        """
        if faults.points is not None:
            faults.points.passing("grpc.connection")
        try:
            await self._shake_hands()
            self._h2.begin()
            if self._refusing:
                self._retire(b"")
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._write)
                try:
                    await self._read()
                finally:
                    self._abandon_all()
                self._nursery.cancel_scope.cancel()
        except ConnectionLost:
            return
        finally:
            self._answers.drop()
            for call in list(self._calls):
                self.over(call)

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()
        # Otherwise the task that has the nursery would wait for the garbage collector, with its frames.
        self._nursery = None

    async def _shake_hands(self) -> None:
        try:
            await self._transport.handshake()
        except ConnectionLost as lost:
            if not self._refusing:
                late = trio.current_time() >= self.deadline  # the sweep has shut the socket
                patience = self._options.handshake_timeout
                reason = f"no TLS handshake within {patience:g} s" if late else str(lost)
                self._environment.on_unsecured(self.peer, reason)
            raise

    async def _write(self) -> None:
        await self._answers.run()
        self._transport.finish()
        self._linger()

    async def _read(self) -> None:
        """Read until the end. Raises nothing for a client that is lost or breaks rules."""
        transport, h2, answers = self._transport, self._h2, self._answers
        whole = self._environment.scratch
        turn = whole[:_TURN]
        try:
            while True:
                scratch = whole if h2.frame_left > _TURN else turn
                try:
                    count = transport.receive_into(scratch)
                except BlockingIOError:
                    await transport.wait_readable()
                    continue
                if not count:
                    return
                self._now = now = trio.current_time()
                self._arrivals.turn()
                self._keepalive.heard(now)
                if self._unproven > 0:
                    self._prove(count)
                answers.quiet = False
                h2.receive(scratch[:count], now)
                answers.quiet = True
                if h2.output:
                    answers.wake()
                if self._leaving:
                    self._close_if_done()
                if transport.exhausted(count, len(scratch)):
                    await transport.wait_readable()
                else:
                    await trio.lowlevel.checkpoint()
        except ConnectionLost:
            return
        except ConnectionViolation as violation:
            self._environment.on_violation(self.peer, violation.code, violation.message)
            await self._part()

    def _prove(self, count: int) -> None:
        self._unproven -= count
        if self._unproven <= 0 and not self._closing:
            self.deadline = math.inf

    async def _part(self) -> None:
        """Let the client read why it is sent away. Closing while it still sends would lose that message."""
        self._abandon_all()
        self._linger()
        self._end()
        swallowed = 0
        scratch = self._environment.scratch
        try:
            while swallowed < _LINGER_SIZE:
                await self._transport.wait_readable()
                try:
                    count = self._transport.receive_into(scratch)
                except BlockingIOError:
                    continue
                if not count:
                    return
                swallowed += count
        except ConnectionLost:
            return

    def _end(self) -> None:
        """Write what is left. After that the client or the sweep closes the connection."""
        self._closing = True
        self._answers.end()

    def _linger(self) -> None:
        self.deadline = min(self.deadline, trio.current_time() + _LINGER)

    # Told by the listener

    def give_way(self) -> None:
        """Come to an end, so that another connection has room.

        A call that is on its way is not begun. Its client learns that from the GOAWAY.
        """
        self._yielding = True
        if self._nursery is None:  # its client has still to show that it speaks HTTP/2
            self._transport.shut(abort=True)
            return
        self.deadline = min(self.deadline, trio.current_time() + _GIVING_WAY)
        if not self._leaving:
            self._say_goodbye()

    def withdraw(self) -> None:
        """Take no new streams once the client knows, and finish those that are open, however long they take.

        A connection that has yet to begin is left alone: it came when clients had been told, and only its
        address led here.
        """
        if self._nursery is not None:
            self._retire(b"")

    def drain(self) -> None:
        """Take no new streams, finish those that are open, and close."""
        self._refusing = True
        # The connection says goodbye as it begins, and a client must not hold that up.
        if self._nursery is None:
            self.deadline = min(self.deadline, trio.current_time() + _LINGER)
            return
        self._retire(b"")
        for call in self._calls:
            if call.server_stream is not None:
                call.server_stream.leave()

    def give_up(self) -> None:
        """The process is about to end: refuse the calls that are not answered."""
        for call in list(self._calls):
            if not call.closed:
                self.refuse(call, Unavailable(_ENDING))

    def _retire(self, debug: bytes) -> None:
        """Say goodbye in two steps, so that no call on its way is lost (RFC 9113, section 6.8)."""
        if self._leaving or self._goodbye_by < math.inf:
            return
        self._goodbye_by = trio.current_time() + _GOODBYE
        self._h2.go_away(ErrorCode.NO_ERROR, debug, last=LARGEST_STREAM)
        self._h2.ping(_RETIRING)
        self._answers.wake()

    def _say_goodbye(self) -> None:
        self._goodbye_by = math.inf
        self._leaving = True
        self._h2.go_away(ErrorCode.NO_ERROR)
        self._answers.wake()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._h2.streams and not self._calls and not self._closing:
            self._end()

    def sweep(self, now: float) -> None:
        """Do what is due at `now`."""
        if now >= self.deadline or now >= self._answers.stalled_since + self._options.stall_timeout:
            self._transport.shut(abort=True)
            return
        if self._h2.unread > self._options.connection_bytes + _MOST_UNREAD:
            self._transport.shut(abort=True)
            return
        if self._nursery is None or self._closing:
            return
        if now >= self._goodbye_by:
            self._say_goodbye()
        if self._refusing:
            self._hurry(now)
        match self._keepalive.check(now, calls=len(self._h2.streams)):
            case Action.PING:
                self._h2.ping(_ALIVE)
                self._answers.wake()
            case Action.RETIRE:
                self._retire(b"max_age")
            case Action.REST:
                self._retire(b"max_idle")
            case Action.DROP | Action.EXPIRE:
                self._transport.shut(abort=True)
            case Action.NONE:
                pass

    def _hurry(self, now: float) -> None:
        """Refuse unary calls whose request is not whole and has not grown for `LAST_CALL` seconds.

        Called while the server is to end.
        """
        for call in list(self._calls):
            if call.closed or call.server_stream is not None or not call.stream.remote_open:
                continue
            came = call.stream.received
            before, since = self._hurried.get(call, (-1, now))
            if came > before:
                self._hurried[call] = came, now
            elif now >= since + LAST_CALL:
                self.refuse(call, Unavailable(SHUTTING_DOWN))

    # HTTP/2's handler

    def read_head(self, headers: Sequence[tuple[bytes, bytes]]) -> CallHead[Method]:
        """Say what a header list means (`protocols.http2.connection.Handler`)."""
        return self._environment.heads.read(headers)

    def opened(self, stream: Stream, head: CallHead[Method]) -> None:
        """Open a call."""
        stream.call = call = Call(self, stream, head)
        self.served = True
        self._calls[call] = None
        method = head.method
        if head.refusal is not None or method is None:
            assert head.refusal is not None, "a head without a method is refused"
            call.closed = True
            self._answers.put(call, head.refusal)
        elif self._refusing and method.infer:
            call.put(Unavailable(SHUTTING_DOWN), final=True)
        else:
            if head.timeout < math.inf:
                call.deadline = self._now + head.timeout
            if method.unary is None:
                self._open_coroutine(call, method)
            elif call.deadline < math.inf:
                call.timed = True
                self._environment.deadlines.add(call, call.deadline)

    def received(self, stream: Stream, data: memoryview) -> None:
        """Gather a call's messages."""
        call: Call = stream.call
        if call.closed:
            return
        if call.incoming is None:
            if call.message is not None:
                self.refuse(call, more_than_one())
                return
            call.message = messages.whole(data, self._limit)
            if call.message is not None:
                return
        self._arrivals.gather(call, data)

    def ended(self, stream: Stream) -> None:
        """The request is whole: begin it, or have it wait."""
        call: Call = stream.call
        if call.closed:
            return
        if call.incoming is not None or call.message is None:
            self._arrivals.ended(call)
        elif self._parked or not self._room.open:
            self._parked[call] = None
        else:
            self._begin(call)

    def reset(self, stream: Stream, code: int) -> None:
        """The client cancelled the call."""
        del code
        self._lose(stream.call)

    def pinged(self, now: float) -> None:
        """Count the client's pings; too many cost it the connection."""
        if self._keepalive.struck_out(now, calls=len(self._h2.streams)):
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def pong(self, payload: bytes) -> None:
        """The client has seen the first GOAWAY."""
        if payload == _RETIRING and self._goodbye_by < math.inf:
            self._say_goodbye()

    # Unary calls

    def _begin(self, call: Call) -> None:
        unary = call.unary
        assert unary is not None
        message, call.message = call.message, None
        assert message is not None
        self._room.in_flight += 1
        call.begun = True
        try:
            unary.begin(call, message)
        except TritiumError as error:
            call.put(error, final=True)
        except Exception as bug:  # noqa: BLE001  # as in `tell`
            self.crashed(call, bug)
            call.put(Internal(BUG), final=True)

    def admit(self, call: Call) -> None:
        """Begin a call that has its message, or have it wait for room (`protocols.grpc.reader.Owner`)."""
        if self._parked or not self._room.open:
            self._parked[call] = None
        else:
            self._begin(call)

    def room_made(self) -> None:
        """Begin the calls that waited for room (`protocols.grpc.writer.Owner`)."""
        while self._parked and self._room.open:
            call = next(iter(self._parked))
            del self._parked[call]
            self._begin(call)

    def answer(self, call: Call, outcome: InferResponse | TritiumError) -> None:
        """Have a unary call answered (`protocols.grpc.call.Wire`)."""
        self._answers.put(call, outcome)

    def expire(self, call: Call) -> None:
        """The deadline of a unary call has passed."""
        call.timed = False
        if not call.closed:
            self._cancel(call)
            self._answers.put(call, DeadlineExceeded(_TOO_LATE))

    def refuse(self, call: Call, error: TritiumError | GRPCError) -> None:
        """End a call with an error of the client's or of a task's (`protocols.grpc.reader.Owner`)."""
        if call.server_stream is None:
            self._cancel(call)
            self._answers.put(call, error)
        else:
            self._answers.send_status(call, *status_of(error), trailing_metadata(error))
            self._cancel_tasks(call)

    def _cancel(self, call: Call) -> None:
        """Cancel a unary call that is not answered: tell its method, and cancel its tasks."""
        call.closed = True
        call.drop()
        self._parked.pop(call, None)
        self._cancel_tasks(call)
        if call.begun and call.unary is not None:
            self.tell(call, partial(call.unary.cancel, call))

    def _cancel_tasks(self, call: Call) -> None:
        for scope in call.scopes or ():
            scope.cancel()

    def _lose(self, call: Call) -> None:
        """The stream is gone, answered or not."""
        call.gone = True
        if call.closed:
            self._cancel_tasks(call)
            if self._answers.forget(call):
                self.over(call)
        elif call.server_stream is None:
            self._cancel(call)
            self._answers.put(call, Cancelled(_LEFT))
        else:
            call.closed = True
            self._cancel_tasks(call)
            self._answers.leave(call)

    def _abandon_all(self) -> None:
        for call in list(self._calls):
            self._lose(call)

    def over(self, call: Call) -> None:
        """Give back all that `call` took (`protocols.grpc.writer.Owner`)."""
        del self._calls[call]
        self._hurried.pop(call, None)
        stream = call.stream
        if call.timed:
            call.timed = False
            self._environment.deadlines.discard(call)
        self._h2.consumed(stream.received - call.credited)  # negative where a message broke off
        self._arrivals.over(call)
        # Objects that refer to the call in a circle would wait for the garbage collector.
        stream.call = call.context = call.message = call.incoming = None
        if not call.scopes:
            call.server_stream = None
        if self._leaving:
            self._close_if_done()

    def wake(self) -> None:
        """There is something to write (`protocols.grpc.reader.Owner`)."""
        self._answers.wake()

    def data_sent(self) -> None:
        """Pings are excused again (`protocols.grpc.writer.Owner`)."""
        self._keepalive.sent_data()

    def crashed(self, call: Call, bug: Exception) -> None:
        """Report a bug of a method, which has cost its call (`protocols.grpc.writer.Owner`)."""
        self._environment.on_crash(call.head.path, bug)

    def tell(self, call: Call, hook: Callable[[], None]) -> None:
        """Call a method's hook, whose failure changes nothing (`protocols.grpc.writer.Owner`)."""
        try:
            hook()
        except Exception as bug:  # noqa: BLE001  # a protocol's outer edge: a bug costs no other call
            self.crashed(call, bug)

    def taken(self, call: Call) -> None:
        """Let the client send again what the method has taken (`protocols.grpc.call.Wire`)."""
        self._arrivals.taken(call)

    async def unfolded(self, call: Call, message: Buffer) -> Buffer:
        """Return a compressed message's content (`protocols.grpc.call.Wire`)."""
        return await self._arrivals.unfolded(call, message)

    # Tasks

    def run(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Run `body` beside the call, unless that is over (`protocols.grpc.call.Wire`)."""
        if not call.closed:
            self.run_always(call, body)

    def run_always(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Run `body` beside the call, answered or not (`protocols.grpc.writer.Owner`)."""
        assert self._nursery is not None, "calls come from reading, which the nursery encloses"
        scope = trio.CancelScope()
        if call.scopes is None:
            call.scopes = set()
        call.scopes.add(scope)
        self._nursery.start_soon(self._run, call, body, scope, name=call.head.path)

    async def _run(self, call: Call, body: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            with scope:
                await body()
        except (TritiumError, GRPCError) as error:
            self._fail(call, error)
        except Exception as bug:  # noqa: BLE001  # as in `tell`
            self.crashed(call, bug)
            self._fail(call, Internal(BUG))
        finally:
            if call.scopes is not None:
                call.scopes.discard(scope)
            if not call.scopes and call not in self._calls:
                call.server_stream = None  # as in `over`, which ran before

    def _fail(self, call: Call, error: TritiumError | GRPCError) -> None:
        """Answer a call with the error that one of its tasks raised."""
        if call.closed:
            return
        if isinstance(error, TritiumError) and call.server_stream is None:
            call.put(error, final=True)
        else:
            self.refuse(call, error)

    # Coroutine methods

    def _open_coroutine(self, call: Call, method: Method) -> None:
        cardinality = method.handler.cardinality.value
        call.server_stream = ServerStream(
            call,
            method.handler.request_type,
            unary_request=not cardinality.client_streaming,
            unary_reply=not cardinality.server_streaming,
        )
        if self._refusing:
            call.server_stream.leave()
        self._arrivals.reader(call)
        self.run(call, partial(self._run_method, call, method))

    async def _run_method(self, call: Call, method: Method) -> None:
        server_stream = call.server_stream
        assert server_stream is not None
        with trio.CancelScope(deadline=call.deadline) as scope:
            await method.handler.func(server_stream)
            server_stream.conclude()
        if scope.cancelled_caught:
            raise DeadlineExceeded(_TOO_LATE)

    def send_head(self, call: Call, metadata: Metadata | None) -> None:
        """Send initial metadata (`protocols.grpc.call.Wire`)."""
        self._answers.send_head(call, metadata)

    def send_part(
        self, call: Call, buffers: Sequence[Buffer], size: int, lease: InferResponse | None
    ) -> None:
        """Send one message (`protocols.grpc.call.Wire`)."""
        self._answers.send_part(call, buffers, size, lease)

    def send_status(self, call: Call, status: int, message: str, metadata: Metadata | None) -> None:
        """Send trailers (`protocols.grpc.call.Wire`)."""
        self._answers.send_status(call, status, message, metadata)
