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

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

import trio

from actors.health.probes import DeepProbes, ProbeCounts, Probed, Probes
from actors.health.reports import DeepReports, shown
from actors.health.verdicts import Verdict, VersionFacts, judge
from actors.health.watches import Watch
from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.supervision.context import ChildContext
from actors.values.events import Event, Log
from actors.values.interfaces import DeepReport
from actors.values.specs import ModelKey

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at everything, if no change is announced."""

# After a verdict that took milliseconds, the loop gets ten times as long before the next.
_SHARE: Final = 10
_LISTED: Final = 10  # failed parts that one log line names


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
        held: bool = False,
    ) -> None:
        """`finished` is set when the loads at start have ended; `wall_clock` gives ms since the epoch.

        A version counts as stuck when each of its instances has been busy with one execution for
        `hang_bound` seconds; 0: never. `held` has it wait for a fleet's controller. `missing` tells which
        repository was missing at the start, if any, and why.
        """
        self._missing = missing
        self._hang_bound = hang_bound
        self._router = router
        self._roster = router.roster
        self._strict = strict
        self._finished = finished
        self._log = log
        self._reports = DeepReports(wall_clock, router.roster.setback)
        self.exiting = False
        self.withdrawn = False
        self.held = held
        self._turned = Bell()  # rings when the answer of `ready` has changed
        self._verdict = Verdict(since=trio.current_time())
        self._stale = True
        self._woken = Bell()
        # Number of tasks that wait for the server's readiness to turn.
        self._watching = 0
        self._asking = False  # the instances are being asked for those tasks
        self._watches: dict[ModelState, Watch] = {}
        self._probes = Probes(self._woken)
        self._deep = DeepProbes(self._probes, self._woken)
        self._publish: Callable[..., None] | None = None  # while the actor lives

    # -- actors.values.interfaces.Health ----------------------------------------------------------------------------

    def live(self) -> bool:
        """Always true: if the loop did not turn, no answer would come."""
        return True

    async def ready(self) -> bool:
        """Whether the server is ready, and each essential model that has its own check says so now.

        Waits only where there are such models, for `CHECK_SECONDS` at most.
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
            return await model.says_ready()
        for key in self._roster.keys(name):
            ready = self._roster.ready(key)
            if ready:
                return await ready[max(ready)].says_ready()
        return True

    async def deep(self) -> DeepReport:
        """Probe every essential version that serves, and report.

        Callers that ask at about the same time share a round.
        """
        return await self._deep.report() or self._report(
            Probed(), "no probe was made: readiness itself is being restarted"
        )

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
        return self.verdict.ready and not (self.withdrawn or self.held)

    def probes(self) -> Iterable[ProbeCounts]:
        """Return the counts of each version that was ever probed, for metrics."""
        return self._probes.counts.values()

    def withdraw(self) -> None:
        """The server is about to end: it is not ready from now on, but still serves."""
        self.withdrawn = True
        self._turn()

    def hold(self, held: bool) -> None:
        """Keep the server from being ready, or let it be (`Health`)."""
        self.held = held
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
        self._probes.forget({(each.key, each.version) for each in standings})
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
                    watch = Watch(state, self.changed, now)
                watch.check.look()
                watches[state] = watch
        self._watches = watches

    def _standings(self) -> Iterator[VersionFacts]:
        watches = {watch.named: watch for watch in self._watches.values()}
        for entry in self._roster.index():
            key = ModelKey(entry.name, entry.namespace)
            watch = watches.get((key, entry.version))
            trouble, awaited = ("", "") if watch is None else watch.standing()
            if watch is not None and not trouble:
                trouble = self._stuck(watch.state)
            yield VersionFacts(
                key=key,
                version=entry.version,
                status=entry.state,
                reason=entry.reason,
                essential=entry.essential,
                trouble=trouble,
                awaited=awaited,
            )

    def _stuck(self, state: ModelState) -> str:
        """Return the trouble with a version whose instances are all stuck or silent; "" if there is none."""
        silent = state.executing.standing.silent_for
        if silent:
            return f"no engine has shown a sign of life at its work for {silent:.3g} s (tritium.hang_within)"
        bound = self._hang_bound
        if not bound or state.stuck_for(trio.current_time()) < bound:
            return ""
        count = len(state.executing.rotation)
        which = "its only instance has" if count == 1 else f"each of its {count} instances has"
        return (
            f"{which} been busy with one execution for more than {bound:g} s (--unready-after-hang-secs);"
            " tritium.execution_timeout would end such a one"
        )

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
                f"{part}: {'unavailable' if part.logged else shown(part.reason)}" for part in failed[:_LISTED]
            ],
            parts_failed=len(failed),
            **({"reason": shown(verdict.missing)} if verdict.missing else {}),
        )

    # -- the actor -------------------------------------------------------------------------------------------

    async def run(self, ctx: ChildContext) -> None:
        """Keep the verdict current, for ever. The start function of a permanent child."""
        ctx.started()
        for watch in self._watches.values():
            watch.running = False  # those probes ended with the actor's previous life
        self._deep.begin_anew()
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
            due = self._probes.begin_due(nursery, () if self.exiting else self._watches.values(), now)
            self._deep.begin(nursery, watches=self._to_probe, ask=self._ask, conclude=self._report)
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

    # -- deep probes -----------------------------------------------------------------------------------------

    def _to_probe(self) -> list[Watch]:
        self._survey()
        return [watch for state, watch in self._watches.items() if state.spec.essential]

    def _report(self, probed: Probed, why_not: str = "") -> DeepReport:
        verdict = self.verdict
        if not verdict.finished:
            why_not = "the models found at start are still being loaded"
        elif self.withdrawn:
            why_not = "the server is about to end"
        elif self.held:
            why_not = "the fleet keeps it from being ready"
        elif verdict.missing:
            why_not = why_not or shown(verdict.missing)
        return self._reports.report(verdict, probed, self._watches, why_not)
