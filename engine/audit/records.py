"""Records of the audit log: one JSON object a line, in ASCII, each with the digest of the line before it.

Pure.

What clients choose (names of models, texts of errors) is cut, and escaped by JSON: no value ends a line or
speaks to a terminal. The digest chains the lines, so that a line that was changed or taken out shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

LONGEST: Final = 16 * 1024
"""Bytes of a line, with its end, at most."""

ASKED: Final = "asked"
DONE: Final = "done"
FAILED: Final = "failed"
ABANDONED: Final = "abandoned"
DENIED: Final = "denied"
OUTCOMES: Final = (ASKED, DONE, FAILED, ABANDONED, DENIED)
"""What can be said of an action. A change has two records with one id: `asked`, and one of the others."""

_TEXT: Final = 512  # bytes of a text, as JSON has it
_REASON: Final = 2048
_ITEMS: Final = 64
_DEPTH: Final = 5
_NAMES: Final = ("action", "outcome", "id", "identity", "address", "via", "model", "code", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is written about one action. `time` is in seconds of the epoch; empty texts are left out.

    `via` is where it was asked: a listener such as `grpc`, `model`, `command` or `server`. `code` and
    `reason` say why it failed or was denied.
    """

    time: float
    action: str
    outcome: str = DONE
    id: str = ""
    identity: str = ""
    address: str = ""
    via: str = ""
    model: str = ""
    code: str = ""
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a log: the number of its last record, and the digest of that line. Empty: none."""

    number: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it stands in a log, with its number and the digest of the line before it."""

    record: Record
    number: int
    former: str
    line: bytes


def chained(records: Sequence[Record], end: End) -> tuple[bytes, End]:
    """Return the lines of `records`, to be written behind `end`, and the end that the log has then."""
    lines = []
    for record in records:
        line = _line(record, end)
        lines.append(line)
        end = End(end.number + 1, digest_of(line))
    return b"".join(lines), end


def digest_of(line: bytes) -> str:
    """Return what the next record says of `line`."""
    return hashlib.blake2b(line.rstrip(b"\n"), digest_size=32).hexdigest()


def parse(line: bytes) -> Entry | None:
    """Return the record in a line, with or without its end; None where it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    number, former, time = found.get("n"), found.get("former"), _seconds(found.get("time"))
    texts = {name: found.get(name, "") for name in _NAMES}
    facts = found.get("facts", {})
    whole = (
        time is not None
        and type(number) is int
        and isinstance(former, str)
        and isinstance(facts, dict)
        and all(isinstance(text, str) for text in texts.values())
        and texts["action"]
        and texts["outcome"] in OUTCOMES
    )
    if not whole:
        return None
    assert time is not None
    assert isinstance(number, int)
    assert isinstance(former, str)
    return Entry(Record(time=time, **texts, facts=facts), number, former, line.rstrip(b"\n"))


def moment(seconds: float) -> str:
    """Return a time as records have it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def cut(text: str, most: int = _TEXT) -> str:
    """Return `text`, or its beginning and its length where JSON takes more than `most` bytes for it."""
    if len(text) * 12 <= most or len(json.dumps(text)) - 2 <= most:
        return text
    return f"{text[: most // 12]}... ({len(text)} characters)"


def _seconds(text: object) -> float | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()


def _line(record: Record, end: End) -> bytes:
    line = _encoded(record, end)
    if len(line) > LONGEST:
        line = _encoded(replace(record, facts={"left_out": f"facts of {len(line)} bytes"}), end)
    return line


def _encoded(record: Record, end: End) -> bytes:
    document: dict[str, object] = {"time": moment(record.time), "n": end.number + 1}
    for name in _NAMES:
        text: str = getattr(record, name)
        if text:
            document[name] = cut(text, _REASON if name == "reason" else _TEXT)
    if record.facts:
        document["facts"] = _tame(record.facts, _DEPTH)
    document["former"] = end.digest
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # The one control character that JSON leaves as it is.
    return text.encode().replace(b"\x7f", b"\\u007f") + b"\n"


def _tame(value: object, depth: int) -> object:
    """Return a JSON value with long texts cut, long lists shortened and deep ones left out."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**63 else cut(hex(value))
    if isinstance(value, float):
        return value if abs(value) < float("inf") else repr(value)  # of NaN, too
    if isinstance(value, Mapping) and depth:
        found = {cut(str(name)): _tame(each, depth - 1) for name, each in list(value.items())[:_ITEMS]}
        return found | ({"...": f"{len(value) - _ITEMS} more"} if len(value) > _ITEMS else {})
    if isinstance(value, list | tuple) and depth:
        items = [_tame(each, depth - 1) for each in value[:_ITEMS]]
        return items + ([f"... {len(value) - _ITEMS} more"] if len(value) > _ITEMS else [])
    return cut(value) if isinstance(value, str) else "..."
