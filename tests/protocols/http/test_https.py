"""HTTP over TLS: handshakes, and what TLS adds to a connection. The rest is in `test_http_listener`."""

# ruff: noqa: ASYNC110  # the kernel does part of the work, and has no event to wait for

import select
import socket
import ssl
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from engine.server.tls import HTTP_1, credentials
from protocols.http.app import V2App
from protocols.http.listener import HttpListener, ListenerLimits
from protocols.http.patience import ConnectionLimits, Phase
from protocols.transport.room import LAST_CALL, PATIENCE, AddressLimit
from tests.protocols.fakes import FakeServer
from tests.protocols.http.test_http_listener import HEALTH, LIVE, LIVE_LAST, Served, infer
from tests.support.certificates import Authority, tls_files

IN_THE_CLEAR = b'{"error":"this port speaks TLS: ask by https://"}'
MiB = 1024 * 1024


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.sign("server")


@pytest.fixture
def trusting(authority):
    return ssl.create_default_context(cafile=authority.root)


@pytest.fixture
def refused():
    """The reasons for which clients were turned away."""
    return []


@pytest.fixture
def serve(server, trusting, refused):
    @asynccontextmanager
    async def serve(app=None, *, limits=None, **mutual):
        context = credentials(tls_files(server, **mutual), HTTP_1).context
        listener = HttpListener(
            app or V2App(FakeServer().server),
            limits=limits,
            tls=lambda: context,
            on_refused=lambda peer, reason: refused.append(reason),
        )
        with socket.create_server(("127.0.0.1", 0)) as sock:
            async with trio.open_nursery() as nursery:
                await nursery.start(listener.serve, sock, lambda name, run: nursery.start_soon(run))
                yield Served(listener, sock, [], trusting)
                nursery.cancel_scope.cancel()
        listener.close()

    return serve


@pytest.fixture
async def served(serve):
    async with serve() as served:
        yield served


async def in_thread(client):
    """Run a blocking client in a thread of its own."""
    return await trio.to_thread.run_sync(client, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)


def secured(raw, context):
    """Shake hands as a blocking client does."""
    return context.wrap_socket(raw, server_hostname="localhost")


async def told(scope, receive, send, *, scopes):
    scopes.append(scope)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


# -- what an application learns


@pytest.mark.parametrize(
    ("optional", "shows", "names"),
    [(False, True, ("CN=alice", "DNS:localhost", "IP:127.0.0.1")), (True, False, ())],
)
async def test_an_application_learns_the_scheme_and_the_names_of_a_client(
    authority, serve, trusting, optional, shows, names
):
    if shows:
        alice = authority.sign("alice")
        trusting.load_cert_chain(alice.certificate, alice.key)
    scopes: list[Any] = []
    async with serve(partial(told, scopes=scopes), roots=authority.root, optional=optional) as served:
        async with served.connect() as client:
            await client.send(HEALTH)
            assert (await client.response())[0] == 200
    (scope,) = scopes
    assert scope["scheme"] == "https"
    assert scope["extensions"]["tritium.peer"].names == names


async def test_a_client_whose_certificate_another_authority_signed_is_turned_away_also_where_none_is_needed(
    authority, serve, trusting, refused, tmp_path
):
    stranger = Authority(tmp_path, "elsewhere").sign("stranger")
    trusting.load_cert_chain(stranger.certificate, stranger.key)
    async with serve(roots=authority.root, optional=True) as served:
        with pytest.raises((trio.BrokenResourceError, ConnectionResetError)):  # noqa: PT012
            async with served.connect() as client:
                await client.send(HEALTH)
                await client.response()
        await served.until(lambda now: not now.phases)
    (reason,) = refused
    assert "CERTIFICATE_VERIFY_FAILED" in reason


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("shows", "alert"), [(False, "(?i)certificate.required|handshake.failure"), (True, "(?i)unknown.ca")]
)
async def test_a_client_whose_certificate_is_refused_reads_the_alert_behind_all_that_it_has_sent(
    authority, serve, trusting, tmp_path, shows, alert, version
):
    if shows:
        stranger = Authority(tmp_path, "elsewhere").sign("stranger")
        trusting.load_cert_chain(stranger.certificate, stranger.key)
    trusting.minimum_version = trusting.maximum_version = version
    async with serve(roots=authority.root) as served:
        with trio.socket.socket() as sock:
            await sock.connect(served.address)
            inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting.wrap_bio(inward, outward, server_hostname="localhost")

            async def told(act):
                """Do as a client of TLS does, until that succeeds or fails."""
                while True:
                    try:
                        return act()
                    except ssl.SSLWantReadError:
                        await sock.send(outward.read())
                        inward.write(await sock.recv(65536))

            with pytest.raises(ssl.SSLError, match=alert):  # noqa: PT012
                await told(tls.do_handshake)
                # With TLS 1.3 the client is done before the server has seen its certificate.
                await sock.send(outward.read())
                await trio.lowlevel.wait_readable(sock)
                for _ in range(2):  # a socket that was closed would answer the first by a reset
                    tls.write(b"x" * 10_000)
                    await sock.send(outward.read())
                assert sock.getpeername() == served.address
                await told(lambda: tls.read(1))
        await served.until(lambda now: not now.phases)


async def test_a_client_that_reads_no_alert_and_stays_is_cut_off_in_a_moment(
    authority, serve, trusting, refused
):
    async with serve(roots=authority.root) as served:
        with socket.create_connection(served.address) as raw:
            tls = await in_thread(partial(secured, raw, trusting))
            await served.until(lambda now: not now.phases)
            assert len(refused) == 1
            tls.close()


# -- what clients offer


@pytest.mark.parametrize(
    ("offered", "agreed"), [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)]
)
async def test_clients_agree_on_http_1_or_on_nothing(served, trusting, offered, agreed):
    if offered:
        trusting.set_alpn_protocols(offered)
    async with served.connect() as client:
        assert client.socket.stream.selected_alpn_protocol() == agreed
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE


async def test_a_client_of_http_2_is_refused_in_words_of_http_1(served):
    async with served.connect() as client:
        await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await client.receive_all()).startswith(b"HTTP/1.1 400 ")


async def test_a_request_in_the_clear_is_told_so(served, refused):
    with socket.create_connection(served.address) as raw:
        raw.sendall(HEALTH)
        answer = await in_thread(lambda: b"".join(iter(lambda: raw.recv(MiB), b"")))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert body == IN_THE_CLEAR
    (reason,) = refused
    assert reason.startswith("TLS handshake failed: ")


async def test_bytes_that_are_neither_tls_nor_http_end_their_connection_alone(served, refused):
    async with served.connect() as client:
        with socket.create_connection(served.address) as raw:
            raw.sendall(b"\0" * 100)
            await served.until(lambda now: refused)
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE
    assert len(refused) == 1


# -- bytes


async def test_a_request_that_shares_a_record_with_the_body_before_it_is_answered(served):
    """OpenSSL has decrypted it by then, and the socket does not tell of it."""
    async with served.connect() as client:
        request = infer("zeros", 3)
        head, body = request.split(b"\r\n\r\n", 1)
        for _ in range(3):
            await client.send(head + b"\r\n\r\n" + body[:10])
            await served.until(lambda now: now.phases.get(Phase.READING))
            await client.send(body[10:] + HEALTH)
            assert (await client.response())[0] == 200
            assert await client.receive(len(LIVE)) == LIVE


@pytest.mark.parametrize("size", [16383, 16384, 16385, 3 * MiB + 5])
async def test_bodies_of_any_size_come_and_go_whole(serve, size):
    async def echo(scope, receive, send):
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(body)})

    pattern = bytes(range(256)) * (size // 256 + 1)
    async with serve(echo) as served, served.connect() as client:
        for _ in range(2):
            await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
            await client.send(pattern[:size])
            status, _, body = await client.response()
            assert (status, body) == (200, pattern[:size])


async def test_a_server_says_goodbye_behind_its_last_answer(served, trusting):
    def ask():
        with socket.create_connection(served.address, 10) as raw:
            sock = trusting.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False)
            with sock:
                sock.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
                return b"".join(iter(lambda: sock.recv(1000), b""))  # raises at an end without goodbye

    assert await in_thread(ask) == LIVE_LAST


# -- handshakes


async def test_a_handshake_has_as_long_as_a_head(serve, refused, autojump_clock):
    limits = ListenerLimits(connection=ConnectionLimits(head_timeout=30))
    async with serve(limits=limits) as served:
        with ExitStack() as stack:
            for first in (b"", b"\x16\x03\x01"):
                stack.enter_context(socket.create_connection(served.address)).sendall(first)
            while served.listener.statistics().phases != {Phase.SHAKING: 2}:
                await trio.lowlevel.checkpoint()
            began = trio.current_time()
            while served.listener.statistics().phases:
                await trio.sleep(0.5)
            assert 30 <= trio.current_time() - began < 33
    assert refused == ["no TLS handshake within 30 s"] * 2


async def test_a_handshake_that_does_not_end_makes_room_for_another_connection(
    serve, refused, autojump_clock
):
    autojump_clock.autojump_threshold = 0.01  # the kernel needs real time to carry bytes
    async with serve(limits=ListenerLimits(max_connections=1)) as served:
        with socket.create_connection(served.address) as silent:
            await served.until(lambda now: now.phases == {Phase.SHAKING: 1})
            await trio.sleep(PATIENCE)
            async with served.connect() as client:
                await client.send(HEALTH)
                assert await client.receive(len(LIVE)) == LIVE
            assert await in_thread(lambda: silent.recv(1)) == b""
    assert served.listener.counts().gave_way == 1
    assert refused == []


async def test_a_newcomer_is_not_ended_in_its_handshake_while_others_are_idle(serve, trusting):
    """It has brought no request either, but its client has had no time to."""
    most = 8
    async with serve(limits=ListenerLimits(max_connections=most)) as served, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(served.connect()) for _ in range(most)]
        newcomers: list[socket.socket] = []
        for _ in range(2):
            for each in idle[len(newcomers) :]:  # so that all those are looked at that may go
                await each.send(HEALTH)
                assert await each.receive(len(LIVE)) == LIVE
            newcomers.append(stack.enter_context(socket.create_connection(served.address, 10)))
            shaking = len(newcomers)
            await served.until(lambda now, shaking=shaking: now.accepted == most + shaking)
            await served.until(
                lambda now, shaking=shaking: (
                    now.phases == {Phase.IDLE: most - shaking, Phase.SHAKING: shaking}
                )
            )
        for raw in newcomers:
            with await in_thread(partial(secured, raw, trusting)) as sock:
                await in_thread(partial(sock.sendall, HEALTH))
                assert await in_thread(partial(sock.recv, 1000)) == LIVE
    assert served.listener.counts().gave_way == len(newcomers)


@pytest.mark.parametrize("accepted", [False, True], ids=["in the backlog", "accepted"])
async def test_a_client_that_connected_before_the_end_shakes_hands_and_is_answered(
    served, trusting, accepted
):
    def ask(raw):
        with secured(raw, trusting) as sock:
            sock.sendall(HEALTH)
            return b"".join(iter(lambda: sock.recv(1000), b""))

    with socket.create_connection(served.address, 10) as raw:
        if accepted:
            await served.until(lambda now: now.phases == {Phase.SHAKING: 1})
        served.listener.drain()
        assert await in_thread(partial(ask, raw)) == LIVE_LAST
    await served.listener.wait_drained()


async def test_a_handshake_holds_up_the_end_for_seconds_only(serve, autojump_clock):
    async with serve() as served:
        with socket.create_connection(served.address):
            while not served.listener.statistics().phases:
                await trio.lowlevel.checkpoint()
            began = trio.current_time()
            served.listener.drain()
            await served.listener.wait_drained()
            assert LAST_CALL <= trio.current_time() - began <= LAST_CALL + 2


async def test_a_client_that_resets_in_its_handshake_costs_nothing(served):
    with socket.create_connection(served.address) as raw:
        raw.sendall(b"\x16\x03\x01")
        await served.until(lambda now: now.phases)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await served.until(lambda now: not now.phases)


async def test_clients_that_come_at_once_shake_hands_one_step_in_a_turn_of_the_loop(served, trusting):
    """Other tasks get a turn between two steps, whatever the number of clients."""
    hellos = 40

    def hello():
        sent = ssl.MemoryBIO()
        client = trusting.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        return sent.read()

    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(served.address)) for _ in range(hellos)]
        await served.until(lambda now: now.phases == {Phase.SHAKING: hellos})
        for client in clients:
            client.sendall(hello())
        turns, waiting = 0, clients
        with trio.fail_after(10):
            while waiting:
                await trio.lowlevel.checkpoint()
                turns += 1
                answered, _, _ = select.select(waiting, [], [], 0)
                waiting = [each for each in waiting if each not in answered]
    assert turns >= hellos


async def test_a_connection_with_too_many_of_its_address_is_closed_without_words_in_the_clear(serve):
    async with serve(limits=ListenerLimits(per_address=AddressLimit(1))) as served:
        async with served.connect() as client:
            await client.send(infer("held"))
            await served.until(lambda now: now.phases.get(Phase.ANSWERING))
            with socket.create_connection(served.address) as other:
                assert await in_thread(lambda: other.recv(100)) == b""
