"""Whether the log tells of every error that a client got, by the request's id and with the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chaos.checker.goals import Evidence, Findings, Goal, at_most
from chaos.checker.injections import Blow
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.outcome import code_seen
from chaos.record.records import Fail

_NO_MODELS: Final = "NOT_FOUND"
_NO_MODELS_YET: Final = "Request for unknown model"
"""A request to a model that is not there, or is being loaded, belongs to no model, and has no log line.

When the model goes, or begins to load, there is a log line, which the fault expects.
"""

# Seconds from when a disk has room again until the log is whole again.
_REGAINED: Final = 2.0


class ErrorsTold:
    """Error answers, and the lines of `--log-requests` about them."""

    def __init__(self, hits: Sequence[Blow], limits: Limits, began: float) -> None:
        self._limit = limits.told
        self._began = began
        self._muted = [(blow.t, blow.healed + _REGAINED) for blow in hits if blow.injected.mutes]
        self._errors: list[tuple[Story, Fail]] = []
        self._lines: Mapping[str, Sequence[tuple[float, str]]] = {}

    def see(self, story: Story) -> None:
        """Keep the request, if it ended with an error that the log should tell of."""
        end = story.end
        if not isinstance(end, Fail) or self._is_muted(end.t):
            return
        if end.code != _NO_MODELS and not end.message.startswith(_NO_MODELS_YET):
            self._errors.append((story, end))

    def told(self, lines: Mapping[str, Sequence[tuple[float, str]]]) -> None:
        """Take what the log says: by the request's id, when its error was logged, and with which code."""
        self._lines = lines

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        missing = Findings()
        waits: list[tuple[float, Evidence]] = []
        for story, end in self._errors:
            lines = [
                (t, code_seen(code, story.invoke.protocol))
                for t, code in self._lines.get(story.invoke.id, ())
            ]
            times = [t - end.t for t, code in lines if code == end.code or _gave_up(story, code)]
            if times:
                took = max(0.0, min(times))
                what = f"told {took * 1e3:.0f} ms after the client"
                waits.append((took, Evidence(what=what, id=story.invoke.id, story=story.told(self._began))))
            else:
                codes = ", ".join(sorted({code for _, code in lines}))
                what = f"the log has {codes}, not {end.code}" if codes else f"no line about this {end.code}"
                missing.add(what, story.invoke.id, story.told(self._began))
        yield missing.goal(
            "errors missing in the log",
            "error answers of which the log does not tell, by the request's id and with the same code",
            measured=len(self._errors),
        )
        yield at_most(
            self._limit,
            waits,
            name="errors told",
            about="the longest time from an error's arrival at the client until the log tells of it",
        )

    def _is_muted(self, t: float) -> bool:
        return any(begin <= t <= end for begin, end in self._muted)


def _gave_up(story: Story, code: str) -> bool:
    """Whether the client itself noted that its deadline had passed, so that the server only saw it leave."""
    deadline = story.invoke.deadline
    return code == "CANCELLED" and deadline is not None and story.until >= deadline
