"""How a fleet is shown in a terminal: its replicas, its models, and what is being changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.fleet.picture import Lane, Picture
from engine.fleet.policy.values import Release
from engine.observability.text import aligned, printable

_REPLICAS: Final = ("replica", "state", "requests", "models", "address")
_MODELS: Final = ("model", "wanted", "good", "replicas", "what happens")


def text(picture: Picture) -> str:
    """Return the whole picture as lines."""
    head = _controller(picture)
    replicas = aligned([_REPLICAS, *_replica_rows(picture)])
    models = aligned([_MODELS, *(_model_row(lane, picture) for lane in picture.lanes)])
    refused = "".join(f"{line}\n" for lane in picture.lanes for line in _refusals(lane))
    unreached = "".join(
        f"{printable(name)} is not reached: {printable(why)}\n"
        for name, why in sorted(picture.troubles.items())
    )
    return f"{head}\n{replicas}{unreached}\n{models}{refused}"


def _controller(picture: Picture) -> str:
    if picture.why:
        return f"{picture.why}\n"
    by = f"controller {picture.owner}, epoch {picture.epoch}" if picture.owner else "no controller at work"
    state = "all is as it should be" if picture.settled else "changes are under way, or due"
    return f"{by}; {state}; {_counted(picture.replicas_wanted)} wanted by load\n"


def _replica_rows(picture: Picture) -> Iterator[Sequence[str]]:
    for member in picture.members:
        look = picture.looks.get(member.name)
        if look is None:
            yield member.name, "not reached", "-", "-", member.url
            continue
        seen = look.seen
        state = "ready" if seen.ready else "not ready"
        if seen.withdrawn:
            state = "waits for its models"
        if member.name in picture.drained:
            idle = seen.withdrawn and not seen.waiting
            state = "drained: nothing waits there" if idle else "is being drained"
            state = "drained: it may be ended" if picture.drained[member.name] else state
        models = [
            f"{printable(model)} {_short(served.ready)}"
            for model, served in sorted(seen.models.items())
            if served.ready
        ]
        requests = "-" if seen.waiting is None else str(seen.waiting)
        yield member.name, state, requests, ", ".join(models) or "-", member.url


def _model_row(lane: Lane, picture: Picture) -> Sequence[str]:
    due = lane.rolling or lane.good
    serving = sum(
        name in picture.looks and bool(due) and picture.looks[name].seen.served(lane.model).ready == due
        for name in lane.placed
    )
    happens = ": ".join(each for each in (lane.waits, lane.short) if each)
    if lane.rolling:
        happens = f"rolls {lane.rolling}: passed on {len(lane.passed)}; {happens}".rstrip("; ")
    elif lane.wanted in lane.refused:
        happens = f"{lane.wanted} was refused; it stays with {lane.good}"
    return (
        printable(lane.model),
        _short(lane.wanted),
        _short(lane.good),
        f"{serving} of {len(lane.placed)}",
        printable(happens) or "-",
    )


def _refusals(lane: Lane) -> Iterator[str]:
    for release, why in lane.refused.items():
        yield f"{printable(lane.model)}: {release} was refused: {printable(why)}"
    for version, why in lane.spared.items():
        yield f"{printable(lane.model)}: version {version} gets no traffic: {printable(why)}"


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _short(release: Release) -> str:
    if not release:
        return "-"
    return ",".join(map(str, release.versions)) + ("*" if release.config else "")
