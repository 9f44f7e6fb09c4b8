"""The answer of one request of a decoupled model, part by part, as the server receives it.

This module assembles the parts, and gives credit for them.

A worker may have `WINDOW_PARTS` parts of a request on their way. It may begin another part while less than
`WINDOW_BYTES` of tensors are on their way. A part on its way lies in the server's memory until the frontend
releases it, which happens when the client takes it. So a client that stalls costs a window and one part more.
Then the model's thread that sends to it stalls too.

Credit is given for half a window at once. A worker that waits has a whole window on its way, and gets credit
once half of that has been taken. So it never waits for credit that is kept back.

The end of an answer, and an error that ends it, cost no credit: there is only one of them, and a model can
always send it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from actors.wire.batch_frames import Answer, Part
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS, FrameError

if TYPE_CHECKING:
    from actors.values.errors import TritiumError
    from actors.values.requests import InferRequest
    from actors.values.tensors import Buffer, Tensor

LARGEST_PART: Final = 2**31
"""Bytes of tensors in one part; no frontend could send more in one message."""

Grant = Callable[["PartStream", int, int, bool], None]


class PartStream:
    """The parts of one request.

    `grant(stream, parts, nbytes, waited)` is called to let the worker send so many more parts and bytes.
    `waited` tells whether the worker may have been waiting for that.
    """

    __slots__ = (
        "_assembled",
        "_errors",
        "_grant",
        "_on_its_way",
        "_part",
        "_parts_on_their_way",
        "_taken",
        "_taken_parts",
        "batch_id",
        "done",
        "index",
        "request",
        "started",
    )

    def __init__(self, batch_id: int, index: int, request: InferRequest, grant: Grant) -> None:
        self.batch_id = batch_id
        self.index = index
        self.request = request
        self.started = False  # a part of it has been passed on
        self.done = False  # its last part has come
        self._grant = grant
        self._parts_on_their_way = 0  # received, and not credited yet
        self._on_its_way = 0
        self._taken_parts = 0  # of those, the parts that are no longer needed
        self._taken = 0
        self._part: Part | None = None  # the part whose tensors are still coming
        self._assembled = bytearray()
        self._errors: set[weakref.ref[TritiumError]] = set()

    @property
    def exhausted(self) -> bool:
        """Whether the worker has to wait until more of its parts have been taken."""
        return self._parts_on_their_way >= WINDOW_PARTS or self._on_its_way >= WINDOW_BYTES

    def receive(self, part: Part) -> Part | None:
        """Take a part's first frame; return the part if that is all of it. Raises FrameError."""
        if self.done or self._part is not None:
            where = "after the last one" if self.done else "within another"
            raise FrameError(f"a part of request {self.index} of batch {self.batch_id} {where}")
        if costs_credit(part):
            if self.exhausted:
                raise FrameError(f"a part of request {self.index} of batch {self.batch_id} without credit")
            if part.nbytes > LARGEST_PART:
                raise FrameError(f"a part of {part.nbytes} bytes")
            self._parts_on_their_way += 1
            self._on_its_way += part.nbytes
        if len(part.data) < part.nbytes:
            self._part, self._assembled = part, bytearray(part.data)
            return None
        self.done = part.final
        return part

    def receive_more(self, data: Buffer) -> Part | None:
        """Take a part's next frame; return the part if that was the last. Raises FrameError."""
        part = self._part
        if part is None or len(self._assembled) + len(data) > part.nbytes:
            raise FrameError(f"{len(data)} bytes too many of request {self.index} of batch {self.batch_id}")
        self._assembled += data
        if len(self._assembled) < part.nbytes:
            return None
        part.data, self._part, self._assembled = self._assembled, None, bytearray()
        self.done = part.final
        return part

    def take(self, nbytes: int) -> None:
        """One of the parts, with `nbytes` of tensors, is no longer needed."""
        self._taken_parts += 1
        self._taken += nbytes
        if self.done or (self._taken_parts < WINDOW_PARTS // 2 and self._taken < WINDOW_BYTES // 2):
            return
        parts, nbytes, waited = self._taken_parts, self._taken, self.exhausted
        self._parts_on_their_way -= parts
        self._on_its_way -= nbytes
        self._taken_parts = self._taken = 0
        self._grant(self, parts, nbytes, waited)

    def take_when_dropped(self, error: TritiumError) -> None:
        """Count an error as a part until it is garbage: errors have no call that releases them."""

        def dropped(reference: weakref.ref[TritiumError]) -> None:
            self._errors.discard(reference)
            self.take(0)

        self._errors.add(weakref.ref(error, dropped))


class Arrived:
    """One part of a request's answer, whole and checked. `answer` is None where only the end is told.

    When a part that `costs` credit is no longer needed, `stream` is told its `nbytes`.
    """

    __slots__ = ("answer", "costs", "final", "first", "nbytes", "outputs", "stream")

    def __init__(self, stream: PartStream, part: Part, outputs: list[Tensor]) -> None:
        self.stream = stream
        self.answer: Answer | None = part.answer
        self.outputs = outputs
        self.nbytes = part.nbytes
        self.final = part.final
        self.first = not stream.started
        self.costs = costs_credit(part)
        stream.started = True

    def taken(self) -> None:
        """This part is no longer needed."""
        self.stream.take(self.nbytes)


def costs_credit(part: Part) -> bool:
    """Whether a part may be sent only where the window has room for it."""
    return not part.final or part.nbytes > 0
