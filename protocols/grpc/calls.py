"""The calls of one connection: what HTTP/2 reports becomes calls, and calls are given to methods.

What a client may make the server hold is bounded in three ways (`protocols.grpc.policy`). Windows open
again only when a call is over or a method took its message. Grants let large messages in one after the other.
And no more answers are begun than might find room. A request that is not begun waits in `_parked`, and its
bytes count against the windows.
"""

from __future__ import annotations

import math
from builtins import memoryview  # noqa: A004  # mypyc looks the type of a dataclass's field up in its module
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from actors.values.callers import Caller, Peer
from actors.values.errors import Cancelled, DeadlineExceeded, PermissionDenied, TritiumError, Unavailable
from actors.values.tensors import Buffer
from protocols.grpc.answers import status_of, trailing_metadata
from protocols.grpc.call import SHUTTING_DOWN, Call, Method
from protocols.grpc.call_states import ANSWER, BEGUN, END, LOSE, PARK, Step
from protocols.grpc.codec import messages
from protocols.grpc.codec.heads import CallHead, Refusal, read_more
from protocols.grpc.methods import INFERENCE_SERVICE, TOO_LATE, CallTasks, HeadReader, cancel_tasks
from protocols.grpc.policy import AnswerRoom, GrpcOptions, Keepalive
from protocols.grpc.reader import RequestReader, more_than_one
from protocols.grpc.tracing import over
from protocols.grpc.writer import AnswerWriter
from protocols.http2.connection import Http2Connection
from protocols.http2.frames import ErrorCode
from protocols.http2.streams import Handler, Http2Limits, PingHandler, Stream
from protocols.kserve.auditing import attempt, tell_denied
from protocols.transport.clients import Clients
from protocols.transport.listening import CROWDED, Guest
from protocols.transport.receiving import ReceivingRoom
from protocols.transport.sockets import Transport

_LEFT: Final = "the client left"
_MOST_LOOKED_AT: Final = 64  # calls of a connection; with more of them it counts as busy
_ENDING: Final = "Server exiting"


class Deadlines(Protocol):
    """Watches the deadlines of unary calls."""

    def add(self, call: Call, deadline: float) -> None:
        """Have `call` expire once `deadline` has passed."""

    def discard(self, call: Call) -> None:
        """Forget the deadline of `call`, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Environment:
    """What all connections of a listener share.

    Reads go into `scratch`, and nothing in it outlives a read. `deadlines` has the `expire` of a call's
    connection called. `room` is that of all requests on their way in. `on_crash` is told the path and the
    exception of a method's bug. `on_violation` is told
    the address of a client that is sent away, with which code and what text. `on_unsecured` is told the
    address of a client whose TLS handshake failed, and why.
    """

    options: GrpcOptions
    heads: HeadReader
    limits: Http2Limits
    scratch: memoryview
    threads: trio.CapacityLimiter
    deadlines: Deadlines
    room: ReceivingRoom
    on_crash: Callable[[str, Exception], None]
    on_violation: Callable[[str, ErrorCode, str], None]
    on_unsecured: Callable[[str, str], None]


class Calls(Handler[CallHead[Method]]):
    """The calls that are not over, and the parts of the connection that serve them. It is their `Wire`.

    `draining` refuses new inferences. `on_over` is called after each call that is over.
    """

    def __init__(
        self, transport: Transport, environment: Environment, keepalive: Keepalive, pings: PingHandler
    ) -> None:
        options = environment.options
        self.client = Peer.at(transport.peer)  # of the connection
        proxies = options.proxies
        self._clients = None if proxies is None else Clients(self.client, proxies)
        self.threads = environment.threads
        self.now = 0.0  # when the bytes came that are read, or the request that begins was whole
        self.served = False  # a call came
        self.draining = False
        self.guest: Guest[str] | None = None  # set where all other connections are busy
        self.leaving = False  # the connection is to end with the calls that it has
        self.on_over: list[Callable[[], None]] = []
        room = AnswerRoom(options.connection_bytes)
        self.h2: Http2Connection[CallHead[Method]] = Http2Connection(self, pings, environment.limits)
        self.tasks = CallTasks(self, environment.on_crash)
        self.writer = AnswerWriter(transport, self.h2, self, self.tasks, keepalive, options, room)
        self.reader = RequestReader(self.h2, self, self.writer, self.tasks, options, environment.room)
        self._watch = transport.watch
        self._room = room
        self._heads = environment.heads
        self._deadlines = environment.deadlines
        self._gate = options.gate
        self._auditor = options.auditor
        # Whose call was let in last, and to which method. A caller's rules never change.
        self._let_in_before: Caller | None = None
        self._method_before: Method | None = None
        self._limit = options.max_receive_message
        self._last_call = options.last_call
        self._calls: dict[Call, None] = {}
        # Those whose whole requests may not begin yet, in their order.
        self._parked: dict[Call, Buffer] = {}
        # While the server shuts down: how many bytes of a call have come, and since when.
        self._hurried: dict[Call, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    # Told by HTTP/2

    def read_head(self, headers: Sequence[tuple[bytes, bytes]]) -> CallHead[Method]:
        """Say what a header list means."""
        head = self._heads.read(headers)
        return head if self.guest is None else self._as_guest(self.guest, head)

    def read_more(
        self, head: CallHead[Method], more: Sequence[tuple[bytes, bytes]]
    ) -> CallHead[Method] | None:
        """Say what a header list means that is the one of `head` and then `more`, if that can be told."""
        return read_more(head, more) if self.guest is None else None

    def _as_guest(self, guest: Guest[str], head: CallHead[Method]) -> CallHead[Method]:
        """Refuse a call for which there is no room, unless it is welcome or there is room after all."""
        if not guest.crowded():
            self.guest = None
            return head
        self.leaving = True
        if guest.is_welcome(head.path):
            return head
        guest.turned_away()
        return replace(head, refusal=Refusal(Status.UNAVAILABLE, CROWDED))

    def opened(self, stream: Stream, head: CallHead[Method]) -> None:
        """Open a call."""
        stream.call = call = Call(self, stream, head)
        call.came_at = self.now
        if self._clients is not None:
            call.client = self._clients.of(head.fields)
        self.served = True
        if self._watch is not None:
            self._watch.use(self.now)
        self._calls[call] = None
        method = head.method
        if head.refusal is not None or method is None:
            assert head.refusal is not None, "a head without a method is refused"
            call.state = call.state.after[ANSWER]
            if self._auditor is not None and head.refusal.forbidden:
                self.tell_denied(call, PermissionDenied(head.refusal.message))
            self.writer.put(call, head.refusal)
        elif self.draining and method.infer:
            call.put(Unavailable(SHUTTING_DOWN), final=True)
        else:
            if self._gate is not None:
                try:
                    call.caller = caller = self._gate.identify(head.authorization, call.client)
                    if caller is not self._let_in_before or method is not self._method_before:
                        caller.require(method.action)
                        self._let_in_before, self._method_before = caller, method
                except TritiumError as error:
                    self.tell_denied(call, error)
                    call.put(error, final=True)
                    return
            if head.timeout < math.inf:
                call.deadline = self.now + head.timeout
            if method.unary is None:
                self.reader.reader(call)
                self.tasks.serve(call, method, leaving=self.draining)
            elif call.deadline < math.inf:
                self._deadlines.add(call, call.deadline)

    def tell_denied(self, call: Call, error: TritiumError, model: str = "") -> None:
        """Tell the audit log of a call that is refused, if it is denied something."""
        method, path = call.head.method, call.head.path
        if self._auditor is not None and method is not None:
            action = attempt(path.removeprefix(INFERENCE_SERVICE), method.action)
            tell_denied(self._auditor, action, model, call.caller, call.client, error)

    def received(self, stream: Stream, data: memoryview) -> None:
        """Gather a call's messages."""
        call: Call = stream.call
        if call.state.closed:
            return
        if call.incoming is None:
            if call.message is not None:
                self.refuse(call, more_than_one())
                return
            call.message = messages.whole(data, self._limit)
            if call.message is not None:
                return
        self.reader.gather(call, data)

    def received_last(self, stream: Stream, data: memoryview) -> None:
        """Begin a request that came in one piece; otherwise gather the last of it."""
        call: Call = stream.call
        if call.incoming is None and call.message is None and not call.state.closed:
            message = messages.whole(data, self._limit)
            if message is not None:
                stream.remote_open = False
                self._begin(call, message)
                return
        super().received_last(stream, data)

    def ended(self, stream: Stream) -> None:
        """The request is whole: begin it, or have it wait."""
        call: Call = stream.call
        if not call.state.closed:
            self.reader.ended(call)

    def reset(self, stream: Stream, code: int) -> None:
        """The client cancelled the call."""
        del code
        self._lose(stream.call)

    # Beginning

    def admit(self, call: Call, request: Buffer) -> None:
        """Begin a call that has its request, which may have taken a while to unfold, or have it wait."""
        self.now = trio.current_time()
        call.message = None
        self._begin(call, request)

    def _begin(self, call: Call, request: Buffer) -> None:
        """Begin a call that has its request, or have it wait for room."""
        if self._parked or not self._room.open:
            call.state = call.state.after[PARK]
            self._parked[call] = request
        else:
            self._room.in_flight += 1
            self.tasks.begin(call, request)

    def room_made(self) -> None:
        """Begin the calls that waited for room."""
        if self._parked:
            self.now = trio.current_time()
        while self._parked and self._room.open:
            call = next(iter(self._parked))
            self._room.in_flight += 1
            self.tasks.begin(call, self._parked.pop(call))

    def run(self, call: Call, body: Callable[[], Awaitable[None]]) -> None:
        """Run `body` beside the call, unless that is over."""
        self.tasks.run(call, body)

    # Ending

    def expire(self, call: Call) -> None:
        """The deadline of a unary call has passed."""
        if not call.state.closed:
            self._close(call, ANSWER)
            self.writer.put(call, DeadlineExceeded(TOO_LATE))

    def refuse(self, call: Call, error: TritiumError | GRPCError) -> None:
        """End a call that is not closed with an error of the client's or of a task's."""
        if call.server_stream is None:
            self._close(call, ANSWER)
            self.writer.put(call, error)
        else:
            self.writer.send_status(call, *status_of(error), trailing_metadata(error))
            cancel_tasks(call)

    def _close(self, call: Call, step: Step) -> None:
        """Close a unary call that is not answered: tell its method, and cancel its tasks."""
        begun = call.state is BEGUN
        call.state = call.state.after[step]
        call.drop()
        self._parked.pop(call, None)
        cancel_tasks(call)
        if begun:
            self.tasks.cancel(call)

    def _lose(self, call: Call) -> None:
        """The stream is gone, answered or not."""
        if call.state.closed:
            call.state = call.state.after[LOSE]
            cancel_tasks(call)
            if self.writer.forget(call):
                self.over(call)
        elif call.server_stream is None:
            self._close(call, LOSE)
            self.writer.put(call, Cancelled(_LEFT))
        else:
            call.state = call.state.after[LOSE]
            cancel_tasks(call)
            self.writer.leave(call)

    def abandon(self) -> None:
        """The connection ends: no call has a client any more."""
        for call in list(self._calls):
            self._lose(call)

    def close(self) -> None:
        """The connection has ended: give back what the calls that are left took."""
        self.writer.drop()
        for call in list(self._calls):
            self.over(call)

    def over(self, call: Call) -> None:
        """Give back all that `call` took."""
        call.state = call.state.after[END]
        del self._calls[call]
        if call.trace is not None:
            over(call.trace)
            call.trace = None
        if self._hurried:
            self._hurried.pop(call, None)
        stream = call.stream
        if call.deadline < math.inf:
            self._deadlines.discard(call)
        self.h2.window.consumed(stream.received - call.credited)  # negative where a message broke off
        if call.granted or call.ticket is not None:
            self.reader.over(call)
        # Objects that refer to the call in a circle would wait for the garbage collector.
        stream.call = call.context = call.message = call.incoming = None
        if not call.scopes:
            call.server_stream = None
        if self.on_over:
            for tell in self.on_over:
                tell()

    @property
    def incomplete(self) -> bool:
        """Whether the client has sent part of a message, and not all."""
        return any(map(_is_incomplete, self._calls))

    @property
    def stalled(self) -> bool:
        """Whether nothing can be done for any call before the client sends more, if there are few."""
        return len(self._calls) <= _MOST_LOOKED_AT and all(call.stalled for call in self._calls)

    @property
    def streaming(self) -> bool:
        """Whether any call is a stream of requests that has not ended."""
        return any(call.server_stream is not None and not call.closed for call in self._calls)

    def refuse_stalled(self, error: TritiumError) -> None:
        """Refuse the calls that wait for their client."""
        for call in list(self._calls):
            if not call.closed and call.stalled:
                self.refuse(call, error)

    def refuse_incomplete(self, error: TritiumError) -> None:
        """Refuse calls of which part of a message is here, and not all."""
        for call in list(self._calls):
            if _is_incomplete(call):
                self.refuse(call, error)

    # While the server ends

    def drain(self) -> None:
        """Refuse new inferences; have streaming calls end once they have answered what they got."""
        self.draining = True
        for call in self._calls:
            if call.server_stream is not None:
                call.server_stream.leave()

    def hurry(self, now: float) -> None:
        """Refuse unary calls whose request is not whole and has not grown for `last_call` seconds."""
        for call in list(self._calls):
            if call.state.closed or call.server_stream is not None or not call.stream.remote_open:
                continue
            came = call.stream.received
            before, since = self._hurried.get(call, (-1, now))
            if came > before:
                self._hurried[call] = came, now
            elif now >= since + self._last_call:
                self.refuse(call, Unavailable(SHUTTING_DOWN))

    def give_up(self) -> None:
        """The process is about to end: refuse the calls that are not answered."""
        for call in list(self._calls):
            if not call.state.closed:
                self.refuse(call, Unavailable(_ENDING))


def _is_incomplete(call: Call) -> bool:
    if call.state.closed or not call.stream.remote_open:
        return False
    return call.server_stream is None or (call.incoming is not None and call.incoming.under_way)
