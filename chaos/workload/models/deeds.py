"""The harm that a model does to itself, one function or method a deed; `chaos.workload.actions` has the list.

It is copied beside each `model.py`. A hang ends by itself, and a deed that takes memory is bounded, so that a
server that fails to contain it endangers no other process.
"""

import ctypes
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds for which a deed hangs; the server is to end it long before.
LONG = 60.0
LEAKED = 4 << 20  # bytes at a time
# The limit for a worker that leaks descriptors: soon none are left.
FEW_DESCRIPTORS = 256
PRINTED = 2 << 20  # bytes
SLOWER = 20


class MemberRefused(Exception):
    """One request is to get an error response, and its batchmates their answers."""


class Deeds:
    """What one worker can do, and has done.

    `pace` is what an execution takes, in seconds; `limit` its memory, in bytes.
    """

    def __init__(self, *, pace: float, limit: int) -> None:
        self._pace = pace
        self._limit = limit
        self._descriptors: list[int] = []
        self._allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._by_name: dict[str, Callable[[], None]] = {
            "raise": _raise,
            "raise_member": _refuse_member,
            "hang": _hang,
            "hang_lock": _hang_lock,
            "segv": _segv,
            "exit0": _exit0,
            "oom": self._oom,
            "close_frames": _close_frames,
            "garbage_frames": _garbage_frames,
            "slow": self._slow,
            "leak_descriptors": self._leak_descriptors,
            "flood_stdout": _flood_stdout,
            "init_fail": _fail_to_start,
            "init_hang": _hang,
        }

    def do(self, action: str) -> None:
        """Do it.

        Raises ValueError for an unknown action, MemberRefused for `raise_member`, RuntimeError for `raise`.
        """
        deed = self._by_name.get(action)
        if deed is None:
            raise ValueError(f"no model can '{action}', only {', '.join(self._by_name)}")
        deed()

    def release(self) -> None:
        """Give back what was leaked."""
        if self._descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._allowed)
            for each in self._descriptors:
                os.close(each)
            self._descriptors.clear()

    @contextmanager
    def room(self) -> Iterator[None]:
        """Have descriptors for the block, though they have leaked away."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._allowed)
        try:
            yield
        finally:
            self._allow_few()

    def _allow_few(self) -> None:
        soft, hard = self._allowed
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FEW_DESCRIPTORS, soft), hard))

    def _oom(self) -> None:
        taken: list[bytearray] = []
        while len(taken) * LEAKED < 2 * self._limit:
            taken.append(bytearray(b"\1") * LEAKED)
        _hang()

    def _leak_descriptors(self) -> None:
        self._allow_few()
        try:
            while True:
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return  # there are no more

    def _slow(self) -> None:
        time.sleep((SLOWER - 1) * self._pace)


def _raise() -> None:
    raise RuntimeError("told to raise")


def _refuse_member() -> None:
    raise MemberRefused("told to refuse this request")


def _hang() -> None:
    time.sleep(LONG)


def _hang_lock() -> None:
    # Unlike CDLL, PyDLL keeps the interpreter lock in foreign code.
    ctypes.PyDLL(None).sleep(int(LONG))


def _segv() -> None:
    ctypes.string_at(0)


def _exit0() -> None:
    os._exit(0)


def _close_frames() -> None:
    with socket.socket(fileno=_connection()) as connection:
        # Closing alone has no effect while another thread reads.
        connection.shutdown(socket.SHUT_RDWR)
    _hang()


def _garbage_frames() -> None:
    chance = random.Random(1)
    for _ in range(300):
        os.write(_connection(), chance.randbytes(chance.randrange(1, 200)))
    _hang()


def _flood_stdout() -> None:
    sys.stdout.write(("chaos " * 16 + "\n") * (PRINTED // 97))
    sys.stdout.flush()


def _fail_to_start() -> None:
    raise RuntimeError("told to fail as it is loaded")


def _connection() -> int:
    """The descriptor of the worker's own connection to the server is the first argument of its program.

    `sys.argv` does not have it: a model finds there what it would on Triton.
    """
    program = next(place for place, word in enumerate(sys.orig_argv) if word.endswith(".py"))
    return int(sys.orig_argv[program + 1])
