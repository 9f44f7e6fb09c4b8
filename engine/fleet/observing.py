"""What a replica's answers say of it: from the documents of a server to values of the fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from engine.fleet.policy.values import NONE, Release, Served

RELEASE: Final = "tritium.fleet.config"
"""The parameter in the configuration of a release that says which one it is."""

_SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_UNLOADED: Final = "unloaded"  # the reason of a version that was unloaded in order
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


def release_of(
    versions: tuple[int, ...], config: Mapping[str, Any] | None, known: Sequence[Release]
) -> Release:
    """Return which of the `known` releases serves, by the mark that a load has put into its configuration.

    Another one, if it is none of them.
    """
    if not versions:
        return NONE
    marked = _mark_in(config)
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


def _mark_in(config: Mapping[str, Any] | None) -> str:
    parameter = (config or {}).get("parameters", {}).get(RELEASE, {})
    return str(parameter.get("string_value", ""))


def counted(text: str, model: str, versions: Sequence[int]) -> tuple[int, int]:
    """Return how many answers some versions of a model gave, and how many of them were errors of the model.

    `text` is what the replica's metrics say.
    """
    good = bad = 0.0
    counts = frozenset(map(str, versions))
    for name, labels, value in samples(
        text, ("nv_inference_request_success", "nv_inference_request_failure")
    ):
        if labels.get("model") != model or labels.get("version") not in counts:
            continue
        if name == "nv_inference_request_success":
            good += value
        elif labels.get("reason") not in _OURS:
            bad += value
    return int(good + bad), int(bad)


def gauge(text: str, name: str) -> float | None:
    """Return the value of a metric without labels; None where it is missing."""
    return next((value for _, labels, value in samples(text, (name,)) if not labels), None)


def samples(text: str, names: Sequence[str]) -> Iterable[tuple[str, dict[str, str], float]]:
    """Yield the samples of some metrics in text of Prometheus: name, labels and value."""
    for line in text.splitlines():
        if not line.startswith(tuple(names)):
            continue
        found = _SAMPLE.match(line)
        if found is not None and found["name"] in names:
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"])


def with_probe(served: Served, parts: Iterable[Mapping[str, Any]], model: str) -> Served:
    """Add what a deep look says of a model's versions."""
    for part in parts:
        name = str(part.get("part", ""))
        if not part.get("ready") and name.startswith(f"model {model} version "):
            return replace(served, ill=str(part.get("reason", "it is not ready")))
    return served
