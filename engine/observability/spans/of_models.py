"""Spans that models make of their own: what workers tell of them, checked, and noted on requests.

A worker asks, and so waits until the server knows: the answer that it gives then ends the trace. It may be
hostile. What it tells of is bounded, and belongs to requests that it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from actors.calls.subjects import CallingWorker, Subjects
from actors.values.tracing.spans import OwnSpan, Span
from actors.wire.call_fields import travels
from actors.wire.frames import FrameError
from engine.worker.backends.python.tracing import LONGEST, MOST_ATTRIBUTES, MOST_SPANS, SUBJECT

MOST_NOTED: Final = 2048
"""Notes that one message makes: a span of a whole batch makes one for each of its traced requests."""

_ACTIVITY: Final = 3  # places, name, time
_SPAN: Final = 8  # places, name, start, end, id, parent, attributes, error
_NUMBERS: Final = 2**63
_IDS: Final = 2**64


def answer_spans(subjects: Subjects, clock: Callable[[], int] = time.monotonic_ns) -> None:
    """Take what workers tell of their models' spans."""

    async def told(
        body: Mapping[str, object], attachments: Mapping[str, bytes], caller: CallingWorker
    ) -> Mapping[str, object]:
        del attachments
        note(body, caller, clock())
        return {}

    subjects.answer(SUBJECT, told)


def note(body: Mapping[str, object], caller: CallingWorker, now: int) -> None:
    """Note on the spans of requests what their model has told of them. Raises FrameError.

    A batch that is over has no spans any more. `now` is the steady clock's time: nothing ends later.
    """
    batch, spans, left_out = body.get("batch"), body.get("spans"), body.get("left_out", 0)
    if (
        not _is_number(batch)
        or not _is_number(left_out)
        or not isinstance(spans, list)
        or len(spans) > MOST_SPANS
    ):
        raise _bad(body)
    traced = _traced(caller, batch)
    room = MOST_NOTED
    for each in spans:
        places, make = _read(each, now)
        for place in places[:room]:
            found = traced.get(place)
            if found is not None:
                span, execution = found
                span.tell(make(execution))
        room -= len(places[:room])
    for span, _ in traced.values():
        span.trace.unkept += left_out


def _traced(caller: CallingWorker, number: int) -> Mapping[int, tuple[Span, int]]:
    """Return the traced requests of a batch by place, each with the number of its execution."""
    worker = caller.worker
    batch = None if worker is None else worker.outstanding.get(number) or worker.open.get(number)
    if batch is None:
        return {}
    return {
        place: (request.span, max(0, len(request.span.executions) - 1))
        for place, request in enumerate(batch.requests)
        if request.span is not None
    }


def _read(told: object, now: int) -> tuple[Sequence[int], Callable[[int], OwnSpan]]:
    """Return the places of the requests that are told of, and what makes the span, given its execution."""
    if not isinstance(told, list) or len(told) not in (_ACTIVITY, _SPAN):
        raise _bad(told)
    places, name, began = told[:_ACTIVITY]
    if not isinstance(places, list) or not all(map(_is_number, places)) or not _is_text(name):
        raise _bad(told)
    if not _is_number(began):
        raise _bad(told)
    start = min(began, now)
    if len(told) == _ACTIVITY:
        return places, lambda execution: OwnSpan(execution, name, start)
    ended, number, parent, attributes, error = told[_ACTIVITY:]
    if not (_is_number(ended) and _is_id(number) and (_is_id(parent) or parent == 0) and _is_text(error)):
        raise _bad(told)
    if not _are_attributes(attributes):
        raise _bad(told)
    end = max(start, min(ended, now))
    return places, lambda execution: OwnSpan(execution, name, start, end, number, parent, attributes, error)


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _NUMBERS


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 < value < _IDS


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and travels(value)


def _are_attributes(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MOST_ATTRIBUTES
        and all(_is_text(name) and _is_attribute(each) for name, each in value.items())
    )


def _is_attribute(value: Any) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    return isinstance(value, float) or (isinstance(value, int) and -_NUMBERS <= value < _NUMBERS)


def _bad(told: object) -> FrameError:
    return FrameError(f"a worker tells of spans: {str(told)[:200]!r}")
