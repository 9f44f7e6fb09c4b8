"""Which errors a fault excuses, and which nothing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.checker.injections import Blow
from chaos.checker.matching import matched
from chaos.checker.rules.limits import Limits
from chaos.checker.story import NO_ANSWER, Story
from chaos.record.records import Excuse, Invoke, Manifest

ROUNDING = 0.005
"""Seconds: deadlines travel as whole milliseconds, rounded down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An excuse, when it holds, and which fault it belongs to: 0 is no fault, it belongs to the phase."""

    excuse: Excuse
    begin: float
    end: float
    by: int = 0

    def sent(self, invoke: Invoke) -> float:
        """Return when a request was sent.

        For a request of a phase's load this is when it was due, because the generator may be late.
        """
        return invoke.t if self.by or invoke.due is None else min(invoke.t, invoke.due)

    def covers(self, failure: Story) -> bool:
        """Whether it may excuse this failure, its count apart."""
        excuse, invoke = self.excuse, failure.invoke
        return (
            (invoke.model in excuse.models or not excuse.models)
            and (invoke.by == self.by or not excuse.own)
            and invoke.protocol in excuse.protocols
            and (excuse.unknown if failure.code == NO_ANSWER else failure.code in excuse.codes)
            and excuse.says in failure.message
            and self.sent(invoke) <= self.end
            and failure.until >= self.begin
        )


def ran_out(failure: Story, limits: Limits) -> bool:
    """Whether the error says that the time of the request, or of its queue, was up, and it was.

    Such an answer came too late and is not wrong: on a machine that is too slow no server has a better one.
    """
    invoke = failure.invoke
    if failure.code == "DEADLINE_EXCEEDED":
        return invoke.deadline is not None and failure.until >= invoke.deadline - ROUNDING
    refused = failure.code == "UNAVAILABLE" and invoke.model == limits.overloaded
    return refused and failure.until - invoke.t >= limits.queue_patience


def offers(blows: Sequence[Blow], manifest: Manifest, limits: Limits) -> list[Offer]:
    """Return every excuse of a run.

    The overloaded model may refuse any number of requests while it is overloaded, and until it has caught up.
    """
    given = [
        Offer(excuse=excuse, begin=blow.window(excuse)[0], end=blow.window(excuse)[1], by=blow.n)
        for blow in blows
        for excuse in blow.injected.excuses
    ]
    refusal = Excuse(models=(limits.overloaded,), codes=limits.refusals, after=0.0)
    given += [
        Offer(excuse=refusal, begin=begin, end=end + limits.draining)
        for phase, begin, end in manifest.phases
        if phase == "overload"
    ]
    return given


class Excuses:
    """Settles at the end what is excused.

    Each failure is excused by one excuse, and each excuse is used at most as often as it allows. Failures
    that an excuse without a bound covers are counted and forgotten, so that an overload is not kept in
    memory. Of the other failures as many as possible are excused. Failures of requests that the fault itself
    has sent come first.
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._unbounded = [offer for offer in offers if offer.excuse.most is None]
        self._bounded = [offer for offer in offers if offer.excuse.most is not None]
        self._failures: list[Story] = []
        self._used: dict[int, Counter[str]] = {}
        self._broken: list[tuple[Story, int]] = []

    def take(self, failure: Story) -> None:
        """Take note of a failure."""
        own = next((each for each in self._unbounded if each.by and each.by == failure.invoke.by), None)
        candidates = self._unbounded if own is None else [own, *self._unbounded]
        offer = next((each for each in candidates if each.covers(failure)), None)
        if offer is None:
            self._failures.append(failure)
            return
        self._use(offer, failure)
        if any(each.end is None for each in failure.executions):
            self._broken.append((failure, offer.by))

    def settle(self) -> tuple[list[Story], list[tuple[Story, int]]]:
        """Return the failures that nothing excuses, and those that a fault excuses, with the fault's number.

        Of the failures that an excuse without a bound covers, the second list has only those that a worker
        began and did not end.
        """
        sent_by = {offer.by for offer in self._bounded}
        self._failures.sort(key=lambda each: (each.invoke.by not in sent_by, each.until))
        wants = [self._wanted(failure) for failure in self._failures]
        got = matched(wants, {place: offer.excuse.most for place, offer in enumerate(self._bounded)})
        unexcused: list[Story] = []
        excused = self._broken
        for failure, place in zip(self._failures, got, strict=True):
            if place is None:
                unexcused.append(failure)
            else:
                self._use(self._bounded[place], failure)
                excused.append((failure, self._bounded[place].by))
        return unexcused, excused

    def used(self, by: int) -> Counter[str]:
        """Return how many failures the excuses of a fault have covered, by code. Call it after `settle`."""
        return self._used.get(by, Counter())

    def _use(self, offer: Offer, failure: Story) -> None:
        self._used.setdefault(offer.by, Counter())[failure.code] += 1

    def _wanted(self, failure: Story) -> list[int]:
        covering = [place for place, offer in enumerate(self._bounded) if offer.covers(failure)]
        return sorted(covering, key=lambda place: self._bounded[place].by != failure.invoke.by)
