"""What other programs know a span by: ids that follow from its own, and the W3C fields that name it. Pure.

A request's span has an id of its own. Each of its waits and executions is a span as well, whose id is made of
that and its number, so that a model can be told the id before there is anything else to tell.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from actors.values.tracing.spans import traceparent

if TYPE_CHECKING:
    from actors.values.tracing.spans import Span

_PARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_IDS: Final = 2**64
_OWN: Final = 2**32  # more than any request has executions
_STEP: Final = 0x9E3779B97F4A7C15  # odd: its multiples by 1, 2 and so on are all different


def execution_id(span_id: int, number: int) -> int:
    """Return the id of the span of a request's execution, which are numbered from 0."""
    return _derived(span_id, 2 * number + 1)


def wait_id(span_id: int, number: int) -> int:
    """Return the id of the span in which the request waited for that execution."""
    return _derived(span_id, 2 * number + 2)


def own_id(span_id: int, number: int) -> int:
    """Return the id of a span that is made of two activities of a model's."""
    return _derived(span_id, _OWN + number)


def _derived(span_id: int, number: int) -> int:
    return (span_id + number * _STEP) % _IDS or number


def ids_in(text: str) -> tuple[int, int]:
    """Return the ids of the trace and the span that a `traceparent` names; zeros where it names none."""
    found = _PARENT.fullmatch(text)
    return (0, 0) if found is None else (int(found[1], 16), int(found[2], 16))


def next_execution(span: Span) -> list[str]:
    """Return `traceparent` and `tracestate` of the execution that is about to begin, for its worker.

    Neither where no other program gets to know the trace. A batch that could not be sent at once is prepared
    after its execution was noted: that is the one that is about to begin.
    """
    trace = span.trace
    if not trace.exported:
        return []
    number = len(span.executions) - (span.execution is not None)
    parent = traceparent(trace.w3c_id, execution_id(span.w3c_id, number))
    state = "" if trace.context is None else trace.context.state
    return [parent, state] if state else [parent]
