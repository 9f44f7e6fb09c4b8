"""Rules, limits and times of an auth file in plain words, for the commands that explain it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from actors.values.callers import ANONYMOUS, Action
from engine.identity.limits import Limits
from engine.identity.rules import EVERYONE, KNOWN, OPEN_UNLESS_NAMED, Rule

WILD: Final = re.compile(r"[*?\[]")
"""What makes a pattern of a text."""

_SPAN: Final = re.compile(r"(\d{1,6})([hdwy])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_YEAR: Final = timedelta(days=365)
_HEADER: Final = re.compile(r"\s*\[")


_SUBJECTS: Final = {
    EVERYONE: "all clients",
    KNOWN: "all clients with good credentials",
    ANONYMOUS: "clients without credentials",
}


def subjects_in_words(subjects: Iterable[str]) -> str:
    """Return which clients a rule or a limit is about: `ci and group:ops`."""
    return listed([_SUBJECTS.get(each, each) for each in sorted(subjects)])


def rule_in_words(rule: Rule) -> str:
    """Return what a rule says: `allows inference on models resnet* to ci and group:ops`."""
    deeds = "everything"
    if rule.actions is not None:
        deeds = listed([action.value for action in Action if action in rule.actions])
    verb = "allows" if rule.allows else "denies"
    return f"{verb} {deeds} on {things_in_words(rule)} to {subjects_in_words(rule.subjects)}"


def things_in_words(rule: Rule) -> str:
    """Return what a rule is about: `models resnet* in namespace /models`."""
    models = _things("model", rule.models)
    return models if rule.namespaces == ("*",) else f"{models} in {_things('namespace', rule.namespaces)}"


def _things(kind: str, globs: Sequence[str]) -> str:
    if "*" in globs:
        return f"every {kind}"
    many = len(globs) > 1 or WILD.search(globs[0])
    return f"{kind}{'s' if many else ''} {listed(globs)}"


def default_in_words(action: Action, *, allowed: bool) -> str:
    """Return why an action is allowed or not that no rule decides."""
    if allowed:
        return f"no rule names '{action.value}', and until one does it is open to all"
    if action in OPEN_UNLESS_NAMED:
        return f"a rule names '{action.value}', so it is no longer open to all, and no rule allows it here"
    return "no rule matches, and what no rule allows is denied"


def limits_in_words(limits: Limits) -> str:
    """Return what limits allow: `10 requests a second and 4 inferences at a time, bursts of 2 s`."""
    parts = []
    if not math.isinf(limits.requests):
        parts.append(f"{limits.requests:g} requests a second")
    if not math.isinf(limits.bytes):
        parts.append(f"{limits.bytes:,.0f} bytes a second")
    rates = bool(parts)
    if not math.isinf(limits.concurrent):
        parts.append(f"{limits.concurrent:g} inferences at a time")
    if not parts:
        return "no limit"
    return listed(parts) + (f", in bursts of up to {limits.burst:g} s" if rates else "")


def listed(words: Sequence[str], most: int = 20) -> str:
    """Return `a`, `a and b`, or `a, b and c`; with more than `most`, the number of those left out."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def table_text(text: str, line: int) -> str:
    """Return the table whose header is in this line of a TOML text, without what follows it; empty for 0."""
    if not line:
        return ""
    lines = text.split("\n")[line - 1 :]
    end = next((at for at, each in enumerate(lines) if at and _HEADER.match(each)), len(lines))
    return "\n".join(_without_tail(lines[:end]))


def _without_tail(lines: list[str]) -> Iterable[str]:
    """Leave out blank lines and comments at the end: they belong to the next table."""
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines = lines[:-1]
    return (each.rstrip() for each in lines)


def moment_text(epoch: float) -> str:
    """Return a time in seconds of the epoch as TOML and ISO 8601 have it; `never` for inf."""
    if math.isinf(epoch):
        return "never"
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_moment(text: str, now: datetime) -> datetime:
    """Return the time that a span from `now` (12h, 90d, 26w, 1y), a date or a time means, in whole seconds.

    A date is its first moment in UTC, as in the auth file. Raises ValueError for another text, and for a time
    that is not in the future.
    """
    span = _SPAN.fullmatch(text)
    try:
        if span is not None:
            at = now + int(span[1]) * _UNITS.get(span[2], _YEAR)
        elif len(text) == len("2030-01-31"):
            at = datetime.combine(date.fromisoformat(text), time(), UTC)
        else:
            at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"'{text}' is no time: write a span from now such as 12h, 90d, 26w or 1y, a date such as "
            "2030-01-31, or a time such as 2030-01-31T12:00:00Z"
        ) from None
    if at <= now:
        raise ValueError(f"'{text}' is over already: it is {now:%Y-%m-%dT%H:%M:%SZ}")
    return at.replace(microsecond=0)
