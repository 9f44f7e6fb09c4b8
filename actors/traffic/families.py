"""Metric families of traffic between versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from actors.traffic.traffic import TrafficSample
from actors.values.families import Block, Families, Labels, Slice, SplitFamily, blocks, by, model_labels


def _mirrored(sample: TrafficSample) -> Iterator[Slice]:
    for version, counts in sorted(sample.mirrored.items()):
        for outcome, count in (
            ("same", counts.same),
            ("different", counts.different),
            ("error", counts.errors),
            ("uncompared", counts.uncompared),
            ("skipped", counts.skipped),
        ):
            yield Slice(count, {"version": str(version), "outcome": outcome})


FAMILIES: Final[Families[TrafficSample]] = (
    SplitFamily(
        "tritium_traffic_share",
        "gauge",
        "Share of the requests that name no version",
        lambda sample: by("version", sorted(sample.shares.items())),
    ),
    SplitFamily(
        "tritium_traffic_requests_total",
        "counter",
        "Requests that named no version and were given to this one by a traffic plan",
        lambda sample: by("version", sorted(sample.requests.items())),
    ),
    SplitFamily(
        "tritium_traffic_mirrored_total",
        "counter",
        "Requests to be mirrored to this version, by what came of it",
        _mirrored,
    ),
    SplitFamily(
        "tritium_traffic_rollbacks_total",
        "counter",
        "Times that this version lost its share for its errors or its latency",
        lambda sample: by("version", sorted(sample.rollbacks.items())),
    ),
)


def traffic_blocks(samples: Iterable[TrafficSample]) -> Iterator[Block]:
    """Yield how requests are shared out, for every model that has, or had, a traffic plan."""
    return blocks(FAMILIES, [(Labels(model_labels(each.name, each.namespace)), each) for each in samples])
