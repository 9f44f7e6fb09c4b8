"""A finished trace as it is exported: spans with their ids, times, attributes and events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Attribute = str | int | float | bool


@dataclass(slots=True, kw_only=True)
class SpanRecord:
    """One span. `parent_id` is 0 without a parent; times are nanoseconds of the steady clock.

    `error` says why it failed; empty: it did not.
    """

    name: str
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    events: Sequence[tuple[str, int]] = ()  # name and time
    error: str = ""


@dataclass(slots=True, kw_only=True)
class TraceRecord:
    """The spans of one trace, each behind its parent.

    `remote` is whether the first span's parent is a client's. `state` is the client's `tracestate`.
    """

    trace_id: int
    spans: Sequence[SpanRecord]
    remote: bool = False
    state: str = ""
