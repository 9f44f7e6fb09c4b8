"""Metric families of readiness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from actors.health.probes import ProbeCounts
from actors.values.families import Block, Families, Family, Labels, blocks, model_labels, once

READY: Final[Families[bool]] = (
    Family("tritium_ready", "gauge", "1 while the server is ready, as its health endpoint says", int),
)

PROBES: Final[Families[ProbeCounts]] = (
    Family("tritium_probes_total", "counter", "Inferences that readiness made", lambda counts: counts.probes),
    Family(
        "tritium_probe_failures_total",
        "counter",
        "Those of them that spoke against the model",
        lambda counts: counts.failures,
    ),
    Family("tritium_probe_seconds", "gauge", "How long the last of them took", lambda counts: counts.seconds),
)


def readiness_blocks(*, ready: bool, probes: Iterable[ProbeCounts]) -> Iterator[Block]:
    """Yield whether the server is ready, and what is counted of each version that was ever probed."""
    yield from once(READY, ready)
    yield from blocks(
        PROBES, [(Labels(model_labels(each.name, version=each.version)), each) for each in probes]
    )
