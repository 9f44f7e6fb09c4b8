"""Listeners that already have all the connections they take, over real loopback sockets."""

# ruff: noqa: ASYNC110  # the kernel does part of the work, and has no event to wait for

import ipaddress
import json
import math
import os
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
import trio

from protocols.grpc.policy import GrpcOptions
from protocols.grpc.services.offered import services
from protocols.http.app import V2App
from protocols.http.listener import ListenerLimits
from protocols.http.patience import ConnectionLimits, Phase
from protocols.http.routes import is_health
from protocols.transport.proxies import TrustedProxies
from protocols.transport.room import AddressLimit, reserve
from tests.fuzz import h2wire as wire
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_serving import LIVE as GRPC_LIVE
from tests.protocols.grpc_serving import in_thread, unary
from tests.protocols.grpc_serving import serve as serve_grpc
from tests.protocols.http.test_http_listener import HEALTH, LIVE, LIVE_LAST, infer, serve_on_loopback

HEAD = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\n"


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def serve(request, backend):
    patience = math.inf if "autojump_clock" in request.fixturenames else 20

    @asynccontextmanager
    async def serve(most, **bounds):
        limits = ListenerLimits(max_connections=most, **bounds)
        with trio.fail_after(patience):
            async with serve_on_loopback(V2App(backend.server), limits, is_welcome=is_health) as served:
                yield served

    return serve


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_the_longest_idle_makes_room_for_whoever_comes(serve):
    async with serve(3) as served, AsyncExitStack() as stack:
        clients = []
        for _ in range(3):
            clients.append(await stack.enter_async_context(served.connect()))
            await clients[-1].send(HEALTH)
            await clients[-1].receive(len(LIVE))
        await clients[0].send(HEALTH)  # so that the second is idle for longest
        await clients[0].receive(len(LIVE))
        late = await stack.enter_async_context(served.connect())
        await late.send(HEALTH)
        assert await late.receive(len(LIVE)) == LIVE
        assert await clients[1].closed()
        for client in (clients[0], clients[2]):
            await client.send(HEALTH)
            assert await client.receive(len(LIVE)) == LIVE
        counts = served.listener.counts()
        assert (counts.open, counts.most, counts.gave_way) == (3, 3, 1)


async def test_those_that_never_sent_anything_go_before_those_that_did(serve):
    async with serve(3) as served, AsyncExitStack() as stack:
        sender = await stack.enter_async_context(served.connect())
        await sender.send(HEALTH)
        await sender.receive(len(LIVE))
        for _ in range(40):
            await stack.enter_async_context(served.connect())
        await until(lambda: served.listener.statistics().accepted == 41)
        await sender.send(HEALTH)
        assert await sender.receive(len(LIVE)) == LIVE


async def test_a_request_that_came_before_its_connection_was_told_to_go_is_answered(serve):
    async with serve(1) as served, served.connect() as first:
        await first.send(HEALTH)
        await first.receive(len(LIVE))
        async with served.connect():
            await first.send(HEALTH)  # on its way while another stands before the door
            with trio.move_on_after(5):
                answer = await first.receive_all()
            assert answer in {LIVE_LAST, b""} or answer.startswith(LIVE)


async def test_health_checks_are_answered_while_all_connections_are_busy(serve, backend):
    async with serve(2) as served, AsyncExitStack() as stack:
        for _ in range(2):
            busy = await stack.enter_async_context(served.connect())
            await busy.send(infer("held"))
        await until(lambda: served.listener.statistics().phases == {Phase.ANSWERING: 2})
        for _ in range(5):
            async with served.connect(HEALTH) as prober:
                assert await prober.receive(len(LIVE_LAST)) == LIVE_LAST
        async with served.connect(infer("zeros", 3)) as other:
            status, fields, body = await other.response()
            assert (status, fields["Retry-After"], fields["Connection"]) == (503, "1", "close")
            assert "--max-connections" in json.loads(body)["error"]
        assert len(backend.model("held").submitted) == 2
        assert served.listener.counts().crowded_out == 1


async def test_who_came_while_all_were_busy_is_served_once_there_is_room(serve, backend):
    async with serve(1) as served, served.connect() as busy:
        await busy.send(infer("held"))
        await until(lambda: served.listener.statistics().phases == {Phase.ANSWERING: 1})
        async with served.connect() as guest:
            await until(lambda: served.listener.counts().open == 2)
            busy.socket.close()
            await until(lambda: served.listener.counts().open == 1)
            for _ in range(2):
                await guest.send(infer("zeros", 3))
                assert (await guest.response())[0] == 200


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 100000\r\n\r\n"])
async def test_requests_that_do_not_come_on_make_room_after_a_while(serve, autojump_clock, sent):
    most = 4
    autojump_clock.autojump_threshold = 0.01  # the kernel needs real time to carry bytes
    async with serve(most) as served, AsyncExitStack() as stack:
        for _ in range(most + reserve(most)):
            await stack.enter_async_context(served.connect(sent))
        while served.listener.statistics().accepted < most + reserve(most):
            await trio.sleep(0.01)
        all_slow_at = trio.current_time()
        async with served.connect(HEALTH) as prober:
            answer = await prober.receive(len(b"HTTP/1.1 200"))
        assert answer == b"HTTP/1.1 200"
        assert trio.current_time() < all_slow_at + 20  # the usual patience is 30 s and 60 s


async def test_who_takes_no_answer_makes_room_too(serve, autojump_clock):
    async with serve(1) as served, served.connect(SO_RCVBUF=4096) as slow:
        await slow.send(infer("zeros", 50_000_000))
        while served.listener.statistics().phases != {Phase.WRITING: 1}:
            await trio.sleep(0.01)
        await trio.sleep(5)
        async with served.connect(infer("zeros", 3)) as other:
            assert (await other.response())[0] == 200


async def test_a_connection_that_answers_is_never_ended_for_another(serve, backend, autojump_clock):
    async with serve(1) as served, served.connect() as busy:
        await busy.send(infer("held"))
        while served.listener.statistics().phases != {Phase.ANSWERING: 1}:
            await trio.sleep(0.01)
        async with served.connect():
            await trio.sleep(500)
        request = backend.model("held").submitted[0]
        request.reply.put(backend.model("held").respond(request, []), final=True)
        assert (await busy.response())[0] == 200


async def test_an_idle_connection_is_closed_after_what_was_set(serve, autojump_clock):
    async with serve(5, connection=ConnectionLimits(idle_timeout=7.0)) as served, served.connect() as client:
        await client.send(HEALTH)
        await client.receive(len(LIVE))
        assert await client.closed()
        assert 7 <= trio.current_time() < 9


async def test_a_newcomer_whose_first_bytes_come_later_than_it_is_served(serve):
    async with serve(4) as served, AsyncExitStack() as stack:
        for _ in range(4):
            client = await stack.enter_async_context(served.connect(HEALTH))
            await client.receive(len(LIVE))
        late = await stack.enter_async_context(served.connect())
        await until(lambda: served.listener.statistics().accepted == 5)
        await until(lambda: served.listener.counts().open == 4)
        await late.send(HEALTH)
        assert await late.receive(len(LIVE)) == LIVE


# One address


CROWD = 400


async def test_a_crowd_that_dies_at_once_keeps_no_other_client_waiting(serve, autojump_clock):
    async with serve(2 * CROWD) as served, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(served.connect()) for _ in range(CROWD)]
        await served.until(lambda now: now.phases[Phase.IDLE] == CROWD)
        await trio.sleep(10)
        other = await stack.enter_async_context(served.connect())
        await other.send(HEALTH)
        assert await other.receive(len(LIVE)) == LIVE
        for client in crowd:
            client.socket.close()
        await other.send(HEALTH)
        assert await other.receive(len(LIVE)) == LIVE
        left = served.listener.statistics().phases[Phase.IDLE]
        assert left > CROWD // 2  # in front of the client there was a portion only
        await served.until(lambda now: now.phases[Phase.IDLE] == 1)


def say_at_once(clients, said):
    """Have all clients say the same, in one turn of the loop."""
    for client in clients:
        os.write(client.socket.fileno(), said)


async def test_an_http_client_in_use_goes_before_a_crowd_that_was_quiet(serve, backend, autojump_clock):
    async with serve(2 * CROWD) as served, AsyncExitStack() as stack:
        *crowd, other = [await stack.enter_async_context(served.connect()) for _ in range(CROWD + 1)]
        await served.until(lambda now: now.phases[Phase.IDLE] == CROWD + 1)
        await trio.sleep(10)
        await other.send(HEALTH)
        assert await other.receive(len(LIVE)) == LIVE
        say_at_once(crowd, HEAD)
        say_at_once([other], HEALTH)
        assert await other.receive(len(LIVE)) == LIVE
        assert served.listener.statistics().phases[Phase.READING] < CROWD * 3 // 4


async def test_a_grpc_client_in_use_goes_before_a_crowd_that_was_quiet(autojump_clock):
    async with serve_grpc() as served, AsyncExitStack() as stack:
        *crowd, other = [await stack.enter_async_context(grpc_client(served, b"")) for _ in range(CROWD + 1)]
        await until(lambda: served.listener.statistics().connections == CROWD + 1)
        await trio.sleep(10)
        await other.send_all(WHOLE)
        await heard(other, until=ends_call)
        say_at_once(crowd, HALF_REQUEST)
        say_at_once([other], wire.headers(3) + wire.data(3, b"\0\0\0\0\x02hi", wire.END_STREAM))
        await heard(other, until=ends_call)
        assert served.listener.statistics().streams < CROWD * 3 // 4


async def test_an_address_has_so_many_connections_and_its_idle_ones_make_room(serve):
    async with serve(100, per_address=AddressLimit(2)) as served, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(served.connect()) for _ in range(2)]
        for client in (first, second):
            await client.send(HEALTH)
            await client.receive(len(LIVE))
        third = await stack.enter_async_context(served.connect())
        await third.send(HEALTH)
        assert await third.receive(len(LIVE)) == LIVE
        assert await first.closed()
        for client in (second, third):
            await client.send(infer("held"))
        await until(lambda: served.listener.statistics().phases == {Phase.ANSWERING: 2})
        async with served.connect() as fourth:
            status, fields, body = await fourth.response()
            assert (status, fields["Retry-After"], fields["Connection"]) == (503, "1", "close")
            assert "--max-connections-per-address" in json.loads(body)["error"]
            assert await fourth.closed()
        second.socket.close()
        await until(lambda: served.listener.counts().open == 1)
        async with served.connect() as fifth:
            await fifth.send(HEALTH)
            assert await fifth.receive(len(LIVE)) == LIVE
        assert served.listener.counts().over_address_limit == 1


async def test_a_trusted_proxy_has_any_number(serve):
    trusted = AddressLimit(2, TrustedProxies([ipaddress.ip_network("127.0.0.0/8")]))
    async with serve(100, per_address=trusted) as served, AsyncExitStack() as stack:
        for _ in range(6):
            client = await stack.enter_async_context(served.connect())
            await client.send(infer("held"))
        await until(lambda: served.listener.statistics().phases == {Phase.ANSWERING: 6})


# gRPC


@pytest.mark.slow
async def test_grpc_connections_that_are_idle_make_room_for_calls():
    async with serve_grpc(options=GrpcOptions(max_connections=4)) as served, AsyncExitStack() as stack:
        for said in (b"", wire.PREFACE + wire.settings()):
            for _ in range(10):
                silent = await stack.enter_async_context(
                    await trio.open_tcp_stream(*served.socket.getsockname())
                )
                await silent.send_all(said)
        with served.channel(use_local_subchannel_pool=1) as channel:
            for number in range(3):
                assert await in_thread(unary(channel), b"%d" % number, timeout=10) == b"%d" % number
        assert served.listener.counts().gave_way >= 10


HALF_REQUEST = wire.headers(1) + wire.data(1, b"\0\0\0\0\x10half of")
OPEN_STREAM = wire.headers(
    1, tuple((name, b"/toy.Toy/Idle" if name == b":path" else value) for name, value in wire.REQUEST)
)
WHOLE = wire.headers(1) + wire.data(1, b"\0\0\0\0\x02hi", wire.END_STREAM)


@asynccontextmanager
async def grpc_client(served, said):
    async with await trio.open_tcp_stream(*served.socket.getsockname()) as stream:
        await stream.send_all(wire.PREFACE + wire.settings() + said)
        yield stream


async def heard(stream, *, until):
    """Return the payloads of all frames up to one for which `until` holds."""
    received = b""
    while not any(map(until, wire.split(received))):
        more = await stream.receive_some()
        assert more, "the connection ended before"
        received += more
    return b"".join(frame.payload for frame in wire.split(received))


def ends_call(frame):
    return frame.kind == wire.HEADERS and frame.flags & wire.END_STREAM != 0


@pytest.mark.parametrize("said", [HALF_REQUEST, OPEN_STREAM], ids=["half a request", "an open stream"])
async def test_grpc_calls_that_wait_for_their_client_make_room_after_a_while(said, autojump_clock):
    async with (
        serve_grpc(options=GrpcOptions(max_connections=1)) as served,
        grpc_client(served, said) as idle,
    ):
        await until(lambda: served.listener.statistics().streams == 1)
        await trio.sleep(5)
        async with grpc_client(served, WHOLE) as other:
            assert b"hi" in await heard(other, until=ends_call)
            assert b"--max-connections" in await heard(idle, until=ends_call)
        await trio.sleep(2)
        assert served.listener.counts().open == 0
        assert served.listener.counts().gave_way == 1


def question(path, message, flags=0):
    head = wire.headers(1, tuple((name, path if name == b":path" else value) for name, value in wire.REQUEST))
    return head + wire.data(1, b"\0" + len(message).to_bytes(4, "big") + message, flags)


WATCH = question(b"/grpc.health.v1.Health/Watch", b"", wire.END_STREAM)
REFLECTION = question(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b"\x3a\x01*")


@pytest.mark.parametrize("said", [WATCH, REFLECTION], ids=["a watch", "reflection"])
async def test_grpc_calls_that_have_their_answers_and_may_get_more_make_room_too(
    said, backend, autojump_clock
):
    """Anyone may open such calls, and keep them open for ever."""
    options = GrpcOptions(max_connections=1)
    _, health, reflection, _ = services(backend.server)
    offered = health if said is WATCH else reflection
    async with serve_grpc(offered, options) as served, grpc_client(served, said) as idle:
        await heard(idle, until=lambda frame: frame.kind == wire.DATA)
        await trio.sleep(5)
        async with grpc_client(served, said) as other:
            await heard(other, until=lambda frame: frame.kind == wire.DATA)
            assert b"--max-connections" in await heard(idle, until=ends_call)
        await trio.sleep(2)
        assert served.listener.counts().gave_way == 1


async def test_grpc_calls_whose_client_waits_are_not_ended_for_others(autojump_clock):
    async with serve_grpc(options=GrpcOptions(max_connections=1)) as served:
        served.service.echo.held = []
        async with grpc_client(served, WHOLE) as busy:
            await until(lambda: served.service.echo.held)
            await trio.sleep(5)
            async with grpc_client(served, WHOLE) as other:
                assert b"--max-connections" in await heard(other, until=ends_call)
            served.service.echo.answer(served.service.echo.held[0])
            assert b"hi" in await heard(busy, until=ends_call)


@pytest.mark.slow
async def test_a_grpc_client_whose_connection_made_room_does_not_notice():
    async with serve_grpc(options=GrpcOptions(max_connections=1)) as served:
        with (
            served.channel(use_local_subchannel_pool=1) as one,
            served.channel(use_local_subchannel_pool=1) as other,
        ):
            for number in range(2):
                for channel in (one, other):
                    assert await in_thread(unary(channel), b"%d" % number, timeout=10) == b"%d" % number
                    await served.until(lambda: served.listener.counts().open == 1)
        assert served.listener.counts().gave_way == 3
        assert served.listener.statistics().violations == 0


@pytest.mark.slow
async def test_grpc_health_checks_are_answered_while_all_connections_are_busy():
    async with serve_grpc(options=GrpcOptions(max_connections=1)) as served:
        served.service.echo.held = []
        with served.channel(use_local_subchannel_pool=1) as busy:
            held = unary(busy).future(b"held", timeout=20)
            await served.until(lambda: served.service.echo.held)
            for _ in range(3):
                with served.channel(use_local_subchannel_pool=1) as prober:
                    assert await in_thread(unary(prober, GRPC_LIVE), b"well", timeout=10) == b"WELL"
            with served.channel(use_local_subchannel_pool=1) as other:
                with pytest.raises(grpc.RpcError) as refusal:
                    await in_thread(unary(other), b"", timeout=10)
                assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "--max-connections" in refusal.value.details()
                assert served.listener.counts().crowded_out == 1
            held.cancel()
