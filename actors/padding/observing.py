"""Padding joins a version as an observer of its batches: it counts what is added to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from actors.padding.policy import PaddingCounts, PaddingTally
from actors.serving.instances.batches import InFlight
from actors.serving.ports import BatchObserver
from actors.serving.standing import InstanceState
from actors.values.families import Families, Family
from actors.values.specs import ModelSpec

FAMILIES: Final[Families[PaddingCounts]] = (
    Family(
        "tritium_padding_bytes_total",
        "counter",
        "Bytes that were added to padded inputs (tritium.pad_to)",
        lambda counts: counts.added,
    ),
    Family(
        "tritium_padded_input_bytes_total",
        "counter",
        "Bytes that padded inputs had before",
        lambda counts: counts.own,
    ),
)


class PaddingObserver(BatchObserver):
    """Counts the padding of one version's batches."""

    def __init__(self, spec: ModelSpec) -> None:
        self._tally = PaddingTally(spec)

    @property
    def counts(self) -> PaddingCounts:
        """What was counted until now."""
        return self._tally.counts

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """Count the batch. See `BatchObserver`."""
        self._tally.count(batch.requests)


def pads(spec: ModelSpec) -> bool:
    """Whether a model has inputs that are padded."""
    return any(declared.padded is not None for declared in spec.inputs)


def counts_of(observers: Iterable[BatchObserver]) -> PaddingCounts | None:
    """Return what the padding among a version's observers has counted; None if it has none."""
    return next((each.counts for each in observers if isinstance(each, PaddingObserver)), None)
