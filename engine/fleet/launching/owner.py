"""The actor that owns one server: the server runs as its child, and ends with it.

Ray carries this module to its nodes by value, so that their Python need not have Tritium; the servers' Python
must. It imports the standard library and its neighbours `registry` and `flags`, and Ray only in an actor.

A server that ends by itself is started again here, after a while that grows with each failure. Ray starts the
actor again if its process or its node dies.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from engine.fleet.launching.flags import command_words, ports_of, value_of
from engine.fleet.launching.registry import (
    NAMESPACE,
    LaunchedServer,
    LaunchOrder,
    Phase,
    server_key,
)

_FIRST_WAIT: Final = 0.2  # seconds before a server that ended is started again; doubled with each failure
_LONGEST_WAIT: Final = 30.0
_SOUND_AFTER: Final = 60.0  # seconds of service, after which failures before are forgotten
_ASKED_EVERY: Final = 0.05  # seconds between looks at a server that starts
_LAST_WORDS: Final = 2000  # bytes of the log that are kept of a failure
# Where the server's log goes: to the file of this worker's errors, which `ray logs` shows.
_ERRORS: Final = 2
# PR_SET_PDEATHSIG has the kernel kill the child when the thread that started it ends. It outlasts exec. If
# the parent ended before the call, no signal comes.
_MORTAL: Final = """\
import ctypes, os, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the actor that owns this server has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
# What Ray gives its workers, and a model that connects to Ray by itself must not have.
_OF_WORKERS: Final = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE", "RAY_JOB_ID", "RAY_RAYLET_PID")
# Answers of a server whose port may be asked by some only. It serves; whether it is ready can't be told.
_GUARDED: Final = frozenset({401, 403})


class ServerOwner:
    """Starts a server when it is made, and keeps it running until it is stopped.

    A thread starts the server and waits for it. It lives as long as the process: the kernel ends the server
    when this very thread ends.
    """

    def __init__(
        self,
        order: LaunchOrder,
        name: str,
        place: Callable[[], LaunchedServer] | None = None,
        publish: Callable[[LaunchedServer], None] | None = None,
    ) -> None:
        """`place` tells where the server is to run, and `publish` takes each change; by default Ray does."""
        self._order = order
        self._publish = publish or _published_in_ray(order.group)
        self._telling = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._entry = (place or _place_in_ray(name, order.labels))()
        # In place of what an actor of this name may have left, on a node that is dead.
        self._tell()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def stop(self) -> None:
        """End the server: it has the order's grace to drain. Return when it is gone."""
        self._stopping.set()
        self._tell()
        if (child := self._child) is not None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
        if not self._ended.wait(self._order.grace) and (child := self._child) is not None:
            child.kill()
            self._ended.wait()

    def __ray_shutdown__(self) -> None:
        """Do so when Ray ends the actor gracefully."""
        self.stop()

    # -- the thread

    def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            words = self._run(failures)
            if self._stopping.is_set():
                break
            failures = 1 if time.monotonic() - began > _SOUND_AFTER else failures + 1
            self._tell(phase=Phase.FAILED, failures=failures, words=words, pid=0)
            self._stopping.wait(min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT))
        self._ended.set()

    def _run(self, failures: int) -> str:
        """Start the server and wait for its end; return the last lines of its log."""
        flags = self._order.flags
        ports = ports_of(flags, _free_ports())
        log = _Log()
        python = self._order.python or sys.executable
        words = command_words(flags, self._entry.name, ports)
        self._child = child = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _MORTAL, str(os.getpid())),
                *(python, "-m", "engine", "serve", *words),
            ],
            env={key: value for key, value in os.environ.items() if key not in _OF_WORKERS},
            stdin=subprocess.DEVNULL,
            stdout=_ERRORS,
        )
        self._tell(
            phase=Phase.STARTING,
            boot=secrets.token_hex(8),
            pid=child.pid,
            failures=failures,
            http_port=ports.http,
            grpc_port=ports.grpc,
            metrics_port=ports.metrics,
        )
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        while child.poll() is None and not self._stopping.is_set():
            if _is_serving(value_of(flags, "http-address") or "", ports.http):
                self._tell(phase=Phase.SERVING, words="")
                break
            time.sleep(_ASKED_EVERY)
        child.wait()
        return f"{log.since()}\nit ended with status {child.returncode}".lstrip()

    def _tell(self, **changes: Any) -> None:
        with self._telling:
            if self._stopping.is_set():
                changes["phase"] = Phase.STOPPING
            self._entry = replace(self._entry, **changes)
            # The cluster's head may be away for a while. The server serves on, and its entry is as it was.
            try:
                self._publish(self._entry)
            except Exception as error:  # noqa: BLE001  # whatever Ray raises
                sys.stderr.write(f"the registry did not take {self._entry.name}: {error}\n")


class _Log:
    """What is written from now on to the file of this process's errors; the server writes there, too."""

    def __init__(self) -> None:
        try:
            self._path = os.readlink(f"/proc/self/fd/{_ERRORS}")
            self._start = os.stat(self._path).st_size
        except OSError:  # a pipe or a terminal
            self._path, self._start = "", 0

    def since(self) -> str:
        """Return the last lines that were written."""
        if not self._path:
            return ""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(self._start, os.fstat(file.fileno()).st_size - _LAST_WORDS))
                return file.read(_LAST_WORDS).decode(errors="replace").strip()
        except OSError:
            return ""


def _free_ports() -> list[int]:
    """Return three ports that are free now. If another process takes one, the server is started again."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _is_serving(address: str, port: int) -> bool:
    host = address if address not in {"", "0.0.0.0", "::"} else "127.0.0.1"  # compared, not bound
    try:
        return _status(http.client.HTTPConnection(host, port, timeout=2)) in {200, *_GUARDED}
    except (http.client.HTTPException, ConnectionResetError):
        return _is_serving_tls(host, port)
    except OSError:
        return False


def _is_serving_tls(host: str, port: int) -> bool:
    # The port is this machine's own, so its certificate needs no proof.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return _status(http.client.HTTPSConnection(host, port, timeout=2, context=context)) in {
            200,
            *_GUARDED,
        }
    except ssl.SSLError:
        return True  # it asks for a certificate
    except (http.client.HTTPException, OSError):
        return False


def _status(connection: http.client.HTTPConnection) -> int:
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


# -- with Ray


def _place_in_ray(name: str, labels: Mapping[str, str]) -> Callable[[], LaunchedServer]:
    def place() -> LaunchedServer:
        import ray

        context = ray.get_runtime_context()
        return LaunchedServer(
            name=name,
            node=context.get_node_id(),
            host=ray.util.get_node_ip_address(),
            http_port=0,
            labels={**context.get_node_labels(), **labels},
        )

    return place


def _published_in_ray(group: str) -> Callable[[LaunchedServer], None]:
    def publish(entry: LaunchedServer) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(server_key(group, entry.name), entry.written(), namespace=NAMESPACE)

    return publish
