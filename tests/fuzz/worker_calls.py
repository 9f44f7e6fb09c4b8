"""What a calling worker says is understood or a FrameError, and nothing of it remains after its end.

Every request made on its behalf is answered or cancelled, once. Each of its letters has one last answer. See
`tests.fuzz.call_packets` for what an input is.
"""

import contextlib
import os
import socket
import weakref
from random import Random
from typing import cast

import trio
import trio.testing

from actors.calls.account import Account, CallLimits
from actors.calls.call import CallBook
from actors.calls.call_pipe import CallPipe
from actors.calls.calls import CallHost, WorkerCalls
from actors.calls.subjects import CallingWorker
from actors.serving.instances.worker import LiveWorker
from actors.wire import frames
from actors.wire.call_frames import Letter
from actors.wire.frames import FrameError
from chaos.record.descriptors import left_open, open_descriptors
from tests.fuzz import call_packets
from tests.fuzz.call_packets import MOVES, OVERSIZED, Script
from tests.fuzz.campaign import chance_of
from tests.fuzz.descriptor_sorts import descriptors
from tests.fuzz.mutation import damaged
from tests.fuzz.played_host import PlayedHost
from tests.fuzz.played_worker import PlayedWorker
from tests.fuzz.series import parts_of, series
from tests.support.model_doubles import make_spec

_MAX_CALLS, _MAX_ASKS, _MAX_BYTES = 6, 3, 250_000
# Small enough for an input to reach them.
_LIMITS = CallLimits(
    calls=_MAX_CALLS, asks=_MAX_ASKS, nbytes=_MAX_BYTES, unread=4, segments=2, packets_in_a_row=4
)
# The kernel takes twice as much: one frame of the largest size, and little more.
_SEND_BUFFER = 40_000
_SPEC = make_spec(name="caller")


class WorkerCallsTarget:
    """Plays a worker that makes calls to a `WorkerCalls`, and the models that it calls."""

    name = "calls"
    prefix = "calls"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """What an honest worker may say and what may happen meanwhile; none, little or much is damaged."""
        if chance.random() < 0.1:
            return damaged(chance.choice(corpus), chance, corpus)
        damage = chance.choice((0.0, 0.0, 0.03, 0.3))
        count = 1 + int(chance.random() ** 2 * 40)
        octets = series(Script(chance).steps(count, damage=damage))
        return octets if chance.random() < 0.95 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Play the steps.

        Raises any error but FrameError that the server would raise, and AssertionError for what it keeps.
        """
        before = open_descriptors()
        outcome = trio.run(_play, octets)
        left = left_open(before)
        assert not left, left
        return outcome


async def _play(octets: bytes) -> str:
    chance = chance_of(octets)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    with theirs:
        game = _Game(ours, theirs, chance)
        await game.play(octets, orderly=chance.random() < 0.7)
    return game.outcome


class _Game:
    """One connection, from its first packet to its end."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, chance: Random) -> None:
        self.outcome = "understood"
        self._host = PlayedHost(chance)
        self._worker = PlayedWorker(theirs)
        self._pipe = CallPipe(ours)
        host = CallHost(self._host, self._host.subjects, self._host)
        worker = cast("LiveWorker", self._worker)
        self._account = Account(_LIMITS)
        book = CallBook(CallingWorker(_SPEC, "caller_0_0"), self._account)
        self._calls = WorkerCalls(self._pipe, worker, host, book)

    async def play(self, octets: bytes, *, orderly: bool) -> None:
        """Play all steps, then end the connection at once or in an `orderly` way; look at what is left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._calls.run, self._condemned)
            for tag, content in parts_of(octets):
                await self._step(tag, content)
            await self._settle()
            if orderly and not self._pipe.closed:
                await self._finish()
            self._worker.sock.close()
        self._check_nothing_left()

    def _condemned(self, error: FrameError) -> None:
        assert type(error) is FrameError
        self.outcome = "refused"

    async def _settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()

    # -- steps -----------------------------------------------------------------------------------------------

    async def _step(self, tag: int, content: bytes) -> None:
        if tag >= MOVES:
            self._move(tag, content[0] if content else 0)
            await self._settle()
        elif content:
            await self._send(content, tag)

    async def _send(self, packet: bytes, tag: int = 0) -> None:
        """Send a packet; it is lost if the connection has already ended."""
        enclosed: list[int] = []
        if tag == OVERSIZED:
            packet = packet.ljust(frames.MAX_FRAME + 1, b"\0")
        elif tag:
            enclosed = descriptors(tag - 1, _size_of(packet))
        try:
            for _ in range(2):
                try:
                    self._worker.send(packet, enclosed)
                except BlockingIOError:
                    await self._settle()
                else:
                    return
        except OSError:
            return
        finally:
            for descriptor in enclosed:
                os.close(descriptor)

    def _move(self, tag: int, which: int) -> None:
        host, worker = self._host, self._worker
        match tag:
            case call_packets.READ:
                worker.read()
            case call_packets.PAY:
                worker.read()
                with contextlib.suppress(OSError):
                    worker.settle_up()
            case call_packets.ANSWER | call_packets.PART if host.open:
                host.say(host.open[which % len(host.open)], final=tag == call_packets.ANSWER)
            case call_packets.ROOM:
                host.make_room()
            case call_packets.REPLY:
                host.reply(which)
            case call_packets.PARENT:
                parent = worker.parent(which)
                parent.cancelled = True
                self._calls.cancelled(parent)
            case call_packets.OVER:
                ended = worker.outstanding.pop(4 + which % 2, None)
                if ended is not None and which & 2:
                    worker.open[ended.id] = ended
            case call_packets.SHUT:
                with contextlib.suppress(OSError):
                    worker.sock.shutdown((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)[which % 3])
            case _:
                pass

    # -- the end ---------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Have every request answered, and check that the server agrees that all is over."""
        host = self._host
        while host.open or host.questions:
            for request in host.open:
                host.say(request, final=True)
            host.reply(0)
        host.make_room()
        await self._read_all()
        for number in dict.fromkeys(self._worker.begun):
            if not self._worker.ended[number] and number < 1 << 64:
                await self._send(frames.encode_cancel(number, 0))
        await self._read_all()
        if self._pipe.closed:
            return
        begun = self._worker.begun
        assert list(self._worker.ended.values()).count(1) >= len(begun) - (not self._worker.complete)
        assert self._account.kept == 0
        assert not self._calls.book.blocking
        assert (self._pipe.unsent, self._pipe.unsent_ends) == (0, 0)
        self.outcome = "cut short"
        if self._worker.complete:
            await self._fill(max(begun, default=0))

    async def _read_all(self) -> None:
        await self._settle()
        while self._worker.read():
            with contextlib.suppress(OSError):
                self._worker.settle_up()
            await self._settle()

    async def _fill(self, number: int) -> None:
        """There is room for as much as there was at first."""
        if number + _MAX_ASKS + _MAX_CALLS >= 1 << 64:
            return
        for _ in range(_MAX_ASKS):
            number += 1
            fields = {"subject": "later", "attachments": []}
            await self._send(b"".join(next(Letter(frames.ASK, number, fields, (), b"{}", 2).packets())))
        sizes = [_MAX_BYTES - 2 * _MAX_ASKS] + [0] * (_MAX_CALLS - 1)
        for size in sizes:
            number += 1
            if size:
                await self._send(frames.encode_segment(0, 0, size), 1)
            letter = Letter(frames.CALL, number, {"model": "later"}, (), b"", size)
            await self._send(bytes(next(letter.packets())[0]))
        await self._settle()
        assert (len(self._host.questions), len(self._host.open)) == (_MAX_ASKS, _MAX_CALLS)
        refused = "" if not self._worker.refused else ", some of it refused"
        self.outcome = (
            f"answered{refused}" if self._worker.begun[: -len(sizes) - _MAX_ASKS] else "nothing asked"
        )

    def _check_nothing_left(self) -> None:
        assert self._pipe.closed
        self._host.check_all_over()
        assert self._account.kept == 0
        assert not self._calls.book.blocking
        assert (self._pipe.unsent, self._pipe.unsent_ends, self._pipe.backlog) == (0, 0, 0)
        reference = weakref.ref(self._calls)
        del self._calls, self._host, self._worker
        assert reference() is None, "somebody still knows of the connection"


def _size_of(packet: bytes) -> int:
    """How large a memory file is to be that goes with a packet."""
    with contextlib.suppress(FrameError):
        if packet[0] == frames.SEGMENT:
            return min(frames.decode_segment(packet)[2], _MAX_BYTES)
    return 8
