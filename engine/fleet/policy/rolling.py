"""How a change of a model goes over its replicas: one after the other, and back at the first failure.

`Roll` is asked after each look at the fleet, and says one step for a model. What has to outlive the
controller is in the ledger, which it has written before it goes on. So a controller that is killed at any
step, and started again, ends the same roll: at most it watches one replica anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.fleet.policy.values import (
    NONE,
    Ledger,
    Load,
    Rules,
    Seen,
    Served,
    Step,
    Unload,
    Versions,
    Wait,
    Wish,
    Write,
)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One replica is tried with new versions. Times are of the controller's clock, in seconds."""

    replica: str
    versions: Versions
    began: float
    seen_at: float
    ready_since: float | None = None
    boot: str = ""
    answers: int = 0
    errors: int = 0


class Roll:
    """One model's way from what it is to what it should be."""

    def __init__(self, model: str, rules: Rules) -> None:
        self._model = model
        self._rules = rules
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
        now: float,
    ) -> Step:
        """Return what is to be done next. `wish` is None for a model that should be nowhere.

        `holders` are the replicas of the model that are there, sorted; `seen` are all replicas that are.
        """
        wanted = wish.versions if wish else NONE
        if wanted in ledger.refused:
            wanted = ledger.good
        if wanted == NONE or wanted == ledger.good:
            self._trial = None
            return self._settle(wanted, holders, seen) or Wait(self._model)
        if ledger.rolling != wanted:
            self._trial = None
            fresh = replace(ledger, rolling=wanted, passed=frozenset())
            return Write(self._model, fresh, f"roll {_said(wanted)} out")
        return self._roll(wanted, ledger, holders, seen, now)

    def _settle(self, wanted: Versions, holders: Sequence[str], seen: Mapping[str, Seen]) -> Step | None:
        """Have all holders serve what is known to be good, and then no others anything."""
        for name in holders if wanted else ():
            served = seen[name].served(self._model)
            if served.ready != wanted:
                return Wait(self._model, f"{name} loads") if served.busy else Load(name, self._model, wanted)
        for name, replica in seen.items():
            if (not wanted or name not in holders) and replica.served(self._model).ready:
                return Unload(name, self._model)
        return None

    def _roll(
        self, wanted: Versions, ledger: Ledger, holders: Sequence[str], seen: Mapping[str, Seen], now: float
    ) -> Step:
        trial = self._trial
        if trial is not None:
            return self._watch(trial, ledger, seen, now)
        left = [name for name in holders if name not in ledger.passed]
        if not left:
            if not holders:
                return Wait(self._model, "no replica may serve it")
            done = replace(ledger, good=wanted, rolling=NONE, passed=frozenset())
            return Write(self._model, done, f"{_said(wanted)} are good on {len(holders)} replicas")
        # One that has them already was tried by a controller before this one.
        left.sort(key=lambda name: seen[name].served(self._model).ready != wanted)
        unready = [name for name in holders if not seen[name].ready and name != left[0]]
        if unready:
            return Wait(self._model, f"{unready[0]} is not ready")
        self._trial = Trial(replica=left[0], versions=wanted, began=now, seen_at=now, boot=seen[left[0]].boot)
        if seen[left[0]].served(self._model).ready == wanted:
            return Wait(self._model, f"{left[0]} is watched")
        return Load(left[0], self._model, wanted)

    def _watch(self, trial: Trial, ledger: Ledger, seen: Mapping[str, Seen], now: float) -> Step:
        replica = seen.get(trial.replica)
        if replica is None:
            if now - trial.seen_at > self._rules.return_timeout:
                return self._refuse(ledger, f"{trial.replica} went away with them, and has not come back")
            return Wait(self._model, f"{trial.replica} does not answer")
        trial.seen_at = now
        served = replica.served(self._model)
        if replica.boot != trial.boot:
            trial.boot, trial.ready_since = replica.boot, None
            if served.ready != trial.versions:
                return Load(trial.replica, self._model, trial.versions)
        bad = self._fault(trial, served)
        if bad:
            return self._refuse(ledger, f"on {trial.replica}: {bad}")
        if served.ready != trial.versions:
            if now - trial.began > self._rules.load_timeout:
                return self._refuse(
                    ledger, f"on {trial.replica}: not loaded after {self._rules.load_timeout:g} s"
                )
            return Wait(self._model, f"{trial.replica} loads")
        if trial.ready_since is None:
            trial.ready_since, trial.answers, trial.errors = now, served.answers, served.errors
        if now - trial.ready_since < self._rules.settle:
            return Wait(self._model, f"{trial.replica} is watched")
        self._trial = None
        passed = replace(ledger, passed=ledger.passed | {trial.replica})
        return Write(self._model, passed, f"{_said(trial.versions)} passed on {trial.replica}")

    def _fault(self, trial: Trial, served: Served) -> str:
        """Return what speaks against the versions, or nothing."""
        if served.failed:
            return served.failed
        if served.ready != trial.versions:
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
        return Write(self._model, back, f"{_said(ledger.rolling)} refused: {reason}")


def _said(versions: Versions) -> str:
    return "versions " + ", ".join(map(str, versions))
