"""Traffic between versions: the plan in force for each model, its results, and the guard that rolls back.

`TrafficControl` is passive and holds all state. Two actors work on it. The guard looks at it four times a
second where a plan has a rollback rule; the other actor compares mirrored answers. Either may die without the
loss of a plan, a count or a window.

A plan comes from a model's configuration, when the catalog says that it was (re)loaded, or from an operator.
The operator's plan stays in force until a load brings a configuration with a new traffic plan, and so does a
rollback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from actors.seams.bell import Bell
from actors.serving.model import ModelState
from actors.serving.routing.roster import Roster
from actors.serving.statistics import FailureReason
from actors.supervision.context import ChildContext
from actors.traffic.mirror import Finished, MirrorCounts, Mirroring, compare_finished
from actors.traffic.policy.traffic import (
    Counters,
    Evidence,
    RollBack,
    Shares,
    Window,
    difference,
    judge,
    outputs_differ,
)
from actors.traffic.policy.traffic_plan import plan_document, read_plan
from actors.traffic.split import VersionSplit
from actors.values.errors import InvalidArgument, NotFound, Unavailable
from actors.values.events import Event, Log
from actors.values.specs import ModelKey
from actors.values.traffic import Rollback, TrafficPlan

UNCHANGEABLE: Final = (
    "a traffic plan can be changed at run time only where clients control the models:"
    " start the server with --model-control-mode=explicit, or write the plan into the model's configuration"
)
LOOK_EVERY: Final = 0.25
"""Seconds between the guard's looks.

That is short beside any useful window, and a look costs microseconds.
"""


class Origin(Enum):
    """The source of the plan in force."""

    NONE = "none"
    CONFIGURATION = "configuration"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSample:
    """One model's traffic at the moment of a scrape; counts are by version and since the server started."""

    name: str
    namespace: str = ""  # only where models are told apart by their repository
    shares: Mapping[int, float]  # in force; empty where there is no split
    requests: Mapping[int, int]
    mirrored: Mapping[int, MirrorCounts]
    rollbacks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Moment:
    """A point in time, on the loop's clock and on the wall's."""

    at: float
    ms: int

    def as_dict(self) -> dict[str, object]:
        return {"since_ms": self.ms, "for_seconds": round(trio.current_time() - self.at, 3)}


@dataclass(frozen=True, slots=True)
class _RolledBack:
    moment: _Moment
    why: str


@dataclass(slots=True, eq=False)
class _Model:
    """What is known of one model's traffic."""

    mirroring: Mirroring
    moment: _Moment  # when the plan came into force
    configured: TrafficPlan | None = None
    plan: TrafficPlan | None = None
    origin: Origin = Origin.NONE
    split: VersionSplit | None = None
    requests: dict[int, int] = field(default_factory=dict)  # requests of the split, by version
    rollbacks: Counter[int] = field(default_factory=Counter)  # by version
    rolled_back: dict[int, _RolledBack] = field(default_factory=dict)  # under this plan
    # The windows of guarded versions.
    windows: WeakKeyDictionary[ModelState, Window] = field(default_factory=WeakKeyDictionary)
    # The counts at the time when the plan came into force:
    requests_before: Mapping[int, int] = field(default_factory=dict)
    mirrored_before: Mapping[int, MirrorCounts] = field(default_factory=dict)
    answered_before: WeakKeyDictionary[ModelState, Counters] = field(default_factory=WeakKeyDictionary)

    @property
    def rule(self) -> Rollback | None:
        return None if self.plan is None else self.plan.rollback

    @property
    def weights(self) -> Mapping[int, float]:
        """The plan's weights, with 0 for versions that were rolled back."""
        planned = {} if self.plan is None else self.plan.weights
        return {version: 0.0 if version in self.rolled_back else planned[version] for version in planned}

    def front(self, ready: Mapping[int, ModelState]) -> VersionSplit | None:
        """Return the model for requests that name no version: a `roster.Fronting`."""
        if self.split is not None and ready:
            self.split.adapt(self.weights, ready)
            return self.split
        return None


class TrafficControl:
    """The plans of all models. Implements `actors.values.interfaces.Traffic`."""

    def __init__(
        self,
        roster: Roster,
        *,
        log: Log,
        random: Callable[[], float],
        wall_clock: Callable[[], int],
        changeable: bool,
    ) -> None:
        """`random` draws from [0, 1); `wall_clock` gives milliseconds since the epoch, for operators to read.

        `changeable` says whether clients may change plans, which depends on the control mode.
        """
        self._roster = roster
        self._changeable = changeable
        self._log = log
        self._random = random
        self._wall_clock = wall_clock
        self._models: dict[ModelKey, _Model] = {}
        self._finished = Finished()
        self._guarded = Bell()  # a plan has a rule

    # -- for the catalog -------------------------------------------------------------------------------------

    def adopt(self, key: ModelKey, plan: TrafficPlan | None) -> None:
        """A model was loaded or reloaded, with this plan in its configuration. Never raises.

        If the plan is not new, the changes of an operator or a rollback stay in force.
        """
        model = self._models.get(key)
        if model is None:
            if plan is None:
                return
            model = self._model(key)
        if plan == model.configured:
            self._front(key, model)  # the roster forgets models that are gone
            return
        model.configured = plan
        self._enforce(key, model, plan, Origin.NONE if plan is None else Origin.CONFIGURATION)

    def forget(self, key: ModelKey) -> None:
        """The model has left the repository for good."""
        if self._models.pop(key, None) is not None:
            self._roster.set_fronting(key, None)

    def _model(self, key: ModelKey) -> _Model:
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = _Model(Mirroring(self._finished), self._now())
        return model

    def _now(self) -> _Moment:
        return _Moment(trio.current_time(), self._wall_clock())

    def _enforce(self, key: ModelKey, model: _Model, plan: TrafficPlan | None, origin: Origin) -> None:
        model.plan, model.origin, model.moment = plan, origin, self._now()
        model.rolled_back.clear()
        model.windows.clear()
        model.mirroring.differences.clear()
        model.requests_before = dict(model.requests)
        model.mirrored_before = {
            version: MirrorCounts(**asdict(counts)) for version, counts in model.mirroring.counts.items()
        }
        model.answered_before = WeakKeyDictionary(
            {state: _counted(state) for state in self._roster.serving(key).values()}
        )
        model.split = None
        if plan is not None:
            model.split = VersionSplit(
                plan,
                serving=partial(self._roster.serving, key),
                random=self._random,
                counts=model.requests,
                mirroring=model.mirroring,
            )
        self._front(key, model)
        if model.rule is not None:
            self._guarded.ring()
        self._log(
            Event.TRAFFIC_CHANGED,
            model=str(key),
            origin=origin.value,
            plan=None if plan is None else plan_document(plan),
        )

    def _front(self, key: ModelKey, model: _Model) -> None:
        self._roster.set_fronting(key, None if model.split is None else model.front)

    # -- actors.values.interfaces.Traffic ---------------------------------------------------------------------------

    def change(self, name: str, document: Mapping[str, Any]) -> Mapping[str, object]:
        """Put a new plan in force, which replaces the last one entirely. See `actors.values.interfaces.Traffic`."""
        if not self._changeable:
            raise Unavailable(UNCHANGEABLE)
        key = self._key(name)
        plan = read_plan(document) if document else None
        if plan is not None:
            self._check_alike(key, plan)
        if plan is not None or key in self._models:
            self._enforce(key, self._model(key), plan, Origin.RUNTIME)
        return self.describe(name)

    def describe(self, name: str) -> Mapping[str, object]:
        """Return the plan in force, and its results so far. See `actors.values.interfaces.Traffic`."""
        key = self._key(name)
        model = self._models.get(key)
        ready = self._roster.ready(key)
        document: dict[str, object] = {"model": key.name}
        if key.namespace:
            document["namespace"] = key.namespace
        if model is None:
            model = _Model(Mirroring(self._finished), self._now())
        else:
            document |= model.moment.as_dict()
        shares = Shares({}, ready) if model.split is None or not ready else model.split.shares
        return document | {
            "origin": model.origin.value,
            "plan": None if model.plan is None else plan_document(model.plan),
            "versions": self._versions(key, model, shares.by_version),
            "mirror": _mirror(model),
            "warnings": [] if model.plan is None else list(self._warnings(key, model, model.plan, ready)),
        }

    def _key(self, name: str) -> ModelKey:
        keys = self._roster.keys(name)
        if not keys:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if len(keys) > 1:
            raise InvalidArgument(
                f"there are {len(keys)} models '{name}', in different namespaces: requests that name no version are"
                " ambiguous, so there is nothing to share out"
            )
        return keys[0]

    def _check_alike(self, key: ModelKey, plan: TrafficPlan) -> None:
        """Raise InvalidArgument if loaded versions of the plan could not answer the same requests."""
        members = {version for version, weight in plan.weights.items() if weight > 0}
        serving = self._roster.serving(key)
        answering = members.intersection(serving)
        if not answering:
            return
        lead = serving[Shares(plan.weights, answering).lead].spec
        if plan.mirror is not None:
            members.add(plan.mirror.version)
        for version in sorted(members.intersection(serving)):
            why = difference(lead, serving[version].spec)
            if why:
                raise InvalidArgument(
                    f"versions {lead.version} and {version} of model '{key.name}' can't share requests: {why}"
                )

    def _versions(
        self, key: ModelKey, model: _Model, shares: Mapping[int, float]
    ) -> list[Mapping[str, object]]:
        planned = {} if model.plan is None else model.plan.weights
        known = {
            entry.version: entry.state
            for entry in self._roster.index()
            if (entry.name, entry.namespace) == key and entry.version
        }
        serving = self._roster.serving(key)
        known |= {version: state.status.value for version, state in serving.items()}
        requests = {
            version: model.requests.get(version, 0) - model.requests_before.get(version, 0)
            for version in {*known, *planned}
        }
        total = sum(requests.values())
        document: list[Mapping[str, object]] = []
        for version in sorted(requests):
            each: dict[str, object] = {
                "version": version,
                "state": known.get(version, ""),
                "weight": planned.get(version),
                "share": round(shares.get(version, 0.0), 6),
                "requests": requests[version],
                "share_of_requests": round(requests[version] / total, 6) if total else 0.0,
            }
            state = serving.get(version)
            if state is not None:
                each |= _measured(_counted(state) - model.answered_before.get(state, Counters()))
                if state in model.windows:
                    each["recent"] = _measured(model.windows[state].recent)
            rolled_back = model.rolled_back.get(version)
            if rolled_back is not None:
                each["rolled_back"] = {"reason": rolled_back.why, **rolled_back.moment.as_dict()}
            document.append(each)
        return document

    def _warnings(
        self, key: ModelKey, model: _Model, plan: TrafficPlan, ready: Mapping[int, ModelState]
    ) -> Iterator[str]:
        members = [version for version, weight in plan.weights.items() if weight > 0]
        states = {entry.version: entry.state for entry in self._roster.index() if entry.name == key.name}
        for version in members:
            if version not in ready:
                state = states.get(version, "")
                yield f"version {version} has a weight and " + (f"is {state}" if state else "does not exist")
        split = model.split
        if split is None or not ready or not split.shares.versions:
            return
        for version, why in sorted(split.left_out.items()):
            if version in members or (plan.mirror is not None and plan.mirror.version == version):
                yield f"version {version} is left out: {why}"
        if not any(model.weights.get(version) for version in split.shares.versions):
            yield f"no version with a weight can serve, so version {split.shares.lead} answers"
        lead = ready[split.shares.lead].spec
        for version in split.shares.versions:
            why = outputs_differ(lead, ready[version].spec)
            if why:
                yield f"answers differ in form: {why}"
        mirror = plan.mirror
        if mirror is not None and mirror.version not in ready:
            yield f"nothing is mirrored, for version {mirror.version} is not ready"
        elif mirror is not None and ready[mirror.version].spec.decoupled:
            yield f"nothing is mirrored, for version {mirror.version} is decoupled"

    # -- metrics ---------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[TrafficSample]:
        """Return every model that has, or had, a plan. The result must be read at once, and not kept."""
        for key, model in sorted(self._models.items()):
            shares: Mapping[int, float] = {}
            if model.split is not None and self._roster.ready(key):
                shares = model.split.shares.by_version
            yield TrafficSample(
                name=key.name,
                namespace=key.namespace,
                shares=shares,
                requests=model.requests,
                mirrored=model.mirroring.counts,
                rollbacks=model.rollbacks,
            )

    # -- actors ----------------------------------------------------------------------------------------------

    async def compare(self, ctx: ChildContext) -> None:
        """Compare mirrored answers: an actor's start function."""
        await compare_finished(ctx, self._finished)

    async def guard(self, ctx: ChildContext) -> None:
        """Watch the versions of plans with a rollback rule: an actor's start function."""
        ctx.started()
        while True:
            while not any(model.rule is not None for model in self._models.values()):
                await self._guarded.next_ring()
            self.look(trio.current_time())
            ctx.progressed()
            await trio.sleep(LOOK_EVERY)

    def look(self, now: float) -> None:
        """Look at every guarded version once, and roll back the bad ones."""
        for key, model in self._models.items():
            ready = self._roster.ready(key)
            if model.rule is not None and model.split is not None and ready:
                self._look_at(key, model, model.rule, model.split, ready, now)

    def _look_at(
        self,
        key: ModelKey,
        model: _Model,
        rule: Rollback,
        split: VersionSplit,
        ready: Mapping[int, ModelState],
        now: float,
    ) -> None:
        evidence: dict[int, Evidence] = {}
        for version in split.shares.versions:
            state = ready.get(version)
            if state is None:
                continue
            window = model.windows.get(state)  # another generation begins with a clean record
            if window is None:
                window = model.windows[state] = Window(rule.window)
            window.add(now, _counted(state))
            in_hand = [now - request.accepted_at for request in state.in_flight if not request.synthetic]
            evidence[version] = Evidence(window.recent, in_hand)
        decision = judge(rule, split.shares, evidence)
        if isinstance(decision, RollBack):
            self._roll_back(key, model, split, ready, decision)

    def _roll_back(
        self,
        key: ModelKey,
        model: _Model,
        split: VersionSplit,
        ready: Mapping[int, ModelState],
        decision: RollBack,
    ) -> None:
        model.rolled_back[decision.version] = _RolledBack(self._now(), decision.why)
        model.rollbacks[decision.version] += 1
        split.adapt(model.weights, ready)
        self._log(
            Event.TRAFFIC_ROLLED_BACK,
            level="warning",
            model=str(key),
            version=decision.version,
            reason=decision.why,
            shares={str(version): round(share, 6) for version, share in split.shares.by_version.items()},
        )


def _counted(state: ModelState) -> Counters:
    """Return a version's counters. Only those failures count that the version made itself."""
    statistics = state.statistics
    return Counters(
        successes=statistics.success_count,
        errors=statistics.failures[FailureReason.BACKEND],
        seconds=statistics.success_ns / 1e9,
    )


def _measured(counters: Counters) -> dict[str, object]:
    return {
        "answers": counters.answers,
        "errors": counters.errors,
        "mean_latency_seconds": round(counters.mean_latency, 6),
    }


def _mirror(model: _Model) -> Mapping[str, object] | None:
    mirror = None if model.plan is None else model.plan.mirror
    if mirror is None:
        return None
    counts = model.mirroring.of(mirror.version) - model.mirrored_before.get(mirror.version, MirrorCounts())
    return {
        "version": mirror.version,
        **asdict(counts),
        "outstanding": model.mirroring.outstanding,
        "differences": list(model.mirroring.differences),
    }
