"""One request through every stage that the log knows of, with what was done for it: steps, calls, copies.

With `--log-requests=true` the log has one line for each request, at its end, and names the requests that a
dying worker held. The stages before the end are then derived from the times in that line. With
`--log-verbose=1` as well, each stage has a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.observability.reading.formats import Line, stamp
from engine.observability.reading.requests import Ended, ended
from engine.observability.reading.selecting import concerns


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing that happened to a request, at `time` in seconds since 1970."""

    time: float
    what: str
    where: str = ""
    detail: str = ""
    figured: bool = False
    """Whether it has no line, and follows from the times in another."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "time": stamp(self.time),
            "what": self.what,
            "where": self.where,
            "detail": self.detail,
            "figured": self.figured,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the log says of one id.

    `ends` has clients' requests first; empty if none has ended, or none was logged.
    """

    request: str
    stages: Sequence[Stage]
    ends: Sequence[Ended]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "request": self.request,
            "ends": [each.as_dict() for each in self.ends],
            "stages": [each.as_dict() for each in self.stages],
        }


def trace(lines: Iterable[Line], request: str) -> Trace:
    """Follow `request`, a client's id or `#` and the server's number, through `lines`.

    Requests that the server made for other requests are held in memory until the end of the lines, because a
    step ends before the request that it belongs to.
    """
    about: list[Line] = []
    internal: list[Line] = []
    for line in lines:
        if concerns(line, request):
            about.append(line)
        elif line.keys.get("parent"):
            internal.append(line)
    about += _descendants(about, internal)
    about.sort(key=lambda line: line.time)
    ends = [each for line in about if (each := ended(line)) is not None]
    ends.sort(key=lambda each: bool(each.relation))
    logged = {line.keys.get("serial") for line in about if line.event == "request_accepted"}
    dispatched = any(line.event == "batch_dispatched" for line in about)
    stages = [stage for line in about for stage in _of_line(line)]
    for each in ends:
        stages += _figured(each, accepted=each.serial not in logged, dispatched=not dispatched)
    stages.sort(key=lambda stage: stage.time)
    return Trace(request=request, stages=stages, ends=ends)


def _descendants(about: Sequence[Line], internal: Sequence[Line]) -> list[Line]:
    """Return the lines of what was made for the sake of the requests of `about`, and for the sake of that."""
    wanted = {line.keys["serial"] for line in about if line.keys.get("serial")}
    found: list[Line] = []
    rest = list(internal)
    while True:
        children = [line for line in rest if line.keys["parent"] in wanted]
        if not children:
            return found
        found += children
        wanted |= {line.keys.get("serial") for line in children}
        rest = [line for line in rest if line not in children]


def _of_line(line: Line) -> Iterable[Stage]:
    keys = line.keys
    where = str(keys.get("instance") or keys.get("actor") or keys.get("model") or "")
    match line.event:
        case "request_accepted":
            what, where = "accepted", str(keys.get("model", ""))
            detail = f"{keys.get('queued', 0)} in the queue before it"
        case "batch_dispatched":
            what, company = "dispatched", len(keys.get("requests") or ())
            alone = ", alone" if keys.get("alone") else ""
            detail = f"pid {keys.get('pid')}, batch {keys.get('batch')} of {_count(company)}{alone}"
        case "batch_completed":
            what = "executed"
            spent = (f"{part} {_ms(keys, f'compute_{part}_us')}" for part in ("input", "infer", "output"))
            detail = f"pid {keys.get('pid')}, batch {keys.get('batch')}: {', '.join(spent)}"
        case _ if (end := ended(line)) is not None:
            what, where = end.outcome, end.model
            detail = _how(end)
        case _:
            what = line.event
            detail = " ".join(
                f"{name}={json.dumps(keys[name], ensure_ascii=False)}"
                for name in (
                    "pid",
                    "reason",
                    "detail",
                    "executing",
                    "waiting",
                    "refused",
                    "halves",
                    "message",
                )
                if keys.get(name)
            )
    yield Stage(time=line.time, what=what, where=where, detail=detail)


def _how(end: Ended) -> str:
    said = [f"after {end.total * 1e3:.1f} ms"]
    if end.attempts > 1:
        said.append(f"{end.attempts} attempts")
    if end.line.keys.get("cached"):
        said.append("from the cache")
    if end.line.keys.get("responses"):
        said.append(f"{end.line.keys['responses']} responses")
    if end.relation:
        said.append(f"{end.relation} of #{end.line.keys.get('parent')}")
    if end.message:
        said.append(f"{end.code} {end.message}".strip())
    return ", ".join(said)


def _figured(end: Ended, *, accepted: bool, dispatched: bool) -> Iterable[Stage]:
    if accepted and end.total:
        peer = " ".join(str(end.line.keys.get(name, "")) for name in ("protocol", "peer")).strip()
        yield Stage(time=end.accepted, what="accepted", where=end.model, detail=peer, figured=True)
    if dispatched and end.batch:
        began = end.accepted + end.spent.queue + end.spent.earlier
        detail = f"pid {end.pid}, batch {end.batch} of {_count(end.batch_requests)}"
        yield Stage(time=began, what="executing", where=end.instance, detail=detail, figured=True)


def _count(requests: int) -> str:
    return f"{requests} request{'' if requests == 1 else 's'}"


def _ms(keys: Any, name: str) -> str:
    value = keys.get(name, 0)
    return f"{value / 1e3:.1f} ms" if isinstance(value, int | float) else "?"
