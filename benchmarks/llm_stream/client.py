"""A client of many streams, on plain sockets: `python -m benchmarks.llm_stream.client …`, in its own process.

Each connection asks for one stream after the other. The times are taken where the bytes come out of the
socket, before anything is done with them. It prints one line of JSON: the fields of `Timing`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import selectors
import socket
import sys
import time
from typing import Final

from benchmarks.llm_stream.timing import Timing, Watched

_CLOCK: Final = time.perf_counter
_TOKEN: Final = re.compile(rb'"(?:content|text)":\s*"[^"]')
_DONE: Final = b"data: [DONE]"
_END: Final = b"0\r\n\r\n"
_PATIENCE: Final = 30.0  # seconds without any byte, after which all is over


def request(path: str, model: str, tokens: int, prompt: str) -> bytes:
    """Return a request for a stream of so many tokens."""
    document: dict[str, object] = {
        "model": model,
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0.0,
    }
    if path.endswith("/chat/completions"):
        document["messages"] = [{"role": "user", "content": prompt}]
    else:
        document["prompt"] = prompt
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Reader:
    """Reads answers of one connection. Pure."""

    __slots__ = ("_held", "done", "over", "status")

    def __init__(self) -> None:
        self._held = b""
        self.status = 0
        self.done = False  # the last event has come
        self.over = False  # the answer has

    def feed(self, data: bytes) -> tuple[int, int]:
        """Return how many events, and how many of them with text, have come whole with `data`."""
        held = self._held + data
        if not self.status:
            head, found, held = held.partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return 0, 0
            self.status = int(head[9:12])
        if self.status != 200:
            self._held = held
            return 0, 0
        *events, held = held.split(b"\n\n")
        count = tokens = 0
        for event in events:
            if _DONE in event:
                self.done = True
            elif b"data: " in event:
                count += 1
                tokens += _TOKEN.search(event) is not None
        self._held = held
        self.over = self.done and held.endswith(_END)
        return count, tokens

    @property
    def rest(self) -> bytes:
        """What has come and was not read: of an answer that is an error, its body."""
        return self._held


class Load:
    """All connections."""

    def __init__(self, address: tuple[str, int], asked: bytes, streams: int, *, again: bool) -> None:
        self.timing = Timing()
        self._asked = asked
        self._again = again
        self._selector = selectors.EpollSelector()
        self._open: dict[socket.socket, tuple[Reader, Watched]] = {}
        for _ in range(streams):
            sock = socket.create_connection(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)
            self._ask(sock)

    def _ask(self, sock: socket.socket) -> None:
        self._open[sock] = Reader(), Watched(self.timing, _CLOCK())
        sock.sendall(self._asked)

    def run(self, seconds: float) -> None:
        """Read until the time is up, or nothing is asked for any more."""
        began = _CLOCK()
        until = began + seconds
        while self._open and (left := until - _CLOCK()) > 0:
            ready = self._selector.select(min(left, _PATIENCE))
            if not ready and left > _PATIENCE:
                self.timing.failures.append(f"nothing came for {_PATIENCE:g} s")
                break
            for key, _ in ready:
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                self._read(sock)
        self.timing.took = _CLOCK() - began

    def _read(self, sock: socket.socket) -> None:
        data = sock.recv(1 << 18)
        now = _CLOCK()
        reader, watched = self._open[sock]
        events, tokens = reader.feed(data)
        self.timing.events += events
        watched.came(tokens, now)
        if reader.over:
            self.timing.streams += 1
            if self._again:
                self._ask(sock)
            else:
                self._close(sock)
        elif not data or reader.status not in (0, 200):
            self.timing.failures.append(f"status {reader.status}: {reader.rest[:300]!r}")
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._open[sock]
        sock.close()


def main() -> int:
    """Make the load that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="Who lights the lamp?")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--once", action="store_true", help="ask for one stream a connection")
    given = parser.parse_args()
    asked = request(given.path, given.model, given.tokens, given.prompt)
    load = Load((given.host, given.port), asked, given.streams, again=not given.once)
    load.run(given.seconds)
    json.dump(dataclasses.asdict(load.timing), sys.stdout)
    return 1 if load.timing.failures else 0


if __name__ == "__main__":
    sys.exit(main())
