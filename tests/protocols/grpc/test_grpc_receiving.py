"""What requests of a gRPC connection hold of the server's memory while they come in."""

# time passes in virtual steps

import gzip
from contextlib import asynccontextmanager

import pytest
import trio
from grpclib.const import Status

from protocols.grpc.policy import GrpcOptions
from protocols.transport.budget import FREE, WAIT
from protocols.transport.receiving import ReceivingRoom
from tests.protocols.grpc_memory import connect
from tests.protocols.grpc_serving import STREAM

KIB = 1024
MIB = 1024 * KIB


def framed(size):
    return b"\0" + size.to_bytes(4, "big") + b"m" * size


async def send_as_allowed(client, stream, data, *, end=True):
    """Send as the windows open; False where the server lets no more come."""
    at = 0
    while at < len(data):
        room = min(client.h2.local_flow_control_window(stream), 16_000, len(data) - at)
        if not room:
            return False
        client.send_bytes(stream, data[at : at + room], end=end and at + room == len(data))
        at += room
        await client.exchange()
    return True


@pytest.fixture
def room():
    return ReceivingRoom(MIB)


async def sweep(connected, room, seconds):
    await trio.sleep(seconds)
    connected.sweep()
    room.sweep(trio.current_time())
    await connected.client.exchange()


async def test_a_long_message_holds_its_length_until_its_call_is_over(room):
    async with connect(room=room) as connected:
        client = connected.client
        stream = client.open()
        data = framed(500 * KIB)
        assert await send_as_allowed(client, stream, data[:-10], end=False)
        assert room.counts().held >= 500 * KIB
        client.send_bytes(stream, data[-10:], end=True)
        await client.exchange()
        assert client.answers[stream].status == 0
        assert len(client.answers[stream].data) == len(data)
        assert room.counts().held == 0


async def test_short_messages_hold_nothing(room):
    async with connect(room=room) as connected:
        for _ in range(20):
            assert (await connected.client.answer(b"m" * 3000)).status == 0
        assert room.counts() == ReceivingRoom(MIB).counts()


async def test_long_messages_of_two_connections_come_one_after_the_other(room):
    async with connect(room=room) as one, connect(room=room) as other:
        data = framed(700 * KIB)
        first, second = one.client.open(), other.client.open()
        assert await send_as_allowed(one.client, first, data[:-10], end=False)
        assert not await send_as_allowed(other.client, second, data)
        assert room.counts().waiting == 1
        one.client.send_bytes(first, data[-10:], end=True)
        await one.client.exchange()
        await other.client.exchange()
        sent = 65_535
        assert await send_as_allowed(other.client, second, data[sent:])
        assert other.client.answers[second].status == 0
        assert (room.counts().held, room.counts().waited) == (0, 1)


async def test_a_long_message_that_waits_in_vain_is_refused_and_its_connection_lives_on(room, autojump_clock):
    async with connect(room=room) as one, connect(room=room) as other:
        data = framed(900 * KIB)
        first, second = one.client.open(), other.client.open()
        assert await send_as_allowed(one.client, first, data[:-10], end=False)
        assert not await send_as_allowed(other.client, second, data)
        await sweep(other, room, WAIT)
        refused = other.client.answers[second]
        assert refused.status == Status.UNAVAILABLE.value
        assert "--receive-memory" in refused.message
        assert refused.head[b"grpc-retry-pushback-ms"] == b"1000"
        assert (await other.client.answer(b"short")).status == 0
        one.client.send_bytes(first, data[-10:], end=True)
        await one.client.exchange()
        assert one.client.answers[first].status == 0


@pytest.mark.slow
async def test_a_message_that_comes_too_slowly_makes_room_for_others(room, autojump_clock):
    async with connect(room=room) as one, connect(room=room) as other:
        hostile, honest = one.client.open(), other.client.open()
        assert await send_as_allowed(one.client, hostile, framed(30 * MIB)[:70_000], end=False)
        assert not await send_as_allowed(other.client, honest, framed(500 * KIB))
        await sweep(other, room, WAIT / 2)
        await one.client.exchange()
        assert one.client.answers[hostile].status == Status.UNAVAILABLE.value
        assert "too slowly" in one.client.answers[hostile].message
        await other.client.exchange()
        assert await send_as_allowed(other.client, honest, framed(500 * KIB)[65_535:])
        assert other.client.answers[honest].status == 0
        assert room.counts().outrun == 1


async def test_many_short_messages_that_do_not_end_hold_room_together(room):
    async with connect(room=room) as connected:
        client = connected.client
        streams = [client.open() for _ in range(6)]
        for stream in streams:
            await send_as_allowed(client, stream, framed(60_000)[:50_000], end=False)
        assert room.counts().held >= 6 * 50_000 - FREE
        for stream in streams:
            await send_as_allowed(client, stream, framed(60_000)[50_000:])
            assert client.answers[stream].status == 0
        connected.sweep()
        assert room.counts().held == 0


@asynccontextmanager
async def starved():
    """Have one connection hold the room for a long message, so that the short ones of another wait.

    Gives the room, that connection and its stream, the other one and its streams.
    """
    room = ReceivingRoom(300 * KIB)
    async with connect(room=room) as one, connect(room=room) as other:
        long = one.client.open()
        assert await send_as_allowed(one.client, long, framed(250 * KIB)[:-10], end=False)
        streams = [other.client.open() for _ in range(2)]
        for stream in streams:
            await send_as_allowed(other.client, stream, framed(60_000)[:50_000], end=False)
        yield room, one, long, other, streams


async def test_a_connection_without_room_for_its_short_messages_is_not_read(autojump_clock):
    async with starved() as (room, one, long, other, _streams):
        assert room.counts().waiting == 1
        unread = await other.client.begin(b"short")
        assert not other.client.answers[unread].ended
        one.client.send_bytes(long, framed(250 * KIB)[-10:], end=True)
        await one.client.exchange()
        await other.client.exchange()
        assert other.client.answers[unread].status == 0


async def test_short_messages_that_wait_in_vain_are_refused(autojump_clock):
    async with starved() as (room, _one, _long, other, streams):
        await sweep(other, room, WAIT)
        assert {other.client.answers[stream].status for stream in streams} == {Status.UNAVAILABLE.value}
        assert (await other.client.answer(b"short")).status == 0


@pytest.mark.parametrize("path", [None, STREAM])
async def test_what_a_compressed_message_unfolds_to_holds_room(path):
    room = ReceivingRoom(64 * MIB)
    async with connect(GrpcOptions(), room=room) as connected:
        client = connected.client
        message = b"m" * MIB
        given = {} if path is None else {"path": path}
        stream = client.open(**given, grpc_encoding="gzip")
        client.send(stream, gzip.compress(message), flag=1)
        await client.until_ended(stream)
        assert client.answers[stream].status == 0
        assert len(client.answers[stream].data) == 5 + len(message)
        assert room.counts().held == 0


async def test_a_connection_that_ends_gives_everything_back(room):
    async with connect(room=room) as connected:
        client = connected.client
        await send_as_allowed(client, client.open(), framed(700 * KIB)[:80_000], end=False)
        for _ in range(2):
            await send_as_allowed(client, client.open(), framed(60_000)[:50_000], end=False)
        assert room.counts().held >= 700 * KIB
        client.transport.leave()
        await connected.over.wait()
        assert room.counts().held == 0
