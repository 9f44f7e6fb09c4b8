"""The half of a gRPC connection that writes: one task, and what calls have it send.

Answers put into the outbox are encoded when the task next runs, all of them before one write
(`protocols.grpc.answers`). Messages of streaming calls become frames at once, and go out with the next write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import trio

from actors.values.requests import InferResponse
from actors.values.tensors import Buffer
from protocols.grpc.answers import FOLDED_HERE, Departures, Outcome, UnaryAnswers, too_large
from protocols.grpc.call import Call, CallWriter, Metadata
from protocols.grpc.call_states import ANSWER, SPEAK, CallState
from protocols.grpc.codec import heads, messages
from protocols.grpc.methods import CallTasks
from protocols.grpc.policy import AnswerRoom, GrpcOptions, Keepalive
from protocols.http2.connection import Http2Connection
from protocols.kserve.compression import compress
from protocols.transport.sockets import ConnectionLost, Transport

_AT_ONCE: Final = 256 * 1024  # bytes of one write; the rest of a stalled one is copied
_IN_A_ROW: Final = 1024 * 1024  # bytes written before other tasks get a turn


class CallKeeper(Protocol):
    """The object that has the calls whose answers are written."""

    def over(self, call: Call) -> None:
        """Everything of `call` is on its way, or is not wanted any more."""

    def room_made(self) -> None:
        """Answers have left: more requests may begin."""


class AnswerWriter(CallWriter):
    """Sends what `h2` has to send. `end` has `run` return once nothing is left."""

    def __init__(
        self,
        transport: Transport,
        h2: Http2Connection[Any],
        calls: CallKeeper,
        tasks: CallTasks,
        keepalive: Keepalive,
        options: GrpcOptions,
        room: AnswerRoom,
    ) -> None:
        # When the socket last took anything, while it takes nothing.
        self.stalled_since = math.inf
        self.stalled_bytes = 0
        self.quiet = True  # no code is in the middle of something with `h2`
        self._transport = transport
        self._h2 = h2
        self._outward = h2.outward
        self._sender = h2.answers
        self._calls = calls
        self._keepalive = keepalive
        self._room = room
        self._replica = options.replica
        self._most = options.max_send_message
        self._level = messages.LEVELS.get(options.compression, 0)
        self._departures = Departures(h2.answers, calls.over)
        self._unary = UnaryAnswers(h2.answers, self._departures, tasks, options, room, self.put)
        self._outbox: list[tuple[Call, Outcome]] = []
        self._parked: trio.lowlevel.Task | None = None
        self._stall: trio.CancelScope | None = None
        self._ending = False
        # For answers that are sent where they are put.
        self._rest: list[Buffer] = []  # the part of such an answer that the socket did not take
        self._failure: Exception | None = None  # of sending such an answer; the task raises it

    # Unary calls

    def put(self, call: Call, outcome: Outcome) -> None:
        """Have a unary call answered."""
        self._outbox.append((call, outcome))
        if self._parked is None:
            if self._stall is not None:
                self._stall.cancel()
        elif (
            len(self._h2.streams) == 1
            and self.quiet
            and isinstance(outcome, InferResponse)
            and not outcome.leased
        ):
            self._send_at_once()
        else:
            self.wake()

    def _send_at_once(self) -> None:
        """Answer the only call there is in the place where its answer was put.

        Its client would wait for the task to wake, and for nothing else.
        """
        self.quiet = False
        try:
            self._encode()
            self._rest = self._transport.send(self._outward.take(_AT_ONCE))
            if not self._rest:
                self._settle()
        except Exception as failure:  # noqa: BLE001
            # The caller of `put` must not get the failure: the task fails of it.
            self._failure = failure
        self.quiet = True
        if (
            self._failure is not None
            or self._rest
            or self._outbox
            or self._outward.output
            or self._departures.long
        ):
            self.wake()

    # Calls of coroutines

    def _send_head(self, call: Call) -> None:
        """Send initial metadata, unless that was done."""
        if call.state is not CallState.SPEAKING:
            call.state = call.state.after[SPEAK]
            self._sender.head(call.stream, heads.initial(call.head.answer_coding, self._replica))
            self._keepalive.sent_data()

    def send_part(
        self, call: Call, buffers: Sequence[Buffer], size: int, lease: InferResponse | None
    ) -> None:
        """Send a message (see `CallWriter`)."""
        closed = call.state.closed
        if closed or size > self._most:
            if lease is not None:
                lease.release()
            if closed:
                return
            raise too_large(size, self._most)
        self._send_head(call)
        prefix = messages.prefix(size)
        if call.head.answer_coding and 0 < size <= FOLDED_HERE:
            folded = compress(buffers, call.head.answer_coding, self._level)
            buffers, size = (folded,), len(folded)
            prefix = messages.prefix(size, compressed=True)
        self._sender.message(call.stream, (prefix, *buffers), size + len(prefix))
        self._keepalive.sent_data()
        if call.stream.pending:
            self._departures.watch(call)
        if lease is not None:
            self._departures.lend(call.stream, lease)
            self.attend()
        else:
            self.wake()

    def send_status(self, call: Call, status: int, message: str, metadata: Metadata | None) -> None:
        """End a call."""
        if call.state.closed:
            return
        if call.state is CallState.SPEAKING or metadata:
            block = (
                heads.trailers_with(metadata, status, message)
                if metadata
                else heads.trailers(status, message)
            )
            self._send_head(call)
            self._sender.trailers(call.stream, block)
        else:
            self._sender.head(call.stream, heads.trailers_only(status, message), end=True)
        call.state = call.state.after[ANSWER]
        self.leave(call)

    def leave(self, call: Call) -> None:
        """Note that a call is over with the next write."""
        self._departures.end(call)
        self.attend()

    # Told by the connection

    def forget(self, call: Call) -> bool:
        """Forget a call that is gone.

        Returns whether it was answered and only waited for the client to make room.
        """
        waited = self._departures.forget(call)
        if waited:
            self.attend()  # the call's pending bytes are gone, which made room
        return waited

    def wake(self) -> None:
        """There is something to write."""
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def attend(self) -> None:
        """There is memory to give back or a call to end, also while the socket takes nothing."""
        if self._parked is not None:
            self.wake()
        elif self._stall is not None:
            self._stall.cancel()

    def end(self) -> None:
        """Write the rest, as far as the windows take it, and return from `run`."""
        self._ending = True
        self.wake()

    def drop(self) -> None:
        """The connection is gone: give back all memory."""
        outbox, self._outbox = self._outbox, []
        for call, outcome in outbox:
            self._unary.drop(call, outcome)
        self._departures.drop()
        self._outward.drop()

    # The task

    async def run(self) -> None:
        """Write until told to end; where the client is lost, return as well, with its socket shut."""
        try:
            await self._write()
        except ConnectionLost:
            self._transport.shut()

    async def _write(self) -> None:  # noqa: C901  the path of every answer
        outward, transport = self._outward, self._transport
        in_a_row = 0
        while True:
            if self._failure is not None:
                raise self._failure
            if self._rest:
                rest, self._rest = self._rest, []
                await self._write_slowly(rest, carries=True)
            if self._outbox:
                self._encode()
            if outward.output:
                pending = outward.pending
                buffers = outward.take(_AT_ONCE)
                carries = outward.pending < pending
                if carries:  # clients measure the way of a long answer by pings
                    self._keepalive.sent_data()
                rest = transport.send(buffers)
                if rest:
                    await self._write_slowly(rest, carries=carries)
                elif outward.output:
                    in_a_row += _AT_ONCE
                    if in_a_row < _IN_A_ROW:
                        continue
                    await trio.lowlevel.checkpoint()
                in_a_row = 0
            self._settle()
            if self._departures.long:
                await self._departures.own()
            if not self._outbox and not outward.output:
                if self._ending:
                    return
                await self._park()
            elif self._outbox:
                await trio.lowlevel.checkpoint()

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _write_slowly(self, rest: list[Buffer], *, carries: bool) -> None:
        """Give the client one turn of the loop to read; then copy the rest, and wait for the client.

        `carries`: data of calls is among it, and pings are excused as it goes.
        """
        await trio.lowlevel.checkpoint()
        rest = self._transport.send(rest)
        if not rest:
            return
        left: list[Buffer] = [b"".join(rest)]
        self.stalled_since = trio.current_time()
        try:
            while left:
                self.stalled_bytes = len(left[0])
                if self._outbox:
                    self._encode()
                self._settle()
                if self._departures.long:
                    await self._departures.own()
                # The outbox holds answers that were put meanwhile, or would have taken too long.
                if self._outbox:
                    await trio.lowlevel.checkpoint()
                    continue
                with trio.CancelScope() as self._stall:
                    await self._transport.wait_writable()
                self._stall = None
                left = self._transport.send(left)
                if not left or len(left[0]) < self.stalled_bytes:
                    self.stalled_since = trio.current_time()
                    if carries:
                        self._keepalive.sent_data()
        finally:
            self._stall = None
            self.stalled_bytes = 0
            self.stalled_since = math.inf

    def _encode(self) -> None:
        """Make frames of the outbox; what would take too long for one turn stays there."""
        outbox, self._outbox = self._outbox, []
        sent = self._unary.encode(outbox)
        if sent < len(outbox):
            self._outbox[:0] = outbox[sent:]
        self._keepalive.sent_data()

    def _settle(self) -> None:
        """After a write: give back memory, end calls, and begin those that waited for room."""
        self._departures.settle()
        self._room.pending = self._outward.waiting + self.stalled_bytes
        self._calls.room_made()
