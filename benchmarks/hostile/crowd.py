"""Many connections of one client, which do as good as nothing.

    python -m benchmarks.hostile.crowd --port 8000 --kind 'HTTP: half bodies' --count 10000

It is a process of its own, so that it can be killed. Each line on standard input is an order, and each is
answered by a line of JSON: `come` makes the connections, `press` has each send one small piece more at once,
`leave` closes them.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hpack import Encoder

from benchmarks.grpc.blocks import request_headers
from benchmarks.grpc.payloads import framed
from benchmarks.grpc.wire import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from benchmarks.hostile.inputs import FLOATS, infer_path
from protocols.kserve.proto import grpc_service_pb2 as pb

_SERVICE: Final = "/inference.GRPCInferenceService/"
_FRAME: Final = 16 * 1024
_PATIENCE: Final = 10.0
_ANSWERED_AT_ONCE: Final = 64  # connections of a crowd that ask and wait for their answer together


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What each connection of a crowd sends.

    `opening` goes first; where `answered`, the crowd waits for the answer to it. `piece` is what an order to
    press sends: bytes that leave the connection as unfinished as it is.
    """

    opening: bytes = b""
    answered: bool = False
    piece: bytes = b""
    grpc: bool = False


def _http(opening: str, body: bytes = b"") -> bytes:
    return opening.replace("\n", "\r\n").encode() + body


def _called(method: str, *, end: bool = True, data: bytes | None = b"\0\0\0\0\0") -> bytes:
    """Return all that a client sends for its first call, with its message `data`, if any."""
    block = Encoder().encode(request_headers("crowd", _SERVICE + method))
    frames = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block)
    if data is None:
        return frames
    return frames + frame(DATA, END_STREAM if end else 0, 1, data)


def _half_head() -> bytes:
    block = Encoder().encode(request_headers("crowd", _SERVICE + "ServerLive"))
    return PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, block[:20])


_POST: Final = f"POST {infer_path(FLOATS)} HTTP/1.1\nhost: crowd\n"
# The smallest frame that no client is sent away for.
_WINDOW: Final = frame(8, 0, 0, (1).to_bytes(4, "big"))

_LARGE: Final = 256 * 1024  # bytes of a finished body, of which nothing should be kept


def _large_body() -> bytes:
    document = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1]}]' + b" " * _LARGE + b"}"
    return _http(_POST + f"content-length: {len(document)}\n\n", document)


def _large_message() -> bytes:
    request = pb.ModelInferRequest(model_name=FLOATS)
    request.parameters["padding"].string_param = "x" * _LARGE
    request.inputs.add(name="IN", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    data = framed(request.SerializeToString())
    block = Encoder().encode(request_headers("crowd", _SERVICE + "ModelInfer"))
    wide = struct.pack(">HI", 4, 1 << 30)
    frames = [PREFACE, frame(SETTINGS, 0, 0, wide), frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))]
    frames.append(frame(HEADERS, END_HEADERS, 1, block))
    pieces = [data[at : at + _FRAME] for at in range(0, len(data), _FRAME)]
    frames += [frame(DATA, 0, 1, piece) for piece in pieces[:-1]]
    return b"".join([*frames, frame(DATA, END_STREAM, 1, pieces[-1])])


KINDS: Final[Mapping[str, Kind]] = {
    "HTTP: silent": Kind(),
    "HTTP: half heads": Kind(opening=_http(_POST), piece=b"x: y\r\n"),
    "HTTP: half bodies": Kind(
        opening=_http(_POST + "content-length: 2000\n\n", b'{"inputs":[' + b" " * 900), piece=b" "
    ),
    "HTTP: kept": Kind(
        opening=_http("GET /v2/health/live HTTP/1.1\nhost: crowd\n\n"), answered=True, piece=b"GET /"
    ),
    "HTTP: after a large body": Kind(opening=_large_body(), answered=True),
    "gRPC: silent": Kind(grpc=True),
    "gRPC: prefaces": Kind(opening=PREFACE + frame(SETTINGS, 0, 0), piece=_WINDOW, grpc=True),
    "gRPC: after a call": Kind(opening=_called("ServerLive"), answered=True, piece=_WINDOW, grpc=True),
    "gRPC: after a large message": Kind(opening=_large_message(), answered=True, grpc=True),
    "gRPC: open streams": Kind(opening=_called("ModelStreamInfer", data=None), piece=_WINDOW, grpc=True),
    "gRPC: half messages": Kind(
        opening=_called("ModelInfer", end=False, data=b"\0\0\0\x10\0" + b"\0" * 900),
        piece=frame(DATA, 0, 1, b"\0"),
        grpc=True,
    ),
    "gRPC: half heads": Kind(opening=_half_head(), grpc=True),
}


class Crowd:
    """The connections."""

    def __init__(self, port: int, kind: Kind, count: int) -> None:
        self._port, self._kind, self._count = port, kind, count
        self._sockets: list[socket.socket] = []

    def come(self) -> int:
        """Connect, and send what this kind sends first; return how many connections were made."""
        while len(self._sockets) < self._count:
            fresh: list[socket.socket] = []
            for _ in range(min(_ANSWERED_AT_ONCE, self._count - len(self._sockets))):
                try:
                    sock = socket.create_connection(("127.0.0.1", self._port), timeout=_PATIENCE)
                except OSError:
                    return len(self._sockets)
                fresh.append(sock)
                self._send(sock, self._kind.opening)
            if self._kind.answered:
                self._hear(fresh)
            self._sockets += fresh
        return len(self._sockets)

    def press(self) -> int:
        """Send one piece more on each connection; return how many still took it."""
        return sum(self._send(sock, self._kind.piece) for sock in self._sockets)

    def leave(self) -> int:
        """Close all connections."""
        for sock in self._sockets:
            sock.close()
        return len(self._sockets)

    @staticmethod
    def _send(sock: socket.socket, data: bytes) -> bool:
        try:
            sock.sendall(data)
        except OSError:  # the server has ended it
            return False
        return True

    def _hear(self, sockets: list[socket.socket]) -> None:
        """Wait until the whole answer has come on each."""
        poll = select.poll()
        waiting = {sock.fileno(): sock for sock in sockets}
        heard = dict.fromkeys(waiting, b"")
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        while waiting and (ready := poll.poll(_PATIENCE * 1e3)):
            for descriptor, _ in ready:
                try:
                    more = waiting[descriptor].recv(65_536)
                except OSError:
                    more = b""
                heard[descriptor] += more
                if not more or self._whole(heard[descriptor]):
                    poll.unregister(descriptor)
                    del waiting[descriptor]

    def _whole(self, heard: bytes) -> bool:
        """Whether the answer is whole. Over HTTP it is short, and comes in one piece."""
        if not self._kind.grpc:
            return True
        at = 0
        while at + 9 <= len(heard):
            if heard[at + 3] == HEADERS and heard[at + 4] & END_STREAM:
                return True
            at += 9 + int.from_bytes(heard[at : at + 3], "big")
        return False


def main() -> None:
    """Obey until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd(given.port, KINDS[given.kind], given.count)
    orders: Mapping[str, Callable[[], int]] = {"come": crowd.come, "press": crowd.press, "leave": crowd.leave}
    for line in sys.stdin:
        print(json.dumps({"connections": orders[line.strip()]()}), flush=True)


if __name__ == "__main__":
    main()
