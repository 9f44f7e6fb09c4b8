"""Sends one hostile input again and again, each when the one before is answered.

    python -m benchmarks.hostile.attacker --http 8000 --grpc 8001 --sink 9000 \\
        --input 'json: 15 M ones' --core 1

It is a process of its own, on a core of its own. It prints a line of JSON with the input's size when that is
made. Then each line on standard input is an attack, `server 2.0` or `sink 2.0`: the target, and for how many
seconds, 0 for once. At the end of an attack comes a line of JSON: how often the input was sent, and the last
answer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import Final

from hpack import Encoder

from benchmarks.grpc.blocks import request_headers
from benchmarks.grpc.wire import Surprise, UnaryConnection
from benchmarks.hostile.inputs import Hostile
from benchmarks.hostile.languages import everything

_PATIENCE: Final = 60.0  # seconds for one answer
_PIECE: Final = 1 << 20

Send = Callable[[], str]
"""Sends the input once, and returns how it was answered. Raises OSError."""


def _answer_of(sock: socket.socket) -> str:
    """Read one answer over HTTP/1.1, its body dropped; return its first line."""
    read = b""
    while b"\r\n\r\n" not in read:
        more = sock.recv(_PIECE)
        if not more:
            raise OSError("the connection was closed without an answer")
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    fields = head.lower()
    if b"\r\ntransfer-encoding: chunked" in fields:
        end = body[-5:]
        while end != b"0\r\n\r\n":
            end = (end + sock.recv(_PIECE))[-5:]
    else:
        left = int(fields.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0) - len(body)
        while left > 0:
            left -= len(sock.recv(_PIECE)) or left
    if b"\r\nconnection: close" in fields:
        sock.close()
    return head.split(b"\r\n")[0].decode("latin-1")


class OverHttp:
    """One connection after the other, each for as long as the server keeps it."""

    def __init__(self, port: int, hostile: Hostile, body: bytes) -> None:
        fields = "".join(f"{name}: {value}\r\n" for name, value in hostile.headers)
        head = f"{hostile.method} {hostile.path} HTTP/1.1\r\nhost: attacked\r\n{fields}content-length: {len(body)}\r\n\r\n"
        self._head, self._body, self._port = head.encode(), memoryview(body), port
        self._socket: socket.socket | None = None

    def send(self) -> str:
        """Send the input once. An answer that comes before the end of the body counts."""
        if self._socket is None or self._socket.fileno() < 0:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=_PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with suppress(ConnectionResetError, BrokenPipeError):
                self._socket.sendall(self._head)
                for start in range(0, len(self._body), _PIECE):
                    self._socket.sendall(self._body[start : start + _PIECE])
            return _answer_of(self._socket)
        except OSError:
            self._socket.close()
            raise


class OverGrpc:
    """One call at a time."""

    def __init__(self, port: int, hostile: Hostile, body: bytes) -> None:
        self._message = bytes([hostile.compressed]) + len(body).to_bytes(4, "big") + body
        headers = [*request_headers("attacked", hostile.path), *hostile.headers]
        headers += [("grpc-encoding", "gzip")] if hostile.compressed else []
        self._headers, self._port = headers, port
        self._socket: socket.socket | None = None

    def _blocks(self) -> Iterator[bytes]:
        encoder = Encoder()
        yield encoder.encode(self._headers)
        yield from repeat(encoder.encode(self._headers))

    def send(self) -> str:
        """Make one call, on a new connection if there is none."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=_PATIENCE)
            self._wire = UnaryConnection(self._blocks(), self._message, 1)
        wire, sock = self._wire, self._socket
        before = len(wire.latencies)
        wire.fill(time.monotonic())
        try:
            while len(wire.latencies) == before:
                for piece in wire.output:
                    sock.sendall(piece)
                wire.output.clear()
                data = sock.recv(_PIECE)
                if not data:
                    raise OSError("the connection was closed without an answer")
                wire.receive(data, time.monotonic())
        except (OSError, Surprise) as error:
            sock.close()
            self._socket = None
            raise OSError(str(error)) from error
        return wire.failures.most_common(1)[0][0] if wire.failures else "OK"


def main() -> None:
    """Attack for as long as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("--http", "--grpc", "--sink", "--core"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--openai", type=int, default=0)
    parser.add_argument("--input", required=True)
    given = parser.parse_args()
    os.sched_setaffinity(0, {given.core})
    hostile = next(each for each in everything() if each.name == given.input)
    body = hostile.body()
    over = OverGrpc if hostile.grpc else OverHttp
    server = given.openai if hostile.openai else given.grpc if hostile.grpc else given.http
    links = {"server": over(server, hostile, body), "sink": over(given.sink, hostile, body)}
    print(json.dumps({"size": len(body)}), flush=True)
    for line in sys.stdin:
        whom, seconds = line.split()
        print(json.dumps(_attack(links[whom].send, float(seconds))), flush=True)


def _attack(send: Send, seconds: float) -> dict[str, object]:
    sent, answer = 0, ""
    until = time.monotonic() + seconds
    while not sent or time.monotonic() < until:
        sent += 1
        try:
            answer = send()
        except OSError as error:
            answer = f"no answer: {error}"
            # A server that ends connections at once is not to be asked a thousand times a second.
            time.sleep(0.01)
    return {"sent": sent, "answer": answer}


if __name__ == "__main__":
    main()
