"""A gRPC connection's requests on their way in: messages in pieces, the windows they need, their unfolding.

A message that fits a stream's first window needs nothing of this. A longer one is let in whole once it gets a
grant. A compressed one is unfolded once its possible size has found room as well. Messages that a streaming
call's method does not take stay here, with the call's window shut. So a client makes the server hold no more
than a few times `GrpcOptions.connection_bytes`, whatever it sends. And all clients together have one
room for what they send (`protocols.transport.receiving`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio
from grpclib.exceptions import GRPCError

from actors.seams.slices import in_slices, in_threads
from actors.values.callers import Action
from actors.values.errors import Internal, TritiumError, Unsupported
from actors.values.tensors import Buffer
from protocols.grpc.call import Call, CallReader, Ticket
from protocols.grpc.codec import messages
from protocols.grpc.codec.messages import Message, MessageReader
from protocols.grpc.methods import CallTasks
from protocols.grpc.policy import Grants, GrpcOptions
from protocols.grpc.writer import AnswerWriter
from protocols.http2.connection import Http2Connection
from protocols.http2.streams import Stream
from protocols.kserve.caps import REPOSITORY_BODY
from protocols.kserve.compression import most_of
from protocols.transport.budget import FREE
from protocols.transport.receiving import Claim, ReceivingRoom, no_room, too_slow

# Bytes of window beyond a message: for frames that its client pads.
_PADDING: Final = 512
_CREDIT: Final = 32 * 1024  # bytes of a streaming call that are given back together
# Longer compressed messages are unfolded in a thread, because a megabyte may be in them.
_UNFOLDED_HERE: Final = 1024
# Once this much was unfolded since the last read, all of them are.
_UNFOLDED_A_TURN: Final = 1024 * 1024


class Recipient(Protocol):
    """The object that has the calls whose requests are read."""

    def admit(self, call: Call, request: Buffer) -> None:
        """The request of a unary call is whole."""

    def refuse(self, call: Call, error: TritiumError | GRPCError) -> None:
        """The client broke gRPC's rules on `call`."""


class RequestReader(CallReader):
    """Gathers the messages of one connection's calls, except those that come whole in one piece."""

    def __init__(
        self,
        h2: Http2Connection[Any],
        calls: Recipient,
        writer: AnswerWriter,
        tasks: CallTasks,
        options: GrpcOptions,
        room: ReceivingRoom,
    ) -> None:
        self._h2 = h2
        self._room = room
        self._calls = calls
        self._writer = writer
        self._tasks = tasks
        self._limit = options.max_receive_message
        self._grants: Grants[Call] = Grants(options.connection_bytes)
        self._unfolding: Grants[Ticket] = Grants(options.connection_bytes)
        self._unfolded = 0  # bytes unfolded on the loop since the last read

    def turn(self) -> None:
        """Note that something was read, so that the loop may spend time again."""
        self._unfolded = 0

    def reader(self, call: Call) -> MessageReader:
        """Return the reader that gathers the messages of `call`."""
        if call.incoming is None:
            call.incoming = MessageReader(self._longest(call), encoded=bool(call.head.coding))
        return call.incoming

    def _longest(self, call: Call) -> int:
        """Return how many bytes a message of `call` may have: many for tensors and files, a few otherwise."""
        method, caller = call.head.method, call.caller
        if method is None or method.infer:
            return self._limit
        if method.action is Action.MODEL_REPOSITORY and (caller is None or caller.may(Action.UPLOAD, "")):
            return self._limit
        return min(self._limit, REPOSITORY_BODY)

    def gather(self, call: Call, data: memoryview) -> None:
        """Take the bytes that came on a call."""
        reader = self.reader(call)
        try:
            for message in reader.feed(data):
                self._keep(call, message)
        except (TritiumError, GRPCError) as error:
            self._calls.refuse(call, error)
            return
        self._open_windows(call, reader)

    def _keep(self, call: Call, message: Message) -> None:
        if call.server_stream is not None:
            if call.server_stream.unary_request and call.server_stream.fed:
                raise more_than_one()
            call.server_stream.feed(message)
        elif call.message is None:
            call.message = message if message.compressed else message.data
        else:
            raise more_than_one()

    def ended(self, call: Call) -> None:
        """The client has sent all of a call."""
        if call.incoming is not None and call.incoming.under_way:
            self._calls.refuse(call, Internal("the call's last message was cut short"))
        elif call.server_stream is not None:
            call.server_stream.end()
        elif call.message is None:
            self._calls.refuse(call, Unsupported("the call ended before its request message"))
        elif isinstance(call.message, Message):
            self._unfold(call, call.message.data)
        else:
            self._calls.admit(call, call.message)

    def taken(self, call: Call) -> None:
        """A streaming call's method took a message: its client may send again."""
        server_stream, reader = call.server_stream, call.incoming
        if server_stream is None or reader is None or call.state.gone:
            return
        if call.granted and server_stream.taken >= call.granted:
            self._release_grant(call)
        self._open_windows(call, reader)

    def over(self, call: Call) -> None:
        """Give back the grants of a call."""
        if call.granted:
            self._release_grant(call)
        if call.ticket is not None:
            self._release_ticket(call.ticket)
            call.ticket = None

    # Windows

    def _open_windows(self, call: Call, reader: MessageReader) -> None:
        """Let the client of a call send what there is room for, once that is worth a frame.

        A coroutine's call: as much as is not held here. Any call: the rest of a message that is too long for
        the window, once there is a grant for it.
        """
        missing, opened = reader.missing, self._opened(call.stream)
        if call.server_stream is not None:
            under_way = 0 if reader.declared is None else messages.PREFIX_SIZE + reader.declared - missing
            come = call.stream.allowed - opened
            free = come - call.credited - call.server_stream.held - under_way
            if free >= _CREDIT or (free > 0 and missing > opened):
                self._open_window(call, free)
                opened = self._opened(call.stream)
        if missing > opened or (missing and opened < _PADDING):
            self._make_room(call, reader)

    def _make_room(self, call: Call, reader: MessageReader) -> None:
        """Let the rest of a long message come, as soon as there is a grant for it."""
        number = 1 if call.server_stream is None else call.server_stream.fed + 1
        if not call.granted:
            if call.server_stream is not None and call.server_stream.hold_back():
                return
            call.granted = number
            self._grants.ask(call, reader.declared or 0)
        if call.granted == number and self._grants.holds(call):
            self._find_room(call, reader)

    def _find_room(self, call: Call, reader: MessageReader) -> None:
        """Let in a message that its connection may have, once the server has room for it."""
        claim = call.claim
        if claim is None:
            call.claim = claim = Claim(self._room, partial(_progress, call), partial(self._outrun, call))
        if not claim.waiting and claim.ask(reader.declared or 0, partial(self._answered, call)):
            self._let_in(call, reader)

    def _answered(self, call: Call, granted: bool) -> None:
        if call.state.closed:
            return
        if not granted:
            self._calls.refuse(call, no_room())
        elif call.incoming is not None:
            self._let_in(call, call.incoming)

    def _outrun(self, call: Call) -> None:
        if not call.state.closed:
            self._calls.refuse(call, too_slow())

    def _let_in(self, call: Call, reader: MessageReader) -> None:
        self._open_window(call, reader.missing + _PADDING - self._opened(call.stream))

    def _release_grant(self, call: Call) -> None:
        call.granted = 0
        claim, call.claim = call.claim, None
        if claim is not None:
            claim.release()
        for other in self._grants.release(call):
            if other.incoming is not None:
                self._find_room(other, other.incoming)

    def _opened(self, stream: Stream) -> int:
        """How many bytes more may come on a stream as of now."""
        return stream.allowed - stream.received + self._h2.reading.arriving(stream)

    def _open_window(self, call: Call, amount: int) -> None:
        if amount > 0 and call.stream.remote_open:
            call.credited += amount
            self._h2.window.grant(call.stream, amount)
            self._writer.wake()

    # Compressed messages

    def _unfold(self, call: Call, message: Buffer) -> None:
        """Unfold a unary request: here where that can't take long, otherwise in a thread."""
        if len(message) > _UNFOLDED_HERE or self._unfolded > _UNFOLDED_A_TURN:
            self._tasks.run(call, partial(self._unfold_slowly, call, message))
            return
        try:
            content = messages.unfold(message, call.head.coding, self._longest(call))
        except (TritiumError, GRPCError) as error:
            self._calls.refuse(call, error)
            return
        self._unfolded += len(content)
        if len(content) > FREE:  # it needs room, for which only a task can wait
            self._tasks.run(call, partial(self._unfold_slowly, call, message))
        else:
            self._calls.admit(call, content)

    async def _unfold_slowly(self, call: Call, message: Buffer) -> None:
        # The call ended before this began, so no other code would release the ticket.
        if _is_over(call):
            return
        call.ticket = ticket = self._ticket()
        content = await self._unfold_in_thread(call, message, ticket)
        if _is_over(call):  # meanwhile; a thread is not interrupted
            return
        ticket.claim.shrink(len(content))
        _open(self._unfolding.resize(ticket, len(content)))
        self._calls.admit(call, content)

    async def unfolded(self, call: Call, message: Buffer) -> Buffer:
        """Return the content of a streaming call's message. Raises TritiumError and GRPCError."""
        ticket = self._ticket()
        try:
            return await self._unfold_in_thread(call, message, ticket)
        finally:
            self._release_ticket(ticket)

    async def _unfold_in_thread(self, call: Call, message: Buffer, ticket: Ticket) -> Buffer:
        """Unfold the message once its possible size has found room. The holder of the ticket releases it."""
        limit = self._longest(call)
        size = most_of(len(message), limit)
        if not self._unfolding.ask(ticket, size):
            await ticket.open.wait()
        if not await ticket.claim.take(size, urgent=len(message) > FREE):
            raise no_room()
        return await in_slices(in_threads(messages.unfolding(message, call.head.coding, limit)))

    def _ticket(self) -> Ticket:
        return Ticket(Claim(self._room), trio.Event())

    def _release_ticket(self, ticket: Ticket) -> None:
        ticket.claim.release()
        _open(self._unfolding.release(ticket))


def _open(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.open.set()


def _progress(call: Call) -> tuple[int, int]:
    return call.stream.received, 0 if call.incoming is None else call.incoming.missing


def more_than_one() -> Unsupported:
    """Return the error for a client that sends more than one request on a unary call.

    gRPC's table of status codes (statuscodes.md) has UNIMPLEMENTED for a wrong number of requests.
    """
    return Unsupported("the call takes one request message, and got more")


def _is_over(call: Call) -> bool:
    """Return whether the call is over. Ask again after each wait, because a call may end in any."""
    return call.closed
