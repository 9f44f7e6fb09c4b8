"""Whether the server is ready, which part of it is not, and since when (contract, repository.md section 8).

Theory of operation. The *verdict* is a value, made by the pure `judge` from what is known of each model
version: how the index lists it, what its instances say of themselves (the backend's own check), and what came
of the last probe. `Readiness` keeps the newest verdict, so that `ready` answers without waiting. It is
passive: the actor that asks the instances and makes the probes may die and be started again, and finds
everything where it was.

A verdict is made anew after each change, and at once if it is read in between. Instances are asked when a
caller asks whether the server is ready, and the caller waits for them. Their answers stand until the next
time. For tasks that watch the server's readiness, the instances are asked every second. Probes run in tasks
of the actor, one at a time for each version.

A server that has not been ready yet waits for the first probe of every version that is to be probed.
Afterwards a version that has not been probed yet counts as ready, and a version that is being loaded counts
as it did before. So loading a model never takes a serving server out of its load balancer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

import trio

from actors.health.verdicts import Named, Standing, Verdict, judge
from actors.seams import faults
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.probing import ProbeOutcome, better, probe, probe_trouble
from actors.serving.router import Router
from actors.serving.standing import PROBE_SECONDS, Status
from actors.supervision.context import ChildContext
from actors.values.events import Event, Log
from actors.values.interfaces import DeepReport
from actors.values.specs import ModelKey

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at everything, if no change is announced."""

PERIODIC_WITHIN: Final = 10.0
"""Seconds a periodic probe may take at most, if the model's own limit is not set."""

DEEP_WITHIN: Final = 2.0
DEEP_AT_ONCE: Final = 8
DEEP_BUDGET: Final = 10.0
"""Seconds after which a round of deep probes begins no other probe."""

DEEP_SHARED_FOR: Final = 0.25
"""Seconds for which the report of one round answers all callers."""

# After a verdict that took milliseconds, the loop gets ten times as long before the next.
_SHARE: Final = 10
# If the wall clock is off by so many seconds, it has been set anew.
_CLOCK_SET: Final = 1.0
_LISTED: Final = 10  # failed parts that one log line names
_SHOWN: Final = 1000  # characters of a reason


# -- what is remembered of a version while it serves


class _OwnCheck:
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
            self._conclude(f"its own readiness check does not answer within {PROBE_SECONDS:g} s")
        # A worker that dies says no. But its instance then starts another one, so that answer does not count.
        elif all(ready or instance.worker is not worker for instance, worker, ready in said):
            self._conclude("")
        else:
            self._conclude("its own readiness check says no")

    def _conclude(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._news()


class _Watch:
    """What is known of a version that serves: its own check, and its probes."""

    def __init__(self, state: ModelState, news: Callable[[], None], now: float) -> None:
        self.state = state
        self.check = _OwnCheck(state, news)
        # When its next probe is due, if it is probed at all.
        self.due = now
        self.since = now  # when `trouble` came, or went
        self.trouble = ""  # what the last probe says against it
        self.note = ""  # why that does not count
        self.outcome: ProbeOutcome | None = None  # of the last probe
        self.running: trio.Event | None = None  # set when the probe that runs now has ended
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


@dataclass(slots=True)
class ProbeCounts:
    """The results of readiness' own probes of one model version, over all its generations."""

    name: str
    version: int
    probes: int = 0
    failures: int = 0  # those that counted against it
    seconds: float = 0.0  # how long the last one took


class _Round:
    """One round of deep probes, and the callers that wait for its report."""

    def __init__(self) -> None:
        self.begun = False
        self.done = trio.Event()
        self.ended_at = math.inf
        self.report: DeepReport | None = None


class Readiness:
    """The newest verdict, and the actor that sees to it. Implements `actors.values.interfaces.Health`."""

    def __init__(
        self,
        router: Router,
        *,
        strict: bool,
        finished: trio.Event,
        log: Log,
        wall_clock: Callable[[], int],
        hang_bound: float = 0.0,
        missing: Callable[[], str] = str,
    ) -> None:
        """`finished` is set when the loads at start have ended; `wall_clock` gives ms since the epoch.

        A version counts as stuck when each of its instances has been busy with one execution for
        `hang_bound` seconds; 0: never. `missing` tells which repository was missing at the start, if any, and
        why.
        """
        self._missing = missing
        self._hang_bound = hang_bound
        self._router = router
        self._roster = router.roster
        self._strict = strict
        self._finished = finished
        self._log = log
        self._wall_clock = wall_clock
        self._epoch = 0.0  # added to trio's clock it gives the wall clock's time
        self.exiting = False
        self.withdrawn = False
        self._turned = Bell()  # rings when the answer of `ready` has changed
        self._verdict = Verdict(since=trio.current_time())
        self._stale = True
        self._woken = Bell()
        # Number of tasks that wait for the server's readiness to turn.
        self._watching = 0
        self._asking = False  # the instances are being asked for those tasks
        self._watches: dict[ModelState, _Watch] = {}
        self._counts: dict[Named, ProbeCounts] = {}
        self._round: _Round | None = None
        self._publish: Callable[..., None] | None = None  # while the actor lives

    # -- actors.values.interfaces.Health ----------------------------------------------------------------------------

    def live(self) -> bool:
        """Always true: if the loop did not turn, no answer would come."""
        return True

    async def ready(self) -> bool:
        """Whether the server is ready, and each essential model that has its own check says so now.

        Waits only where there are such models, for `PROBE_SECONDS` at most.
        """
        if self._strict and self.verdict.finished and not self.exiting:
            await self._ask(essential=True)
        return self.is_ready

    async def wait_turned(self, ready: bool) -> None:
        """Wait until the server's readiness is no longer `ready`, or until the server exits."""
        self._watching += 1
        try:
            while self.is_ready is ready and not self.exiting:
                await self._turned.next_ring()
        finally:
            self._watching -= 1

    async def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a version serves and says so itself when it is asked now; raises like `Models.resolve`.

        Without a version, that is the highest one that serves. A model that is loaded on its first request
        counts as ready.
        """
        model = self._router.resolve(name, version)
        if isinstance(model, ModelState):
            return await model.standing.says_ready()
        for key in self._roster.keys(name):
            ready = self._roster.ready(key)
            if ready:
                return await ready[max(ready)].standing.says_ready()
        return True

    async def deep(self) -> DeepReport:
        """Probe every essential version that serves, and report.

        Callers that ask at about the same time share a round.
        """
        now = trio.current_time()
        shared = self._round
        if shared is None or now - shared.ended_at >= DEEP_SHARED_FOR:
            shared = self._round = _Round()
            self._woken.ring()
        with trio.move_on_after(DEEP_BUDGET + DEEP_WITHIN):
            await shared.done.wait()
        return shared.report or self._report({}, {}, "no probe was made: readiness itself is being restarted")

    async def _ask(self, *, essential: bool = False) -> None:
        """Ask the models that have their own check whether they are ready."""
        checks = [
            watch.check
            for watch in self._watches.values()
            if watch.check.applies and (watch.state.spec.essential or not essential)
        ]
        if checks:
            async with trio.open_nursery() as nursery:
                for check in checks:
                    nursery.start_soon(check.ask)

    # -- for others in the server ----------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict, made anew if something has changed since the last one."""
        if self._stale:
            self._survey()
        return self._verdict

    @property
    def is_ready(self) -> bool:
        """Whether the server is ready: the verdict on its parts, unless the server is about to end."""
        return self.verdict.ready and not self.withdrawn

    def probes(self) -> Iterable[ProbeCounts]:
        """Return the counts of each version that was ever probed, for metrics."""
        return self._counts.values()

    def withdraw(self) -> None:
        """The server is about to end: it is not ready from now on, but still serves."""
        self.withdrawn = True
        self._turn()

    def exit(self) -> None:
        """The server ends."""
        self.withdrawn = self.exiting = True
        self._turn()

    def _turn(self) -> None:
        self._turned.ring()

    def changed(self) -> None:
        """Something about a model version is new: have the verdict made anew.

        Cheap; may be called from anywhere on the loop's thread.
        """
        self._stale = True
        self._woken.ring()

    # -- the verdict -----------------------------------------------------------------------------------------

    def _survey(self) -> None:
        """Look at everything, and judge."""
        now = trio.current_time()
        self._keep_watch(now)
        # After `_keep_watch`: a version seen for the first time may have answered already.
        self._stale = False
        before = self._verdict
        standings = list(self._standings())
        self._forget_counts({(each.key, each.version) for each in standings})
        self._verdict = judge(
            standings,
            finished=self._finished.is_set(),
            strict=self._strict,
            before=before,
            now=now,
            missing=self._missing(),
        )
        self._tell(before, self._verdict)
        if before.ready is not self._verdict.ready:
            self._turn()

    def _keep_watch(self, now: float) -> None:
        watches = {}
        for state in self._roster.states():
            if state.status is Status.READY:
                watch = self._watches.get(state)
                if watch is None:
                    watch = _Watch(state, self.changed, now)
                watch.check.look()
                watches[state] = watch
        self._watches = watches

    def _standings(self) -> Iterator[Standing]:
        watches = {watch.named: watch for watch in self._watches.values()}
        for entry in self._roster.index():
            key = ModelKey(entry.name, entry.namespace)
            watch = watches.get((key, entry.version))
            trouble, awaited = ("", "") if watch is None else watch.standing()
            if watch is not None and not trouble:
                trouble = self._stuck(watch.state)
            yield Standing(
                key=key,
                version=entry.version,
                status=entry.state,
                reason=entry.reason,
                essential=entry.essential,
                trouble=trouble,
                awaited=awaited,
            )

    def _stuck(self, state: ModelState) -> str:
        """Return the trouble with a version whose instances are all stuck; empty if there is none."""
        bound = self._hang_bound
        if not bound or state.stuck_for(trio.current_time()) < bound:
            return ""
        count = len(state.rotation)
        which = "its only instance has" if count == 1 else f"each of its {count} instances has"
        return (
            f"{which} been busy with one execution for more than {bound:g} s (--unready-after-hang-secs);"
            " tritium.execution_timeout would end such a one"
        )

    def _forget_counts(self, known: set[Named]) -> None:
        for gone in self._counts.keys() - known:
            del self._counts[gone]

    def _tell(self, before: Verdict, verdict: Verdict) -> None:
        """Log and publish what is new.

        Until the loads at start have ended, the server is not expected to be ready.
        """
        failed = [part for part in verdict.failed if not part.awaited]
        if self._publish is not None:
            self._publish(ready=verdict.ready, failed=len(verdict.failed))
        same = {part.named for part in failed} == {part.named for part in before.failed if not part.awaited}
        if not verdict.finished or (same and before.finished and verdict.ready is before.ready):
            return
        if not (verdict.ready or failed or verdict.missing or verdict.opened):
            # It is about to be ready: a check or a probe is still to be heard.
            return
        self._log(
            Event.READINESS_CHANGED,
            level="info" if verdict.ready and not failed else "warning",
            ready=verdict.ready,
            failed=[
                f"{part}: {'unavailable' if part.logged else _shown(part.reason)}"
                for part in failed[:_LISTED]
            ],
            parts_failed=len(failed),
            **({"reason": _shown(verdict.missing)} if verdict.missing else {}),
        )

    # -- the actor -------------------------------------------------------------------------------------------

    async def run(self, ctx: ChildContext) -> None:
        """Keep the verdict current, for ever. The start function of a permanent child."""
        ctx.started()
        for watch in self._watches.values():
            watch.running = None  # those probes ended with the actor's previous life
        if self._round is not None:
            self._round.begun = False
        self._publish, self._stale = ctx.publish, True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._await_start)
                await self._take_turns(nursery)
        finally:
            self._publish = None

    async def _await_start(self) -> None:
        await self._finished.wait()
        self.changed()

    async def _take_turns(self, nursery: trio.Nursery) -> NoReturn:
        look_at = trio.current_time()
        heard = 0
        while True:
            now = trio.current_time()
            if now >= look_at:
                look_at = now + LOOK_EVERY
                if self._watching and not self._asking:
                    nursery.start_soon(self._ask_for_watchers)
                self._survey()  # also where no change was announced
            elif self._stale:
                self._survey()
            due = self._begin_probes(nursery, now)
            if self._round is not None and not self._round.begun:
                self._round.begun = True
                nursery.start_soon(self._deep_round, self._round)
            await trio.sleep(_SHARE * (trio.current_time() - now))
            with trio.move_on_at(min(look_at, due)):
                heard = await self._woken.wait(heard)

    async def _ask_for_watchers(self) -> None:
        """Ask the instances repeatedly on behalf of the tasks that watch the server's readiness."""
        self._asking = True
        try:
            await self._ask(essential=True)
        finally:
            self._asking = False

    # -- probes ----------------------------------------------------------------------------------------------

    def _begin_probes(self, nursery: trio.Nursery, now: float) -> float:
        """Begin the periodic probes that are due, and return when the next one is."""
        if faults.points is not None:
            faults.points.passing("readiness.turn")
        earliest = math.inf
        for watch in self._watches.values():
            if not watch.periodic or watch.running is not None or self.exiting:
                continue
            if watch.due <= now:
                spec = watch.state.spec
                watch.due = now + spec.probe_interval
                within = min(spec.probe_interval, spec.execution_timeout or PERIODIC_WITHIN)
                watch.running = trio.Event()
                nursery.start_soon(self._probe, watch, watch.running, within)
            else:
                earliest = min(earliest, watch.due)
        return earliest

    async def _probe(self, watch: _Watch, ended: trio.Event, within: float) -> None:
        """Probe a version; only one probe of it runs at a time. `ended` is `watch.running`."""
        state = watch.state
        watch.began = trio.current_time()
        answered_before = state.statistics.computed_count
        outcome = await probe(state, within=within)
        watch.running = None
        if state.status is Status.READY:  # else it was being unloaded, and the outcome tells nothing
            watch.learn(
                outcome,
                others=state.statistics.computed_count - answered_before,
                now=trio.current_time(),
            )
            key, version = watch.named
            counts = self._counts.setdefault(watch.named, ProbeCounts(str(key), version))
            counts.probes += 1
            counts.failures += bool(watch.trouble)
            counts.seconds = outcome.seconds
        ended.set()
        self._woken.ring()  # the time of the next probe has changed

    async def _exercised(self, watch: _Watch, within: float) -> bool:
        """Probe a version, or wait for the probe that runs.

        False if that takes longer than `within` seconds.
        """
        if watch.running is None:
            watch.running = trio.Event()
            await self._probe(watch, watch.running, within)
            return True
        with trio.move_on_after(within):
            await watch.running.wait()
            return True
        return False

    async def _deep_round(self, shared: _Round) -> None:
        deadline = trio.current_time() + DEEP_BUDGET
        at_once = trio.CapacityLimiter(DEEP_AT_ONCE)
        unanswered: dict[ModelState, tuple[str, float]] = {}
        self._survey()
        probed = {state: watch for state, watch in self._watches.items() if state.spec.essential}

        async def exercise(watch: _Watch) -> None:
            async with at_once:
                now = trio.current_time()
                within = min(DEEP_WITHIN, deadline - now)
                if within <= 0:
                    why = f"there was no time to probe it: others took {DEEP_BUDGET:g} s"
                    unanswered[watch.state] = why, now
                elif not await self._exercised(watch, within):
                    taken = trio.current_time() - watch.began
                    why = f"a probe inference has not been answered for {taken:.1f} s"
                    unanswered[watch.state] = why, watch.began

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask)
            for watch in probed.values():
                nursery.start_soon(exercise, watch)
        shared.report = self._report(probed, unanswered)
        shared.ended_at = trio.current_time()
        shared.done.set()

    def _report(
        self,
        probed: Mapping[ModelState, _Watch],
        unanswered: Mapping[ModelState, tuple[str, float]],
        why_not: str = "",
    ) -> DeepReport:
        """Return the verdict with the results of the probes, which count whether the server is strict or not.

        `unanswered` says of some versions why no probe of theirs has ended, and since when.
        """
        verdict = self.verdict
        # A version that was replaced in the meantime tells nothing about its successor.
        heard = {watch.named: watch for state, watch in probed.items() if self._watches.get(state) is watch}
        if not verdict.finished:
            why_not = "the models found at start are still being loaded"
        elif self.withdrawn:
            why_not = "the server is about to end"
        elif verdict.missing:
            why_not = why_not or _shown(verdict.missing)
        ready = verdict.ready and not why_not
        parts = []
        for part in verdict.parts:
            watch = heard.get(part.named)
            late = None if watch is None else unanswered.get(watch.state)
            reason, since = part.reason, part.since
            if watch is not None and (watch.trouble or late is not None):
                ready = False
                if not reason:
                    reason, since = late if late and not watch.trouble else (watch.trouble, watch.since)
            document: dict[str, object] = {"part": _shown(str(part)), "ready": not reason}
            if reason:
                document["reason"] = _shown(reason)
            document["since"] = self._on_the_wall(since)
            if setback := self._roster.setback(part.key, part.version):
                document["reload_failed"] = _shown(setback)
            if not part.essential:
                document["essential"] = False
            if watch is not None and late is None:
                document |= _told(watch)
            parts.append(document)
        head: dict[str, object] = {"ready": ready, "live": self.live()}
        if why_not:
            head["reason"] = why_not
        return DeepReport(ready=ready, document={**head, "parts": parts})

    def _on_the_wall(self, moment: float) -> str:
        """Return a time on trio's clock as text: UTC, to the millisecond, and the same at each look."""
        epoch = self._wall_clock() / 1000 - trio.current_time()
        if abs(epoch - self._epoch) > _CLOCK_SET:
            self._epoch = epoch
        written = datetime.fromtimestamp(self._epoch + moment, UTC).isoformat(timespec="milliseconds")
        return written.replace("+00:00", "Z")


def _told(watch: _Watch) -> dict[str, object]:
    """Return what a probe's outcome adds to a part's entry."""
    told: dict[str, object] = {}
    if watch.outcome is not None:
        told["seconds"] = round(watch.outcome.seconds, 6)
        if watch.note:
            told["note"] = _shown(watch.note)
        elif watch.outcome.error and not watch.trouble:
            told["note"] = _shown(
                f"a probe inference is answered with an error, as before: {watch.outcome.error}"
            )
    return told


def _shown(text: str) -> str:
    """Return a text in a form that fits a document or a log."""
    return text[:_SHOWN].encode(errors="replace").decode()
