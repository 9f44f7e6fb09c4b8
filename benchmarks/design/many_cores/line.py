"""A line between a protocol process and the owner of the models: a ring each way, made by the owner."""

from __future__ import annotations

import os
import pickle
import socket
from dataclasses import dataclass
from typing import Final

from actors.values.specs import ModelSpec
from actors.wire.arena import Segment
from benchmarks.design.many_cores.ring import Ring

RING: Final = 4 * 1024 * 1024
CREDITS: Final = 1024
"""Calls that a protocol process may have open. The ring has room for all their answers: no owner waits."""
LONGEST: Final = RING // CREDITS // 2
"""Bytes of a frame. Larger tensors would travel in segments of their own."""
_SIZE: Final = RING + 4096
_HELLO: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """Both rings, as one of the processes sees them, and the socket that tells of the other's death."""

    sock: socket.socket
    calls: Ring
    answers: Ring


def offer(sock: socket.socket, specs: dict[str, ModelSpec]) -> Line:
    """Make the rings and hand them over to the process that has connected.

    Specifications are pickled, as both processes run the same code of the same user. A server would send the
    text of the configuration.
    """
    segments = [Segment.create(_SIZE), Segment.create(_SIZE)]
    bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in segments]
    told = pickle.dumps(specs)
    socket.send_fds(sock, [len(told).to_bytes(8, "little")], [each.fd for each in segments] + bells)
    sock.sendall(told)
    calls, answers = (Ring(segment, bell) for segment, bell in zip(segments, bells, strict=True))
    for segment in segments:
        segment.close_fd()
    return Line(sock, calls, answers)


def join(path: str) -> tuple[Line, dict[str, ModelSpec]]:
    """Connect to an owner; return the line, and the models that it owns."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    size, descriptors, _, _ = socket.recv_fds(sock, 8, 4)
    expected = int.from_bytes(size, "little")
    told = b""
    while len(told) < expected:
        told += sock.recv(min(_HELLO, expected - len(told)))
    segments = [Segment(fd, _SIZE) for fd in descriptors[:2]]
    calls, answers = (Ring(segment, bell) for segment, bell in zip(segments, descriptors[2:], strict=True))
    for segment in segments:
        segment.close_fd()
    return Line(sock, calls, answers), pickle.loads(told)
