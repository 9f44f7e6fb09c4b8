"""Backends that take more than they should when the first element of an input says so.

The worker process imports them through PYTHONPATH. Whatever is started here ends by itself soon, even if the
server does not end it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time

import numpy as np

from actors.values.datatypes import DataType
from engine.worker.backends.base import Backend

MEBIBYTE = 1024 * 1024
LIFETIME = 60.0  # seconds

LEAK, LEAK_IN_A_CHILD, ONE_LARGE_ALLOCATION, SHARE_AFTER_A_FORK = 1.0, 2.0, 3.0, 4.0
START_CHILDREN, LEAVE_A_CHILD, LEAVE_A_CHILD_AND_DIE, LEAVE_THE_SESSION = 5.0, 6.0, 7.0, 8.0
OPEN_A_SOCKET, START_ONE, UNSHARE, LEAVE_NO_TRACE_AND_DIE = 9.0, 10.0, 11.0, 12.0
TALK = 1000.0  # and above: say what the file `talk-<number>` holds


class Greedy(Backend):
    """OUTPUT = INPUT, or 1 in its place where what was tried succeeded and 0 where it was refused."""

    name = "greedy"

    def load(self, model):
        self.model = model
        self.kept = []

    def execute(self, batch):
        values = batch.stacked("INPUT").copy()
        deeds = {
            LEAK: self.leak,
            LEAK_IN_A_CHILD: self.leak_in_a_child,
            ONE_LARGE_ALLOCATION: lambda: np.ones(2048 * MEBIBYTE, np.uint8),
            SHARE_AFTER_A_FORK: self.share_after_a_fork,
            START_CHILDREN: self.start_children,
            LEAVE_A_CHILD: self.leave_a_child,
            LEAVE_A_CHILD_AND_DIE: self.leave_a_child_and_die,
            LEAVE_THE_SESSION: self.leave_the_session,
            OPEN_A_SOCKET: lambda: socket.socket().close(),
            START_ONE: lambda: subprocess.run([sys.executable, "-c", ""], check=True),
            UNSHARE: unshare,
            LEAVE_NO_TRACE_AND_DIE: self.leave_no_trace_and_die,
        }
        cue = float(values.flat[0])
        deed = deeds.get(cue) if cue < TALK else lambda: self.talk(int(cue - TALK))
        if deed is not None:
            try:
                deed()
            except (OSError, MemoryError):
                values[:] = 0
            else:
                values[:] = 1
        batch.respond([("OUTPUT", DataType.FP32, values)])

    def leak(self):
        """Take memory piece by piece, up to 1 GiB."""
        for _ in range(64):
            self.kept.append(np.ones(16 * MEBIBYTE, np.uint8))
            time.sleep(0.005)

    def leak_in_a_child(self):
        self.fork(self.leak)
        time.sleep(LIFETIME)

    def share_after_a_fork(self):
        """Have four children that share all of 64 MiB, and write none of it."""
        self.kept.append(np.ones(64 * MEBIBYTE, np.uint8))
        for _ in range(4):
            self.fork(lambda: None)
        time.sleep(1.0)

    def start_children(self):
        for _ in range(60):
            self.fork(lambda: None)
        time.sleep(LIFETIME)

    def leave_a_child(self):
        self.record(self.fork(lambda: None))

    def leave_a_child_and_die(self):
        self.leave_a_child()
        os._exit(9)

    def leave_the_session(self):
        """Start a program in a session of its own, with our environment."""
        code = f"import time; time.sleep({LIFETIME})"
        self.record(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid)

    def leave_no_trace_and_die(self):
        """Start a program in its own session with an empty environment, and die once the test has seen it."""
        code = f"import time; time.sleep({LIFETIME})"
        self.record(subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={}).pid)
        while not os.path.exists(self.model.parameters["children"] + ".seen"):
            time.sleep(0.005)
        os._exit(9)

    def talk(self, number):
        """Send packets to the server as if they were the worker's.

        The file holds each packet behind two bytes with its length.
        """
        with open(os.path.join(self.model.parameters["talks"], f"talk-{number}"), "rb") as file:
            while head := file.read(2):
                packet = file.read(int.from_bytes(head, "little"))
                if packet:
                    os.write(_own_socket(), packet)

    def fork(self, work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
                time.sleep(LIFETIME)
            finally:
                os._exit(0)
        return pid

    def record(self, pid):
        with open(self.model.parameters["children"], "a") as file:
            file.write(f"{pid}\n")


def unshare():
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000):
        raise OSError(ctypes.get_errno(), "unshare")


def _own_socket():
    """Return the descriptor of the worker's connection, its first argument: `sys.argv` is the model's."""
    with open("/proc/self/cmdline", "rb") as file:
        return int(file.read().split(bytes(1))[2])
