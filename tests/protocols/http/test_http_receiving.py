"""What bodies on their way in hold of the server's memory, over real loopback sockets."""

# the kernel does part of the work, and has no event to wait for

import gzip
import json
import math
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from protocols.http.app import V2App
from protocols.http.options import V2Options
from protocols.http.patience import Phase
from protocols.transport.budget import FREE, LONGEST_REST, WAIT
from protocols.transport.receiving import ReceivingRoom
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_listener import HEALTH, LIVE, infer, serve_on_loopback

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def serve(request, backend):
    virtual = "autojump_clock" in request.fixturenames
    if virtual:  # the kernel needs real time to carry bytes
        request.getfixturevalue("autojump_clock").autojump_threshold = 0.02

    @asynccontextmanager
    async def serve(limit):
        room = ReceivingRoom(limit)
        app = V2App(backend.server, options=V2Options(room=room))
        with trio.fail_after(math.inf if virtual else 20):
            async with serve_on_loopback(app, None, room=room) as served:
                served.room = room
                yield served

    return serve


def chunk(size):
    return b"%x\r\n%b\r\n" % (size, b" " * size)


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


LONG = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_long_body_holds_its_whole_length_until_it_is_answered(serve, backend):
    async with serve(8 * MIB) as served, served.connect() as client:
        await client.send(LONG % MIB)
        await until(lambda: served.room.counts().held == MIB)
        await client.send(b" " * MIB)  # no JSON: answered without a model
        assert (await client.response())[0] == 500
        assert served.room.counts().held == 0
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE


async def test_short_bodies_hold_nothing(serve, backend):
    async with serve(1) as served, served.connect() as client:
        await client.send(LONG % FREE + b" " * 1000)
        await until(lambda: served.listener.statistics().phases == {Phase.READING: 1})
        assert served.room.counts().held == 0
        await client.send(b" " * (FREE - 1000))
        assert (await client.response())[0] == 500


async def test_a_body_without_room_is_not_read_and_goes_on_once_there_is_some(serve):
    async with serve(MIB) as served, served.connect() as first, served.connect() as second:
        await first.send(LONG % MIB)
        await until(lambda: served.room.counts().held == MIB)
        await second.send(LONG % MIB + b" " * MIB)
        await until(lambda: served.listener.statistics().phases == {Phase.READING: 1, Phase.WAITING: 1})
        await first.send(b" " * MIB)
        for client in (first, second):
            assert (await client.response())[0] == 500
        counts = served.room.counts()
        assert (counts.held, counts.waited, counts.refused) == (0, 1, 0)


async def test_who_waits_to_be_told_to_go_on_is_told_once_there_is_room(serve):
    async with serve(MIB) as served, served.connect() as first, served.connect() as second:
        await first.send(LONG % MIB)
        await until(lambda: served.room.counts().held == MIB)
        await second.send(LONG[:-2] % MIB + b"Expect: 100-continue\r\n\r\n")
        await until(lambda: served.room.counts().waiting == 1)
        first.socket.close()
        assert await second.receive(len(b"HTTP/1.1 100")) == b"HTTP/1.1 100"


async def test_a_client_that_leaves_gives_back_what_it_held(serve):
    async with serve(MIB) as served:
        for sent in (LONG % MIB, CHUNKED + chunk(200_000)):
            async with served.connect() as client:
                await client.send(sent)
                await until(lambda: served.room.counts().held > 0)
            await until(lambda: served.room.counts().held == 0)


@pytest.mark.slow
async def test_who_waits_in_vain_gets_503_and_others_are_served_meanwhile(serve, autojump_clock):
    async with serve(MIB) as served, AsyncExitStack() as stack:
        holder = await stack.enter_async_context(served.connect())
        await holder.send(LONG % MIB + b" " * (MIB - 1))  # quick, and then it stops one byte before its end
        await until(lambda: served.room.counts().held == MIB)
        waiting = await stack.enter_async_context(served.connect())
        began = trio.current_time()
        await waiting.send(LONG % MIB)
        async with served.connect(HEALTH) as other:
            assert await other.receive(len(LIVE)) == LIVE
        async with served.connect(infer("zeros", 3)) as other:
            assert (await other.response())[0] == 200
        status, fields, body = await waiting.response()
        assert (status, fields["Retry-After"], fields["Connection"]) == (503, "1", "close")
        assert "--receive-memory" in json.loads(body)["error"]
        assert WAIT <= trio.current_time() - began < WAIT + 3
        assert served.room.counts().refused == 1


async def test_a_client_that_announces_much_and_sends_little_makes_room_for_others(serve, autojump_clock):
    async with serve(64 * MIB) as served, served.connect() as hostile, served.connect() as honest:
        await hostile.send(LONG % (60 * MIB))
        await until(lambda: served.room.counts().held == 60 * MIB)
        began = trio.current_time()
        await honest.send(LONG % (5 * MIB))
        for _ in range(5):
            await honest.send(b" " * MIB)
        status, fields, body = await hostile.response()
        assert (status, fields["Retry-After"]) == (503, "1")
        assert "too slowly" in json.loads(body)["error"]
        assert (await honest.response())[0] == 500  # no JSON
        assert trio.current_time() - began < WAIT
        assert served.room.counts().outrun == 1


@pytest.mark.slow
async def test_a_slow_body_is_not_hurried_while_no_other_waits(serve, autojump_clock):
    async with serve(64 * MIB) as served, served.connect() as slow:
        await slow.send(LONG % MIB)
        await until(lambda: served.room.counts().held == MIB)
        await trio.sleep(LONGEST_REST / 2)
        await slow.send(b" " * MIB)
        assert (await slow.response())[0] == 500


async def test_chunked_bodies_ask_for_more_as_more_comes(serve):
    async with serve(2 * MIB) as served, served.connect() as client:
        await client.send(CHUNKED + chunk(FREE // 2))
        await until(lambda: served.listener.statistics().phases == {Phase.READING: 1})
        assert served.room.counts().held == 0
        await client.send(chunk(FREE))
        await until(lambda: served.room.counts().held > 0)
        for _ in range(16):
            await client.send(chunk(FREE))
        await client.send(b"0\r\n\r\n")
        assert (await client.response())[0] == 500
        assert served.room.counts().held == 0


async def test_chunked_bodies_that_fill_the_room_together_come_to_their_end(serve):
    async with serve(MIB) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.connect()) for _ in range(3)]
        for client in clients:
            await client.send(CHUNKED + chunk(100_000))
        await until(lambda: served.room.counts().held == 3 * 256 * KIB)

        async def send_rest(client):
            for _ in range(40):
                await client.send(chunk(50_000))
            await client.send(b"0\r\n\r\n")
            assert (await client.response())[0] == 500

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(send_rest, client)
        counts = served.room.counts()
        assert (counts.held, counts.refused) == (0, 0)


async def test_what_a_short_body_unfolds_to_holds_room(serve, backend):
    document = json.loads(infer("held").partition(b"\r\n\r\n")[2])
    folded = gzip.compress(json.dumps({**document, "pad": " " * 200 * KIB}).encode(), 9)
    head = (
        b"POST /v2/models/held/infer HTTP/1.1\r\nHost: h\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    )
    assert len(folded) < FREE
    async with serve(20 * MIB) as served, served.connect() as client:
        await client.send(head % len(folded) + folded)
        await until(lambda: len(backend.model("held").submitted) == 1)
        assert 200 * KIB < served.room.counts().held < 300 * KIB
        model = backend.model("held")
        model.submitted[0].reply.put(model.respond(model.submitted[0], []), final=True)
        assert (await client.response())[0] == 200
        assert served.room.counts().held == 0


# What is kept


@pytest.mark.parametrize(
    "sent",
    [
        LONG % MIB + b" " * MIB,
        CHUNKED + chunk(MIB) + b"0\r\n\r\n",
        LONG % 50_000 + b" " * 50_000,
        b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n" + b" " * 60_000,
    ],
)
async def test_an_idle_connection_keeps_nothing_of_a_finished_body(serve, sent):
    async with serve(8 * MIB) as served, served.connect() as client:

        async def ask(sent):
            """Send a request, and return the bytes allocated once its connection is idle."""
            await client.send(sent)
            await client.response()
            await until(lambda: served.listener.statistics().phases == {Phase.IDLE: 1})
            return tracemalloc.get_traced_memory()[0]

        await ask(sent)  # what is made at the first request of its kind
        tracemalloc.start()
        try:
            before = await ask(HEALTH)
            assert await ask(sent) < before + 16 * KIB
        finally:
            tracemalloc.stop()


async def test_a_body_where_none_is_wanted_is_dropped_and_its_length_bounded(serve):
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n"
    async with serve(8 * MIB) as served:
        for body in (b"Content-Length: 2\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2\r\n"):
            async with served.connect() as client:
                await client.send(head + body)
                await until(lambda: served.listener.statistics().phases == {Phase.READING: 1})
                await client.send(b"{}" if b"Length" in body else b"{}\r\n0\r\n\r\n")
                assert await client.receive(len(LIVE)) == LIVE
                await client.send(HEALTH)
                assert await client.receive(len(LIVE)) == LIVE
        async with served.connect() as client:
            await client.send(head + b"Content-Length: 65537\r\n\r\n")
            assert (await client.response())[0] == 413
