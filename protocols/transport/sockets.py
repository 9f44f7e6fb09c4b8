"""Bytes to and from one client, plain over TCP or a Unix socket, or TLS; and errors of a client that is gone.

All methods are synchronous and take what the socket gives at once. A connection waits only where that was
nothing. TLS is spoken by the interpreter's own non-blocking sockets rather than by a stream: a writer that
waits for a slow client must be able to stop waiting in the middle of a record, look after new answers, and go
on.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from actors.values.callers import written
from actors.values.native import mypyc_attr
from actors.values.tensors import Buffer
from protocols.transport import handshakes
from protocols.transport.buffers import Cut, behind
from protocols.transport.names import client_names
from protocols.transport.readiness import DirectWaits, Waits, Watch

_NETWORK: Final = frozenset(
    (
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
    )
)

PASSING: Final = _NETWORK | {errno.ECONNABORTED, errno.EPERM, errno.EPROTO}
"""What accept(2) reports of a client that is gone already, or of the network, not of the listening socket."""

LOST: Final = _NETWORK | {
    errno.ECONNRESET,
    errno.EPIPE,
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,  # what a router said before the kernel gave up
}
"""What reading and writing report of a client that is gone."""


# Bytes up to which copying together is cheaper than a scattered write.
_JOINED: Final = 32 * 1024
_MOST_BUFFERS: Final = 512  # half of what one sendmsg takes
_MANY_JOINED: Final = 512 * 1024  # bytes up to which that holds for more buffers than those
_RECORD: Final = 16 * 1024  # bytes in a record of TLS, at most (RFC 8446, section 5.1)
# Bytes that are encrypted in one turn: some tenths of a millisecond.
_ENCRYPTED_AT_ONCE: Final = 1024 * 1024
_LEFT_OVER: Final = 64 * 1024  # bytes that are dropped of a request in the clear


_LINGER: Final = 1.0
"""Seconds that a client has to read why its handshake failed, and to close."""

_MOST_DROPPED: Final = 1024 * 1024  # bytes that are read meanwhile, and dropped

Endpoint = tuple[str, int]


class ConnectionLost(Exception):
    """The client is gone, or does not speak TLS. Nothing can be told to it any more."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport(ABC):
    """The bytes to and from a client, as a connection needs them. Every method may raise ConnectionLost.

    `client_names` are those of the certificate that the client showed in its handshake, and that was verified
    (`protocols.transport.names`). A client without one has none.
    """

    __slots__ = ()

    peer: str
    client_names: tuple[str, ...]
    secured: bool  # whether TLS is spoken
    watch: Watch | None  # is told when a request comes or is answered, as `protocols.transport.portions` asks

    @abstractmethod
    def endpoints(self) -> tuple[Endpoint | None, Endpoint | None]:
        """Return host and port of the client and of the server; None where there are none."""

    @abstractmethod
    async def handshake(self) -> None:
        """Do what must be done before the first byte."""

    async def linger(self) -> None:
        """Let the client read why `handshake` failed, where it is told. Raises nothing."""
        return

    @abstractmethod
    def receive_into(self, buffer: memoryview) -> int:
        """Fill `buffer` from its start; return how many bytes came, 0 at the end.

        Raises BlockingIOError for none.
        """

    @abstractmethod
    def exhausted(self, count: int, size: int) -> bool:
        """Whether, after `count` bytes came into a buffer of `size`, more bytes need a wait."""

    @abstractmethod
    def send(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Send the bytes that are taken at once; return the rest, with which the next call must begin."""

    @abstractmethod
    def wait_readable(self) -> Awaitable[None]:
        """Wait until `receive_into` is worth a try. Raises ClosedResourceError where the task is roused."""

    async def wait_turns(self, turn: Callable[[], bool]) -> None:
        """Call `turn` whenever `receive_into` is worth a try, until it returns False. It must not raise.

        A turn that returns True has read all that was there; of more that comes it is told again.
        Raises ClosedResourceError where the task is roused.
        """
        await self.wait_readable()
        while turn():
            await self.wait_readable()

    @abstractmethod
    def wait_writable(self) -> Awaitable[None]:
        """Wait until `send` is worth a try."""

    @abstractmethod
    def rouse(self) -> None:
        """End the wait of the task that waits for the socket."""

    @abstractmethod
    def stop_reading(self) -> None:
        """End the direction inward now, so that a task that waits for bytes wakes up."""

    @abstractmethod
    def finish(self) -> None:
        """Tell the client, behind the bytes that were sent, that nothing more will come."""

    @abstractmethod
    def shut(self, *, abort: bool = False) -> None:
        """End both directions now, so that waiting tasks wake up.

        With `abort`, drop what the kernel still holds.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the descriptor."""


class _SocketTransport(Transport):
    """What plain sockets and TLS have in common: an accepted socket, which is made non-blocking.

    It ends its `waits`; without them, it waits with trio.
    """

    __slots__ = ("_raw", "_waits", "client_names", "peer", "watch")

    def __init__(self, sock: socket.socket, waits: Waits | None = None) -> None:
        sock.setblocking(False)
        self._raw = sock
        self._waits = waits or DirectWaits(sock.fileno())
        self.watch = waits if isinstance(waits, Watch) else None
        self.peer = address_of(sock)
        self.client_names = ()

    def endpoints(self) -> tuple[Endpoint | None, Endpoint | None]:
        return _endpoint(self._raw.getpeername), _endpoint(self._raw.getsockname)

    def wait_readable(self) -> Awaitable[None]:
        return self._waits.readable()

    def wait_writable(self) -> Awaitable[None]:
        return self._waits.writable()

    def rouse(self) -> None:
        self._waits.rouse()

    def stop_reading(self) -> None:
        shutdown(self._raw, socket.SHUT_RD)

    def shut(self, *, abort: bool = False) -> None:
        if abort:
            reset_on_close(self._raw)
        shutdown(self._raw, socket.SHUT_RDWR)

    def close(self) -> None:
        self._waits.end()
        self._raw.close()


class PlainTransport(_SocketTransport):
    """A socket as it is."""

    __slots__ = ()

    secured = False

    async def handshake(self) -> None:
        """Do nothing, not even a checkpoint."""

    async def wait_turns(self, turn: Callable[[], bool]) -> None:
        """Call `turn` (see `Transport`), where that is possible without the task."""
        if self.watch is None:
            await super().wait_turns(turn)
        else:
            await self.watch.turns(turn)

    def receive_into(self, buffer: memoryview) -> int:
        """Fill `buffer` (see `Transport`)."""
        try:
            return self._raw.recv_into(buffer)
        except BlockingIOError:
            raise
        except OSError as failure:
            raise _lost(failure) from failure

    def exhausted(self, count: int, size: int) -> bool:
        """Whether the last read has emptied the socket."""
        return count < size

    def send(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Send the bytes that the kernel takes at once, and return the rest."""
        size = sum(map(len, buffers))
        many = len(buffers)
        if many > 1 and (size <= _JOINED or (many > _MOST_BUFFERS and size <= _MANY_JOINED)):
            buffers = (b"".join(buffers),)
            many = 1
        try:
            sent = self._raw.send(buffers[0]) if many == 1 else self._raw.sendmsg(buffers[:_MOST_BUFFERS])
        except BlockingIOError:
            return list(buffers)
        except OSError as failure:
            raise _lost(failure) from failure
        return [] if sent == size else behind(buffers, sent)

    def finish(self) -> None:
        """Shut down the sending side."""
        shutdown(self._raw, socket.SHUT_WR)


class TlsTransport(_SocketTransport):
    """TLS, server side, over an accepted socket."""

    __slots__ = ("_alerted", "_alpn", "_context", "_finished", "_in_the_clear", "_tls")

    secured = True

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        waits: Waits | None = None,
        *,
        alpn: str = "",
        in_the_clear: bytes = b"",
    ) -> None:
        """The client must agree on `alpn` if that is given: so it says that it speaks HTTP/2 (RFC 9113, 3.3).

        `in_the_clear` is the answer to a request of HTTP/1 without TLS.
        """
        super().__init__(sock, waits)
        self._context = context
        self._alpn = alpn
        self._in_the_clear = in_the_clear
        self._tls: ssl.SSLSocket | None = None
        self._finished = False
        self._alerted = False  # the handshake failed, and the client is told why

    @property
    def _socket(self) -> ssl.SSLSocket:
        assert self._tls is not None, "the handshake comes first"
        return self._tls

    async def handshake(self) -> None:
        """Shake hands. Raises ConnectionLost where that fails, or the protocol was not agreed on."""
        try:
            tls = self._context.wrap_socket(self._raw, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError) as failure:  # ValueError: early bytes before the peer left
            raise ConnectionLost("the client left before the TLS handshake") from failure
        self._tls = self._raw = tls
        await self._shake_hands(tls)
        if self._alpn and tls.selected_alpn_protocol() != self._alpn:
            raise ConnectionLost(
                f"the client agreed on {tls.selected_alpn_protocol()!r}, not on '{self._alpn}'"
            )
        try:
            self.client_names = client_names(tls.getpeercert())
        except ValueError as failure:
            raise ConnectionLost(f"the client's certificate can't be read: {failure}") from failure

    async def _shake_hands(self, tls: ssl.SSLSocket) -> None:
        turn = handshakes.turn()
        wait = super().wait_readable  # the client begins
        try:
            while True:
                await wait()
                async with turn:
                    try:
                        tls.do_handshake()
                    except ssl.SSLWantReadError:
                        wait = super().wait_readable
                    except ssl.SSLWantWriteError:
                        wait = super().wait_writable
                    else:
                        return
        except OSError as failure:
            if isinstance(failure, ssl.SSLError):
                # Some have None for a reason, whatever their type says.
                if getattr(failure, "reason", None) == "HTTP_REQUEST":
                    self._answer_in_the_clear()
                else:
                    self._alerted = True
            raise ConnectionLost(f"TLS handshake failed: {failure}") from failure

    async def linger(self) -> None:
        """Let the client read the alert, which OpenSSL has sent, for a moment.

        With TLS 1.3 a client may have sent its request before the server has seen its certificate. If the
        socket were closed with those bytes unread, or before they come, it would be reset, and the alert be
        lost.
        """
        if not self._alerted:
            return
        shutdown(self._raw, socket.SHUT_WR)
        dropped = 0
        with trio.move_on_after(_LINGER), contextlib.suppress(OSError):
            while dropped < _MOST_DROPPED:
                await super().wait_readable()
                with contextlib.suppress(BlockingIOError):
                    piece = len(socket.socket.recv(self._raw, _LEFT_OVER))
                    if not piece:
                        return
                    dropped += piece

    def _answer_in_the_clear(self) -> None:
        """Tell a client that sent a request without TLS what is wrong, if that can be said at once."""
        # The request is taken first, because closing would otherwise drop the answer with it.
        with contextlib.suppress(OSError):
            socket.socket.recv(self._raw, _LEFT_OVER)
        with contextlib.suppress(OSError):
            socket.socket.send(self._raw, self._in_the_clear)
        shutdown(self._raw, socket.SHUT_WR)

    def receive_into(self, buffer: memoryview) -> int:
        """Fill `buffer` with decrypted bytes (see `Transport`).

        Bytes that come after `finish` are dropped.
        """
        if self._finished:
            return self._swallow(buffer)
        try:
            whole = count = self._socket.recv_into(buffer)
            # OpenSSL gives one record at a time. Behind a full one there are probably others.
            while count == _RECORD and whole < len(buffer):
                count = self._more_into(buffer[whole:])
                whole += count
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            return 0
        except OSError as failure:
            # Among them SSLWantWriteError: only a renegotiation writes while it reads, and none is supported.
            raise _lost(failure) from failure
        return whole

    def _more_into(self, buffer: memoryview) -> int:
        """Fill `buffer` with another record; 0 for none. What has failed fails again at the next call."""
        try:
            return self._socket.recv_into(buffer)
        except OSError:
            return 0

    def _swallow(self, buffer: memoryview) -> int:
        """Drop bytes that are not to be decrypted any more.

        OpenSSL takes such bytes for an error, once it has said goodbye.
        """
        try:
            count = socket.socket.recv_into(self._raw, buffer)
        except BlockingIOError:
            raise
        except OSError as failure:
            raise _lost(failure) from failure
        if count:
            raise BlockingIOError
        return 0

    def exhausted(self, count: int, size: int) -> bool:
        """Whether no decrypted bytes are left.

        They must be taken now, since the socket would not report them.
        """
        return count < size and not self._socket.pending()

    def wait_readable(self) -> Awaitable[None]:
        """Wait until `receive_into` is worth a try: not at all while decrypted bytes are left."""
        if not self._finished and self._socket.pending():
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105  # the caller awaits it
        return super().wait_readable()

    def send(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Encrypt and send the bytes that the kernel takes at once, 1 MiB at most, and return the rest.

        OpenSSL takes a piece whole or wants to see it again. Pieces are cut from the front, so the rest
        begins with that piece.
        """
        cut = Cut(buffers)
        sent = 0
        while sent < _ENCRYPTED_AT_ONCE and (piece := cut.front(_RECORD)):
            try:
                count = self._socket.send(piece)
            except ssl.SSLWantWriteError:
                break
            except OSError as failure:
                raise _lost(failure) from failure
            cut.drop(count)
            sent += count
        return cut.rest()

    def finish(self) -> None:
        """Say goodbye in TLS, without waiting for the client's, and shut down the sending side."""
        if self._tls is not None and not self._finished:
            with contextlib.suppress(OSError, ValueError):  # usually, the client's goodbye is not here yet
                self._tls.unwrap()
        self._finished = True
        shutdown(self._raw, socket.SHUT_WR)


def _endpoint(ask: Callable[[], Any]) -> Endpoint | None:
    try:
        address = ask()
    except OSError:
        return None
    return (address[0], address[1]) if isinstance(address, tuple) else None


def address_of(sock: socket.socket) -> str:
    """Return the client's address as gRPC writes it; empty where it has left."""
    try:
        address = sock.getpeername()
    except OSError:
        return ""
    if sock.family == socket.AF_UNIX:
        return "unix:"
    return written(*address[:2])


def reset_on_close(sock: socket.socket) -> None:
    """Have closing drop what the kernel holds for a client that reads nothing."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:  # the client was quicker
        return


def shutdown(sock: socket.socket, how: int) -> None:
    """Shut down one direction or both, unless the client was quicker.

    The socket itself is shut down: `ssl.SSLSocket.shutdown` would forget the TLS state that a reader or a
    handshake is using.
    """
    try:
        socket.socket.shutdown(sock, how)
    except OSError:
        return


def _lost(failure: OSError) -> Exception:
    """Return the exception for `failure` of a connected socket: ConnectionLost, or `failure` itself."""
    if isinstance(failure, ssl.SSLError) or failure.errno in LOST:
        return ConnectionLost(str(failure))
    return failure
