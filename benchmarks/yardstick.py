"""The floor under the figures: an HTTP/1.1 responder on trio and httptools that reads a request and does nothing.

`POST /<n>` reads the whole request and answers 200 with `n` bytes. What a real server costs beyond this one
is the price of its work. What this one costs is the price of Python, trio, the HTTP parser and the kernel on
this machine.

    python -m benchmarks.yardstick --port 0        # prints the port it got, serves until SIGTERM or SIGINT
"""

from __future__ import annotations

import argparse
import signal
from collections import deque
from collections.abc import Sequence

import httptools
import trio

RECEIVE_SIZE = 256 * 1024  # as much as a loopback socket hands over at once


class _Requests:
    """Skips bodies and keeps the paths of the complete requests, in order of arrival."""

    def __init__(self) -> None:
        self.complete: deque[bytes] = deque()
        self._path = b""

    def on_message_begin(self) -> None:
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url  # a path may arrive in pieces

    def on_message_complete(self) -> None:
        self.complete.append(self._path)


def answer(path: bytes) -> bytes:
    """Return the whole answer to a request for `path`: as many bytes as it names, or 404."""
    size = path.removeprefix(b"/")
    if not size.isdigit():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n" % int(
        size
    )
    return head + bytes(int(size))


class Responder:
    """Serves connections; every answer is built once and sent whole, in one write."""

    def __init__(self) -> None:
        self._answers: dict[bytes, bytes] = {}

    def _answer(self, path: bytes) -> bytes:
        if path not in self._answers:
            self._answers[path] = answer(path)
        return self._answers[path]

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer the requests of one connection, in order, until the client closes it."""
        requests = _Requests()
        parser = httptools.HttpRequestParser(requests)
        async with stream:
            try:
                while data := await stream.receive_some(RECEIVE_SIZE):
                    parser.feed_data(data)
                    while requests.complete:
                        await stream.send_all(self._answer(requests.complete.popleft()))
            except (trio.BrokenResourceError, httptools.HttpParserError):
                return  # the load client went away, or it was no HTTP


async def main(port: int) -> None:
    """Serve on 127.0.0.1:`port` (0: any free one, printed) until asked to stop."""
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=1024)
    print(listeners[0].socket.getsockname()[1], flush=True)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, Responder().serve, listeners)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def run(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.yardstick", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    trio.run(main, parser.parse_args(argv).port)


if __name__ == "__main__":
    run()
