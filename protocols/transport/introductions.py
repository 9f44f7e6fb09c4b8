"""A trusted proxy introduces its client on a new connection, before TLS and before the first byte.

A proxy that is to do so must: whether a header is there is not guessed (proxy-protocol.txt, section 2). So
the first bytes are the header, or the connection ends.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from protocols.transport.proxy_header import LONGEST_BLOCK, BadProxyHeader, read_proxy_header
from protocols.transport.sockets import ConnectionLost

PATIENCE: Final = 5.0
"""Seconds in which the header must be here. A proxy sends it with its first packet."""


class NotIntroduced(Exception):
    """A connection of a proxy did not begin with a header of the PROXY protocol. The message says why."""


async def introduction(
    sock: socket.socket, wait: Callable[[], Awaitable[None]], ending: Callable[[], bool]
) -> tuple[str, int] | None:
    """Take the header from `sock`, which does not block, and nothing behind it.

    `wait` waits until there is something to read. Returns the client's address and port, or None where the
    proxy speaks for itself. Raises NotIntroduced, and ConnectionLost for a connection that ends before a byte
    has come, or is `ending` before all have. What makes it so wakes the task that waits for the socket.
    """
    with trio.move_on_after(PATIENCE):
        return await _introduction(sock, wait, ending)
    raise NotIntroduced(f"no whole header of the PROXY protocol within {PATIENCE:g} s")


async def _introduction(
    sock: socket.socket, wait: Callable[[], Awaitable[None]], ending: Callable[[], bool]
) -> tuple[str, int] | None:
    come = bytearray()
    while True:
        try:
            data = sock.recv(LONGEST_BLOCK, socket.MSG_PEEK)
        except BlockingIOError:
            if ending():
                raise ConnectionLost("the connection was told to end") from None
            with suppress(trio.ClosedResourceError):  # woken
                await wait()
            continue
        except OSError as failure:
            raise ConnectionLost(str(failure)) from failure
        if not data:
            if come:
                raise NotIntroduced(
                    f"the connection ended within a header of the PROXY protocol: {bytes(come[:16])!r}"
                )
            raise ConnectionLost("the connection ended before its first byte")
        try:
            header = read_proxy_header(bytes(come + data))
        except BadProxyHeader as bad:
            raise NotIntroduced(str(bad)) from bad
        # What was looked at is taken up to the header's end, so that waiting waits for more.
        sock.recv(len(data) if header is None else header.size - len(come))
        if header is not None:
            return header.source
        come += data
