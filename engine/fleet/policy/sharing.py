"""Traffic plans that are equal on all replicas of a model, and rolled back on all of them.

Each replica judges the versions of its plan by what it sees itself (`docs/traffic.md`). Here they are judged
by the sum, and what one replica has rolled back is rolled back on all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.fleet.policy.books import Spared
from engine.fleet.policy.values import Plan, Seen


def spared_by_all(model: str, plan: Plan, known: Spared | None, replicas: Iterable[Seen]) -> Spared:
    """Return the versions that get no more requests under `plan`, with what is seen now."""
    text = plan_text(plan)
    versions = dict(known.versions) if known is not None and known.plan == text else {}
    shown = [(each.name, each.served(model).traffic or {}) for each in replicas]
    shown = [(name, document) for name, document in shown if is_in_force(plan, versions, document)]
    for name, document in shown:
        for version in document.get("versions", ()):
            rolled_back = version.get("rolled_back")
            if rolled_back:
                reason = f"{rolled_back.get('reason', 'rolled back')}, on {name}"
                versions.setdefault(int(version["version"]), reason)
    for number, reason in _worse_in_sum(plan, shown):
        versions.setdefault(number, reason)
    if not any(float(weight) > 0 for key, weight in plan["weights"].items() if int(key) not in versions):
        # The last one stays, as on one replica.
        return known if known is not None and known.plan == text else Spared(plan=text)
    return Spared(plan=text, versions=versions)


def _worse_in_sum(plan: Plan, shown: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterable[tuple[int, str]]:
    rules = plan.get("rollback") or {}
    limit, least = float(rules.get("max_error_rate", 0)), int(rules.get("min_requests", 20))
    if not limit:
        return
    answers: dict[int, int] = {}
    errors: dict[int, int] = {}
    for _, document in shown:
        for version in document.get("versions", ()):
            number, recent = int(version["version"]), version.get("recent") or {}
            answers[number] = answers.get(number, 0) + int(recent.get("answers", 0))
            errors[number] = errors.get(number, 0) + int(recent.get("errors", 0))
    largest = max(plan["weights"], key=lambda key: float(plan["weights"][key]))
    for number, count in answers.items():
        if number != int(largest) and count >= least and errors[number] > limit * count:
            yield number, f"{errors[number]} of {count} answers of {len(shown)} replicas were errors"


def plan_for(plan: Plan, spared: Spared) -> dict[str, Any]:
    """Return the plan that all replicas should have now."""
    weights = {
        key: 0 if int(key) in spared.versions else weight for key, weight in plan.get("weights", {}).items()
    }
    return {**plan, "weights": weights} if weights else dict(plan)


def is_in_force(plan: Plan, spared: Iterable[int], shown: Mapping[str, Any]) -> bool:
    """Whether a replica has what `plan` says, and defaults for the rest, as its traffic shows.

    The weights of versions that are spared may be others.
    """
    in_force = shown.get("plan")
    if not plan:
        return in_force is None
    spared = set(spared)
    with_all = {**plan, "weights": {k: v for k, v in plan.get("weights", {}).items() if int(k) not in spared}}
    return isinstance(in_force, Mapping) and _within(with_all, in_force)


def _within(part: object, whole: object) -> bool:
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            _within(value, whole.get(str(key))) or (not value and whole.get(str(key)) is None)
            for key, value in part.items()
        )
    if isinstance(part, float | int) and isinstance(whole, float | int):
        return float(part) == float(whole)
    return part == whole


def plan_text(plan: Plan) -> str:
    """Return a plan as text that is equal for equal plans."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"))
