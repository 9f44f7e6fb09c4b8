"""Backends that misbehave on cue, for workers under test.

The worker process imports them through PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.wire import batch_frames, frames
from actors.wire.arena import Segment
from engine.worker.backends.base import Backend, LoadError

POISON = 666.0


class Doubling(Backend):
    """OUTPUT = 2 * INPUT; what an input's first element says may happen first."""

    name = "doubling"

    def load(self, model):
        self.model = model
        mode = model.parameters.get("load", "")
        if mode == "fail":
            raise LoadError("the model file is not there")
        if mode == "raise":
            raise KeyError("weights")
        if mode == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)

    def execute(self, batch):
        values = batch.stacked("INPUT")
        cues = set(values.reshape(len(values), -1)[:, 0].tolist())
        self.misbehave(batch, cues)
        batch.respond([("OUTPUT", DataType.FP32, values * 2)])

    def misbehave(self, batch, cues):
        if POISON in cues:
            os.kill(os.getpid(), signal.SIGSEGV)
        if 667.0 in cues:
            os._exit(3)
        if 668.0 in cues:
            time.sleep(3600)
        if 669.0 in cues:
            raise ValueError("no such luck")
        if 670.0 in cues:
            print("hello from the model")
            sys.stderr.write("and from stderr\n")
        if 671.0 in cues:
            while not batch.requests[0].cancelled():
                time.sleep(0.005)
            batch.fail(ErrorCode.CANCELLED, "saw it")
        if 672.0 in cues:
            os.kill(os.getpid(), signal.SIGKILL)
        if 673.0 in cues:
            for _ in range(20000):
                print("x" * 100)


class Pausing(Doubling):
    """Waits until a file appears before each batch, so that tests decide what queues up."""

    name = "pausing"

    def execute(self, batch):
        gate = self.model.parameters["gate"]
        while not os.path.exists(gate):
            time.sleep(0.002)
        super().execute(batch)


class Selective(Doubling):
    """Writes down what it executes; on negative inputs it waits until a file appears, and on -2 for ever."""

    name = "selective"

    def execute(self, batch):
        values = batch.stacked("INPUT")[:, 0].tolist()
        with open(self.model.parameters["journal"], "a") as journal:
            journal.writelines(f"{value:g}\n" for value in values)
        if -2.0 in values:
            time.sleep(3600)
        while min(values) < 0 and not os.path.exists(self.model.parameters["gate"]):
            time.sleep(0.002)
        super().execute(batch)


class Hostile(Doubling):
    """Attacks the server's end on cue; see each cue."""

    name = "hostile"

    def misbehave(self, batch, cues):
        slot = batch._slot
        sock = socket.socket(fileno=os.dup(_own_socket()))
        if 1.0 in cues:
            self.truncate_own_segments(slot)
        if 2.0 in cues:  # scribble over the whole input and output
            for segment in slot.segments:
                segment.view[:] = b"\xff" * segment.size
        if 3.0 in cues:  # an output beyond the end of the segment
            self.forge(sock, batch, offset=slot.segments[1].size - 4)
        # A result for a batch that the server did not ask for.
        if 4.0 in cues:
            self.forge(sock, batch, offset=0, batch_id=999)
        if 5.0 in cues:  # garbage
            sock.send(b"\x12garbage")
            time.sleep(3600)
        if 6.0 in cues:  # an unknown kind, and a packet too large for a frame
            sock.send(b"\xee" * 100)
            time.sleep(3600)
        if 7.0 in cues:  # a descriptor, which no worker may send
            socket.send_fds(sock, [b"\x12"], [0])
            time.sleep(3600)
        if 8.0 in cues:  # close the connection and live on
            sock.shutdown(socket.SHUT_WR)
            time.sleep(3600)
        if 9.0 in cues:  # ask for more room than there is
            sock.send(frames.encode_room(slot.index, batch._job.batch_id, 2**60))
            time.sleep(3600)
        if 10.0 in cues:  # rewrite the control page
            batch._control.segment.view[:] = b"\xff" * batch._control.segment.size

    def load(self, model):
        super().load(model)
        # It keeps the descriptors of its own segments, to attack them.
        Segment.close_fd = lambda segment: None  # type: ignore[method-assign, assignment]  # its own process

    def truncate_own_segments(self, slot):
        for segment in slot.segments:
            try:
                os.ftruncate(segment.fd, 0)
            except PermissionError:
                continue
            raise AssertionError("an arena segment could be truncated")

    def forge(self, sock, batch, *, offset, batch_id=None):
        placed = batch_frames.Placed("OUTPUT", DataType.FP32, (batch.rows, 4), offset, batch.rows * 16)
        job = batch._job
        result = batch_frames.Result(
            batch_id or job.batch_id, job.slot, len(job.rows), (0, 0, 0), stacked=[placed]
        )
        sock.send(result.encode())
        time.sleep(3600)


class Impure(Doubling):
    """The same, with side effects: never run twice."""

    name = "impure"
    pure = False


class Strings(Backend):
    """Reverses BYTES elements."""

    name = "strings"

    def load(self, model):
        del model

    def execute(self, batch):
        words = batch.stacked("INPUT")
        reversed_words = np.empty(words.shape, dtype=object)
        for at, word in np.ndenumerate(words):
            reversed_words[at] = word[::-1]
        batch.respond([("OUTPUT", DataType.BYTES, reversed_words)])


class Joining(Doubling):
    """OUTPUT = 2 * INPUT, joined as the configuration says; any element may be a cue."""

    name = "joining"

    def execute(self, batch):
        values = batch.feeds()["INPUT"]
        self.misbehave(batch, set(values.ravel().tolist()))
        batch.respond([("OUTPUT", DataType.FP32, values * 2)])


class Moody(Doubling):
    """Ready while a file exists."""

    name = "moody"

    def ready(self):
        return os.path.exists(self.model.parameters["mood"])


def _own_socket():
    """Return the descriptor of the worker's connection, its first argument: `sys.argv` is the model's."""
    with open("/proc/self/cmdline", "rb") as file:
        return int(file.read().split(bytes(1))[2])
