"""One HTTP/1.1 connection. Its task reads, awaits the application and writes; nothing else runs for it.

While the task waits for a request, `_turn` is called in its place where bytes have come. An inference on the
direct path (`protocols.http.direct`) is submitted there, and the task sleeps on. It wakes for all the rest.

A connection is always in one of the `Phase`s. Each phase but `ANSWERING` has a deadline, which the listener's
sweep enforces: it shuts the socket down, so that the task wakes up and sees `_expired`. Requests that a client
sent ahead are answered in order, and the socket is not read while any of them is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from actors.seams import faults
from actors.values.callers import Peer
from protocols.http.admission import (
    DISCARD_PAUSE,
    DISCARD_TIME,
    MOST_DISCARDED,
    Admission,
    Admit,
    AdmitHead,
)
from protocols.http.answers import EXITING, Answer, error_answer
from protocols.http.conversation import Application, Conversation
from protocols.http.direct.desk import FrontDesk
from protocols.http.direct.path import DirectPath
from protocols.http.fields import JSON, SOON, Header
from protocols.http.parser import Head, Request, RequestParser
from protocols.http.patience import ConnectionLimits, Patience, Phase
from protocols.transport.budget import FREE
from protocols.transport.clients import Clients
from protocols.transport.listening import CROWDED, Guest
from protocols.transport.proxies import TrustedProxies
from protocols.transport.receiving import NO_ROOM, TOO_SLOW, Claim, ReceivingRoom
from protocols.transport.room import AGE_JITTER, LAST_CALL, PATIENCE
from protocols.transport.sockets import ConnectionLost, Transport

_READ_AT_ONCE: Final = 1024 * 1024  # of a long body; keeps the loop's turns short
# Pipelined requests answered before other tasks get a turn.
_IN_A_ROW: Final = 8

_TOO_SLOW: Final = error_answer(408, "Request Timeout")
_CROWDED: Final = error_answer(503, CROWDED, [JSON, SOON])
_NO_ROOM: Final = error_answer(503, NO_ROOM, [JSON, SOON])
_OUTRUN: Final = error_answer(503, TOO_SLOW, [JSON, SOON])
_FIRST_STEP: Final = 256 * 1024  # bytes that a chunked body asks for at first
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def _for_connection(admit: Admit | None, peer: Peer, clients: Clients | None) -> AdmitHead | None:
    """Return what is asked about the heads of one connection."""
    if admit is None or clients is None:
        return None if admit is None else partial(admit, peer)

    def admit_head(method: str, path: bytes, headers: Sequence[Header], length: int) -> Admission:
        return admit(clients.of(headers), method, path, headers, length)

    return admit_head


class Connection:
    """Serves one client. Bytes that are read go into `scratch`; nothing in it outlives a call of the parser."""

    holding = False  # nothing of it outlives a request (`protocols.transport.room.Occupant`)

    __slots__ = (
        "_claim",
        "_conversation",
        "_desk",
        "_emptied",
        "_ended",
        "_expired",
        "_guest",
        "_limits",
        "_on_unsecured",
        "_parser",
        "_patience",
        "_peer",
        "_room",
        "_scratch",
        "_too_slow",
        "_transport",
        "retires_at",
        "served",
    )

    def __init__(
        self,
        transport: Transport,
        app: Application,
        limits: ConnectionLimits,
        scratch: memoryview,
        admit: Admit | None = None,
        on_unsecured: Callable[[str, str], None] = lambda peer, reason: None,
        room: ReceivingRoom | None = None,
        proxies: TrustedProxies | None = None,
        direct: DirectPath | None = None,
        jitter: float = 0.0,
    ) -> None:
        """`jitter`, between -1 and 1, is by what part of what is allowed its age differs.

        `on_unsecured` is told the client's address, and why, if no TLS came about.

        If the client is one of `proxies`, each request may be that of another client.
        """
        self.served = False  # a request came on it
        self._transport = transport
        self._scratch = scratch
        self._limits = limits
        self._on_unsecured = on_unsecured
        self._peer = peer = Peer.at(transport.peer)
        clients = None if proxies is None else Clients(peer, proxies)
        self._parser = RequestParser(limits.request, _for_connection(admit, peer, clients))
        self._patience = Patience(limits, now=trio.current_time())
        self._conversation = Conversation(
            transport, peer, app, self._patience, self._parser.ready, clients, limits.status_lines
        )
        self.retires_at = trio.current_time() + limits.max_age * (1 + AGE_JITTER * jitter)
        self._desk = FrontDesk(transport, self._conversation, direct)
        self._guest: Guest[bytes] | None = None
        self._expired = False
        self._emptied = False  # the last read took all that the socket had
        self._ended = False  # no more bytes will come
        self._too_slow = _TOO_SLOW  # the answer to a request that has expired
        self._room = room or ReceivingRoom()
        self._claim: Claim | None = None  # of the body that is coming
        if transport.secured:
            self._patience.shake_hands(trio.current_time())

    @property
    def phase(self) -> Phase:
        """What the connection is doing."""
        return self._patience.phase

    @property
    def deadline(self) -> float:
        """When it is to `expire`."""
        return self._patience.deadline

    @property
    def buffered(self) -> int:
        """Bytes of an answer that wait here for a slow reader."""
        return self._conversation.buffered

    @property
    def yields_at(self) -> float:
        """The time from which on it may be ended for another connection (`protocols.transport.room.Occupant`)."""
        at = self._patience.yields_at
        return at if self.served or self.phase is not Phase.IDLE else at + PATIENCE

    # Told by the listener

    def introduced(self, host: str, port: int) -> None:
        """Note the address of the client, which a proxy told in front of the first byte."""
        self._peer.stand_at(host, port)
        self._conversation.address = (host, port)

    def peer_left(self) -> None:
        """The client closed, or half-closed, its side."""
        self._conversation.peer_left()

    def expire(self) -> None:
        """The deadline passed: have the task wake up and end the connection."""
        self._expired = True
        if self.phase is Phase.WAITING:
            assert self._claim is not None
            self._claim.give_up()
            return
        unheard = self.phase is Phase.WRITING or self.phase is Phase.SHAKING
        self._patience.work(self.phase)
        if unheard:
            # Closing must drop the bytes that the kernel holds for a client that reads nothing.
            self._transport.shut(abort=True)
        else:
            self._transport.stop_reading()

    def give_way(self) -> None:
        """Come to an end, so that another connection has room.

        An idle connection ends at once. A request that is here already is answered first, and so is one whose
        rest comes on within `PATIENCE`.
        """
        self._patience.yielding = True
        if self.phase is Phase.IDLE:
            self._transport.rouse()  # the task that waits for a request looks once more
        else:
            self.expire()

    def squeeze_in(self, guest: Guest[bytes]) -> None:
        """Note that there is no room for this connection: its requests are answered as `guest` says."""
        self._guest = guest

    def withdraw(self) -> None:
        """End with the next answer, so that the client's next connection may be to another server."""
        self._patience.withdrawn = True

    def drain(self) -> None:
        """Answer the requests that the client has sent already, and close; close at once if there are none.

        A partly received request is waited for only as long as `Patience.hurry` says.
        """
        self._patience.draining = True
        if self.phase is Phase.IDLE:
            self._transport.rouse()  # the task that waits for a request looks once more
        elif self.phase is Phase.READING or self.phase is Phase.SHAKING:
            self._patience.hurry(trio.current_time(), self._received)

    def give_up(self) -> None:
        """Refuse the request that is here, because the process is about to end.

        A request whose answer has begun is left as it is.
        """
        if self.phase in (Phase.READING, Phase.SHAKING, Phase.WAITING):
            self.expire()
        elif self.phase is Phase.ANSWERING:
            self._conversation.give_up(EXITING)

    def _outrun(self) -> None:
        """The body comes too slowly while others wait for the room that it holds."""
        if self.phase is Phase.READING:
            self._too_slow = _OUTRUN
            self.expire()

    # The task

    async def serve(self) -> None:
        """Answer requests until the connection ends, then close the socket.

        An exception of the application is answered 500 and raised.
        """
        if faults.points is not None:
            faults.points.passing("http.connection")
        conversation, parser, patience = self._conversation, self._parser, self._patience
        try:
            if self._transport.secured:
                await self._shake_hands()
            in_a_row = 0
            while (request := await self._next()) is not None:
                patience.phase = Phase.ANSWERING
                self.served = True
                if self._guest is not None or not self._desk.take(request):
                    conversation.begin(request)
                    if self._guest is None or not await self._turned_away(self._guest, request):
                        await conversation.answer(request)
                    if not conversation.keep_alive:
                        break
                in_a_row += 1
                if in_a_row >= _IN_A_ROW and parser.ready:
                    in_a_row = 0
                    await trio.lowlevel.checkpoint()
            self._transport.finish()
        except ConnectionLost:
            return
        finally:
            self._desk.abandon()
            patience.work(Phase.CLOSED)

    def close(self) -> None:
        """Close the socket, and leave no part of the connection to the garbage collector."""
        self._transport.close()
        self._let_go()
        self._parser.close()
        self._conversation.close()

    async def _shake_hands(self) -> None:
        """Begin TLS, and find out the client's names. Raises ConnectionLost."""
        transport, patience = self._transport, self._patience
        try:
            await transport.handshake()
        except ConnectionLost as lost:
            if not patience.ending:
                late = f"no TLS handshake within {self._limits.head_timeout:g} s"
                self._on_unsecured(self._peer.text, late if self._expired else str(lost))
                await transport.linger()
            raise
        self._peer.names = transport.client_names
        if patience.draining:
            # It connected before, and its request comes with the end of the handshake.
            patience.expect(trio.current_time())
            await transport.wait_readable()

    async def _next(self) -> Request | None:
        """Return the next request; None where there will be none."""
        desk, parser, patience = self._desk, self._parser, self._patience
        # What comes next is answered behind a request that is under way.
        in_order = not desk.under_way or self._has_come() or patience.ending
        if desk.open and in_order and not await desk.settle():
            return None
        if parser.ready:
            return parser.ready.popleft()
        if not desk.open:
            self._conversation.rest(used=self.served)
        while not parser.ready:
            if not await self._go_on():
                return None
        patience.deadline = math.inf
        request = parser.ready.popleft()
        if self._claim is not None:
            request.release = self._claim.release
            self._claim = None
        return request

    async def _go_on(self) -> bool:
        """Wait for bytes once, and take them; False where there will be no further request."""
        parser, patience = self._parser, self._patience
        if parser.refusal is not None:
            await self._refuse(parser.refusal)
            return False
        if parser.skipped is not None:
            await self._answer_early(*parser.skipped)
        if parser.begun:
            patience.read(trio.current_time(), self._received)
            if parser.in_body and not await self._let_on():
                return False
        elif patience.draining or patience.yielding:
            return self._read() and self._has_come()
        await self._desk.wait(self._turn)
        if self._desk.open:
            if not await self._desk.settle():
                return False
            self._conversation.rest(used=True)
        if self._ended or self._expired:
            await self._cut_short()
            return False
        return True

    def _turn(self) -> bool:
        """Take what has come while the task waits; False where the task must go on.

        Nothing is read while a request waits for its answer, since the next one is answered behind it.
        """
        desk, parser, patience = self._desk, self._parser, self._patience
        if desk.open or self._expired:
            return False
        try:
            self._ended = not self._read()
        except Exception as bug:  # noqa: BLE001
            desk.failed(bug)  # the task fails of it, and not the caller that takes its turn
            return False
        if len(parser.ready) != 1 or parser.begun or parser.refusal is not None:
            return False
        if self._guest is not None or self._claim is not None or patience.ending:
            return False
        patience.work()
        self.served = True
        request = parser.ready.popleft()  # first, so that an answer at once finds nothing ahead
        if not desk.take(request):
            parser.ready.append(request)
            return False
        # Of bytes that are left in the socket, no turn would be told.
        return self._emptied

    async def _cut_short(self) -> None:
        """Refuse a request that has expired. A client that has left is told nothing."""
        if self._expired and self._parser.begun:
            await self._refuse(EXITING if self._patience.draining else self._too_slow)

    async def _let_on(self) -> bool:
        """Have the rest of a body come; False where it was refused, because there is no room for it."""
        parser = self._parser
        if parser.kept > FREE and not await self._find_room(parser.kept):
            await self._refuse(EXITING if self._expired and self._patience.draining else _NO_ROOM)
            return False
        if parser.awaits_continue:
            parser.awaits_continue = False
            await self._conversation.write([_CONTINUE])
        return True

    async def _find_room(self, size: int) -> bool:
        """Have room for `size` bytes of the body that is coming; False where there is none in time."""
        claim = self._claim
        if claim is None:
            self._claim = claim = Claim(self._room, self._progress, self._outrun)
        elif size <= claim.size:
            return True
        parser, patience = self._parser, self._patience
        if size == parser.received:  # chunked: ask for more than has come
            size = min(max(2 * size, _FIRST_STEP), max(parser.most, size))
        now = trio.current_time()
        patience.wait()
        granted = await claim.take(size)
        patience.go_on(trio.current_time(), now)
        if granted:
            patience.read(trio.current_time(), parser.received)
        return granted

    def _progress(self) -> tuple[int, int]:
        parser = self._parser
        return parser.received, parser.rest

    def _let_go(self) -> None:
        """Keep nothing of a body that is not to come any more."""
        self._parser.drop()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    @property
    def _received(self) -> int | None:
        """How many bytes of a body have come; None while there is only a head."""
        return self._parser.received if self._parser.in_body else None

    def _has_come(self) -> bool:
        """Whether any bytes of another request are here, or bytes that are no request."""
        parser = self._parser
        return parser.begun or bool(parser.ready) or parser.refusal is not None

    def _read(self) -> bool:
        """Take the bytes that the socket has; False at the end of the stream."""
        direct = self._parser.direct
        buffer = self._scratch
        if direct is not None:
            at = self._parser.received
            buffer = direct[at : at + _READ_AT_ONCE]
        try:
            count = self._transport.receive_into(buffer)
        except BlockingIOError:
            return True
        self._emptied = self._transport.exhausted(count, len(buffer))
        if direct is not None:
            self._parser.fill(count)
        elif count:
            self._parser.feed(buffer[:count])
        return count > 0

    async def _turned_away(self, guest: Guest[bytes], request: Request) -> bool:
        """Refuse a request for which there is no room; False where it may go on after all."""
        if not guest.crowded():
            self._guest = None
            return False
        self._patience.yielding = True  # the connection ends with this answer
        if guest.is_welcome(request.head.path):
            return False
        guest.turned_away()
        self._conversation.keep_alive = False
        await self._conversation.respond(_CROWDED)
        return True

    async def _answer_early(self, request: Request, answer: Answer) -> None:
        """Answer a request whose body is still coming, and is dropped as it comes."""
        self._parser.skipped = None
        self._conversation.begin(request)
        await self._conversation.respond(answer)

    async def _refuse(self, answer: Answer) -> None:
        """Send a last answer, also to a client that is still sending (`protocols.http.admission`)."""
        patience = self._patience
        self._let_go()
        self._conversation.begin(Request(Head()))
        self._conversation.keep_alive = False
        await self._conversation.respond(answer)
        self._transport.finish()
        if patience.yielding:
            return
        self._expired = False
        end = trio.current_time() + DISCARD_TIME
        dropped = 0
        while dropped < MOST_DISCARDED:
            now = trio.current_time()
            if patience.draining:
                end = min(end, now + LAST_CALL)
            patience.discard(min(now + DISCARD_PAUSE, end))
            await self._transport.wait_readable()
            if self._expired:
                return
            try:
                count = self._transport.receive_into(self._scratch)
            except BlockingIOError:
                continue
            if not count:
                return
            dropped += count
