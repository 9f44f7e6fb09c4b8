"""Metric families of clients' shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.regions.devices import DeviceRegion
from actors.regions.table import RegionTable
from actors.values.families import Block, Families, Family, SplitFamily, by, once


def _by_kind(values: Iterator[tuple[bool, int]]) -> list[tuple[object, int]]:
    totals = {False: 0, True: 0}
    for cuda, value in values:
        totals[cuda] += value
    return [("system", totals[False]), ("cuda", totals[True])]


FAMILIES: Final[Families[RegionTable]] = (
    SplitFamily(
        "tritium_shared_memory_regions",
        "gauge",
        "Regions of shared memory that clients have registered",
        lambda table: by("kind", _by_kind((isinstance(entry.region, DeviceRegion), 1) for entry in table)),
    ),
    SplitFamily(
        "tritium_shared_memory_bytes",
        "gauge",
        "Bytes of the regions that clients have registered",
        lambda table: by(
            "kind",
            _by_kind((isinstance(entry.region, DeviceRegion), entry.region.byte_size) for entry in table),
        ),
    ),
    Family(
        "tritium_shared_memory_reads_total",
        "counter",
        "Inputs that were read from shared memory",
        lambda table: table.counts.reads,
    ),
    Family(
        "tritium_shared_memory_read_bytes_total",
        "counter",
        "Bytes of inputs that were read from shared memory",
        lambda table: table.counts.bytes_read,
    ),
    Family(
        "tritium_shared_memory_writes_total",
        "counter",
        "Outputs that were written to shared memory",
        lambda table: table.counts.writes,
    ),
    Family(
        "tritium_shared_memory_written_bytes_total",
        "counter",
        "Bytes of outputs that were written to shared memory",
        lambda table: table.counts.bytes_written,
    ),
    SplitFamily(
        "tritium_shared_memory_failures_total",
        "counter",
        "Refused registrations, inputs that could not be read, and answers that could not be written",
        lambda table: by(
            "operation",
            (
                ("register", table.refused),
                ("read", table.counts.reads_failed),
                ("write", table.counts.writes_failed),
            ),
        ),
    ),
)


def region_blocks(table: RegionTable) -> Iterator[Block]:
    """Yield what is told of clients' shared memory."""
    yield from once(FAMILIES, table)
