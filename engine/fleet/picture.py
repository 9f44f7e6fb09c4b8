"""What a controller saw last, and what it is doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from engine.fleet.policy.values import Release, Seen
from engine.fleet.ports import Look, Member


class Standing(Enum):
    """What a controller is to the fleet."""

    STARTS = "starts"
    STANDS_BY = "stands by"
    WORKS = "works"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Where one model is, for those who watch.

    `stuck`: what it waits for comes by another file, or another fleet, alone. `short` is why it has fewer
    replicas than it should.
    """

    model: str
    wanted: Release
    good: Release
    rolling: Release
    trying: str = ""
    passed: Sequence[str] = ()
    refused: Mapping[Release, str] = field(default_factory=dict)
    placed: Sequence[str] = ()
    spared: Mapping[int, str] = field(default_factory=dict)
    waits: str = ""
    stuck: bool = False
    short: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the controller saw last, and what it is doing."""

    standing: Standing = Standing.STARTS
    why: str = ""
    epoch: int = 0
    owner: str = ""
    members: Sequence[Member] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    lanes: Sequence[Lane] = ()
    drained: Mapping[str, bool] = field(default_factory=dict)
    replicas_wanted: int = 0
    settled: bool = False


def is_settled(lanes: Sequence[Lane], looks: Mapping[str, Look]) -> bool:
    """Whether all is as it should be, or as it can be after what was refused."""
    for lane in lanes:
        due = lane.good if lane.wanted in lane.refused else lane.wanted
        if lane.rolling or lane.waits or lane.good != due:
            return False
        if any(looks[name].seen.served(lane.model).ready != due for name in lane.placed):
            return False
    return True


def is_stuck(lanes: Sequence[Lane], picture: Picture) -> bool:
    """Whether what is missing comes by another file, or another fleet, alone."""
    left = [lane for lane in lanes if not is_settled([lane], picture.looks)]
    return bool(left) and not picture.why and not picture.troubles and all(lane.stuck for lane in left)


def needed_for(name: str, lanes: Iterable[Lane], seen: Mapping[str, Seen | None]) -> str:
    """Return for what a replica that is to be removed serves on; empty if others serve all that it does.

    `seen` are the replicas that belong to the fleet, None for one that was never reached.
    """
    for lane in lanes:
        others = [each for each in lane.placed if each in seen]
        if name in others:
            return f"{lane.model}: other replicas are looked for"
        if lane.good and not others:
            return ": ".join(
                [lane.model, "no other replica may serve it", *([lane.short] if lane.short else [])]
            )
        for other in others:
            replica = seen[other]
            if replica is None or replica.served(lane.model).ready != lane.good:
                return f"{lane.model}: {other} does not serve {lane.good} yet"
    return ""
