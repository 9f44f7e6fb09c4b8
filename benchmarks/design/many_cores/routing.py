"""What it costs to bring a request to the process that owns its model, if several servers share the models.

    python -m benchmarks.design.many_cores.routing proxy PORT     # serves; prints the port it has

Three ways are measured: a proxy in front, which reads a request's head and passes all of it on; a
connection that is handed over with its descriptor; and how evenly the kernel spreads connections over
listeners that share a port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import httptools
import trio

_RECEIVE: Final = 256 * 1024
_PEEKED: Final = 4096


class _Messages:
    """Notes the ends of messages, and the path of a request: the model is in it."""

    def __init__(self) -> None:
        self.complete: deque[bytes] = deque()
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_message_complete(self) -> None:
        self.complete.append(self._path)
        self._path = b""


async def _relay(client: trio.SocketStream, port: int) -> None:
    """Pass the requests of one connection on, one after the other, and their answers back."""
    upstream = await trio.open_tcp_stream("127.0.0.1", port)
    requests, answers = _Messages(), _Messages()
    reading, answering = httptools.HttpRequestParser(requests), httptools.HttpResponseParser(answers)
    async with client, upstream:
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await client.receive_some(_RECEIVE):
                reading.feed_data(data)
                await upstream.send_all(data)
                while requests.complete:
                    requests.complete.popleft()  # a router would choose the owner by this path
                    while not answers.complete:
                        part = await upstream.receive_some(_RECEIVE)
                        answering.feed_data(part)
                        await client.send_all(part)
                    answers.complete.popleft()


async def proxy(port: int) -> None:
    """Serve in front of a server at `port` until killed; print the port."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    for listener in listeners:
        print(listener.socket.getsockname()[1], flush=True)

    async def relay(client: trio.SocketStream) -> None:
        await _relay(client, port)

    await trio.serve_listeners(relay, listeners)


def handed_over(count: int) -> tuple[float, float]:
    """Hand connections to a child as they come; return CPU µs a connection here, and in the child.

    The head of the first request is looked at without taking it, as a router would for the model's name.
    Opening the connections is no part of the figures.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        _take_over(here, there, count)
    there.close()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        spent = 0
        for _ in range(count):
            client = socket.create_connection(listening.getsockname())
            client.sendall(b"POST /v2/models/onnx_add_sub/infer HTTP/1.1\r\nHost: a\r\n\r\n")
            began = time.thread_time_ns()
            accepted, _ = listening.accept()
            head = accepted.recv(_PEEKED, socket.MSG_PEEK)
            assert head.split(b" ", 2)[1].startswith(b"/v2/models/")
            socket.send_fds(here, [b"h"], [accepted.fileno()])
            accepted.close()
            spent += time.thread_time_ns() - began
            client.close()
    theirs = int(here.recv(64))
    here.close()
    os.waitpid(child, 0)
    return spent / count / 1e3, theirs / count / 1e3


def _take_over(here: socket.socket, there: socket.socket, count: int) -> None:
    """Be the child: take connections, and tell how long that took."""
    try:
        here.close()
        spent = 0
        for _ in range(count):
            there.recv(1, socket.MSG_PEEK)  # what waits is no part of it
            began = time.thread_time_ns()
            _, descriptors, _, _ = socket.recv_fds(there, 1, 1)
            taken = socket.socket(fileno=descriptors[0])
            taken.setblocking(False)
            spent += time.thread_time_ns() - began
            taken.close()
        there.send(str(spent).encode())
    finally:
        os._exit(0)


def shares(listeners: int, connections: int) -> list[int]:
    """Return how many of so many connections each listener on a shared port got."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096, reuse_port=True))
        port = first.getsockname()[1]
        every = [first]
        every += [
            stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=4096, reuse_port=True))
            for _ in range(listeners - 1)
        ]
        for _ in range(connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        counts: Counter[int] = Counter()
        for number, listening in enumerate(every):
            listening.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    stack.enter_context(listening.accept()[0])
                    counts[number] += 1
        return [counts[number] for number in range(listeners)]


def main(argv: Sequence[str]) -> None:
    """Serve as a proxy."""
    trio.run(proxy, int(argv[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
