"""The W3C Trace Context that comes with a request (https://www.w3.org/TR/trace-context/, level 1)."""

from __future__ import annotations

import re
from typing import Final

from actors.values.tracing.spans import TraceContext

MOST_STATE: Final = 512
"""Characters of `tracestate` that are passed on, which is what everyone should pass on.

A longer one is dropped.
"""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NO_VERSION: Final = "ff"
_MOST_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


def context_of(parent: str, state: str = "") -> TraceContext | None:
    """Return what the fields `traceparent` and `tracestate` say; None where they are not valid.

    Of a later version than 00, the part is read that 00 has, as the standard says.
    """
    found = _PARENT.fullmatch(parent.strip())
    if found is None or found[1] == _NO_VERSION or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, int(found[4], 16), state if _is_state(state) else "")


def _is_state(state: str) -> bool:
    """Whether others may be given `state`: one that breaks the rules is left out, and costs nothing else."""
    if len(state) > MOST_STATE:
        return False
    members = [member for each in state.split(",") if (member := each.strip(" \t"))]
    names = {member.partition("=")[0] for member in members}
    return len(names) == len(members) <= _MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))
