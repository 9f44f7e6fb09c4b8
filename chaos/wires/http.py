"""One HTTP/1.1 connection of a client: a request out, an answer in. `httptools` parses.

A client library does the same for 16 times the processor time (0.8 ms a request instead of 0.05). Both the
client and the server run on the same machine, so that time would be taken from the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import httptools
import trio

LOOPBACK = "127.0.0.1"


class NotConnected(Exception):
    """The port does not listen, or the system has no more sockets; nothing was sent."""


class Disconnected(Exception):
    """The connection ended before the answer was whole."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Names of `fields` are lower case."""

    status: int
    fields: Mapping[str, str]
    body: bytes


class _Reading:
    """One answer, while httptools parses it."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.fields: dict[str, str] = {}
        self.body = bytearray()
        self.whole = 0  # answers
        self.kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.whole += 1
        self.kept = self.parser.should_keep_alive()  # which the parser has forgotten afterwards


class Connection:
    """A connection that is kept.

    After any exception but NotConnected, and after a cancelled `ask`, close it.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._kept = True

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect on the loopback address. Raises NotConnected."""
        try:
            sock = trio.socket.socket()
        except OSError as error:
            raise NotConnected(str(error)) from error
        try:
            await sock.connect((LOOPBACK, port))
        except OSError as error:
            sock.close()
            raise NotConnected(str(error)) from error
        except BaseException:
            sock.close()
            raise
        return cls(trio.SocketStream(sock))

    @property
    def kept(self) -> bool:
        """Whether the server keeps the connection for another request, as far as it has said."""
        return self._kept

    async def unasked(self) -> bytes | None:
        """Return bytes that the server has sent and no request asked for.

        Returns b"" if the server has closed the connection, and None for neither. Returns at once.
        """
        if not self._stream.socket.is_readable():
            return None
        try:
            return bytes(await self._stream.receive_some())
        except trio.BrokenResourceError:
            return b""

    def close(self) -> None:
        """Leave, without saying anything."""
        self._stream.socket.close()

    async def ask(self, request: bytes) -> Reply:
        """Send a request and wait for its answer, without a limit of time.

        Raises Disconnected, also for a second answer behind the first.
        """
        reading = _Reading()
        # The server may answer and leave before it has read everything. Its answer can still be read.
        with contextlib.suppress(trio.BrokenResourceError):
            await self._stream.send_all(request)
        try:
            while not reading.whole:
                data = await self._stream.receive_some()
                if not data:
                    raise Disconnected(f"the connection was closed after {len(reading.body)} bytes of a body")
                reading.parser.feed_data(data)
        except (trio.BrokenResourceError, httptools.HttpParserError) as error:
            raise Disconnected(str(error.__cause__ or error)) from error
        if reading.whole > 1:
            raise Disconnected(f"{reading.whole} answers came to one request")
        self._kept = reading.kept
        return Reply(reading.parser.get_status_code(), reading.fields, bytes(reading.body))


def request_bytes(
    method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None
) -> bytes:
    """Return a request as it goes over the wire."""
    given = {"host": "localhost", "content-length": str(len(body)), **(fields or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
