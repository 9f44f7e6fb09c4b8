"""Where a worker's batches come from: the socket itself for one lane, a reader thread for several.

With one lane nothing needs to be read while the model computes. A cancel is a flag in the control page, the
server's death is a signal, and a segment that was asked for is read by the thread that asked. So the lane
reads for itself, which saves a thread switch for each batch, and the contention for the interpreter lock that
comes with it. Several lanes share the connection through a reader thread. A decoupled model has one as well:
its credit comes at any time, while its lane executes. So has a model with a readiness check, which is asked
for at any time too.
"""

from __future__ import annotations

import queue
import socket
import threading
from abc import ABC, abstractmethod
from array import array
from collections import deque
from typing import TYPE_CHECKING

from actors.wire import batch_frames, frames
from actors.wire.arena import OUTPUT, Segment
from actors.wire.region_spans import MOST_REGIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.worker.slots import Slot

_ANCILLARY_SIZE = socket.CMSG_SPACE(MOST_REGIONS * array("i").itemsize)
# Plain integers: operators of flags run Python code.
_CUT_OFF = int(socket.MSG_TRUNC)
# A program that the model starts must not have them, clients' regions least of all.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_NONE: list[int] = []


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a packet; return it, `b""` at the server's end, and the descriptors that came with it.

    There are fewer descriptors than the server sent where this process may open no more files.
    """
    try:
        packet, ancillary, flags, _ = sock.recvmsg(frames.MAX_FRAME, _ANCILLARY_SIZE, _CLOEXEC)
    except OSError:  # reset by the server's death: the same as its orderly end
        return b"", []
    if not ancillary and not flags & _CUT_OFF:
        return packet, _NONE
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if flags & _CUT_OFF:
        raise frames.FrameError("the server sent a packet larger than a frame")
    return packet, descriptors.tolist()


class Incoming:
    """What the server sends, packet by packet: batches come out, everything else is dealt with here."""

    def __init__(
        self,
        sock: socket.socket,
        slots: Sequence[Slot],
        *,
        on_disconnect: Callable[[], None],
        on_probe: Callable[[], None],
        others: Mapping[int, Callable[[bytes], None]] | None = None,
    ) -> None:
        """`on_probe` answers the server's question after the model's readiness.

        `others` take frames of further kinds, which only some models are sent.
        """
        self._sock = sock
        self._slots = slots
        self._on_disconnect = on_disconnect
        self._on_probe = on_probe
        self._others = others or {}

    def read(self) -> tuple[bool, batch_frames.Execute | None]:
        """Handle one packet: whether there will be more, and the batch that it was, if it was one."""
        packet, descriptors = receive(self._sock)
        if not packet:
            self._on_disconnect()
            return False, None
        kind = packet[0]
        if kind == frames.SPILLED:
            slot, side, offset, nbytes = frames.decode_spilled(packet)
            packet = bytes(self._slots[slot].segments[side].view[offset : offset + nbytes])
            kind = packet[0]
        if kind == frames.EXECUTE:
            job = batch_frames.Execute.decode(packet)
            if descriptors:
                job.descriptors = descriptors
            return True, job
        if kind == frames.SEGMENT:
            slot, side, size = frames.decode_segment(packet)
            if not descriptors:
                raise frames.FrameError("a segment came without its descriptor: too many files are open")
            segment = Segment(descriptors[0], size)
            segment.close_fd()
            self._slots[slot].replace(side, segment)
            return True, None
        if kind == frames.PROBE:
            self._on_probe()
            return True, None
        if kind == frames.STOP:
            return False, None
        if kind in self._others:
            self._others[kind](packet)
            return True, None
        raise frames.FrameError(f"the server sent a frame of kind {kind}, which is none of its own")


class Feed(ABC):
    """Batches for the lanes, in the order in which the server sent them."""

    @abstractmethod
    def next(self) -> batch_frames.Execute | None:
        """Wait for a batch; None when the server said stop, or went away."""

    @abstractmethod
    def wait_grown(self, slot: Slot, nbytes: int) -> None:
        """Wait until the slot's output segment holds `nbytes`, which the server was asked for."""


class DirectFeed(Feed):
    """The one lane reads for itself."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._early: deque[batch_frames.Execute] = deque()  # read while waiting for a segment
        self._more = True

    def next(self) -> batch_frames.Execute | None:
        """Return the next batch. See `Feed`."""
        while not self._early:
            if not self._more:
                return None
            self._more, job = self._incoming.read()
            if job is not None:
                return job
        return self._early.popleft()

    def wait_grown(self, slot: Slot, nbytes: int) -> None:
        """Read on until the segment is here. See `Feed`."""
        while slot.segments[OUTPUT].size < nbytes:
            if not self._more:
                raise RuntimeError("the server went away while a result was being written")
            self._more, job = self._incoming.read()
            if job is not None:
                self._early.append(job)


class ThreadedFeed(Feed):
    """A reader thread owns `recv`; lanes wait for what concerns them."""

    def __init__(self, incoming: Incoming, lanes: int, on_end: Callable[[], None] | None) -> None:
        self._incoming = incoming
        self._lanes = lanes
        self._on_end = on_end
        self._jobs: queue.SimpleQueue[batch_frames.Execute | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._more = True
        threading.Thread(target=self._pump, name="frames", daemon=True).start()

    def _pump(self) -> None:
        try:
            while self._more:
                more, job = self._incoming.read()
                if job is not None:
                    self._jobs.put(job)
                    continue
                with self._changed:
                    self._more = more
                    self._changed.notify_all()
        finally:
            # This also runs after an error, such as a segment that can't be mapped. Nothing reads any more,
            # so the lanes must end.
            with self._changed:
                self._more = False
                self._changed.notify_all()
            if self._on_end is not None:
                self._on_end()
            for _ in range(self._lanes):
                self._jobs.put(None)

    def next(self) -> batch_frames.Execute | None:
        """Return the next batch. See `Feed`."""
        return self._jobs.get()

    def wait_grown(self, slot: Slot, nbytes: int) -> None:
        """Wait for the reader. See `Feed`."""
        with self._changed:
            self._changed.wait_for(lambda: slot.segments[OUTPUT].size >= nbytes or not self._more)
        if slot.segments[OUTPUT].size < nbytes:
            raise RuntimeError("the server went away while a result was being written")


def make_feed(
    incoming: Incoming, lanes: int, *, on_end: Callable[[], None] | None = None, threaded: bool = False
) -> Feed:
    """Return the feed for so many lanes.

    With `on_end`, called at the connection's end, or with `threaded` it has a reader thread in any case.
    """
    if lanes == 1 and on_end is None and not threaded:
        return DirectFeed(incoming)
    return ThreadedFeed(incoming, lanes, on_end)
