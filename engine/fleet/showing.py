"""What a controller sees and does, as JSON values and as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from engine.fleet.observing import SAMPLE
from engine.fleet.picture import Lane, Picture, Standing
from engine.fleet.policy.books import release_document

_SUFFIXES: Final = ("_bucket", "_sum", "_count")


def document(picture: Picture) -> dict[str, Any]:
    """Return all of a picture."""
    return {
        "controller": {
            "standing": str(picture.standing.value),
            "reason": picture.why,
            "owner": picture.owner,
            "epoch": picture.epoch,
        },
        "settled": picture.settled,
        "replicas_wanted": picture.replicas_wanted,
        "replicas": [_replica(name, url, picture) for name, url in _members(picture)],
        "models": [_model(lane) for lane in picture.lanes],
    }


def _members(picture: Picture) -> Iterable[tuple[str, str]]:
    return sorted((each.name, each.url) for each in picture.members)


def _replica(name: str, url: str, picture: Picture) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name, "url": url}
    look = picture.looks.get(name)
    if look is None:
        return {**told, "reached": False, "reason": picture.troubles.get(name, "")}
    seen = look.seen
    told |= {
        "reached": True,
        "ready": seen.ready and not seen.withdrawn,
        "held": seen.withdrawn,
        "boot": seen.boot,
        "waiting": seen.waiting,
        "labels": dict(seen.labels),
        "models": {
            model: release_document(served.ready)
            for model, served in sorted(seen.models.items())
            if served.ready
        },
    }
    if name in picture.drained:
        told["drained"] = picture.drained[name]
    return told


def _model(lane: Lane) -> dict[str, Any]:
    return {
        "name": lane.model,
        "wanted": release_document(lane.wanted),
        "good": release_document(lane.good),
        "rolling": release_document(lane.rolling),
        "trying": lane.trying,
        "passed": list(lane.passed),
        "refused": [{**release_document(release), "reason": why} for release, why in lane.refused.items()],
        "placed": list(lane.placed),
        "without_traffic": {str(version): why for version, why in lane.spared.items()},
        "waits": lane.waits,
        "too_few": lane.short,
    }


# -- metrics


def exposition(picture: Picture) -> str:
    """Return the metrics of all replicas, each sample with its `replica`, and those of the fleet."""
    return _fleet_metrics(picture) + merged({name: look.metrics for name, look in picture.looks.items()})


def merged(texts: Mapping[str, str]) -> str:
    """Return metrics of several replicas as one text of Prometheus: samples of a family stand together."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        label = f'replica="{_escaped(replica)}"'
        for line in text.splitlines():
            if line.startswith("#"):
                words = line.split(" ", 3)
                if len(words) > 2 and words[1] in ("HELP", "TYPE"):
                    head = heads.setdefault(words[2], [])
                    if not any(each.startswith(f"# {words[1]} ") for each in head):
                        head.append(line)
            elif sample := SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                inner = f"{label},{labels}" if labels else label
                samples.setdefault(_family(name, heads), []).append(f"{name}{{{inner}}} {value}")
    lines = []
    for family, found in samples.items():
        lines += heads.get(family, [])
        lines += found
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, heads: Mapping[str, object]) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in heads:
            return name.removesuffix(suffix)
    return name


def _fleet_metrics(picture: Picture) -> str:
    waiting = sum(look.seen.waiting or 0 for look in picture.looks.values())
    lines: list[str] = []

    def gauge(name: str, about: str, samples: Iterable[tuple[str, float]]) -> None:
        lines.append(f"# HELP tritium_fleet_{name} {about}")
        lines.append(f"# TYPE tritium_fleet_{name} gauge")
        lines.extend(f"tritium_fleet_{name}{labels} {value:g}" for labels, value in samples)

    gauge("replicas", "Replicas that the fleet has", [("", len(picture.members))])
    gauge("replicas_reached", "Replicas that answered at the last look", [("", len(picture.looks))])
    gauge("replicas_wanted", "Replicas that an autoscaler should run", [("", picture.replicas_wanted)])
    gauge("requests_waiting", "Requests that are queued or executing, on all replicas", [("", waiting)])
    gauge(
        "controller_works",
        "1 while this controller makes changes, 0 while it stands by",
        [("", float(picture.standing is Standing.WORKS))],
    )
    lanes = [(f'{{model="{_escaped(lane.model)}"}}', lane) for lane in picture.lanes]
    gauge(
        "model_replicas",
        "Replicas that serve the good release of a model",
        [(labels, _serving(lane, picture)) for labels, lane in lanes],
    )
    gauge(
        "model_rolling",
        "1 while a release of a model is rolled out",
        [(labels, float(bool(lane.rolling))) for labels, lane in lanes],
    )
    gauge(
        "model_refused",
        "1 while the wanted release of a model is refused",
        [(labels, float(lane.wanted in lane.refused)) for labels, lane in lanes],
    )
    return "".join(f"{line}\n" for line in lines)


def _serving(lane: Lane, picture: Picture) -> int:
    return sum(
        bool(lane.good) and look.seen.served(lane.model).ready == lane.good for look in picture.looks.values()
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
