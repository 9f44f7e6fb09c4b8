"""A connection of an ending process: unanswered requests are refused, even if the application is busy."""

import errno
import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocols.http.connection import Connection
from protocols.http.patience import ConnectionLimits
from protocols.transport.sockets import PlainTransport


async def never(scope, receive, send):
    await receive()
    await trio.sleep_forever()


async def half(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    await trio.sleep_forever()


async def serve(connection):
    try:
        await connection.serve()
    finally:
        connection.close()


@pytest.fixture
async def client(nursery):
    """Return a client's end, whose request an application has, and the server's connection."""

    async def connect(app, sent=b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n"):
        listening = socket.create_server(("127.0.0.1", 0))
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        listening.close()
        connection = Connection(PlainTransport(theirs), app, ConnectionLimits(), memoryview(bytearray(65536)))
        ours.settimeout(5)
        ours.sendall(sent)
        nursery.start_soon(serve, connection)
        await wait_all_tasks_blocked(0.05)
        return ours, connection

    return connect


def read(sock):
    said = b""
    while part := sock.recv(65536):
        said += part
    sock.close()
    return said


async def test_a_request_without_an_answer_is_refused(client):
    sock, connection = await client(never)
    connection.drain()
    connection.give_up()
    connection.give_up()  # once is enough
    head, _, body = read(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Connection: close" in head
    assert body == b'{"error":"Server exiting"}'


async def test_a_request_that_is_here_in_part_is_refused(client):
    sock, connection = await client(
        never, b"POST /v2 HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nhalf"
    )
    connection.drain()
    connection.give_up()
    await wait_all_tasks_blocked(0.05)
    sock.settimeout(5)
    assert sock.recv(65536).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    sock.close()


async def test_an_answer_that_has_begun_is_left_as_it_is(client):
    sock, connection = await client(half)
    connection.drain()
    connection.give_up()
    said = sock.recv(65536)
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"503" not in said
    sock.close()


class Unreachable(socket.socket):
    """A socket whose client the network has lost."""

    def recv_into(self, buffer, *_):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")


async def test_a_client_that_the_network_lost_crashes_nothing():
    ours, theirs = socket.socketpair()
    with ours, Unreachable(fileno=theirs.detach()) as sock:
        connection = Connection(PlainTransport(sock), never, ConnectionLimits(), memoryview(bytearray(65536)))
        ours.sendall(b"GET")
        with trio.fail_after(5):
            await serve(connection)
