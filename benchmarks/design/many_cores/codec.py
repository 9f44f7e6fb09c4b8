"""What the ring and its frames cost alone, in one process and without a system call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.tensors import Tensor
from actors.wire.arena import Segment
from benchmarks.design.many_cores import forms, line
from benchmarks.design.many_cores.forms import Book, Form
from benchmarks.design.many_cores.ring import Ring
from benchmarks.design.many_cores.threaded import add_sub, inputs_of

_AT_ONCE: Final = 32  # frames between two looks of the reader


class _Nowhere(ReplyPort):
    def put(self, part: object, *, final: bool) -> None:
        del part, final


class Both:
    """Both ends of a ring, with the form of one request told."""

    def __init__(self) -> None:
        segment = Segment.create(line.RING + 4096)
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.writer, self.reader = Ring(segment, bell), Ring(segment, bell)
        spec = add_sub()
        self._outputs = spec.output_names
        self.tensors: Sequence[Tensor] = inputs_of(spec)
        self.book = Book(self.writer.put)
        self.book.number(spec.name, -1, self._outputs, self.tensors)
        told = self.reader.take()
        assert told is not None
        _, self.form = Form.decode(told)
        self._reply = _Nowhere()

    def write(self, number: int) -> None:
        """Put one frame."""
        form = self.book.number("add_sub", -1, self._outputs, self.tensors)
        self.writer.put(forms.call(forms.CALL, form, number, "", self.tensors))
        self.writer.ring()

    def taken(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield what has come."""
        while (frame := self.reader.take()) is not None:
            _, number, identity, data = forms.read_call(frame)
            yield number, identity, data
        self.reader.done()

    def read_requests(self) -> None:
        """Make requests of what has come, as the owner does."""
        for _, identity, data in self.taken():
            InferRequest(
                model_name=self.form.model,
                id=identity,
                inputs=forms.cut(self.form, data),
                requested_outputs=self.form.outputs,
                reply=self._reply,
                accepted_at=0.0,
            )

    def read_responses(self) -> None:
        """Make responses of what has come, as a protocol process does."""
        for _, identity, data in self.taken():
            InferResponse(
                model_name=self.form.model, model_version=1, id=identity, outputs=forms.cut(self.form, data)
            )


def measured(seconds: float) -> dict[str, float]:
    """Return CPU µs a frame of writing one, and of reading a request and a response."""
    found = {}
    for name, read in (("request", Both.read_requests), ("response", Both.read_responses)):
        both = Both()
        writing, reading = _rounds(both, read, seconds)
        found[f"write a {name}"], found[f"read a {name}"] = writing, reading
    return found


def _rounds(both: Both, read: Callable[[Both], None], seconds: float) -> tuple[float, float]:
    writing = reading = count = 0
    until = time.monotonic() + seconds / 2
    while time.monotonic() < until:
        began = time.process_time_ns()
        for number in range(_AT_ONCE):
            both.write(number)
        between = time.process_time_ns()
        read(both)
        ended = time.process_time_ns()
        writing += between - began
        reading += ended - between
        count += _AT_ONCE
    return writing / count / 1e3, reading / count / 1e3
