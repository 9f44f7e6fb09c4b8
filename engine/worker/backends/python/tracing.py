"""Spans of a model's own, in the traces of the requests that it executes.

The server says which requests of a batch are traced. What a model tells of them is kept until the execution
is over, or a request has its last response. Then the server is told, before it has the answer: a trace ends
with that. Where no request is traced, a span is one that does nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Union

from engine.worker.calls import CallFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from engine.worker.backends.base import Batch
    from engine.worker.calls import Calls

    Attribute = Union[str, int, float, bool]

SUBJECT: Final = "trace.spans"

MOST_SPANS: Final = 128
"""Spans and activities of one execution. Those beyond are counted, and the server is told how many."""

MOST_ATTRIBUTES: Final = 16
LONGEST: Final = 256
"""Characters of a name or a text. The end of a longer one is cut off."""

_NOT_A_SPAN: Final = 0  # the parent's id, if that is the execution itself


class Recording:
    """What a model tells of one execution, on its way to the server."""

    __slots__ = ("_batch", "_calls", "_guard", "_left_out", "_spans", "contexts")

    def __init__(self, batch: int, contexts: Mapping[int, Sequence[str]], calls: Calls) -> None:
        """`contexts` has `traceparent` and `tracestate` of each traced request, by its place in the batch."""
        self.contexts = contexts
        self._batch = batch
        self._calls = calls
        self._guard = threading.Lock()
        self._spans: list[list[Any]] = []
        self._left_out = 0

    def add(self, told: list[Any]) -> None:
        """Keep one span or activity, in the form in which the server is told of it."""
        with self._guard:
            if len(self._spans) < MOST_SPANS:
                self._spans.append(told)
            else:
                self._left_out += 1

    def report(self, places: Sequence[int], name: str, at: int) -> None:
        """Keep an activity of these requests: its name, and when it was."""
        self.add([list(places), _text(name), at])

    def flush(self) -> None:
        """Tell the server, and wait until it knows."""
        with self._guard:
            spans, self._spans = self._spans, []
            left_out, self._left_out = self._left_out, 0
        if spans or left_out:
            # The answers to requests matter more than what is told of them.
            with contextlib.suppress(CallFailed):
                self._calls.ask(SUBJECT, {"batch": self._batch, "spans": spans, "left_out": left_out})


def recording_of(batch: Batch, calls: Calls | None) -> Recording | None:
    """Return where a model's spans go while it executes `batch`; None if none of its requests is traced."""
    contexts = batch.traced
    if not contexts or calls is None:
        return None
    origin = batch.requests[0].origin
    return None if origin is None else Recording(origin[0], contexts, calls)


class NoSpan:
    """A span where nothing is traced."""

    __slots__ = ()

    def __enter__(self) -> NoSpan:  # noqa: PYI034  # Python 3.9 has no `Self`
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def set(self, name: str, value: Attribute) -> None:
        """Do nothing."""


class ModelSpan:
    """A span that begins where a `with` block does, and ends with it. An exception is told as its failure."""

    __slots__ = ("_attributes", "_began", "_name", "_outer", "_places", "id", "recording")

    def __init__(
        self, recording: Recording, places: Sequence[int], name: str, attributes: Mapping[str, Attribute]
    ) -> None:
        self.id = int.from_bytes(os.urandom(8), "little") or 1
        self.recording = recording
        self._places = places
        self._name = name
        self._attributes: dict[str, Attribute] = {}
        self._outer: ModelSpan | None = None
        self._began = 0
        for key, value in attributes.items():
            self.set(key, value)

    def set(self, name: str, value: Attribute) -> None:
        """Set an attribute: a text, a number or a truth value; anything else is told as text."""
        if len(self._attributes) < MOST_ATTRIBUTES or name in self._attributes:
            self._attributes[_text(name)] = _attribute(value)

    def __enter__(self) -> ModelSpan:  # noqa: PYI034  # as above
        """Begin."""
        self._outer = _open.get()
        _open.set(self)
        self._began = time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        ended = time.monotonic_ns()
        outer, self._outer = self._outer, None
        _open.set(outer)
        parent = outer.id if outer is not None and outer.recording is self.recording else _NOT_A_SPAN
        failed = "" if kind is None else _text(f"{kind.__name__}: {error}")
        self.recording.add(
            [
                list(self._places),
                _text(self._name),
                self._began,
                ended,
                self.id,
                parent,
                self._attributes,
                failed,
            ]
        )

    def traceparent(self, of: str) -> str:
        """Return the W3C name of this span, in the trace of the context `of`."""
        return f"{of[:36]}{self.id:016x}-01"

    def covers(self, context: str) -> bool:
        """Whether one of its requests has this W3C context, or another span of that trace."""
        contexts = self.recording.contexts
        return any(context[3:35] == contexts[place][0][3:35] for place in self._places if contexts[place])


AnySpan = Union[ModelSpan, NoSpan]

NO_SPAN: Final = NoSpan()

_open: ContextVar[ModelSpan | None] = ContextVar("open_span", default=None)

places: Final[ContextVar[Sequence[int] | None]] = ContextVar("places", default=None)
"""The requests of the batch for which a function is called; None: all of them."""


def span_in(recording: Recording, name: str, attributes: Mapping[str, Attribute]) -> AnySpan:
    """Return a span of the requests for which the caller runs."""
    given = places.get()
    traced = recording.contexts
    chosen = list(traced) if given is None else [place for place in given if place in traced]
    return ModelSpan(recording, chosen, name, attributes) if chosen else NO_SPAN


def within_open_span(context: str) -> str:
    """Return the W3C context of what is begun now, for a request that has `context` itself."""
    span = _open.get()
    return span.traceparent(context) if span is not None and context and span.covers(context) else context


def _text(value: object) -> str:
    text = value if type(value) is str else str(value)
    return text[:LONGEST] if text.isascii() else text[:LONGEST].encode(errors="replace").decode()


def _attribute(value: Any) -> Attribute:
    if isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    item = getattr(value, "item", None)  # of a number of numpy's
    if item is not None and getattr(value, "size", 0) == 1:
        return _attribute(item())
    return _text(value)
