"""One gRPC connection: its socket, from the handshake to the last byte.

Its own task reads. A second one, in `protocols.grpc.writer`, writes. A unary method of the fast kind needs
no more than those. Coroutine methods, and the slow parts of a unary one, run as tasks beside them. What the
bytes mean is HTTP/2's (`protocols.http2.connection`), and then the calls' (`protocols.grpc.calls`).

A connection takes leave of its client in stages, in their order; it may leave some out:

    STAYING ─► WARNED ─► LEAVING ─► CLOSING
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import partial
from typing import Any, Final

import trio

from actors.seams import faults
from actors.values.errors import Unavailable
from protocols.grpc.calls import Calls, Environment
from protocols.grpc.policy import Keepalive, KeepaliveAction
from protocols.http2.connection import Http2Connection
from protocols.http2.frames import LARGEST_STREAM, ConnectionViolation, ErrorCode
from protocols.http2.streams import PingHandler
from protocols.transport.budget import FREE
from protocols.transport.listening import CROWDED, Guest
from protocols.transport.receiving import Claim, no_room, too_slow
from protocols.transport.room import PATIENCE
from protocols.transport.sockets import ConnectionLost, Transport

# Seconds that a client has to answer the ping behind the first GOAWAY.
_GOODBYE: Final = 1.0
_RETIRING: Final = b"goodbye?"  # the payload of that ping


class FarewellStage(IntEnum):
    """How far a connection has come on its way to its end."""

    STAYING = 0
    WARNED = 1  # the first GOAWAY is out, and calls on their way are taken
    LEAVING = 2  # the last GOAWAY is out: the connection ends with its last call
    CLOSING = 3  # the rest is written


class Farewell:
    """Ends one connection without losing a call that is on its way (RFC 9113, section 6.8)."""

    def __init__(self, h2: Http2Connection[Any], calls: Calls) -> None:
        self.stage = FarewellStage.STAYING
        self._h2 = h2
        self._calls = calls
        self._by = math.inf  # when the last GOAWAY is due

    def retire(self, debug: bytes) -> None:
        """Say that the connection ends soon, and ask whether the client has heard it."""
        if self.stage is not FarewellStage.STAYING:
            return
        self.stage = FarewellStage.WARNED
        self._by = trio.current_time() + _GOODBYE
        self._h2.control.go_away(ErrorCode.NO_ERROR, debug, last=LARGEST_STREAM)
        self._h2.control.ping(_RETIRING)
        self._calls.writer.wake()

    def ponged(self, payload: bytes) -> None:
        """The client has answered a ping; where that was ours, it knows."""
        if payload == _RETIRING and self.stage is FarewellStage.WARNED:
            self.leave()

    def sweep(self, now: float) -> None:
        """Say the last goodbye to a client that does not answer."""
        if self.stage is FarewellStage.WARNED and now >= self._by:
            self.leave()

    def leave(self) -> None:
        """Take no new streams from now on."""
        if self.stage >= FarewellStage.LEAVING:
            return
        self.stage = FarewellStage.LEAVING
        self._h2.control.go_away(ErrorCode.NO_ERROR)
        self._calls.writer.wake()
        self._calls.on_over.append(self.close_if_done)
        self.close_if_done()

    def close_if_done(self) -> None:
        """Close where the connection leaves and no call is left."""
        if self.stage is FarewellStage.LEAVING and not self._h2.streams and not self._calls:
            self.close()

    def close(self) -> None:
        """Write what is left. After that the client or the sweep closes the connection."""
        self.stage = FarewellStage.CLOSING
        self._calls.writer.end()


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

_ALIVE: Final = b"anybody?"  # the payload of our keepalive pings


class GrpcConnection(PingHandler):
    """Serves one client. `jitter`, in [-1, 1], makes its age differ from others'."""

    def __init__(
        self, transport: Transport, environment: Environment, *, now: float, jitter: float = 0.0
    ) -> None:
        options = environment.options
        self.peer = transport.peer
        # When the sweep shuts the socket, whatever goes on.
        self.deadline = now + options.handshake_timeout
        self._environment = environment
        self._options = options
        self._transport = transport
        self._keepalive = Keepalive(options, now=now, jitter=jitter)
        self._calls = Calls(transport, environment, self._keepalive, self)
        self._h2 = self._calls.h2
        self._writer = self._calls.writer
        self._farewell = Farewell(self._h2, self._calls)
        self._unproven = _PREFACE  # bytes until the client has shown that it speaks HTTP/2
        self._serving = False  # the handshake is over, and the socket open
        # When bytes last came, if the sweep found that all calls wait for their client since.
        self._stalled_since = math.inf
        self.holding = False  # then: whether a stream is among them (`protocols.transport.room.Occupant`)
        self._yielding = False  # it was told to give way to another
        # Of the many short messages that are here or on their way; long ones have claims of their own.
        self._claim: Claim | None = None
        self._quota = FREE  # bytes of them for which there is room
        self._came = 0  # bytes read since they have a claim

    # For statistics

    @property
    def streams(self) -> int:
        """How many calls are open."""
        return len(self._h2.streams)

    @property
    def pending(self) -> int:
        """How many bytes of answers wait here for the client."""
        return self._h2.outward.waiting + self._writer.stalled_bytes

    @property
    def served(self) -> bool:
        """Whether it ever brought a call (`protocols.transport.room.Occupant`)."""
        return self._calls.served

    @property
    def yields_at(self) -> float:
        """The time from which on it may be ended for another connection (`protocols.transport.room.Occupant`)."""
        # Who looks for the one that is to go asks thousands.
        if self._yielding:
            return math.inf
        if self._h2.streams:
            heard_at = self._keepalive.heard_at
            return heard_at + PATIENCE if self._stalled_since == heard_at else math.inf
        at = self._keepalive.idle_since(calls=0)
        return at if self._calls.served else at + PATIENCE

    # The task

    async def serve(self) -> None:
        """Serve until the client leaves or is sent away.

        A bug of this connection is raised; a bug of a method is not.
        """
        if faults.points is not None:
            faults.points.passing("grpc.connection")
        calls = self._calls
        try:
            await self._shake_hands()
            self._h2.begin()
            if calls.draining:
                self._farewell.retire(b"")
            async with trio.open_nursery() as nursery:
                calls.tasks.nursery = nursery
                self._serving = True
                nursery.start_soon(self._write)
                try:
                    await self._read()
                finally:
                    calls.abandon()
                nursery.cancel_scope.cancel()
        except ConnectionLost:
            return
        finally:
            calls.close()

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()
        self._give_room_back()
        self._serving = False
        # Otherwise the task that has the nursery would wait for the garbage collector, with its frames.
        self._calls.tasks.nursery = None

    async def _shake_hands(self) -> None:
        try:
            await self._transport.handshake()
        except ConnectionLost as lost:
            if not self._calls.draining:
                late = trio.current_time() >= self.deadline  # the sweep has shut the socket
                patience = self._options.handshake_timeout
                reason = f"no TLS handshake within {patience:g} s" if late else str(lost)
                self._environment.on_unsecured(self.peer, reason)
                await self._transport.linger()
            raise
        self._calls.client.names = self._transport.client_names

    async def _write(self) -> None:
        await self._writer.run()
        self._transport.finish()
        if self._yielding and not self._calls.served:
            self._transport.shut()  # no call is to be lost, and others wait
        self._linger()

    async def _read(self) -> None:
        """Read until the end. Raises nothing for a client that is lost or breaks rules."""
        transport, calls, h2, writer = self._transport, self._calls, self._h2, self._writer
        outward, window = h2.outward, h2.window
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
                calls.now = now = trio.current_time()
                calls.reader.turn()
                self._keepalive.heard(now)
                if self._unproven > 0:
                    self._prove(count)
                writer.quiet = False
                h2.receive(scratch[:count], now)
                writer.quiet = True
                if outward.output:
                    writer.wake()
                self._came += count
                if window.held > self._quota:
                    await self._find_room()
                if calls.leaving:
                    self._farewell.leave()
                self._farewell.close_if_done()
                if transport.exhausted(count, len(scratch)):
                    await transport.wait_readable()
                else:
                    await trio.lowlevel.checkpoint()
        except ConnectionLost:
            return
        except ConnectionViolation as violation:
            self._environment.on_violation(self.peer, violation.code, violation.message)
            await self._part()

    def _note_stall(self, now: float) -> None:
        """Find out whether all calls wait for their client, and have for a while."""
        heard_at = self._keepalive.heard_at
        if self._stalled_since == heard_at and self._h2.streams:
            return
        quiet = now >= heard_at + PATIENCE and (self._claim is None or not self._claim.waiting)
        stalled = quiet and len(self._h2.streams) > 0 and self._calls.stalled
        self._stalled_since = heard_at if stalled else math.inf
        self.holding = stalled and self._calls.streaming

    async def _find_room(self) -> None:
        """Read no more until there is room for what is here: granted, or left by calls that are over."""
        window = self._h2.window
        if self._claim is None:
            self._claim = Claim(self._environment.room, self._progress, self._outrun)
            self._came = 0
        claim = self._claim
        while window.held > self._quota:
            size = 2 * window.held  # so that it is not asked for each of many messages
            roomy = trio.Event()
            if claim.ask(size, partial(self._answered, size, roomy)):
                self._quota = FREE + size
                return

            def over(roomy: trio.Event = roomy) -> None:
                if window.held <= self._quota:
                    roomy.set()

            self._calls.on_over.append(over)
            await roomy.wait()
            self._calls.on_over.remove(over)
            claim.give_up()

    def _answered(self, size: int, roomy: trio.Event, granted: bool) -> None:
        if granted:
            self._quota = FREE + size
        elif not roomy.is_set():
            self._calls.refuse_incomplete(no_room())
        roomy.set()

    def _progress(self) -> tuple[int, int]:
        held = 0 if self._claim is None else self._claim.size
        return self._came, held if self._calls.incomplete else 0

    def _outrun(self) -> None:
        self._calls.refuse_incomplete(too_slow())

    def _give_room_back(self) -> None:
        claim, self._claim = self._claim, None
        self._quota = FREE
        if claim is not None:
            claim.release()

    def _prove(self, count: int) -> None:
        self._unproven -= count
        if self._unproven <= 0 and self._farewell.stage is not FarewellStage.CLOSING:
            self.deadline = math.inf

    async def _part(self) -> None:
        """Let the client read why it is sent away. Closing while it still sends would lose that message."""
        self._calls.abandon()
        self._linger()
        self._farewell.close()
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

    def _linger(self) -> None:
        self.deadline = min(self.deadline, trio.current_time() + _LINGER)

    # Told by HTTP/2

    def pinged(self, now: float) -> None:
        """Count the client's pings; too many cost it the connection."""
        if self._keepalive.struck_out(now, calls=len(self._h2.streams)):
            raise ConnectionViolation(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def pong(self, payload: bytes) -> None:
        """Take the answer to a ping of ours."""
        self._farewell.ponged(payload)

    # Told by the listener

    def introduced(self, host: str, port: int) -> None:
        """Note the address of the client, which a proxy told in front of the first byte."""
        self._calls.client.stand_at(host, port)
        self.peer = self._calls.client.text

    def give_way(self) -> None:
        """Come to an end, so that another connection has room.

        A call that is on its way is not begun. Its client learns that from the GOAWAY.
        """
        self._yielding = True
        self._calls.refuse_stalled(Unavailable(CROWDED, retry_after=1.0))
        if not self._serving or self._unproven > 0:  # its client has still to show that it speaks HTTP/2
            self._transport.shut(abort=True)
            return
        self.deadline = min(self.deadline, trio.current_time() + _GIVING_WAY)
        self._farewell.leave()

    def squeeze_in(self, guest: Guest[str]) -> None:
        """Note that there is no room for this connection: its calls are answered as `guest` says."""
        self._calls.guest = guest

    def withdraw(self) -> None:
        """Take no new streams once the client knows, and finish those that are open, however long they take.

        A connection that has yet to begin is left alone: it came when clients had been told, and only its
        address led here.
        """
        if self._serving:
            self._farewell.retire(b"")

    def drain(self) -> None:
        """Take no new streams, finish those that are open, and close."""
        self._calls.drain()
        # The connection says goodbye as it begins, and a client must not hold that up.
        if self._serving:
            self._farewell.retire(b"")
        else:
            self.deadline = min(self.deadline, trio.current_time() + _LINGER)

    def give_up(self) -> None:
        """The process is about to end: refuse the calls that are not answered."""
        self._calls.give_up()

    def sweep(self, now: float) -> None:
        """Do what is due at `now`."""
        writer, options = self._writer, self._options
        stalled = now >= writer.stalled_since + options.stall_timeout
        if (
            now >= self.deadline
            or stalled
            or self._h2.outward.unread > options.connection_bytes + _MOST_UNREAD
        ):
            self._transport.shut(abort=True)
            return
        if not self._serving or self._farewell.stage is FarewellStage.CLOSING:
            return
        claim = self._claim
        if claim is not None and not claim.waiting and self._h2.window.held <= FREE:
            self._give_room_back()
        self._note_stall(now)
        self._farewell.sweep(now)
        if self._calls.draining:
            self._calls.hurry(now)
        match self._keepalive.check(now, calls=len(self._h2.streams)):
            case KeepaliveAction.PING:
                self._h2.control.ping(_ALIVE)
                writer.wake()
            case KeepaliveAction.RETIRE:
                self._farewell.retire(b"max_age")
            case KeepaliveAction.REST:
                self._farewell.retire(b"max_idle")
            case KeepaliveAction.DROP | KeepaliveAction.EXPIRE:
                self._transport.shut(abort=True)
            case KeepaliveAction.NONE:
                pass
