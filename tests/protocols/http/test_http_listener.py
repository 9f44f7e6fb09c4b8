"""The native listener over real sockets, in the clear and over TLS. Time is virtual where it matters."""

# ruff: noqa: ASYNC110  # the kernel does part of the work, and has no event to wait for

import errno
import json
import math
import socket
import ssl
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from engine.server.tls import HTTP_1
from protocols.http.app import V2App
from protocols.http.listener import HttpListener, ListenerLimits
from protocols.http.parser import RequestLimits
from protocols.http.patience import ConnectionLimits, Phase
from protocols.transport.room import LAST_CALL, reserve
from tests.protocols.fakes import FakeServer
from tests.protocols.flaky_sockets import Flaky
from tests.support.certificates import Authority
from tests.support.garbage import uncollected

HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
HALF_A_REQUEST = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
LIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LIVE_LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Client:
    def __init__(self, sock):
        self.socket = sock
        self.pending = b""

    async def send(self, data):
        view = memoryview(data)
        while view:
            view = view[await self.socket.send(view) :]

    async def receive(self, size):
        """Return exactly `size` bytes."""
        while len(self.pending) < size:
            part = await self.socket.recv(262144)
            assert part, f"closed after {self.pending!r}"
            self.pending += part
        taken, self.pending = self.pending[:size], self.pending[size:]
        return taken

    async def receive_all(self):
        """Return everything up to the end of the connection."""
        while part := await self.socket.recv(262144):
            self.pending += part
        taken, self.pending = self.pending, b""
        return taken

    async def response(self):
        """Return status, headers and body of one answer."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await self.receive(1)
        line, *lines = head.decode().rstrip("\r\n").split("\r\n")
        fields = dict(field.split(": ", 1) for field in lines)
        return int(line.split()[1]), fields, await self.receive(int(fields.get("Content-Length", 0)))

    async def closed(self):
        """Whether the server has closed, or closes now."""
        try:
            return await self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


class TlsSocket:
    """The client's side of TLS, with as much of a socket as the tests use."""

    def __init__(self, sock, stream):
        self.raw = sock
        self.stream = stream
        self.setsockopt = sock.setsockopt
        self.shutdown = sock.shutdown

    @classmethod
    async def over(cls, sock, context):
        stream = trio.SSLStream(
            trio.SocketStream(sock), context, server_hostname="localhost", https_compatible=True
        )
        await stream.do_handshake()
        return cls(sock, stream)

    async def send(self, data):
        await self.stream.send_all(data)
        return len(data)

    async def recv(self, size):
        try:
            return await self.stream.receive_some(size)
        except trio.BrokenResourceError:
            raise ConnectionResetError from None


class Served:
    client = Client

    def __init__(self, listener, sock, spawned, tls=None):
        self.tls = tls  # what clients speak TLS with
        self.listener = listener
        self.socket = sock
        self.address = sock.getsockname()
        self.spawned = spawned

    @asynccontextmanager
    async def connect(self, first=b"", **options):
        """Connect. `first` is here before the server accepts: who sends nothing yet may have to make room."""
        raw = socket.socket()
        for option, value in options.items():
            raw.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
        if first:
            raw.connect(self.address)
            raw.sendall(first)
        sock = trio.socket.from_stdlib_socket(raw)
        with sock:
            if not first:
                await sock.connect(self.address)
            if self.tls is None:
                yield self.client(sock)
            else:
                yield self.client(await TlsSocket.over(sock, self.tls))

    async def until(self, condition):
        """Let the listener work until `condition(statistics)` holds."""
        with trio.fail_after(5):
            while not condition(self.listener.statistics()):
                await trio.lowlevel.checkpoint()


@pytest.fixture
def backend():
    return FakeServer()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """What a server and its clients speak TLS with."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return authority.tls_of("server", HTTP_1).context, ssl.create_default_context(cafile=authority.root)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def secured(request):
    """None, or what a server and its clients speak TLS with."""
    return request.getfixturevalue("tls") if request.param else None


@pytest.fixture
def serve(request, backend, secured):
    patience = math.inf if "autojump_clock" in request.fixturenames else 20

    @asynccontextmanager
    async def serve(app=None, *, limits=None):
        with trio.fail_after(patience):
            async with serve_on_loopback(app or V2App(backend.server), limits, tls=secured) as served:
                yield served

    return serve


in_the_clear = pytest.mark.parametrize("secured", [False], ids=["plain"], indirect=True)


def serving(**kwargs):
    """Have the listener of a test made in another way than usual."""
    return pytest.mark.parametrize("served", [kwargs], indirect=True, ids=[""])


@pytest.fixture
async def served(request, serve):
    async with serve(**getattr(request, "param", {})) as served:
        yield served


@pytest.fixture
async def client(served):
    async with served.connect() as client:
        yield client


@asynccontextmanager
async def serve_on_loopback(app, limits, served=Served, *, tls=None, **options):
    ours, theirs = tls or (None, None)
    listener = HttpListener(
        app,
        limits=limits,
        **options,
        admit=getattr(app, "admit", None),
        tls=ours and (lambda: ours),
        direct=getattr(app, "direct", None),
    )
    spawned = []
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with trio.open_nursery() as nursery:

            def spawn(name, run):
                spawned.append(name)
                nursery.start_soon(run, name=name)

            await nursery.start(listener.serve, sock, spawn)
            yield served(listener, sock, spawned, theirs)
            nursery.cancel_scope.cancel()
    listener.close()


@pytest.fixture
def listener(backend):
    listener = HttpListener(V2App(backend.server))
    yield listener
    listener.close()


@pytest.fixture
def sock():
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def impatient(**limits):
    return ListenerLimits(connection=ConnectionLimits(**limits))


def infer(model="held", value=5):
    document = {
        "inputs": [{"name": "X", "datatype": "INT64", "shape": [1], "data": [value]}],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    body = json.dumps(document).encode()
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (
        model.encode(),
        len(body),
        body,
    )


# Requests and answers


async def test_a_connection_answers_one_request_after_the_other(client):
    for _ in range(3):
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE


async def test_a_connection_that_ended_leaves_nothing_to_the_garbage_collector(served):
    with uncollected() as left:
        async with served.connect() as client:
            await client.send(infer("add") + HEALTH)
            await client.receive(len(LIVE))
        await served.until(lambda now: not any(now.phases.values()))
        await trio.testing.wait_all_tasks_blocked()
    assert left == []


async def test_pipelined_requests_are_answered_in_order(client):
    await client.send((HEALTH + b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n") * 500)
    for _ in range(500):
        assert (await client.response())[0] == 200
        assert (await client.response())[0] == 404


@pytest.mark.parametrize(
    ("head", "answer", "stays"),
    [
        (b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n", LIVE, True),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", LIVE_LAST, False),
        (b"GET /v2/health/live HTTP/1.0\r\n\r\n", LIVE_LAST, False),
        (
            b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
            True,
        ),
    ],
)
async def test_connections_are_kept_by_the_rules_of_http(head, answer, stays, client):
    await client.send(head)
    assert await client.receive(len(answer)) == answer
    if stays:
        await client.send(HEALTH)
        assert await client.receive(len(LIVE)) == LIVE
    else:
        assert await client.closed()


async def test_a_client_that_waits_is_told_to_continue(client):
    head, body = infer("zeros", 3).split(b"\r\n\r\n")
    await client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await client.receive(len(interim)) == interim
    await client.send(body)
    assert (await client.response())[0] == 200


async def test_a_head_request_gets_no_body(client):
    await client.send(b"HEAD /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    head = await client.receive_all()
    assert head.startswith(b"HTTP/1.1 405 ")
    assert head.endswith(b"\r\n\r\n")


async def test_header_names_reach_the_application_as_received_too(serve):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["headers"], scope["tritium.raw_headers"], scope["query_string"], scope["path"]))

    async with serve(app) as served, served.connect() as client:
        await client.send(b"GET /a%20b?c=d HTTP/1.1\r\nHost: h\r\nX-Key: V\r\n\r\n")
        assert await client.closed()
    assert seen == [
        ([(b"host", b"h"), (b"x-key", b"V")], [(b"Host", b"h"), (b"X-Key", b"V")], b"c=d", "/a b")
    ]


# Refusals


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"nonsense\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n", 413),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
    ],
)
@serving(
    limits=ListenerLimits(
        connection=ConnectionLimits(request=RequestLimits(max_head_size=8192, max_body_size=1_000_000))
    )
)
async def test_a_refused_request_ends_its_connection_after_those_before_it(message, status, client):
    await client.send(HEALTH + message)
    assert await client.receive(len(LIVE)) == LIVE
    refused, fields, body = await client.response()
    assert refused == status
    assert fields["Connection"] == "close"
    assert fields["Content-Type"] == "application/json"
    assert set(json.loads(body)) == {"error"}
    assert await client.closed()


@serving(limits=ListenerLimits(connection=ConnectionLimits(request=RequestLimits(max_body_size=1000))))
async def test_a_refusal_reaches_a_client_that_is_still_sending(client):
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n")
    await client.send(b"x" * 3_000_000)
    assert (await client.response())[0] == 413


# Applications that fail, and plain ASGI


async def test_an_application_that_crashes_is_answered_500_and_its_exception_goes_to_the_supervisor(serve):
    async def app(scope, receive, send):
        raise ValueError("a bug")

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with serve(app) as served, served.connect() as client:
            await client.send(HEALTH)
            status, fields, body = await client.response()
            assert (status, fields["Connection"]) == (500, "close")
            assert json.loads(body) == {"error": "internal server error"}
            await trio.sleep_forever()
    assert caught.group_contains(ValueError, match="a bug")


async def test_a_standard_answer_in_one_part(serve):
    async def app(scope, receive, send):
        assert (await receive()) == {"type": "http.request", "body": b"abc", "more_body": False}
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"5"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    async with serve(app) as served, served.connect() as client:
        for _ in range(2):
            await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
            status, fields, body = await client.response()
            assert (status, body) == (201, b"hello")
            assert fields == {"Content-Type": "text/plain", "x-own": "1", "Content-Length": "5"}


async def test_a_standard_answer_in_parts_is_chunked(serve):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with serve(app) as served:
        async with served.connect() as client:
            await client.send(HEALTH + HEALTH)
            expected = (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
            )
            assert await client.receive(2 * len(expected)) == expected * 2
        async with served.connect() as client:
            await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert await client.receive_all() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonetwo"


async def test_an_answer_of_known_length_may_come_in_parts(serve):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"cd"})

    async with serve(app) as served, served.connect() as client:
        await client.send(HEALTH + HEALTH)
        for _ in range(2):
            assert await client.response() == (200, {"Content-Length": "4"}, b"abcd")


async def test_an_application_can_wait_for_its_client_to_leave(serve):
    left = trio.Event()

    async def app(scope, receive, send):
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with serve(app) as served:
        async with served.connect() as client:
            await client.send(HEALTH)
            await served.until(lambda s: s.phases.get(Phase.ANSWERING))
        with trio.fail_after(5):
            await left.wait()


# Clients that leave


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_cancels_its_inference(backend, how, served):
    model = backend.model("held")
    async with served.connect() as client:
        await client.send(infer())
        await served.until(lambda s: s.phases.get(Phase.ANSWERING))
        assert len(model.submitted) == 1
        assert model.cancelled == []
        if how == "half-close":
            client.socket.shutdown(socket.SHUT_WR)
            assert await client.closed()
        elif how == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await served.until(lambda s: not s.phases)
    assert model.cancelled == model.submitted


async def test_a_client_that_leaves_does_not_disturb_the_others(serve, backend):
    model = backend.model("held")
    async with serve() as served, served.connect() as stays:
        await stays.send(infer())
        async with served.connect() as leaves:
            await leaves.send(infer())
            await served.until(lambda s: s.phases.get(Phase.ANSWERING) == 2)
        await served.until(lambda s: s.phases.get(Phase.ANSWERING) == 1)
        (cancelled,) = model.cancelled
        (request,) = (request for request in model.submitted if request is not cancelled)
        request.reply.put(model.respond(request, ()), final=True)
        assert (await stays.response())[0] == 200


async def test_a_probe_whose_client_half_closed_is_still_answered(client):
    await client.send(HEALTH)
    client.socket.shutdown(socket.SHUT_WR)
    assert await client.receive_all() == LIVE


# Slow readers

BIG = 16 * 1024 * 1024


async def test_a_slow_reader_of_a_large_answer_holds_no_lease(serve, backend):
    model = backend.model("zeros")
    async with serve() as served, served.connect(SO_RCVBUF=65536) as client:
        await client.send(infer("zeros", BIG))
        await served.until(lambda s: s.phases.get(Phase.WRITING))
        assert model.released == 1
        assert 0 < served.listener.statistics().buffered <= BIG + 1000
        status, fields, body = await client.response()
        assert status == 200
        assert len(body) == BIG + int(fields["Inference-Header-Content-Length"])
        assert model.released == 1
        await served.until(lambda s: s.phases.get(Phase.IDLE))
        assert served.listener.statistics().buffered == 0


async def test_a_reader_that_leaves_amid_a_large_answer_frees_everything(backend, served):
    async with served.connect(SO_RCVBUF=65536) as client:
        await client.send(infer("zeros", BIG))
        await served.until(lambda s: s.phases.get(Phase.WRITING))
    await served.until(lambda s: not s.phases)
    assert served.listener.statistics().buffered == 0
    assert backend.model("zeros").released == 1


async def test_a_reader_that_reads_nothing_is_given_up(serve, backend, autojump_clock):
    async with (
        serve(limits=impatient(grace=60.0, minimum_rate=2.0**20)) as served,
        served.connect(SO_RCVBUF=65536) as client,
    ):
        await client.send(infer("zeros", BIG))
        await served.until(lambda s: s.phases.get(Phase.WRITING))
        started = trio.current_time()
        with trio.move_on_after(1000):
            while served.listener.statistics().phases:
                await trio.sleep(1)
        assert 60 <= trio.current_time() - started <= 80
        with pytest.raises(ConnectionResetError):
            await client.receive(BIG)


# Patience


@serving(limits=impatient(idle_timeout=600.0))
async def test_an_idle_connection_is_closed_in_time(autojump_clock, client):
    await client.send(HEALTH)
    assert await client.receive(len(LIVE)) == LIVE
    started = trio.current_time()
    assert await client.closed()
    assert 600 <= trio.current_time() - started <= 602


@serving(limits=impatient(head_timeout=30.0))
async def test_a_head_that_dribbles_in_is_given_up(autojump_clock, client):
    started = trio.current_time()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n")

    async def dribble():
        for _ in range(100):
            await trio.sleep(5)
            await client.send(b"X: y\r\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        status, _, body = await client.response()
        nursery.cancel_scope.cancel()
    assert (status, json.loads(body)) == (408, {"error": "Request Timeout"})
    assert 30 <= trio.current_time() - started <= 32


@serving(limits=impatient(idle_timeout=100.0))
async def test_empty_lines_do_not_keep_a_connection(autojump_clock, client):
    async with trio.open_nursery() as nursery:

        async def dribble():
            while True:
                await trio.sleep(5)
                await client.send(b"\r\n")

        nursery.start_soon(dribble)
        assert await client.closed()
        nursery.cancel_scope.cancel()
    assert trio.current_time() <= 102


@serving(limits=impatient(grace=60.0, minimum_rate=1024.0))
async def test_a_body_that_dribbles_in_is_given_up(autojump_clock, client):
    await client.send(b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")

    async def dribble():
        while True:
            await trio.sleep(5)
            await client.send(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        assert (await client.response())[0] == 408
        nursery.cancel_scope.cancel()
    assert 60 <= trio.current_time() <= 62


@serving(limits=impatient(grace=10.0, minimum_rate=1024.0))
async def test_a_slow_body_that_keeps_the_pace_is_waited_for(autojump_clock, client):
    await client.send(b"POST /v2/models/add/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 102400\r\n\r\n")
    for _ in range(50):
        await trio.sleep(1.9)
        await client.send(b"x" * 2048)
    assert (await client.response())[0] == 500


async def test_a_long_inference_has_no_deadline_of_the_connection_s(serve, backend, autojump_clock):
    async with (
        serve(limits=impatient(idle_timeout=10.0, head_timeout=10.0, grace=10.0)) as served,
        served.connect() as client,
    ):
        await client.send(infer())
        await served.until(lambda s: s.phases.get(Phase.ANSWERING))
        await trio.sleep(10_000)
        model = backend.model("held")
        (request,) = model.submitted
        request.reply.put(model.respond(request, ()), final=True)
        assert (await client.response())[0] == 200


# Draining


async def test_draining_closes_idle_connections_and_finishes_busy_ones(serve, backend):
    model = backend.model("held")
    async with serve() as served, served.connect() as idle, served.connect() as busy:
        await busy.send(infer())
        await served.until(lambda s: s.phases == {Phase.IDLE: 1, Phase.ANSWERING: 1})
        served.listener.drain()
        assert await idle.closed()
        (request,) = model.submitted
        request.reply.put(model.respond(request, ()), final=True)
        status, fields, _ = await busy.response()
        assert (status, fields["Connection"]) == (200, "close")
        assert await busy.closed()
        with trio.fail_after(5):
            await served.listener.wait_drained()
        assert served.listener.statistics().draining


async def test_a_request_that_is_half_here_is_finished_while_draining(served, client):
    await client.send(HEALTH[:10])
    await served.until(lambda s: s.phases.get(Phase.READING))
    served.listener.drain()
    await client.send(HEALTH[10:])
    assert await client.receive_all() == LIVE_LAST


@in_the_clear
@pytest.mark.parametrize("accepted", [False, True], ids=["in the backlog", "accepted"])
async def test_what_was_sent_before_draining_is_answered(accepted, served):
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(served.address)) for _ in range(5)]
        if accepted:
            await served.until(lambda s: s.phases == {Phase.IDLE: 5})
        for client in clients:
            client.sendall(HEALTH)
        served.listener.drain()
        for client in clients:
            answer = await Client(trio.socket.from_stdlib_socket(client)).receive_all()
            assert answer == LIVE_LAST


async def test_requests_that_were_sent_ahead_are_all_answered_before_the_end(backend, served, client):
    model = backend.model("held")
    await client.send(infer() + HEALTH + HEALTH)
    await served.until(lambda s: s.phases == {Phase.ANSWERING: 1})
    served.listener.drain()
    (request,) = model.submitted
    request.reply.put(model.respond(request, ()), final=True)
    status, fields, _ = await client.response()
    assert (status, "Connection" in fields) == (200, False)
    assert await client.receive_all() == LIVE + LIVE_LAST


@pytest.mark.parametrize("before", [True, False], ids=["begun before", "found as it begins"])
async def test_a_head_that_never_becomes_whole_holds_up_the_end_for_seconds_only(
    autojump_clock, before, served, client
):
    if not before:
        await served.until(lambda s: s.phases == {Phase.IDLE: 1})
    await client.send(HEALTH[:10])
    if before:
        await served.until(lambda s: s.phases.get(Phase.READING))
    began = trio.current_time()
    served.listener.drain()
    answer = await client.receive_all()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'{"error":"Server exiting"}' in answer
    assert trio.current_time() - began == pytest.approx(LAST_CALL, abs=1.5)


@pytest.mark.parametrize("sent", [0, 500, 500_000])
@pytest.mark.parametrize("before", [True, False], ids=["begun before", "begun while it drains"])
async def test_a_body_that_never_becomes_whole_holds_up_the_end_for_seconds_only(
    autojump_clock, before, sent, served, client
):
    head, rest = HALF_A_REQUEST[:10], HALF_A_REQUEST[10:] + b"x" * sent
    await client.send(head)
    await served.until(lambda s: s.phases.get(Phase.READING))
    if before:
        await client.send(rest)
        await trio.sleep(20)
    began = trio.current_time()
    served.listener.drain()
    if not before:
        await client.send(rest)
    answer = await client.receive_all()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'{"error":"Server exiting"}' in answer
    assert trio.current_time() - began == pytest.approx(LAST_CALL, abs=1.5)
    with trio.fail_after(5):
        await served.listener.wait_drained()


async def test_a_body_that_dribbles_in_holds_up_the_end_for_seconds_only(autojump_clock, served, client):
    await client.send(HALF_A_REQUEST + b"x" * 500)
    await served.until(lambda s: s.phases.get(Phase.READING))
    began = trio.current_time()
    served.listener.drain()

    async def dribble():
        while True:
            await trio.sleep(1)
            await client.send(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        assert (await client.response())[0] == 503
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(LAST_CALL, abs=1.5)


async def test_a_body_that_keeps_the_pace_is_served_while_draining(backend, autojump_clock, served, client):
    model = backend.model("held")
    head, _, body = infer().partition(b"\r\n\r\n")
    padding = b" " * 40_000  # which JSON does not mind
    whole = head.replace(
        b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) + len(padding))
    )
    await client.send(whole + b"\r\n\r\n")
    await served.until(lambda s: s.phases.get(Phase.READING))
    served.listener.drain()
    for at in range(0, len(padding), 2000):
        await trio.sleep(1.9)
        await client.send(padding[at : at + 2000])
    await client.send(body)
    await served.until(lambda _: model.submitted)
    (request,) = model.submitted
    request.reply.put(model.respond(request, ()), final=True)
    status, fields, _ = await client.response()
    assert (status, fields["Connection"]) == (200, "close")


async def test_a_listener_that_crashes_while_it_drains_serves_on_without_its_socket(listener, sock):
    with trio.fail_after(5):
        async with trio.open_nursery() as first_life:
            await first_life.start(listener.serve, sock, lambda name, run: first_life.start_soon(run))
            first_life.cancel_scope.cancel()
        listener.drain()
        sock.close()
        await listener.serve(sock, lambda name, run: None)
        assert listener.statistics().accepted == 0


@serving(limits=ListenerLimits(max_connections=2))
async def test_nobody_else_is_let_in_than_there_is_room_for_when_draining_begins(served):
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(socket.create_connection(served.address)).sendall(HEALTH)
        served.listener.drain()
        await served.listener.wait_drained()
        assert served.listener.statistics().accepted <= 2 + reserve(2)


@in_the_clear
async def test_nothing_is_accepted_while_draining(served):
    served.listener.drain()
    await served.listener.wait_drained()
    async with served.connect() as late:
        await late.send(HEALTH)
        with trio.move_on_after(0.05) as scope:
            await late.response()
        assert scope.cancelled_caught
    assert served.spawned == []


async def test_serving_ends_once_drained(listener, sock):
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.serve, sock, lambda name, run: nursery.start_soon(run))
            listener.drain()


# Accepting


@pytest.mark.parametrize(
    ("code", "pause"), [(errno.EMFILE, 0.1), (errno.ENFILE, 0.1), (errno.ECONNABORTED, 0.0)]
)
async def test_a_failing_accept_is_tried_again(listener, sock, autojump_clock, code, pause):
    flaky = Flaky(sock, [OSError(code, "no")])
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, flaky, lambda name, run: nursery.start_soon(run))
        client = await trio.open_tcp_stream(*sock.getsockname())
        await client.send_all(HEALTH)
        assert await client.receive_some() == LIVE
        assert trio.current_time() == pytest.approx(pause, abs=0.01)
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_exhaustion_is_told_once_a_minute(listener, sock, autojump_clock):
    told = []
    flaky = Flaky(sock, [OSError(errno.EMFILE, "no")] * 1199 + [OSError(errno.ECONNABORTED, "gone")])

    def tell(failure):
        told.append((failure.errno, round(trio.current_time() / 60)))

    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(listener.serve, on_exhausted=tell), flaky, lambda name, run: nursery.start_soon(run)
        )
        async with await trio.open_tcp_stream(*sock.getsockname()) as client:
            await client.send_all(HEALTH)
            assert await client.receive_some() == LIVE
        nursery.cancel_scope.cancel()
    assert told == [(errno.EMFILE, 0), (errno.EMFILE, 1)]


async def test_a_listening_socket_that_is_broken_ends_the_listener(listener, sock):
    flaky = Flaky(sock, [OSError(errno.EBADF, "no")])
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.serve, flaky, lambda name, run: nursery.start_soon(run))
    assert caught.group_contains(OSError, match="no")


async def test_a_listener_that_is_served_again_keeps_its_connections(listener, sock, backend, nursery):

    def spawn(name, run):
        nursery.start_soon(run)

    async with trio.open_nursery() as first_life:
        await first_life.start(listener.serve, sock, spawn)
        client = await trio.open_tcp_stream(*sock.getsockname())
        await client.send_all(infer())
        while not backend.model("held").submitted:
            await trio.lowlevel.checkpoint()
        first_life.cancel_scope.cancel()
    async with trio.open_nursery() as second_life:
        await second_life.start(listener.serve, sock, spawn)
        await client.aclose()
        with trio.fail_after(5):
            while listener.statistics().phases:
                await trio.lowlevel.checkpoint()
        second_life.cancel_scope.cancel()
    assert len(backend.model("held").cancelled) == 1


async def test_a_spawn_that_fails_leaves_no_connection_behind(listener, sock):

    def spawn(name, run):
        raise RuntimeError("not running")

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.serve, sock, spawn)
            async with await trio.open_tcp_stream(*sock.getsockname()) as client:
                await client.receive_some()
    assert caught.group_contains(RuntimeError)
    assert listener.statistics().phases == {}
