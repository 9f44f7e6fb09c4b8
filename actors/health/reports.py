"""What a deep check of readiness answers: the verdict with the results of the probes, as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import trio

from actors.health.probes import Probed
from actors.health.verdicts import Part, Verdict
from actors.health.watches import Watch
from actors.serving.model import ModelState
from actors.values.interfaces import DeepReport
from actors.values.specs import ModelKey

# If the wall clock is off by so many seconds, it has been set anew.
_CLOCK_SET: Final = 1.0
_SHOWN: Final = 1000  # characters of a reason


class DeepReports:
    """Makes reports. `setback` tells why the last reload of a serving version failed."""

    def __init__(self, wall_clock: Callable[[], int], setback: Callable[[ModelKey, int], str]) -> None:
        self._wall_clock = wall_clock
        self._setback = setback
        self._epoch = 0.0  # added to trio's clock it gives the wall clock's time

    def report(
        self, verdict: Verdict, probed: Probed, present: Mapping[ModelState, Watch], why_not: str
    ) -> DeepReport:
        """Return the report. Probes count in it whether the server is strict or not.

        `present` are the versions that serve now. `why_not` says why the server is not ready at all.
        """
        # A version that was replaced in the meantime tells nothing about its successor.
        heard = {watch.named: watch for state, watch in probed.watches.items() if present.get(state) is watch}
        ready = verdict.ready and not why_not
        parts = []
        for part in verdict.parts:
            watch = heard.get(part.named)
            late = None if watch is None else probed.unanswered.get(watch.state)
            ready = ready and (watch is None or not (watch.trouble or late))
            parts.append(self._part(part, watch, late))
        head: dict[str, object] = {"ready": ready, "live": True}
        if why_not:
            head["reason"] = why_not
        return DeepReport(ready=ready, document={**head, "parts": parts})

    def _part(self, part: Part, watch: Watch | None, late: tuple[str, float] | None) -> dict[str, object]:
        reason, since = part.reason, part.since
        if watch is not None and not reason and (watch.trouble or late):
            reason, since = late if late and not watch.trouble else (watch.trouble, watch.since)
        document: dict[str, object] = {"part": shown(str(part)), "ready": not reason}
        if reason:
            document["reason"] = shown(reason)
        document["since"] = self._on_the_wall(since)
        if setback := self._setback(part.key, part.version):
            document["reload_failed"] = shown(setback)
        if not part.essential:
            document["essential"] = False
        if watch is not None and late is None:
            document |= _told(watch)
        return document

    def _on_the_wall(self, moment: float) -> str:
        """Return a time on trio's clock as text: UTC, to the millisecond, and the same at each look."""
        epoch = self._wall_clock() / 1000 - trio.current_time()
        if abs(epoch - self._epoch) > _CLOCK_SET:
            self._epoch = epoch
        written = datetime.fromtimestamp(self._epoch + moment, UTC).isoformat(timespec="milliseconds")
        return written.replace("+00:00", "Z")


def _told(watch: Watch) -> dict[str, object]:
    """Return what a probe's outcome adds to a part's entry."""
    told: dict[str, object] = {}
    if watch.outcome is not None:
        told["seconds"] = round(watch.outcome.seconds, 6)
        if watch.note:
            told["note"] = shown(watch.note)
        elif watch.outcome.error and not watch.trouble:
            told["note"] = shown(
                f"a probe inference is answered with an error, as before: {watch.outcome.error}"
            )
    return told


def shown(text: str) -> str:
    """Return a text in a form that fits a document or a log."""
    return text[:_SHOWN].encode(errors="replace").decode()
