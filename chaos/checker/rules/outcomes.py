"""Whether every request has one end in time, and no more executions than it may have.

Every end without a good answer needs an excuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from chaos.checker.goals import Findings, Goal
from chaos.checker.injections import Blow
from chaos.checker.rules.excuses import Excuses, ran_out
from chaos.checker.rules.limits import Limits
from chaos.checker.story import NO_ANSWER, Pairing, Story
from chaos.record.records import Ok, Tally


class Outcomes:
    """Lost requests, answers told twice, and errors that nothing excuses.

    A request that is sent while the server is being ended must have an end as well. Whether that end may be
    an error is judged by the `Ending`.
    """

    def __init__(
        self, excuses: Excuses, pairing: Pairing, limits: Limits, tally: Tally | None, began: float
    ) -> None:
        self._excuses = excuses
        self._limits = limits
        self._tally = tally
        self._pairing = pairing
        self._began = began
        self._lost = Findings()
        self._twice = Findings()
        self._sent = 0
        self.good = 0
        # With the number of the fault; complete after `goals`.
        self.excused: list[tuple[Story, int]] = []
        self.unexcused: list[Story] = []  # after `goals`

    def see(self, story: Story) -> None:
        """Count a request."""
        self._sent += 1
        if not story.ends:
            self._lost.add("never ended", story.invoke.id, story.told(self._began))
        elif len(story.ends) > 1:
            self._twice.add("ended twice", story.invoke.id, story.told(self._began))
        self.good += bool(story.end and story.end.kind == "ok")
        if story.code and story.invoke.phase != "ending":
            self._excuses.take(story)

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        self.unexcused, self.excused = self._excuses.settle()
        errors, late = Findings(), Findings()
        for failure in self.unexcused:
            told = failure.told(self._began)
            if failure.code == NO_ANSWER:
                self._lost.add("no answer, and no excuse", failure.invoke.id, told)
            else:
                kept = late if ran_out(failure, self._limits) else errors
                kept.add(f"{failure.code}, and no excuse", failure.invoke.id, told)
        self._see_tally()
        for end in self._pairing.strays:
            self._twice.add(
                "an end of what was not open", f"n={end.n}", f"{end.kind} at {end.t - self._began:.3f} s"
            )
        for invoke in self._pairing.twice_begun:
            self._twice.add(
                "a number used twice", invoke.id, f"n={invoke.n} at {invoke.t - self._began:.3f} s"
            )
        yield self._lost.goal(
            "lost", "requests that never ended, or ended without an answer or an excuse", measured=self._sent
        )
        yield self._twice.goal(
            "answered twice",
            "requests with more than one end, and answers that came to nobody",
            measured=self._sent,
        )
        yield errors.goal(
            "unexcused errors", "error answers that no fault of the time excuses", measured=self._sent
        )
        yield late.goal(
            "out of time",
            "error answers that no fault of the time excuses, to requests whose own time, or that of their queue, was up",
            measured=self._sent,
            timed=True,
        )

    def _see_tally(self) -> None:
        """An answer too many has no line in the history, because no request waits for it any more."""
        tally = self._tally
        if tally is not None and tally.surplus:
            told = (
                f"{tally.surplus} bytes over HTTP or messages over gRPC came to clients that had their answer"
            )
            self._twice.add("what nobody had asked for", "all clients", told)
        if tally is not None and tally.violations:
            told = f"{tally.violations} of tritium_reply_violations_total"
            self._twice.add("dropped or given twice, as the server itself knows", "the server", told)


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


class Deadlines:
    """Good answers to requests whose deadline had passed.

    A deadline travels as the time that is left, and the server counts that time from when it reads the
    request. A server that was stopped and could not read owes its client nothing for that time.
    """

    def __init__(self, hits: Sequence[Blow], limits: Limits, began: float) -> None:
        self._stops = [(blow.t, blow.healed) for blow in hits if blow.injected.stops]
        self._late = limits.late
        self._began = began
        self._found = Findings()
        self._seen = 0

    def see(self, story: Story) -> None:
        """Look at when an answer came."""
        deadline = story.invoke.deadline
        if deadline is None or not isinstance(story.end, Ok):
            return
        self._seen += 1
        over = story.end.t - deadline - self._unread(story.invoke.t)
        if over > self._late:
            self._found.add(f"{over * 1e3:.0f} ms late", story.invoke.id, story.told(self._began))

    def _unread(self, sent: float) -> float:
        return max((end - sent for begin, end in self._stops if begin <= sent <= end), default=0.0)

    def goals(self) -> Iterable[Goal]:
        """Judge what was seen."""
        yield self._found.goal(
            "answered late",
            f"good answers more than {self._late * 1e3:.0f} ms after their request's deadline",
            measured=self._seen,
            timed=True,
        )
