"""Whether models that a fault should not touch were touched."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from chaos.checker.goals import Evidence, Findings, Goal, at_most, quantile
from chaos.checker.injections import Blow
from chaos.checker.rules.excuses import Offer, ran_out
from chaos.checker.rules.limits import Limits
from chaos.checker.story import Story
from chaos.record.records import Invoke, Ok

ENOUGH: Final = 100
"""With fewer answers a p99 is only the slowest of them, and is compared with nothing."""


class Unaffected:
    """Errors and latencies of models while others are hit, beside those of the calm phase."""

    def __init__(self, hits: Sequence[Blow], offers: Sequence[Offer], limits: Limits, began: float) -> None:
        self._felt = [(blow.t, blow.felt_until, blow) for blow in hits]
        self._overloads = [offer for offer in offers if not offer.by]
        self._limits = limits
        self._began = began
        self._errors = Findings()
        self._calm: dict[str, array[float]] = {}
        self._meanwhile: dict[str, array[float]] = {}
        self._seen = 0

    def see(self, story: Story) -> None:
        """Look at a request of the calm phase, or at one under way while another model was hit."""
        invoke, end = story.invoke, story.end
        if end is None or invoke.by or invoke.phase in ("overload", "ending") or self._overloaded(invoke):
            return
        if invoke.phase == "calm":
            self._note(self._calm, story)
            return
        felt = [blow for begin, until, blow in self._felt if begin <= end.t and until >= invoke.t]
        if not felt or any(invoke.model in blow.injected.models for blow in felt):
            return
        self._seen += 1
        self._note(self._meanwhile, story)
        if story.code and not ran_out(story, self._limits):
            names = ", ".join(f"{blow.injected.fault} ({blow.n})" for blow in felt)
            told = f"{story.told(self._began)}; at the time: {names}"
            self._errors.add("failed, though no fault should be felt by its model", invoke.id, told)

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        yield self._errors.goal(
            "errors of unaffected models",
            "requests that failed while no fault of the time should be felt by their model",
            measured=self._seen,
        )
        yield at_most(
            self._limits.unaffected,
            list(self._compared()),
            name="latency of unaffected models",
            about="the largest, over models, of p99 while others are hit, of p99 in the calm phase",
            unit="×",
        )

    def _overloaded(self, invoke: Invoke) -> bool:
        """Whether its model has still to catch up with an overload, which no fault has caused."""
        return any(
            invoke.model in each.excuse.models and each.begin <= each.sent(invoke) <= each.end
            for each in self._overloads
        )

    def _note(self, kept: dict[str, array[float]], story: Story) -> None:
        if isinstance(story.end, Ok):
            kept.setdefault(story.invoke.model, array("d")).append(story.end.t - story.invoke.t)

    def _compared(self) -> Iterator[tuple[float, Evidence]]:
        for model, calm in sorted(self._calm.items()):
            meanwhile = self._meanwhile.get(model, array("d"))
            if min(len(calm), len(meanwhile)) < ENOUGH:
                continue
            base, then = quantile(calm, 0.99), quantile(meanwhile, 0.99)
            story = (
                f"p99 {then * 1e3:.1f} ms of {len(meanwhile)} answers while others were hit,"
                f" {base * 1e3:.1f} ms of {len(calm)} in the calm phase"
            )
            yield then / base, Evidence(what=f"{then / base:.2f} times the baseline", id=model, story=story)
