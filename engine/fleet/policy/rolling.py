"""How a change of a model goes over its replicas: one after the other, and back at the first failure.

`Roll` is asked after each look at the fleet, and says one step for a model. What has to outlive the
controller is in the ledger, which it has written before it goes on. So a controller that is killed at any
step, and started again, ends the same roll: at most it watches one replica anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.fleet.policy.values import (
    NONE,
    Ledger,
    Load,
    Release,
    Rules,
    Seen,
    Served,
    Step,
    Unload,
    Wait,
    Wish,
    Write,
)

_NOWHERE: Final = "no replica may serve it"


@dataclass(slots=True, kw_only=True)
class Trial:
    """One replica is tried with a new release. Times are of the controller's clock, in seconds."""

    replica: str
    release: Release
    began: float
    seen_at: float
    ready_since: float | None = None
    boot: str = ""
    answers: int = 0
    errors: int = 0


class Roll:
    """One model's way from what it is to what it should be."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._rules = Rules()
        self._trial: Trial | None = None

    @property
    def trying(self) -> str:
        """The replica that is tried now, or empty."""
        return self._trial.replica if self._trial else ""

    def step(
        self,
        wish: Wish | None,
        ledger: Ledger,
        holders: Sequence[str],
        seen: Mapping[str, Seen],
        rules: Rules,
        now: float,
    ) -> Step:
        """Return what is to be done next, by the rules of now.

        `wish` is None for a model that should be nowhere. `holders` are the replicas of the model that are
        there, sorted; `seen` are all replicas that are.
        """
        self._rules = rules
        asked = wish.release if wish else NONE
        # What was refused is tried again once another release has been asked for.
        refused = {release: why for release, why in ledger.refused.items() if release == asked}
        wanted = ledger.good if refused else asked
        if wanted in (NONE, ledger.good):
            stays = Ledger(good=wanted, refused=refused)
            return self._stay(stays, holders, seen) if ledger == stays else self._give_up(stays)
        if ledger.rolling != wanted:
            self._trial = None
            fresh = Ledger(good=ledger.good, rolling=wanted)
            return Write(self._model, fresh, f"roll {wanted} out")
        return self._roll(wanted, ledger, holders, seen, now)

    def _give_up(self, stays: Ledger) -> Step:
        """Note that what was asked for meanwhile is asked for no more."""
        self._trial = None
        return Write(self._model, stays, f"stay with {stays.good}")

    def _stay(self, ledger: Ledger, holders: Sequence[str], seen: Mapping[str, Seen]) -> Step:
        """Have all holders serve what is known to be good, and then no others anything."""
        self._trial = None
        good = ledger.good
        if good and not holders:
            # It serves on where it is: a label with a slip in it must not end that.
            return Wait(self._model, _NOWHERE, stuck=True)
        step = self._serve(((name, good) for name in holders), seen) if good else None
        return step or self._clear(good, holders, seen) or Wait(self._model)

    def _serve(self, wanted: Iterable[tuple[str, Release]], seen: Mapping[str, Seen]) -> Step | None:
        """Return a step for a replica that does not serve what it should, and is not about to."""
        waits: Step | None = None
        for name, release in wanted:
            served = seen[name].served(self._model)
            if served.loading == release:
                waits = Wait(self._model, f"{name} loads {release}")
            elif (
                served.loading is not None or served.spoilt or not (served.ready == release or served.failed)
            ):
                return Load(name, self._model, release)
            elif served.ready != release:
                waits = Wait(self._model, f"{name} does not load {release}: {served.failed}")
        return waits

    def _clear(self, wanted: Release, holders: Sequence[str], seen: Mapping[str, Seen]) -> Step | None:
        for name, replica in seen.items():
            served = replica.served(self._model)
            # What a load that failed has left keeps the replica from being ready.
            if (not wanted or name not in holders) and (served.ready or served.spoilt):
                return Unload(name, self._model)
        return None

    def _roll(
        self, wanted: Release, ledger: Ledger, holders: Sequence[str], seen: Mapping[str, Seen], now: float
    ) -> Step:
        if self._trial is not None and self._trial.replica in seen and self._trial.replica not in holders:
            self._trial = None  # it is to be removed, which says nothing of the release
        trial = self._trial
        if trial is not None:
            watched = self._watch(trial, ledger, seen, now)
            kept = self._keep_others(trial.replica, wanted, ledger, holders, seen)
            return kept if isinstance(watched, Wait) and isinstance(kept, Load) else watched
        left = [name for name in holders if name not in ledger.passed]
        if not left:
            if not holders:
                return Wait(self._model, _NOWHERE, stuck=True)
            done = replace(ledger, good=wanted, rolling=NONE, passed=frozenset())
            return Write(self._model, done, f"{wanted} good on {_counted(len(holders))}")
        # One that has it already was tried by a controller before this one.
        left.sort(key=lambda name: seen[name].served(self._model).ready != wanted)
        first = left[0]
        if step := self._keep_others(first, wanted, ledger, holders, seen):
            return step
        unready = [name for name in holders if not seen[name].ready and name != first]
        if unready:
            return Wait(self._model, f"{unready[0]} is not ready")
        self._trial = Trial(replica=first, release=wanted, began=now, seen_at=now, boot=seen[first].boot)
        if seen[first].served(self._model).ready == wanted:
            return Wait(self._model, f"{first} is watched")
        return Load(first, self._model, wanted)

    def _keep_others(
        self, tried: str, wanted: Release, ledger: Ledger, holders: Sequence[str], seen: Mapping[str, Seen]
    ) -> Step | None:
        """Have all but one replica serve what they have proved to serve well, as after a start anew."""
        due = ((name, wanted if name in ledger.passed else ledger.good) for name in holders if name != tried)
        return self._serve(((name, release) for name, release in due if release), seen)

    def _watch(self, trial: Trial, ledger: Ledger, seen: Mapping[str, Seen], now: float) -> Step:
        replica = seen.get(trial.replica)
        if replica is None:
            if now - trial.seen_at > self._rules.return_timeout:
                return self._refuse(ledger, f"{trial.replica} went away with it, and has not come back")
            return Wait(self._model, f"{trial.replica} does not answer")
        trial.seen_at = now
        served = replica.served(self._model)
        if replica.boot != trial.boot:
            trial.boot, trial.ready_since = replica.boot, None
            if served.ready != trial.release:
                return Load(trial.replica, self._model, trial.release)
        bad = self._fault(trial, served)
        if bad:
            return self._refuse(ledger, f"on {trial.replica}: {bad}")
        if served.ready != trial.release:
            if now - trial.began > self._rules.load_timeout:
                late = f"not loaded after {self._rules.load_timeout:g} s"
                return self._refuse(ledger, f"on {trial.replica}: {late}")
            return Wait(self._model, f"{trial.replica} loads {trial.release}")
        if trial.ready_since is None:
            trial.ready_since, trial.answers, trial.errors = now, served.answers, served.errors
        if now - trial.ready_since < self._rules.settle:
            return Wait(self._model, f"{trial.replica} is watched")
        self._trial = None
        passed = replace(ledger, passed=ledger.passed | {trial.replica})
        return Write(self._model, passed, f"{trial.release} passed on {trial.replica}")

    def _fault(self, trial: Trial, served: Served) -> str:
        """Return what speaks against the release, or nothing."""
        if served.failed:
            return served.failed
        if served.ready != trial.release:
            return ""
        if served.ill:
            return served.ill
        if trial.ready_since is None:
            return ""
        errors, answers = served.errors - trial.errors, served.answers - trial.answers
        if answers >= self._rules.min_requests and errors > self._rules.max_error_rate * answers:
            return f"{errors} of {answers} answers were errors"
        return ""

    def _refuse(self, ledger: Ledger, reason: str) -> Step:
        self._trial = None
        refused = {**ledger.refused, ledger.rolling: reason}
        back = replace(ledger, rolling=NONE, passed=frozenset(), refused=refused)
        return Write(self._model, back, f"{ledger.rolling} refused: {reason}")


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"
