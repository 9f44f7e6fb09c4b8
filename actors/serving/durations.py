"""How long requests took, by phase, in buckets: plain counts that a scrape reads.

`batch_answered` and `computed` are called once a batch, and `answered` for requests that are answered one by
one. What lies in the first bucket in every phase, as most requests of an idle server do, is one comparison
and one addition. Sums are not kept here: `ModelStatistics` has them.

Durations are integer nanoseconds, bounds are seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

DEFAULT_BOUNDS: Final[Sequence[float]] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Durations:
    """Counts requests by upper bound, for each phase; the last count is of all above the highest bound."""

    def __init__(self, bounds: Sequence[float] = DEFAULT_BOUNDS) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)) or bounds[0] <= 0:
            raise ValueError(f"bounds of durations must be positive and ascend, got {list(bounds)}")
        self.bounds = tuple(bounds)
        self._ns = [round(bound * 1e9) for bound in bounds]
        self._first_ns = self._ns[0]
        self._quick = 0  # whole requests within the first bound, which are in no list
        self._quick_computed = 0  # requests that computed within the first bound
        self._queue = self._none()
        self._whole = self._none()  # answered by one response
        self._streamed = self._none()  # answered by several
        self._first_parts = self._none()
        self._compute_input = self._none()
        self._infer = self._none()
        self._output = self._none()
        self.streamed_ns = 0
        self.first_parts_ns = 0

    def _none(self) -> list[int]:
        return [0] * (len(self._ns) + 1)

    # -- counting

    def answered(self, queue_ns: int, total_ns: int) -> None:
        """Count a request that was answered by one response, `total_ns` after it came."""
        if total_ns <= self._first_ns and queue_ns <= self._first_ns:
            self._quick += 1
            return
        self._queue[bisect_left(self._ns, queue_ns)] += 1
        self._whole[bisect_left(self._ns, total_ns)] += 1

    def batch_answered(self, totals: Sequence[int], compute_ns: int) -> None:
        """Count requests that were executed together, `compute_ns` of their `totals`, as `answered` does.

        Most often, all are in one bucket: then two looks find it, for any number of requests.
        """
        longest = max(totals)
        if longest <= self._first_ns:
            self._quick += len(totals)
            return
        _count_all(self._ns, self._whole, totals, 0, min(totals), longest)
        _count_all(self._ns, self._queue, totals, compute_ns, min(totals), longest)

    def streamed(self, queue_ns: int, total_ns: int) -> None:
        """Count a request whose answer came in parts. The first of them was counted by `first_part`."""
        self.streamed_ns += total_ns
        self._queue[bisect_left(self._ns, queue_ns)] += 1
        self._streamed[bisect_left(self._ns, total_ns)] += 1

    def first_part(self, ns: int) -> None:
        """Count the first part of an answer, `ns` after the request."""
        self.first_parts_ns += ns
        self._first_parts[bisect_left(self._ns, ns)] += 1

    def computed(self, requests: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count the execution of a batch that answered this many requests."""
        if input_ns + infer_ns + output_ns <= self._first_ns:
            self._quick_computed += requests
            return
        self._compute_input[bisect_left(self._ns, input_ns)] += requests
        self._infer[bisect_left(self._ns, infer_ns)] += requests
        self._output[bisect_left(self._ns, output_ns)] += requests

    def plus(self, other: Durations) -> Durations:
        """Return the counts of both, which have the same bounds."""
        both = Durations(self.bounds)
        both._quick = self._quick + other._quick
        both._quick_computed = self._quick_computed + other._quick_computed
        both._queue = _sums(self._queue, other._queue)
        both._whole = _sums(self._whole, other._whole)
        both._streamed = _sums(self._streamed, other._streamed)
        both._first_parts = _sums(self._first_parts, other._first_parts)
        both._compute_input = _sums(self._compute_input, other._compute_input)
        both._infer = _sums(self._infer, other._infer)
        both._output = _sums(self._output, other._output)
        both.streamed_ns = self.streamed_ns + other.streamed_ns
        both.first_parts_ns = self.first_parts_ns + other.first_parts_ns
        return both

    # -- reading: requests by bucket

    @property
    def queue(self) -> list[int]:
        """By the time in the queue."""
        return _with_first(self._queue, self._quick)

    @property
    def compute_input(self) -> list[int]:
        """By the time of making inputs ready."""
        return _with_first(self._compute_input, self._quick_computed)

    @property
    def infer(self) -> list[int]:
        """By the time of executing."""
        return _with_first(self._infer, self._quick_computed)

    @property
    def output(self) -> list[int]:
        """By the time of taking outputs."""
        return _with_first(self._output, self._quick_computed)

    @property
    def first_response(self) -> list[int]:
        """By the time until the first response: that of the only one, where there is no other."""
        return _with_first(_sums(self._whole, self._first_parts), self._quick)

    @property
    def request(self) -> list[int]:
        """By the time of the whole request."""
        return _with_first(_sums(self._whole, self._streamed), self._quick)


def _count_all(
    bounds: list[int], counts: list[int], totals: Sequence[int], less: int, shortest: int, longest: int
) -> None:
    """Count each of `totals`, `less` shorter but not below 0, in its bucket."""
    first = bisect_left(bounds, shortest - less)
    if first == bisect_left(bounds, longest - less):
        counts[first] += len(totals)
        return
    for total in totals:
        counts[bisect_left(bounds, total - less)] += 1


def _sums(some: list[int], others: list[int]) -> list[int]:
    return [one + other for one, other in zip(some, others, strict=True)]


def _with_first(counts: list[int], quick: int) -> list[int]:
    return [counts[0] + quick, *counts[1:]]
