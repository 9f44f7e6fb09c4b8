"""What a running server told at one moment, and how fast things went between two such moments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.cli.tree.facts import Node

_NO_DOCUMENTS: Final[Sequence[Node]] = ()

Version = tuple[str, str]
"""A model and the number of its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The tree, `model_stats` and the repository's index, asked for at `at` seconds on the reader's clock.

    The last two are empty where the server does not tell them to this client.
    """

    tree: Node
    at: float
    statistics: Sequence[Node] = _NO_DOCUMENTS
    index: Sequence[Node] = _NO_DOCUMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Of one version: requests and failures a second, and seconds that a request waited and was computed.

    The two times are means; None where no request ended.
    """

    requests: float
    failures: float
    queue: float | None
    infer: float | None


def rates(before: Reading | None, after: Reading) -> Mapping[Version, Rate]:
    """Return how fast each version answered between two readings.

    A version that is new, or that was loaded anew in between, has no rate yet.
    """
    if before is None or after.at <= before.at:
        return {}
    earlier = {_version(each): each for each in before.statistics}
    found = ((_version(each), each) for each in after.statistics)
    pairs = ((key, earlier[key], each) for key, each in found if key in earlier)
    rated = ((key, _rate(then, now, after.at - before.at)) for key, then, now in pairs)
    return {key: rate for key, rate in rated if rate is not None}


def _version(document: Node) -> Version:
    return str(document.get("name", "")), str(document.get("version", ""))


def _rate(then: Node, now: Node, seconds: float) -> Rate | None:
    def grown(name: str, key: str) -> float:
        return _count(now, name, key) - _count(then, name, key)

    ended, failed = grown("success", "count"), grown("fail", "count")
    if ended < 0 or failed < 0:
        return None

    def mean(name: str) -> float | None:
        count = grown(name, "count")
        return grown(name, "ns") / count / 1e9 if count > 0 else None

    return Rate(
        requests=(ended + failed) / seconds,
        failures=failed / seconds,
        queue=mean("queue"),
        infer=mean("compute_infer"),
    )


def _count(document: Node, name: str, key: str) -> float:
    value: Any = (document.get("inference_stats") or {}).get(name, {}).get(key, 0)
    return float(value)
