"""What a controller saw last, and what it is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from engine.fleet.policy.values import Release
from engine.fleet.ports import Look, Member


class Standing(Enum):
    """What a controller is to the fleet."""

    STARTS = "starts"
    STANDS_BY = "stands by"
    WORKS = "works"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Where one model is, for those who watch."""

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
