"""Whether requests were executed as often as they may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from chaos.checker.goals import Findings, Goal
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Pairing, Story
from chaos.record.records import Ok


class Executions:
    """What was executed twice against its promise.

    A model that may not run again must not be executed to its end twice. A request whose answer speaks of one
    attempt must not be executed twice at all. Only Python models keep a journal, so executions of ONNX models
    are not seen here.
    """

    def __init__(self, limits: Limits, pairing: Pairing, began: float) -> None:
        self._retried = limits.retried
        self._pairing = pairing
        self._began = began
        self._found = Findings()
        self._seen = 0

    def see(self, story: Story) -> None:
        """Look at a request's executions."""
        self._seen += bool(story.executions)
        if len(story.executions) < 2:
            return
        begun = Counter(each.model for each in story.executions)
        ended = Counter(each.model for each in story.executions if each.end is not None)
        for model, times in begun.items():
            if ended[model] > 1 and model.partition("-")[0] not in self._retried:
                self._add(story, f"{model} has executed it to its end {ended[model]} times")
            elif times > 1 and isinstance(story.end, Ok) and story.end.attempts == 1:
                self._add(story, f"{model} has begun it {times} times, and the answer speaks of 1 attempt")

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        for record in self._pairing.late:
            if record.model.partition("-")[0] not in self._retried:
                self._found.add(
                    f"{record.model} has executed it to its end once more, long after it had ended",
                    record.id,
                    f"in {record.pid}, at {record.t - self._began:.3f} s",
                )
        yield self._found.goal(
            "executed twice",
            "requests that a model which may run them once has run again",
            measured=self._seen,
        )

    def _add(self, story: Story, what: str) -> None:
        self._found.add(what, story.invoke.id, story.told(self._began))
