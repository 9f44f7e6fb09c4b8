"""The ASGI application under both kinds of server, without one: the test is the server."""

from __future__ import annotations

import asyncio  # noqa: TID251  # hypercorn's default worker runs on it
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import structlog
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from engine.asgi import Application
from engine.server.hosting import ONE_PROCESS
from tests.support.operators import clean_environ

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def restore_logging():
    yield
    structlog.reset_defaults()


@pytest.fixture
def environ(tmp_path):
    return {
        "TRITIUM_MODEL_REPOSITORY": str(tmp_path),
        "TRITIUM_ALLOW_METRICS": "false",
        "TRITIUM_ALLOW_GRPC": "false",
        "TRITIUM_LOG_INFO": "false",
    }


class Lifespan:
    """The server's end of an application's lifespan, on trio or asyncio alike: it never waits by itself."""

    def __init__(self, app, event):
        self.app = app
        self.sent = []
        self._event = event  # trio.Event or asyncio.Event
        self.started = event()
        self._stop = event()
        self._received = 0

    async def receive(self):
        self._received += 1
        if self._received == 1:
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, message):
        self.sent.append(message)
        self.started.set()

    async def run(self):
        await self.app({"type": "lifespan"}, self.receive, self.send)
        self.started.set()

    def stop(self):
        self._stop.set()


async def get(app, path, *, receive=None, **scope):
    sent = []
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def empty_body():
        if messages:
            return messages.pop()
        if trio.lowlevel.in_trio_run():
            await trio.sleep_forever()
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    about = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
    scope = about | scope
    await app(scope, receive or empty_body, send)
    if not sent:
        return None
    start, body = sent
    return start["status"], body["body"]


@asynccontextmanager
async def on_trio(app):
    lifespan = Lifespan(app, trio.Event)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        await lifespan.started.wait()
        yield lifespan
        lifespan.stop()


@asynccontextmanager
async def on_asyncio(app):
    lifespan = Lifespan(app, asyncio.Event)
    task = asyncio.create_task(lifespan.run())
    await lifespan.started.wait()
    yield lifespan
    lifespan.stop()
    await task


def run_on(loop, test):
    """Run `test(server)` on trio or asyncio, `server` being what makes an application live."""
    if loop == "trio":
        trio.run(test, on_trio)
    else:
        asyncio.run(test(on_asyncio))


both_loops = pytest.mark.parametrize("loop", ["trio", "asyncio"])


def types(lifespan):
    return [message["type"] for message in lifespan.sent]


@both_loops
def test_the_engine_lives_from_startup_to_shutdown(environ, loop):
    async def test(server):
        app = Application(environ)
        async with server(app) as lifespan:
            assert types(lifespan) == ["lifespan.startup.complete"]
            assert await get(app, "/v2/health/live") == (200, b"")
            status, body = await get(app, "/v2/nothing")
            assert (status, body) == (404, b'{"error":"Not Found"}')
            status, tree = await get(app, "/v2/tritium/tree")
            assert b'"catalog"' in tree
        assert types(lifespan) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    run_on(loop, test)


def grpc_says_live(address):
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30).live


@both_loops
@pytest.mark.slow
def test_grpc_has_a_port_of_its_own(environ, loop):
    places = {"TRITIUM_GRPC_ADDRESS": "127.0.0.1", "TRITIUM_GRPC_PORT": "0", "TRITIUM_ALLOW_GRPC": "true"}
    in_thread = trio.to_thread.run_sync if loop == "trio" else asyncio.to_thread

    async def test(server):
        app = Application(environ | places)
        async with server(app):
            _, tree = await get(app, "/v2/tritium/tree")
            (address,) = re.findall(r'"address": ?"(127\.0\.0\.1:\d+)"', tree.decode())
            assert await in_thread(grpc_says_live, address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address.split(":")).close()

    run_on(loop, test)


@both_loops
def test_each_client_behind_a_trusted_proxy_has_a_share_of_its_own(environ, loop):
    limits = {
        "TRITIUM_TRUSTED_PROXIES": "10.0.0.0/8",
        "TRITIUM_PROXY_PROTOCOL": "http",
        "TRITIUM_MAX_REQUESTS_PER_SECOND_PER_ADDRESS": "0.0001",
    }

    async def test(server):
        app = Application(environ | limits)

        async def status(peer, told):
            headers = [(b"x-forwarded-for", told)] if told else []
            code, _ = await get(app, "/v2", client=(peer, 4711), headers=headers)
            return code

        async with server(app):
            asked = [
                ("10.0.0.1", b"203.0.113.1"),
                ("10.0.0.2", b"203.0.113.1"),
                ("203.0.113.1", b""),
                ("10.0.0.2", b"203.0.113.2"),
                ("10.0.0.1", b""),
                ("198.51.100.1", b"203.0.113.3"),
                ("198.51.100.1", b"203.0.113.4"),
            ]
            found = [await status(*each) for each in asked]
            assert found == [200, 429, 429, 200, 200, 200, 429]
            code, _ = await get(app, "/v2", client=None)  # on a Unix socket
            assert code == 200

    run_on(loop, test)


@both_loops
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TRITIUM_HTTP_PORT": "many"}, "Invalid option value. Got many"),
        ({"TRITIUM_MODEL_REPOSITORY": "/nowhere/at/all"}, "repository path is not a valid directory"),
        (
            {
                "TRITIUM_ALLOW_GRPC": "true",
                "TRITIUM_GRPC_USE_SSL": "true",
                "TRITIUM_GRPC_SERVER_CERT": "/nowhere/server.pem",
                "TRITIUM_GRPC_SERVER_KEY": "/nowhere/server.key",
            },
            "--grpc-server-cert: '/nowhere/server.pem' can't be read: No such file or directory",
        ),
        (
            {
                "TRITIUM_HTTP_USE_SSL_MUTUAL": "optional",
                "TRITIUM_HTTP_SERVER_CERT": "server.pem",
                "TRITIUM_HTTP_SERVER_KEY": "server.key",
                "TRITIUM_HTTP_ROOT_CERT": "ca.pem",
            },
            "give hypercorn --certfile and --keyfile",
        ),
    ],
)
def test_a_server_that_can_not_start_says_why(environ, loop, change, message):
    async def test(server):
        app = Application(environ | change)
        async with server(app) as lifespan:
            (sent,) = lifespan.sent
            assert sent["type"] == "lifespan.startup.failed"
            assert message in sent["message"]

    run_on(loop, test)


async def test_a_server_without_a_lifespan_is_told_so(environ):
    with pytest.raises(RuntimeError, match="needs the ASGI lifespan"):
        await get(Application(environ), "/v2")


@pytest.mark.system
@pytest.mark.slow
def test_a_kubernetes_service_called_tritium_does_not_keep_hypercorn_from_serving(environ):
    kubernetes = {"TRITIUM_SERVICE_HOST": "10.0.0.7", "TRITIUM_PORT": "tcp://10.0.0.7:8000"}
    with subprocess.Popen(
        [sys.executable, "-m", "hypercorn", "-b", "127.0.0.1:0", "engine.asgi"],
        cwd=ROOT,
        env=clean_environ() | environ | kubernetes | {"TRITIUM_HTTP_PROT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said: list[str] = []
        for line in process.stdout or ():
            said.append(line)
            if "Running on" in line:
                break
        process.terminate()
        said += process.stdout or ()
    assert "Running on" in "".join(said)
    assert [line for line in said if "no setting" in line and "TRITIUM_HTTP_PORT?" in line]
    assert "TRITIUM_SERVICE_HOST" not in "".join(said)
    assert process.returncode == 0


async def test_websockets_are_turned_away(environ):
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    await Application(environ)({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.system
@pytest.mark.slow
def test_more_than_one_worker_is_refused_with_advice(environ):
    refused = subprocess.run(
        [sys.executable, "-m", "hypercorn", "-w", "2", "-b", "127.0.0.1:0", "engine.asgi"],
        cwd=ROOT,
        env=clean_environ() | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    # The test is that it ended at all. Its status is 0: hypercorn 0.18 forgets its workers' statuses.
    assert ONE_PROCESS in refused.stderr
