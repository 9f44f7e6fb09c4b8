"""The stream of events on the wire: what a request asks for, and portions as server-sent events.

Reference: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from actors.values.errors import InvalidArgument
from actors.values.events import LEVELS, Event, Portion, WantedEvents

LAST_ID: Final = b"last-event-id"
"""The header by which a client that comes back says what it has."""

RETRY_MS: Final = 1000
"""After how long clients come back by themselves, such as a browser's EventSource."""

_LISTS: Final = ("model", "event")
_SINGLE: Final = ("level", "after", "follow")
_MOST_VALUES: Final = 8
_LONGEST: Final = 256
_FOLLOW: Final = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a request asks for: which events, after which id, and whether those that are still to come."""

    wanted: WantedEvents
    after: str | None
    live: bool


def asked_for(query: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Question:
    """Return what a request asks for. `Last-Event-ID` goes before `after`, which is in a URL to stay.

    Raises InvalidArgument for a field or value that means nothing here.
    """
    fields = _fields(query)
    last = dict(headers).get(LAST_ID, b"").decode("latin-1")
    level, follow = fields.get("level", [""])[0], fields.get("follow", ["true"])[0]
    if level and level not in LEVELS:
        raise InvalidArgument(f"Invalid value '{level}' for 'level': expected one of {', '.join(LEVELS)}")
    if follow not in _FOLLOW:
        raise InvalidArgument(f"Invalid value '{follow}' for 'follow': expected true or false")
    live = _FOLLOW[follow]
    after = last or (fields["after"][0] if "after" in fields else None)
    return Question(
        wanted=WantedEvents(models=fields.get("model", ()), events=fields.get("event", ()), level=level),
        # Without what is to come, all that there is can be meant.
        after="" if after is None and not live else after,
        live=live,
    )


def _fields(query: bytes) -> Mapping[str, Sequence[str]]:
    try:
        pairs = parse_qsl(
            query.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=4 * _MOST_VALUES
        )
    except ValueError as error:
        raise InvalidArgument(f"the query has more than {4 * _MOST_VALUES} fields") from error
    fields: dict[str, list[str]] = defaultdict(list)
    for name, value in pairs:
        if name not in _LISTS + _SINGLE:
            known = ", ".join(_LISTS + _SINGLE)
            raise InvalidArgument(f"unknown field '{name[:_LONGEST]}' in the query: there are {known}")
        if len(value) > _LONGEST:
            raise InvalidArgument(f"the value of '{name}' has {len(value)} characters, more than {_LONGEST}")
        fields[name].append(value)
        most = _MOST_VALUES if name in _LISTS else 1
        if len(fields[name]) > most:
            raise InvalidArgument(
                f"'{name}' is given more than {most} times" if most > 1 else f"'{name}' is given twice"
            )
    return fields


def beginning() -> bytes:
    """Return what stands before the first event."""
    return f"retry: {RETRY_MS}\n".encode()


def in_text(portion: Portion) -> bytes:
    """Return a portion as server-sent events.

    An id without data behind the events takes a client past those that it did not want, and shows that the
    stream lives.
    """
    blocks: list[bytes] = []
    if portion.gap:
        blocks.append(_block(Event.EVENTS_MISSED.value, _gap(portion)))
    for id_, told in portion.events:
        blocks.append(b"id: %s\n%s" % (id_.encode(), _block(told.event, told.text)))
    if not portion.events or portion.events[-1][0] != portion.upto:
        blocks.append(b": \nid: %s\n\n" % portion.upto.encode())
    return b"".join(blocks)


def _block(event: str, text: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), text)


def _gap(portion: Portion) -> bytes:
    why = (
        "the server was started anew since, and its ids are others"
        if portion.missed is None
        else "they were no longer kept (--events-kept, --events-memory)"
    )
    said = {
        "level": "warning",
        "event": Event.EVENTS_MISSED.value,
        "missed": portion.missed,
        "before": portion.events[0][0] if portion.events else portion.upto,
        "reason": why,
    }
    return json.dumps(said).encode()
