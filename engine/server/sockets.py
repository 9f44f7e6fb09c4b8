"""The sockets that a server listens on, opened before anything else and closed after everything else."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from engine.settings.listening import host_port
from engine.settings.settings import Settings

BACKLOG: Final = 1024  # as Triton's


class AddressInUse(Exception):
    """A listener's address is taken, or not ours. The message is Triton's if it has one.

    `hint` says what would have worked, if the message does not.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets; None for what is switched off."""

    http: socket.socket | None = None
    grpc: socket.socket | None = None
    grpc_unix: socket.socket | None = None
    metrics: socket.socket | None = None
    management_http: socket.socket | None = None
    management_grpc: socket.socket | None = None
    openai: socket.socket | None = None
    sagemaker: socket.socket | None = None
    vertex: socket.socket | None = None


@contextmanager
def open_sockets(settings: Settings, *, http: bool = True) -> Iterator[Sockets]:
    """Listen where the settings say, around the block. `http` is false if another server does that part.

    Raises AddressInUse.
    """
    grpc, apart, cloud = settings.grpc, settings.management, settings.cloud
    with ExitStack() as opened:

        def listening(
            flag: str, allowed: bool, address: str, port: int, *, reuse_port: bool = False
        ) -> socket.socket | None:
            if not allowed:
                return None
            return opened.enter_context(bind(address, port, reuse_port=reuse_port, flag=flag))

        unix = settings.allow_grpc and bool(grpc.unix_socket)
        managed = bool(apart.address)
        yield Sockets(
            http=listening(
                "--http-port",
                http and settings.allow_http,
                settings.http_address,
                settings.http_port,
                reuse_port=settings.http_reuse_port,
            ),
            grpc=listening(
                "--grpc-port", settings.allow_grpc, grpc.address, grpc.port, reuse_port=grpc.reuse_port
            ),
            grpc_unix=opened.enter_context(unix_listening(grpc.unix_socket)) if unix else None,
            metrics=listening(
                "--metrics-port", settings.allow_metrics, settings.metrics_address, settings.metrics_port
            ),
            management_http=listening("--management-http-port", managed, apart.address, apart.http_port),
            management_grpc=listening(
                "--management-grpc-port", managed and settings.allow_grpc, apart.address, apart.grpc_port
            ),
            openai=listening(
                "--openai-port",
                settings.openai.allow,
                settings.openai.address or settings.http_address,
                settings.openai.port,
            ),
            sagemaker=listening(
                "--sagemaker-port", cloud.sagemaker.allow, settings.http_address, cloud.sagemaker.port
            ),
            vertex=listening(
                "--vertex-ai-port", cloud.vertex.allow, settings.http_address, cloud.vertex.port
            ),
        )


def bind(address: str, port: int, *, reuse_port: bool = False, flag: str = "") -> socket.socket:
    """Return a listening socket. Raises AddressInUse.

    With `reuse_port`, other sockets that say so may have the same port. `flag` is what chose the port.
    """
    if address.startswith("["):
        raise AddressInUse(
            f"Socket '{address}:{port}' can't be opened: an IPv6 address is given without brackets, such as ::1"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"another process listens there; {flag}=PORT takes another port" if flag else ""
            raise AddressInUse(f"Socket '{host_port(address, port)}' already in use ", hint=hint) from error
        # `create_server` adds to the system's reason where it happened, which is said already.
        reason = (error.strerror or str(error)).partition(" (while ")[0]
        raise AddressInUse(f"Socket '{host_port(address, port)}' can't be opened: {reason}") from error


# -- Unix sockets


@contextmanager
def unix_listening(path: str) -> Iterator[socket.socket]:
    """Listen at `path` around the block, and remove it afterwards if it is still this socket's.

    A socket that a dead server left there is taken over. A socket that a process serves, or a file of another
    kind, is not. Who may connect is up to the directory's permissions, and to the umask. Raises AddressInUse.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with sock:
        try:
            with _locked_directory(path):
                _clear(path)
                sock.bind(path)
                sock.listen(BACKLOG)
                ours = _identity(path)
        except OSError as error:
            raise AddressInUse(f"Socket 'unix:{path}' can't be opened: {error.strerror}") from error
        try:
            yield sock
        finally:
            if _identity(path) == ours:
                os.unlink(path)


@contextmanager
def _locked_directory(path: str) -> Iterator[None]:
    """Keep two servers that start at once from taking each other's fresh socket for a stale one."""
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise AddressInUse(f"Socket 'unix:{path}' is being opened by another server ") from error
    finally:
        os.close(directory)


def _clear(path: str) -> None:
    """Remove a socket that no process listens on any more."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressInUse(f"Socket 'unix:{path}' can't be opened: there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            # Served, by a process that is slow to accept.
            pass
    raise AddressInUse(f"Socket 'unix:{path}' already in use ")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
