"""Transports over real sockets: plain, Unix and TLS."""

import errno
import socket
import ssl
from dataclasses import replace

import grpc
import pytest
import trio

from engine.server.tls import HTTP_2, credentials
from engine.settings.tls import PemFile, TlsFiles
from protocols.grpc.policy import GrpcOptions
from protocols.transport.sockets import ConnectionLost, PlainTransport, TlsTransport
from tests.fuzz import h2wire as wire
from tests.protocols.grpc_serving import bidi, in_thread, serve, unary
from tests.support.certificates import Authority

MiB = 1024 * 1024


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server_files(authority):
    files = authority.sign("server")
    return TlsFiles(certificate=PemFile(str(files.certificate), "cert"), key=PemFile(str(files.key), "key"))


def server_context(files):
    return credentials(files, HTTP_2).context


def contexts(files):
    """What a listener asks for its context."""
    context = server_context(files)
    return lambda: context


def secure(served, authority, client=None, **options):
    port = served.socket.getsockname()[1]
    credentials = grpc.ssl_channel_credentials(
        authority.root.read_bytes(),
        client and client.key.read_bytes(),
        client and client.certificate.read_bytes(),
    )
    pairs = [(f"grpc.{key}", value) for key, value in options.items()]
    return grpc.secure_channel(f"localhost:{port}", credentials, pairs)


def pair(**options):
    """Return a plain transport and the client's socket."""
    ours, theirs = socket.socketpair()
    for name, value in options.items():
        ours.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    return PlainTransport(ours), theirs


def test_what_the_socket_does_not_take_comes_back_in_order():
    transport, theirs = pair(SO_SNDBUF=4096)
    buffers = [bytes([number]) * 50_000 for number in range(20)]
    received, rest = b"", buffers
    while rest:
        rest = transport.send(rest)
        received += theirs.recv(1 << 20)
    theirs.setblocking(False)
    while len(received) < 20 * 50_000:
        received += theirs.recv(1 << 20)
    assert received == b"".join(buffers)
    assert transport.send([b"small", b"ones"]) == []
    assert theirs.recv(100) == b"smallones"
    theirs.close()
    transport.close()


def test_a_client_that_left_is_lost():
    transport, theirs = pair()
    buffer = memoryview(bytearray(10))
    with pytest.raises(BlockingIOError):
        transport.receive_into(buffer)
    theirs.send(b"last")
    theirs.close()
    assert transport.receive_into(buffer) == 4
    assert transport.exhausted(4, 10)
    assert transport.receive_into(buffer) == 0
    with pytest.raises(ConnectionLost):
        transport.send([b"to nobody"])
    transport.finish()
    transport.shut(abort=True)
    transport.close()


def test_a_client_that_the_network_lost_is_lost():
    class Unreachable(socket.socket):
        def recv_into(self, buffer, nbytes=0, flags=0):
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    ours, theirs = socket.socketpair()
    with theirs, Unreachable(fileno=ours.detach()) as sock:
        with pytest.raises(ConnectionLost):
            PlainTransport(sock).receive_into(memoryview(bytearray(10)))


async def test_calls_pass_through_tls(authority, server_files):
    async with serve(tls=contexts(server_files)) as served:
        options = {"max_receive_message_length": -1, "max_send_message_length": -1}
        with secure(served, authority, **options) as channel:
            assert await in_thread(unary(channel), b"hidden", timeout=10) == b"hidden"
            large = bytes(range(256)) * (16 * MiB // 256)
            assert await in_thread(unary(channel), large, timeout=20) == large
            messages = [b"%d" % number * number for number in range(200)]
            each = bidi(channel)
            assert await in_thread(lambda: list(each(iter(messages), timeout=20))) == messages
        assert served.service.echo.released == 2


async def test_mutual_tls_wants_a_certificate_that_the_authority_signed(authority, server_files, tmp_path):
    async with serve(
        tls=contexts(replace(server_files, client_roots=PemFile(str(authority.root), "root")))
    ) as served:
        with secure(served, authority, authority.sign("client")) as channel:
            assert await in_thread(unary(channel), b"known", timeout=10) == b"known"
        for unknown in (None, Authority(tmp_path).sign("client")):
            with secure(served, authority, unknown) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    await in_thread(unary(channel), b"unknown", timeout=2)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert served.service.echo.begun == 1


async def test_a_client_that_agrees_on_no_http2_is_sent_away(authority, server_files):
    refused = []
    tls = contexts(server_files)
    async with serve(tls=tls, on_refused=lambda _, reason: refused.append(reason)) as served:
        context = ssl.create_default_context(cafile=authority.root)
        context.set_alpn_protocols(["http/1.1"])
        stream = await trio.open_tcp_stream("127.0.0.1", served.socket.getsockname()[1])
        async with trio.SSLStream(stream, context, server_hostname="localhost") as secured:
            await secured.do_handshake()
            with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
                await secured.receive_some()
        await served.until(lambda: not served.listener.statistics().connections)
        assert served.listener.statistics().violations == 0
    assert refused == ["the client agreed on None, not on 'h2'"]


@pytest.mark.slow
@pytest.mark.parametrize("secured", [False, True])
async def test_a_client_that_goes_on_sending_can_read_why_it_is_sent_away(secured, authority, server_files):
    context = ssl.create_default_context(cafile=authority.root)
    context.set_alpn_protocols(["h2"])

    def misbehave(address):
        with socket.create_connection(address, 10) as raw:
            sock = context.wrap_socket(raw, server_hostname="localhost") if secured else raw
            with sock:
                sock.sendall(wire.PREFACE + wire.settings([]) + wire.frame(wire.DATA, 0, 0) + bytes(3 * MiB))
                received = b""
                while part := sock.recv(MiB):
                    received += part
                return wire.split(received)

    async with serve(tls=contexts(server_files) if secured else None) as served:
        answers = await in_thread(misbehave, served.socket.getsockname())
    assert [one.payload[8:] for one in answers if one.kind == wire.GOAWAY] == [b"DATA on stream 0"]


async def test_a_client_that_never_finishes_its_handshake_costs_only_its_connection(authority, server_files):
    options = GrpcOptions(handshake_timeout=0.3)
    tls = contexts(server_files)
    refused = []
    async with serve(options=options, tls=tls, on_refused=lambda *words: refused.append(words)) as served:
        idle = [socket.create_connection(served.socket.getsockname()) for _ in range(5)]
        idle[0].send(b"\x16\x03\x01")
        idle[1].send(b"not TLS at all, this")
        with secure(served, authority) as channel:
            assert await in_thread(unary(channel), b"me", timeout=10) == b"me"
            await served.until(lambda: served.listener.statistics().connections == 1)
        names = ["ipv4:{}:{}".format(*sock.getsockname()) for sock in idle]
        for sock in idle:
            sock.close()
    reasons = dict(refused)
    assert reasons.pop(names[1]).startswith("TLS handshake failed: ")
    assert reasons == dict.fromkeys([names[0], *names[2:]], "no TLS handshake within 0.3 s")


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "in the backlog"])
async def test_a_client_that_never_finishes_its_handshake_holds_up_the_end_for_seconds_only(
    server_files, autojump_clock, accepted
):
    async with serve(tls=contexts(server_files)) as served:
        with socket.create_connection(served.socket.getsockname()):
            if accepted:
                await served.until(lambda: served.listener.statistics().connections)
            began = trio.current_time()
            served.listener.drain()
            await served.listener.wait_drained()
            assert 1.0 < trio.current_time() - began < 4.0


@pytest.mark.long
@pytest.mark.slow
async def test_a_client_in_the_middle_of_its_handshake_hears_that_the_server_ends(authority, server_files):
    context = ssl.create_default_context(cafile=authority.root)
    context.set_alpn_protocols(["h2"])

    def hear(raw):
        with context.wrap_socket(raw, server_hostname="localhost") as sock:
            sock.sendall(wire.PREFACE + wire.settings([]))
            return b"".join(iter(lambda: sock.recv(MiB), b""))

    async with serve(tls=contexts(server_files)) as served:
        with socket.create_connection(served.socket.getsockname(), 10) as client:
            await served.until(lambda: served.listener.statistics().connections)
            served.listener.drain()
            heard = await in_thread(hear, client)
    assert wire.GOAWAY in [frame.kind for frame in wire.split(heard)]


async def test_a_handshake_with_a_client_that_left_is_lost(server_files):
    ours, theirs = socket.socketpair()
    theirs.close()
    transport = TlsTransport(ours, server_context(server_files))
    with pytest.raises(ConnectionLost):
        await transport.handshake()
    transport.shut()
    transport.close()


async def test_calls_pass_through_a_unix_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "grpc.sock"))
        sock.listen()
        async with serve(sock=sock) as served:
            with served.channel() as channel:
                assert await in_thread(unary(channel), b"local", timeout=5) == b"local"
                _, call = await in_thread(
                    unary(channel, "/inference.GRPCInferenceService/ServerLive").with_call, b"", timeout=5
                )
                assert dict(call.trailing_metadata())["peer"] == "unix:"
