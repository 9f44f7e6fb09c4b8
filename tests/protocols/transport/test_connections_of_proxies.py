"""Listeners behind proxies, over real loopback sockets: whose each request is, over HTTP and gRPC."""

# the kernel does part of the work, and has no event to wait for

import ipaddress
import json
import math
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from actors.values.callers import Action
from actors.values.requests import Endings
from engine.server.tls import HTTP_1
from protocols.grpc.policy import GrpcOptions
from protocols.http.app import V2App
from protocols.http.listener import ListenerLimits
from protocols.http.options import V2Options
from protocols.http.patience import Phase
from protocols.transport.introductions import PATIENCE
from protocols.transport.proxies import TrustedProxies
from protocols.transport.room import AddressLimit
from tests.fuzz import h2wire as wire
from tests.protocols.fakes import FakeServer
from tests.protocols.grpc_serving import LIVE as GRPC_LIVE
from tests.protocols.grpc_serving import in_thread, unary
from tests.protocols.grpc_serving import serve as serve_grpc
from tests.protocols.http.test_http_listener import HEALTH, LIVE, LIVE_LAST, infer, serve_on_loopback
from tests.support.callers import KnownCaller, ListedGate
from tests.support.certificates import Authority

LOOPBACK = TrustedProxies([ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("10.0.0.0/8")])
ELSEWHERE = TrustedProxies([ipaddress.ip_network("192.0.2.0/24")])
CLIENT, OTHER = "203.0.113.5", "198.51.100.66"
V1 = b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n"
V1_OTHER = b"PROXY TCP4 198.51.100.66 192.0.2.1 4711 80\r\n"
V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10" + bytes((203, 0, 113, 5, 192, 0, 2, 1)) + b"\x12\x67\0\x50tlvs"
LOCAL = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture
def gate():
    return ListedGate(
        {b"": KnownCaller("all", {(action, model) for action in Action for model in ("", "zeros", "held")})}
    )


@pytest.fixture
def finished():
    """The addresses that the request log was told."""
    return []


@pytest.fixture
def refused():
    """Those whose connections were ended, and why."""
    return []


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def serve(request, backend, gate, finished, refused):
    patience = math.inf if "autojump_clock" in request.fixturenames else 20
    options = V2Options(gate=gate, endings=Endings(lambda request, outcome, peer: finished.append(peer)))

    @asynccontextmanager
    async def serve(proxies=LOOPBACK, *, introduced=False, tls=None, **bounds):
        limits = ListenerLimits(proxies=proxies, introduced=introduced, **bounds)
        app = V2App(backend.server, options=options)
        with trio.fail_after(patience):
            async with serve_on_loopback(
                app, limits, tls=tls, on_refused=lambda *what: refused.append(what)
            ) as served:
                yield served

    return serve


def from_(fields, request=None):
    """An inference with more fields in its head."""
    start, _, rest = (request or infer("zeros", 3)).partition(b"Host: h\r\n")
    return start + b"Host: h\r\n" + b"".join(b"%b\r\n" % field.encode() for field in fields) + rest


async def ask(client, fields=(), request=None):
    await client.send(from_(fields, request))
    return (await client.response())[0]


# Forwarded and X-Forwarded-For


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ([f"X-Forwarded-For: {CLIENT}"], CLIENT),
        ([f"x-FORWARDED-for:\t {CLIENT} \t"], CLIENT),
        ([f"X-Forwarded-For: {OTHER}", f"X-Forwarded-For: {CLIENT}"], CLIENT),
        ([f"X-Forwarded-For: {OTHER}, {CLIENT}, 10.0.0.1"], CLIENT),
        ([f"Forwarded: for={OTHER}", f'Forwarded: For="{CLIENT}:4711";proto=http'], CLIENT),
        ([f"Forwarded: for={CLIENT}", f"X-Forwarded-For: {CLIENT}"], CLIENT),
        ([f"Forwarded: for={OTHER}", f"X-Forwarded-For: {CLIENT}"], "127.0.0.1"),
        (["X-Forwarded-For: unknown"], "127.0.0.1"),
        (["Forwarded: for=_hidden"], "127.0.0.1"),
        ([f"X_Forwarded_For: {CLIENT}"], "127.0.0.1"),
        ([f"X-Real-IP: {CLIENT}"], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
async def test_a_request_is_its_clients_behind_a_trusted_proxy(serve, gate, finished, fields, seen):
    async with serve() as served, served.connect() as client:
        assert await ask(client, fields) == 200
        assert gate.peers[-1].address == seen
        assert finished[-1].startswith(f"ipv4:{seen}:")


@pytest.mark.parametrize("proxies", [ELSEWHERE, None])
async def test_what_a_stranger_says_of_itself_counts_for_nothing(serve, gate, finished, proxies):
    async with serve(proxies) as served, served.connect() as client:
        fields = [f"X-Forwarded-For: {CLIENT}", f"Forwarded: for={CLIENT}"]
        assert await ask(client, fields) == 200
        assert gate.peers[-1].address == "127.0.0.1"
        port = (served.listener, client.socket.getsockname())[1][1]
        assert finished == [f"ipv4:127.0.0.1:{port}"]


async def test_one_connection_brings_many_clients(serve, gate):
    async with serve() as served, served.connect() as client:
        for address in (CLIENT, OTHER, CLIENT):
            assert await ask(client, [f"X-Forwarded-For: {address}"]) == 200
        assert await ask(client) == 200
        assert [peer.address for peer in gate.peers] == [CLIENT, OTHER, CLIENT, "127.0.0.1"]
        assert gate.peers[0] is gate.peers[2]  # with what the gate has noted of it


async def test_a_long_body_is_asked_about_for_its_client(serve, gate):
    async with serve() as served, served.connect() as client:
        head, _, body = infer("zeros", 3).partition(b"\r\n\r\n")
        body += b" " * 200_000
        head = head.partition(b"Content-Length")[0] + b"X-Forwarded-For: %b\r\nContent-Length: %d" % (
            CLIENT.encode(),
            len(body),
        )
        await client.send(head + b"\r\n\r\n" + body)
        assert (await client.response())[0] == 200
        assert [peer.address for peer in gate.peers] == [CLIENT]


async def test_a_model_has_the_clients_address_as_its_tenant(serve, backend):
    from actors.values.marks import ClientMarks

    backend.model("zeros").marks = ClientMarks(tenant_address=True)
    async with serve() as served, served.connect() as client:
        for fields in ([f"X-Forwarded-For: {CLIENT}"], ["X-Forwarded-For: 2001:db8::1:2:3:4"], []):
            assert await ask(client, fields) == 200
    tenants = [request.tenant for request in backend.model("zeros").submitted]
    assert tenants == [CLIENT, "2001:db8::/64", "127.0.0.1"]


# The PROXY protocol


@pytest.mark.parametrize(
    ("header", "seen"),
    [(V1, CLIENT), (V2, CLIENT), (LOCAL, "127.0.0.1"), (b"PROXY UNKNOWN\r\n", "127.0.0.1")],
)
@pytest.mark.parametrize("pieces", [1, 4], ids=["whole", "in-pieces"])
async def test_a_proxy_introduces_its_client(serve, gate, finished, header, seen, pieces):
    async with serve(introduced=True) as served, served.connect() as client:
        sent = header + infer("zeros", 3)
        size = math.ceil(len(header) / pieces)
        for piece in range(pieces):
            await client.send(sent[piece * size : (piece + 1) * size])
            await trio.testing.wait_all_tasks_blocked()
        await client.send(sent[pieces * size :])
        assert (await client.response())[0] == 200
        assert await ask(client) == 200  # the header comes once
        assert [peer.address for peer in gate.peers] == [seen, seen]
        assert finished[0].startswith(f"ipv4:{seen}:")
        assert finished[0].endswith(":4711") == (seen == CLIENT)


async def test_an_introduced_proxy_may_bring_many_clients_itself(serve, gate):
    first = b"PROXY TCP4 10.0.0.9 192.0.2.1 4711 80\r\n"
    async with serve(introduced=True) as served, served.connect(first) as client:
        assert await ask(client, [f"X-Forwarded-For: {CLIENT}"]) == 200
        assert gate.peers[-1].address == CLIENT
    async with serve(introduced=True) as served, served.connect(V1) as client:
        assert await ask(client, [f"X-Forwarded-For: {OTHER}"]) == 200
        assert gate.peers[-1].address == CLIENT  # who was introduced is no proxy


@pytest.mark.parametrize("header", [V1, V2])
async def test_a_stranger_that_introduces_itself_makes_a_bad_request(serve, gate, header):
    async with serve(ELSEWHERE, introduced=True) as served, served.connect() as client:
        await client.send(header + infer("zeros", 3))
        assert (await client.response())[0] == 400
        assert await client.closed()
        assert gate.peers == []
        assert served.listener.counts().not_introduced == 0


async def test_strangers_need_no_header(serve, gate):
    async with serve(ELSEWHERE, introduced=True) as served, served.connect() as client:
        assert await ask(client) == 200


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (infer("zeros", 3), "no header of the PROXY protocol, but b'POST"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.256 1 1\r\n" + HEALTH, "malformed address"),
        (b"PROXY UNKNOWN " + b"x" * 200, "107 bytes at most"),
        (V2[:13] + b"\x77" + V2[14:], "unknown family"),
        (V2[:14] + b"\xff\xff", "16384 at most"),
    ],
)
async def test_a_proxy_that_introduces_no_client_is_sent_away(serve, refused, sent, said):
    async with serve(introduced=True) as served:
        async with served.connect() as client:
            await client.send(sent)
            assert await client.closed()
        assert served.listener.counts().not_introduced == 1
        await served.until(lambda _: served.listener.counts().open == 0)
        ((peer, reason),) = refused
        assert peer.startswith("ipv4:127.0.0.1:")
        assert said in reason


async def test_a_header_that_does_not_come_on_ends_its_connection(serve, refused, autojump_clock):
    autojump_clock.autojump_threshold = 0.01  # the kernel needs real time to carry bytes
    async with serve(introduced=True) as served, served.connect(V1[:20]) as half, served.connect() as silent:
        assert await half.closed()
        assert await silent.closed()
        assert PATIENCE <= trio.current_time() < PATIENCE + 1
        assert served.listener.counts().not_introduced == 2
        assert {reason for _, reason in refused} == {"no whole header of the PROXY protocol within 5 s"}


async def test_a_connection_that_ends_in_its_header_is_told_of_and_one_without_a_byte_is_not(serve, refused):
    async with serve(introduced=True) as served:
        async with served.connect(V1[:20]):
            await served.until(lambda now: now.accepted == 1)
            await trio.testing.wait_all_tasks_blocked()
        await served.until(lambda _: served.listener.counts().not_introduced == 1)
        async with served.connect():  # how balancers look whether a port is open
            await served.until(lambda now: now.accepted == 2)
        await served.until(lambda _: served.listener.counts().open == 0)
    ((_, reason),) = refused
    assert "ended within a header" in reason


async def test_the_address_that_was_told_has_so_many_connections(serve):
    limit = AddressLimit(2, LOOPBACK)
    async with serve(introduced=True, per_address=limit) as served, AsyncExitStack() as stack:
        for header in (V1, V1, V1_OTHER, V1_OTHER, LOCAL, LOCAL, LOCAL):
            client = await stack.enter_async_context(served.connect(header))
            await client.send(infer("held"))
        await served.until(lambda now: now.phases == {Phase.ANSWERING: 7})
        async with served.connect(V1) as third:
            status, _, body = await third.response()
            assert status == 503
            assert "--max-connections-per-address" in json.loads(body)["error"]
            assert await third.closed()
        assert served.listener.counts().over_address_limit == 1
    async with serve(introduced=True, per_address=limit) as served, served.connect(V1) as first:
        await first.send(HEALTH)
        await first.receive(len(LIVE))
        for _ in range(5):  # what went has given its place back
            async with served.connect(V1 + HEALTH) as other:
                await other.receive(len(LIVE))
            await served.until(lambda _: served.listener.counts().open == 1)


async def test_connections_that_wait_for_their_header_make_room(serve):
    async with serve(introduced=True, max_connections=4) as served, AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(served.connect(V1[:5]))
        await served.until(lambda now: now.accepted == 20)
        async with served.connect(V1 + HEALTH) as client:
            assert await client.receive(len(LIVE)) == LIVE
        assert served.listener.counts().open <= 5


async def test_a_header_that_is_here_as_the_server_drains_is_answered(serve):
    async with serve(introduced=True) as served:
        async with served.connect() as half, served.connect(V1 + HEALTH) as whole, served.connect() as silent:
            await served.until(lambda now: now.accepted == 3)
            await half.send(V1[:20])
            served.listener.drain()
            assert await whole.receive_all() in {LIVE_LAST, LIVE}
            assert await silent.closed()
            assert await half.closed()
            await served.listener.wait_drained()


async def test_the_header_comes_before_tls(serve, gate, authority):
    server = authority.tls_of("server", HTTP_1).context
    client = ssl.create_default_context(cafile=authority.root)
    async with serve(introduced=True, tls=(server, None)) as served, served.connect(V1) as raw:
        stream = trio.SSLStream(
            trio.SocketStream(raw.socket), client, server_hostname="localhost", https_compatible=True
        )
        await stream.send_all(infer("zeros", 3))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        assert gate.peers[-1].address == CLIENT
    async with serve(introduced=True, tls=(server, None)) as served, served.connect() as raw:
        stream = trio.SSLStream(trio.SocketStream(raw.socket), client, server_hostname="localhost")
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        assert served.listener.counts().not_introduced == 1


# gRPC


def call(channel, *metadata):
    answer, done = unary(channel, GRPC_LIVE).with_call(b"x", metadata=metadata, timeout=10)
    assert answer == b"X"
    return dict(done.trailing_metadata())["peer"]


@pytest.mark.slow
async def test_grpc_calls_are_their_clients_behind_a_trusted_proxy():
    async with serve_grpc(options=GrpcOptions(proxies=LOOPBACK)) as served:
        with served.channel() as channel:
            ask = partial(in_thread, call, channel)
            for _ in range(2):
                assert await ask(("x-forwarded-for", f"{OTHER}, {CLIENT}")) == f"ipv4:{CLIENT}:0"
                assert await ask(("forwarded", 'for="[2001:db8::5]:4711"')) == "ipv6:[2001:db8::5]:4711"
                spoofed = ("x-forwarded-for", OTHER), ("x-forwarded-for", CLIENT)
                assert await ask(*spoofed) == f"ipv4:{CLIENT}:0"
                assert (await ask(("x-forwarded-for", "unknown"))).startswith("ipv4:127.0.0.1:")
                assert (await ask()).startswith("ipv4:127.0.0.1:")
    async with serve_grpc(options=GrpcOptions(proxies=ELSEWHERE)) as served:
        with served.channel() as channel:
            peer = await in_thread(call, channel, ("x-forwarded-for", CLIENT), ("forwarded", f"for={CLIENT}"))
            assert peer.startswith("ipv4:127.0.0.1:")


@asynccontextmanager
async def proxied(target, header):
    """Give the address of a small proxy that introduces each of its clients so."""

    async def carry(stream):
        async with stream, await trio.open_tcp_stream(*target) as server, trio.open_nursery() as nursery:
            await server.send_all(header)

            async def one_way(source, sink):
                async for data in source:
                    await sink.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(one_way, stream, server)
            nursery.start_soon(one_way, server, stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, carry, 0, host="127.0.0.1"))
        yield "{}:{}".format(*listener.socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("header", [V1, V2])
async def test_a_proxy_introduces_a_grpc_client(header):
    import grpc

    options = GrpcOptions(proxies=LOOPBACK, introduced=True, per_address=AddressLimit(5, LOOPBACK))
    async with (
        serve_grpc(options=options) as served,
        proxied(served.socket.getsockname(), header) as address,
    ):
        with grpc.insecure_channel(address) as channel:
            assert await in_thread(call, channel) == f"ipv4:{CLIENT}:4711"
            # Who was introduced is no proxy.
            assert await in_thread(call, channel, ("x-forwarded-for", OTHER)) == f"ipv4:{CLIENT}:4711"


async def test_a_grpc_client_that_is_not_introduced_is_sent_away(refused):
    options = GrpcOptions(proxies=LOOPBACK, introduced=True)
    async with serve_grpc(options=options, on_refused=lambda *what: refused.append(what)) as served:
        async with await trio.open_tcp_stream(*served.socket.getsockname()) as client:
            await client.send_all(wire.PREFACE + wire.settings())
            with trio.fail_after(10), suppress(trio.BrokenResourceError):  # reset: what it sent is unread
                assert await client.receive_some() == b""
        assert served.listener.counts().not_introduced == 1
        assert "no header of the PROXY protocol" in refused[0][1]
    options = GrpcOptions(proxies=ELSEWHERE, introduced=True)
    async with serve_grpc(options=options) as served:
        async with await trio.open_tcp_stream(*served.socket.getsockname()) as client:
            await client.send_all(V1 + wire.PREFACE + wire.settings())
            with trio.fail_after(10):
                async for _ in client:
                    pass
        assert served.listener.statistics().violations == 1
        assert served.listener.counts().not_introduced == 0
