"""A worker's end of its connection for calls, as the server knows it.

It keeps what it has sent, what it was sent, and what it executes.
"""

import itertools
import os
import socket
from array import array
from collections import Counter
from types import SimpleNamespace

from actors.values.requests import InferRequest
from actors.wire import frames
from actors.wire.batch_frames import Part
from actors.wire.call_frames import Letter
from actors.wire.call_segments import map_segment
from actors.wire.frames import FrameError
from tests.support.ports import Port

_BATCHES = ((4, 2), (5, 1))  # numbers, and of how many requests


class PlayedWorker:
    """Sends whatever it is told to, reads as an honest worker does, and records both.

    It also stands in for the part of `LiveWorker` that calls use.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.outstanding = {
            number: SimpleNamespace(id=number, requests=[_parent() for _ in range(size)])
            for number, size in _BATCHES
        }
        self.open: dict[int, SimpleNamespace] = {}
        # Numbers of letters that are answered, perhaps without the last one's bytes.
        self.begun: list[int] = []
        self.complete = True  # nothing belongs to what was sent last
        self.ended: Counter[int] = Counter()  # last answers, by number
        self.refused = 0  # of those, errors
        self._missing = 0
        self._segment = False  # has been sent, and no letter since
        self._unpaid: dict[int, list[int]] = {}  # parts and bytes that no credit was given for
        self._untaken = 0
        self._part: Part | None = None  # whose bytes are still coming
        self._given: memoryview | None = None

    def stop_prefetching(self) -> None:
        """It does not prefetch."""

    def parent(self, at: int) -> InferRequest:
        """Return one of the requests that it executes, or has executed."""
        requests = list(itertools.chain.from_iterable(_each.requests for _each in self._batches()))
        return requests[at % len(requests)]

    def _batches(self) -> list[SimpleNamespace]:
        return [*self.outstanding.values(), *self.open.values()] or [SimpleNamespace(requests=[_parent()])]

    # -- saying ----------------------------------------------------------------------------------------------

    def send(self, packet: bytes, descriptors: list[int]) -> None:
        """Send a packet, and close the descriptors that went with it. Raises OSError where it can't."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        self.sock.sendmsg([packet], rights)
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors.clear()
        self._note(packet)

    def _note(self, packet: bytes) -> None:
        """Enter what a server has understood that does not refuse this."""
        try:
            match packet[0]:
                case frames.CALL | frames.ASK | frames.TELL:
                    letter = Letter.decode(packet)
                    if letter.kind != frames.TELL:
                        self.begun.append(letter.number)
                    self._missing = 0 if self._segment else letter.nbytes - len(letter.data)
                    self._segment = False
                case frames.MORE:
                    self._missing -= len(frames.decode_more(packet)[2])
                case frames.SEGMENT:
                    self._segment = True
                case frames.TAKEN:
                    self._untaken -= 1
                case frames.CREDIT:
                    number, _, parts, nbytes = frames.decode_credit(packet)
                    self._owe(number, -parts, -nbytes)
                case _:
                    pass
        except FrameError:
            return  # the server says so as well
        self.complete = not (self._missing or self._segment)

    def _owe(self, number: int, parts: int, nbytes: int) -> None:
        entry = self._unpaid.setdefault(number, [0, 0])
        entry[0] += parts
        entry[1] += nbytes

    def settle_up(self) -> None:
        """Give credit for everything read, and report which segments have been taken. Raises OSError."""
        while self._untaken > 0:
            self.send(bytes((frames.TAKEN,)), [])
        for number, (parts, nbytes) in list(self._unpaid.items()):
            if parts > 0 or nbytes > 0:
                self.send(frames.encode_credit(number, 0, max(parts, 0), max(nbytes, 0)), [])

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self) -> int:
        """Read everything that has come; how many packets that was."""
        count = 0
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.sock, frames.MAX_FRAME, 4)
            except OSError:
                return count
            if not packet:
                return count
            count += 1
            self._read(packet, descriptors)

    def _read(self, packet: bytes, descriptors: list[int]) -> None:
        assert len(descriptors) == (packet[0] == frames.SEGMENT)
        if packet[0] == frames.SEGMENT:
            assert self._given is None
            assert self._part is None
            self._given = map_segment(descriptors[0], frames.decode_segment(packet)[2], writable=True)
            self._untaken += 1
        elif packet[0] == frames.MORE:
            number, _, data = frames.decode_more(packet)
            assert self._part is not None
            assert number == self._part.batch_id
            self._whole(self._part, bytes(self._part.data) + bytes(data))
        else:
            assert packet[0] == frames.PART
            assert self._part is None
            part = Part.decode(packet)
            self._whole(part, bytes(part.data) if self._given is None else bytes(self._given))
            self._given = None

    def _whole(self, part: Part, data: bytes) -> None:
        part.data = data
        assert len(data) <= part.nbytes
        self._part = part if len(data) < part.nbytes else None
        if self._part is None:
            assert part.batch_id in self.begun, "an answer to nobody"
            assert not self.ended[part.batch_id], "something after the last answer"
            self.ended[part.batch_id] += part.final
            self.refused += part.final and part.answer is not None and part.answer.code is not None
            if not part.final:
                self._owe(part.batch_id, 1, part.nbytes)


def _parent() -> InferRequest:
    return InferRequest(model_name="caller", reply=Port(), accepted_at=0.0, deadline=60.0)
