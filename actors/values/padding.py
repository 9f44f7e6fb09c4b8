"""Padding to buckets: the next size of a list for a dimension of any size (`tritium.pad_to`).

Requests of different lengths then make few shapes. Those of one shape share a batch, and a model meets no
other shape. The server compares by padded shapes; the worker pads, and cuts outputs back. This runs in both,
so on Python 3.9 too.

Dimensions are counted as a request's shape counts them: where the model batches, 0 is the batch dimension.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Fill = Union[int, float]


@dataclass(frozen=True)
class Buckets:
    """The sizes that one dimension is padded to, ascending.

    What is longer than the last is refused or, if `longer` is true, keeps its own size.
    """

    sizes: Sequence[int]
    longer: bool = False

    def fit(self, size: int) -> int:
        """Return the least size that holds `size`; `size` itself if there is none."""
        at = bisect_left(self.sizes, size)
        return self.sizes[at] if at < len(self.sizes) else size

    def refuses(self, size: int) -> bool:
        """Whether a request of this size can't be padded, and must not run as it is."""
        return not self.longer and size > self.sizes[-1]


@dataclass(frozen=True)
class Padded:
    """How one input is padded: the buckets of its dimensions, and the element that it is padded with."""

    buckets: Mapping[int, Buckets]
    value: Fill = 0  # BYTES are padded with empty strings, whatever this says

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that a tensor of `shape` is padded to."""
        sizes = list(shape)
        for axis, buckets in self.buckets.items():
            sizes[axis] = buckets.fit(sizes[axis])
        return tuple(sizes)


@dataclass(frozen=True)
class CutBack:
    """A dimension of an output that is cut back to a request's own size of a padded input's dimension."""

    axis: int
    source: str
    source_axis: int
