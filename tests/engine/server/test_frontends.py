"""A frontend holds its socket and its connections, even if the listener that accepts them crashes."""

import errno
import os
import socket
from functools import partial
from typing import Any, cast

import pytest
import trio

from actors.supervision.spec import Intensity
from actors.supervision.supervisor import Supervisor
from actors.values.events import Event
from engine.server.frontends import Frontend
from engine.server.sockets import bind, unix_listening
from protocols.http.listener import HttpListener
from tests.protocols.flaky_sockets import Flaky
from tests.support.logged import Logged
from tests.support.trees import serving, settled, states


class Greeter:
    """A listener that greets each connection, echoes its input, and crashes when the test says so."""

    def __init__(self):
        self.serving = trio.Event()
        self.closed = False
        self._crash = trio.Event()
        self._open = 0
        self._draining = trio.Event()
        self._ended = trio.Event()

    async def serve(self, sock, spawn, *, on_exhausted=None, task_status=trio.TASK_STATUS_IGNORED):
        self._crash = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, sock, spawn)
            nursery.start_soon(self._crash_when_told)
            task_status.started()
            self.serving.set()
            await self.wait_drained()
            nursery.cancel_scope.cancel()

    async def _accept(self, sock, spawn):
        listening = trio.socket.from_stdlib_socket(sock)
        while not self._draining.is_set():
            accepted, _ = await listening.accept()
            self._open += 1
            spawn(f"connection-{self._open}", partial(self._connection, trio.SocketStream(accepted)))

    async def _crash_when_told(self):
        await self._crash.wait()
        raise RuntimeError("the listener crashes on cue")

    async def _connection(self, stream):
        async with stream:
            await stream.send_all(b"hello")
            async for said in stream:
                await stream.send_all(said)
        self._open -= 1
        self._look()

    def crash(self):
        self._crash.set()

    def drain(self):
        self._draining.set()
        self._look()

    def _look(self):
        if self._draining.is_set() and not self._open:
            self._ended.set()

    async def wait_drained(self):
        await self._ended.wait()

    def close(self):
        self.closed = True


@pytest.fixture
def log():
    return Logged()


@pytest.fixture
def greeter():
    return Greeter()


@pytest.fixture(params=["tcp", "unix"])
def frontend(request, tmp_path, greeter, log):
    context = bind("127.0.0.1", 0) if request.param == "tcp" else unix_listening(str(tmp_path / "s"))
    with context as sock:
        yield Frontend("greet", "GreetingService", sock, greeter, log=log)


def tree_of(frontend):
    return Supervisor([frontend.spec()], intensity=Intensity(3, 60.0))


async def connect(frontend):
    if frontend.address.startswith("unix:"):
        stream = await trio.open_unix_socket(frontend.address.removeprefix("unix:"))
    else:
        stream = await trio.open_tcp_stream("127.0.0.1", frontend.port)
    assert await stream.receive_some() == b"hello"
    return stream


async def echo(stream, word):
    await stream.send_all(word)
    return await stream.receive_some()


async def test_it_says_where_it_listens_and_shows_it_in_the_tree(frontend, greeter, log):
    async with serving(tree_of(frontend)) as tree:
        about = {"service": "GreetingService", "address": frontend.address}
        assert log == [(Event.LISTENER_OPENED, "info", about)]
        assert tree.root.tree().find("greet/listener").info["address"] == frontend.address
        frontend.close()
    assert greeter.closed


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_an_ipv6_address_is_told_in_brackets_as_clients_take_it(greeter, log):
    with bind("::1", 0) as sock:
        frontend = Frontend("greet", "GreetingService", sock, greeter, log=log)
        assert frontend.address == f"[::1]:{frontend.port}"


async def test_a_listener_that_can_accept_nothing_for_now_is_a_warning(log):
    exhausted = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with bind("127.0.0.1", 0) as sock:
        frontend = Frontend(
            "web", "HTTPService", cast("Any", Flaky(sock, [exhausted] * 2)), HttpListener(answer), log=log
        )
        async with (
            serving(tree_of(frontend)),
            await trio.open_tcp_stream("127.0.0.1", frontend.port) as client,
        ):
            await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            with trio.fail_after(10):
                assert (await client.receive_some()).startswith(b"HTTP/1.1 204")
        frontend.close()
    about = {"service": "HTTPService", "address": frontend.address, "error": os.strerror(errno.EMFILE)}
    assert log[1:] == [(Event.LISTENER_EXHAUSTED, "warning", about)]


async def test_a_connection_is_a_child_of_its_own(frontend):
    async with serving(tree_of(frontend)) as tree, await connect(frontend):
        assert "greet/connections/connection-1" in states(tree.root.tree())


async def test_a_listener_that_crashes_costs_neither_the_socket_nor_a_connection(frontend, greeter):
    async with serving(tree_of(frontend)), await connect(frontend) as before:
        greeter.serving = trio.Event()
        greeter.crash()
        with trio.fail_after(10):
            await greeter.serving.wait()
        assert await echo(before, b"still here") == b"still here"
        async with await connect(frontend) as after:
            assert await echo(after, b"new") == b"new"


async def test_draining_it_refuses_new_connections_and_waits_for_those_it_has(frontend, log):
    async with serving(tree_of(frontend)), trio.open_nursery() as nursery:
        connection = await connect(frontend)
        drained = trio.Event()

        async def drain():
            await frontend.drain()
            drained.set()

        nursery.start_soon(drain)
        await settled()
        about = {"service": "GreetingService", "address": frontend.address}
        assert log[-1] == (Event.LISTENER_CLOSED, "info", about)
        with pytest.raises(OSError, match=r"refused|attempts to connect"):
            await connect(frontend)
        assert not drained.is_set()
        assert await echo(connection, b"more") == b"more"
        await connection.aclose()
        with trio.fail_after(10):
            await drained.wait()
