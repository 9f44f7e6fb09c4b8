"""Whether every request has one end, and every end without a good answer an excuse."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.checker.goals import Findings, Goal
from chaos.checker.rules.excuses import Excuses, ran_out
from chaos.checker.rules.limits import Limits
from chaos.checker.story import NO_ANSWER, Pairing, Story
from chaos.record.records import Tally


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
