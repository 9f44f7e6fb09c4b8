"""Whether answers are right, and whether their parts and the requests of a sequence are in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from chaos.checker.goals import Findings, Goal
from chaos.checker.rules.sequences import Lives, judged
from chaos.checker.story import Story
from chaos.record.records import Fail, Invoke, Ok

Expected = Callable[[Invoke, Sequence[Invoke]], Sequence[int]]
"""The values of the right answer to a request: `chaos.workload.answers`.

The second argument is the requests of its sequence that were executed before.
"""


class Answers:
    """Wrong answers, and what came in the wrong order."""

    def __init__(self, expected: Expected, began: float) -> None:
        self._expected = expected
        self._began = began
        self._lives = Lives()
        self._wrong = Findings()
        self._disordered = Findings()
        self._answers = 0
        self._ordered = 0

    def see(self, story: Story) -> None:
        """Look at an answer. Answers of a sequence wait until the sequence is whole."""
        self._answers += isinstance(story.end, Ok)
        if story.invoke.sequence:
            for life in self._lives.add(story):
                self._judge_life(life)
            return
        end = story.end
        if not isinstance(end, Ok | Fail):
            return
        right = list(self._expected(story.invoke, ()))
        said = list(end.values)
        self._ordered += len(said) > 1
        if said == (right if isinstance(end, Ok) else right[: len(said)]):
            return
        if sorted(said) == sorted(right) or (isinstance(end, Fail) and set(said) <= set(right)):
            self._add(self._disordered, story, f"parts {said}, and {right} is their order")
        else:
            self._add(self._wrong, story, f"{said}, and {right} is right")

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        for life in self._lives.rest():
            self._judge_life(life)
        yield self._wrong.goal(
            "wrong", "answers with other values than the right ones", measured=self._answers
        )
        yield self._disordered.goal(
            "out of order",
            "answers whose parts, and sequences whose requests, changed places",
            measured=self._ordered,
        )

    def _judge_life(self, life: Sequence[Story]) -> None:
        self._ordered += 1
        for fault in judged(life, self._expected):
            self._add(self._disordered if fault.disorder else self._wrong, fault.story, fault.what)

    def _add(self, findings: Findings, story: Story, what: str) -> None:
        findings.add(what, story.invoke.id, story.told(self._began))
