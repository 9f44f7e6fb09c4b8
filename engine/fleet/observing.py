"""What a replica's answers say of it: from the documents of a server to values of the fleet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from engine.fleet.policy.values import NONE, Release, Served

RELEASE: Final = "fleet_release"
"""The parameter in the configuration of a release that says which one it is.

The server has no such setting.
"""

SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>.+)")
"""A line of Prometheus' text with a sample; behind the value there may be a time."""

_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_UNLOADED: Final = "unloaded"  # the reason of a version that was unloaded in order
_GOOD: Final = "nv_inference_request_success"
_BAD: Final = "nv_inference_request_failure"
_WAITING: Final = ("tritium_requests_pending", "tritium_requests_running")
_OURS: Final = frozenset(("REJECTED", "CANCELED"))  # errors that say nothing of a model


def ready_versions(index: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Return the versions of each model that serve, ascending, by a repository's index."""
    found: dict[str, list[int]] = {}
    for entry in index:
        if entry.get("state") == "READY":
            found.setdefault(str(entry["name"]), []).append(int(entry["version"]))
    return {model: tuple(sorted(versions)) for model, versions in found.items()}


def spoilt_models(index: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the models with a version that failed to load: the server is not ready while it shows that."""
    return {
        str(entry["name"])
        for entry in index
        if entry.get("state") == "UNAVAILABLE" and entry.get("reason", "") not in ("", _UNLOADED)
    }


def release_of(versions: tuple[int, ...], marked: str, known: Sequence[Release]) -> Release:
    """Return which of the `known` releases serves, by the mark that is in its configuration.

    Another one, if it is none of them.
    """
    if not versions:
        return NONE
    for release in known:
        if release.versions == versions and mark(release) == marked:
            return release
    return Release(versions, f"#{marked}" if marked else "")


def mark(release: Release) -> str:
    """Return what tells a release's configuration from others; empty for the repository's own."""
    if not release.config:
        return ""
    return blake2b(release.config.encode(), digest_size=8).hexdigest()


def marked_config(release: Release) -> str:
    """Return the configuration of a release as a load brings it, with its mark."""
    config = json.loads(release.config)
    parameters = {**config.get("parameters", {}), RELEASE: {"string_value": mark(release)}}
    return json.dumps({**config, "parameters": parameters}, separators=(",", ":"))


def mark_in(config: Mapping[str, Any]) -> str:
    """Return the mark that a load has put into a configuration; empty if there is none."""
    parameter = config.get("parameters", {}).get(RELEASE, {})
    return str(parameter.get("string_value", ""))


def traffic_in(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return of a model's traffic what the fleet goes by: the plan in force, and how its versions fare."""
    plan = document["plan"]
    return {
        "plan": None if plan is None else {**plan},
        "versions": [_version(each) for each in document["versions"]],
    }


def _version(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    recent, back = shown.get("recent") or {}, shown.get("rolled_back")
    told: dict[str, Any] = {
        "version": int(shown["version"]),
        "recent": {name: int(recent.get(name, 0)) for name in ("answers", "errors")},
    }
    return {**told, "rolled_back": {"reason": str(back.get("reason", "rolled back"))}} if back else told


def ill_parts(document: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the parts of a server that a deep look at its readiness finds ill, each with the reason."""
    return [
        (str(part.get("part", "")), str(part.get("reason", "it is not ready")))
        for part in document.get("parts", ())
        if not part.get("ready")
    ]


@dataclass(slots=True)
class Counted:
    """What the metrics of a replica say.

    `answers` and `errors` are by model and version; errors are those of the model. `waiting` are the requests
    that are queued or executing, None where the metrics don't tell.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: int | None = None

    def of(self, model: str, versions: Sequence[int]) -> tuple[int, int]:
        """Return how many answers some versions of a model gave, and how many of them were errors."""
        keys = [(model, str(version)) for version in versions]
        return sum(self.answers[key] for key in keys), sum(self.errors[key] for key in keys)


def counted(text: str) -> Counted:
    """Read the metrics of a replica, in text of Prometheus, once for all models."""
    found = Counted()
    for line in text.splitlines():
        if not line.startswith((_GOOD, _BAD, *_WAITING)):
            continue
        sample = SAMPLE.fullmatch(line)
        if sample is None:
            continue
        try:
            value = int(float(sample["value"].split()[0]))
        except (ArithmeticError, LookupError, ValueError):
            continue  # no number, or NaN
        labels = dict(_LABEL.findall(sample["labels"] or ""))
        key = labels.get("model", ""), labels.get("version", "")
        if sample["name"] in _WAITING and not labels:
            found.waiting = (found.waiting or 0) + value
        elif sample["name"] == _GOOD:
            found.answers[key] += value
        elif sample["name"] == _BAD and labels.get("reason") not in _OURS:
            found.answers[key] += value
            found.errors[key] += value
    return found


def with_probe(served: Served, parts: Iterable[tuple[str, str]], model: str) -> Served:
    """Add what a deep look says of a model's versions: parts that are ill, each with the reason."""
    for name, reason in parts:
        if name.startswith(f"model {model} version "):
            return replace(served, ill=reason)
    return served
