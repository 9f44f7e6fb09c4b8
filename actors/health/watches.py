"""What is remembered of a model version while it serves: its own check, and its probes."""

from __future__ import annotations

from collections.abc import Callable

from actors.health.verdicts import Named
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.probing import ProbeOutcome, better, probe_trouble
from actors.serving.standing import CHECK_SECONDS


class OwnCheck:
    """The last answers of one version's instances to their own check, where the model has a check.

    `news` is called when that changes.
    """

    def __init__(self, state: ModelState, news: Callable[[], None]) -> None:
        self.trouble = ""
        self.applies = False  # the model has a check of its own
        self._state = state
        self._news = news

    def look(self) -> None:
        """Find out whether there is a check: any worker's answer holds for all, future workers included."""
        self.applies = self.applies or any(
            each.worker is not None and each.worker.has_check for each in self._state.instances
        )

    async def ask(self) -> None:
        """Ask every instance that serves, and conclude from the answers, or from their absence."""
        said = await self._state.standing.asked()
        if said is None:
            self._conclude(f"its own readiness check does not answer within {CHECK_SECONDS:g} s")
        # A worker that dies says no. But its instance then starts another one, so that answer does not count.
        elif all(ready or instance.worker is not worker for instance, worker, ready in said):
            self._conclude("")
        else:
            self._conclude("its own readiness check says no")

    def _conclude(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._news()


class Watch:
    """What is known of a version that serves: its own check, and its probes."""

    def __init__(self, state: ModelState, news: Callable[[], None], now: float) -> None:
        self.state = state
        self.check = OwnCheck(state.executing, news)
        # When its next probe is due, if it is probed at all.
        self.due = now
        self.since = now  # when `trouble` came, or went
        self.trouble = ""  # what the last probe says against it
        self.note = ""  # why that does not count
        self.outcome: ProbeOutcome | None = None  # of the last probe
        self.running = False  # a probe of it runs now
        self.ended = Bell()  # rings when a probe has ended
        self.began = 0.0
        self._baseline: ProbeOutcome | None = None
        self._news = news

    @property
    def named(self) -> Named:
        """The name that tells it from the others."""
        return self.state.spec.key, self.state.spec.version

    @property
    def periodic(self) -> bool:
        """Whether it is probed periodically, so that the verdict depends on the probes."""
        return self.state.spec.probe_interval > 0

    def standing(self) -> tuple[str, str]:
        """Return the trouble with it, and the check or probe that is still awaited."""
        trouble = self.check.trouble or (self.trouble if self.periodic else "")
        if self.periodic and self.outcome is None:
            return trouble, "it has not answered a probe inference yet"
        return trouble, ""

    def learn(self, outcome: ProbeOutcome, *, others: int, now: float) -> None:
        """Take in a probe's outcome, during which `others` requests were answered.

        A version that answers its clients is busy, and needs no probe to prove that it serves. If readiness
        went down with load, load balancers would send that load to other servers, and take them out one by
        one.
        """
        first = self.outcome is None
        trouble = probe_trouble(self.state.spec.probe, self._baseline, outcome)
        self._baseline = better(self._baseline, outcome)
        self.note = ""
        if not outcome.answered and others:
            self.note = f"{trouble}; but it answered {others} other requests meanwhile"
            trouble = ""
        if bool(trouble) is not bool(self.trouble):
            self.since = now
        if trouble != self.trouble or first:
            self._news()
        self.outcome, self.trouble = outcome, trouble
