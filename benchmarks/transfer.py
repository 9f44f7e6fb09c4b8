"""The floor under large tensors: two plain memory copies, and a trip over loopback TCP there and back.

There is no HTTP, no parser and no event loop. A thread receives the bytes into memory it already has, copies
them twice, and sends them back. A server that copies a tensor once into shared memory and once out of it, and
does nothing else, would take this long.
"""

from __future__ import annotations

import socket
import threading
import time

import numpy as np

from benchmarks.scenarios import Array


def _receive(source: socket.socket, target: memoryview) -> bool:
    """Fill `target`; False where the peer closed first."""
    filled = 0
    while filled < len(target):
        count = source.recv_into(target[filled:])
        if count == 0:
            return False
        filled += count
    return True


def _echo(connection: socket.socket, nbytes: int) -> None:
    buffers: list[Array] = [np.zeros(nbytes, np.uint8) for _ in range(3)]
    received, between, sent = buffers
    with connection:
        while _receive(connection, received.data):
            np.copyto(between, received)
            np.copyto(sent, between)
            connection.sendall(sent.data)


def measure(nbytes: int, seconds: float, *, at_least: int = 5) -> list[float]:
    """Return round trip times of `nbytes`, for `seconds` and never fewer than `at_least` times."""
    payload = np.zeros(nbytes, np.uint8).data
    answer = np.zeros(nbytes, np.uint8).data
    times: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    for each in (client, connection):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    echo = threading.Thread(target=_echo, args=(connection, nbytes))
    echo.start()
    try:
        deadline = time.perf_counter() + seconds
        while len(times) < at_least or time.perf_counter() < deadline:
            began = time.perf_counter()
            client.sendall(payload)
            _receive(client, answer)
            times.append(time.perf_counter() - began)
    finally:
        client.close()
        echo.join()
    return times[1:]  # the first one finds cold pages
