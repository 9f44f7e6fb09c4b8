"""Which parts of a batch lie in clients' regions, as the server tells its worker.

The descriptors of the regions travel with the `Execute` frame, in the order of their numbers. A worker has
them for the time of that batch alone. So there is nothing to withdraw from a worker when a region ends, and a
model holds no client's memory longer than a request of that client takes.

The spans are in the metadata of their requests, under `SPANS`: what is to be read into the input segment, and
which outputs are to be written. An output is told only if its place is longer than `DIRECT_FROM`. Shorter
ones come in the result like any other, and the reply port writes them: that costs less than a descriptor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.regions import Region, RegionTensor
    from actors.values.requests import InferRequest

SPANS: Final = "regions"
"""The key of a request's spans in its metadata."""

DIRECT_FROM: Final = 32 * 1024
"""Outputs of more bytes than this are written by the worker, if it may."""

MOST_REGIONS: Final = 64
"""Regions that one batch may bring to its worker.

The server reads and writes all of a batch that has more.
"""


class RegionRead:
    """An input of request `index` that lies in a region, and its `offset` in the input segment."""

    __slots__ = ("index", "offset", "tensor")

    def __init__(self, tensor: RegionTensor, offset: int) -> None:
        self.index = 0
        self.tensor = tensor
        self.offset = offset


class ReadSpan:
    """Worker: bytes `at` and after of the region with this number, for `offset` of the input segment."""

    __slots__ = ("at", "name", "nbytes", "number", "offset", "region")

    def __init__(self, number: int, at: int, offset: int, nbytes: int, name: str, region: str) -> None:
        self.number = number
        self.at = at
        self.offset = offset
        self.nbytes = nbytes
        self.name = name  # of the input
        self.region = region


class WriteSpan:
    """Worker: the place for one output of one request: `nbytes` from byte `at` of the region on."""

    __slots__ = ("at", "nbytes", "number", "region")

    def __init__(self, number: int, at: int, nbytes: int, region: str) -> None:
        self.number = number
        self.at = at
        self.nbytes = nbytes
        self.region = region


def tell_spans(
    reads: Sequence[RegionRead], requests: Sequence[InferRequest], told: Sequence[dict[str, object]]
) -> list[Region]:
    """Add the spans of `requests` to `told`, their metadata; return the regions, in the order of numbers.

    Returns none, and adds nothing, if there is nothing for a worker to do, or if the regions are too many.
    """
    regions: dict[Region, int] = {}
    reading: dict[int, list[object]] = {}
    writing: dict[int, dict[str, object]] = {}
    for read in reads:
        source = read.tensor.source
        number = regions.setdefault(source.region, len(regions))
        span = number, source.at, read.offset, source.nbytes, read.tensor.name, source.region.name
        reading.setdefault(read.index, []).append(span)
    for index, request in enumerate(requests):
        for name, place in (request.output_regions or {}).items():
            if place.nbytes > DIRECT_FROM and not place.region.handle:
                number = regions.setdefault(place.region, len(regions))
                span_out = number, place.at, place.nbytes, place.region.name
                writing.setdefault(index, {})[name] = span_out
    if len(regions) > MOST_REGIONS:
        return []
    for index in {**reading, **writing}:
        told[index][SPANS] = {"read": reading.get(index, ()), "write": writing.get(index, {})}
    return list(regions)


def read_spans(metadata: Mapping[str, Any]) -> list[ReadSpan]:
    """Worker: return what is to be read for the request with this metadata."""
    return [ReadSpan(*span) for span in metadata.get(SPANS, {}).get("read", ())]


def write_spans(metadata: Mapping[str, Any]) -> dict[str, WriteSpan]:
    """Worker: return the places of that request's outputs, by their names."""
    return {name: WriteSpan(*span) for name, span in metadata.get(SPANS, {}).get("write", {}).items()}
