"""How much an identity may ask for: token buckets, told the time. Pure.

A bucket holds as many tokens as its rate gives in `burst` seconds, one at least, and fills at its rate. A
request is let in where there is one token, takes as many as it costs, and may leave the bucket in debt. So a
large request is let in at last, and the requests after it wait longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.values.errors import TooManyRequests

SHORTEST_WAIT: Final = 0.001  # seconds
_ONE: Final = 1 - 1e-9  # a token, as sums of fractions have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one identity may use. `math.inf` is no limit; `burst` is in seconds of the rate."""

    requests: float = math.inf  # a second
    bytes: float = math.inf  # a second, of bodies and messages
    concurrent: float = math.inf  # inferences under way
    burst: float = 1.0

    @property
    def none(self) -> bool:
        """Whether nothing is limited."""
        return math.isinf(self.requests) and math.isinf(self.bytes) and math.isinf(self.concurrent)


def strictest(limits: Sequence[Limits]) -> Limits:
    """Return limits that keep all of `limits`, each with the burst of the one that it is from."""
    if not limits:
        return Limits()
    return Limits(
        requests=min(each.requests for each in limits),
        bytes=min(each.bytes for each in limits),
        concurrent=min(each.concurrent for each in limits),
        burst=min(each.burst for each in limits),
    )


@dataclass(slots=True)
class Bucket:
    """Tokens that come at `rate` a second, `most` of them at once."""

    rate: float
    most: float
    tokens: float = field(init=False)
    _since: float = -math.inf

    def __post_init__(self) -> None:
        self.tokens = self.most

    def wait(self, now: float) -> float:
        """Return for how many seconds there is no whole token; 0 if there is one."""
        if self._since > -math.inf:
            self.tokens = min(self.most, self.tokens + max(0.0, now - self._since) * self.rate)
        self._since = now
        return 0.0 if self.tokens >= _ONE else max(SHORTEST_WAIT, (1 - self.tokens) / self.rate)

    def take(self, count: float) -> None:
        """Take `count` tokens, after `wait` was 0. A negative `count` gives some back."""
        self.tokens -= count

    def is_full(self, now: float) -> bool:
        """Whether it has as many tokens as a new one."""
        return self.tokens + max(0.0, now - self._since) * self.rate >= self.most


class Usage:
    """What one identity, or one address, has used lately.

    Outlives the rules, which may give it other `limits`.
    """

    def __init__(self, limits: Limits) -> None:
        self.running = 0
        self.admitted = 0  # requests, ever
        self.limits = Limits()
        self.free = True  # neither requests nor bytes are limited: there is nothing to take
        self._requests: Bucket | None = None
        self._bytes: Bucket | None = None
        self.bound_by(limits)

    def bound_by(self, limits: Limits) -> None:
        """Be limited by `limits` from now on. Buckets whose rates change begin anew, full."""
        if limits == self.limits:
            self.limits = limits  # so that the next look finds the same one
            return
        self._requests = _bucket(limits.requests, limits.burst)
        self._bytes = _bucket(limits.bytes, limits.burst)
        self.free = self._requests is None and self._bytes is None
        self.limits = limits

    def at_rest(self, now: float) -> bool:
        """Whether a new one would be no different, but for what was `admitted`."""
        return not self.running and all(
            bucket is None or bucket.is_full(now) for bucket in (self._requests, self._bytes)
        )

    def take(self, size: int, now: Callable[[], float], name: str) -> None:
        """Take one request of `size` bytes. Raises TooManyRequests, and then takes nothing."""
        requests, volume = self._requests, self._bytes
        at = now()
        wait = 0.0 if requests is None else requests.wait(at)
        if wait:
            raise _too_many(name, f"{self.limits.requests:g} requests a second", wait)
        wait = 0.0 if volume is None else volume.wait(at)
        if wait:
            raise _too_many(name, f"{self.limits.bytes:g} bytes a second", wait)
        if requests is not None:
            requests.take(1)
        if volume is not None:
            volume.take(size)
        self.admitted += 1

    def give_back(self, size: int) -> None:
        """Undo `take`: the request was refused for another reason."""
        if self._requests is not None:
            self._requests.take(-1)
        if self._bytes is not None:
            self._bytes.take(-size)
        self.admitted -= 1

    def owe_request(self) -> None:
        """Take one request that was refused for another reason."""
        if self._requests is not None:
            self._requests.take(1)

    def owe(self, size: int) -> None:
        """Take `size` bytes that have come already."""
        if self._bytes is not None:
            self._bytes.take(size)

    def begin(self, name: str) -> None:
        """Count an inference as under way. Raises TooManyRequests."""
        if self.running >= self.limits.concurrent:
            raise _too_many(name, f"{self.limits.concurrent:g} inferences at a time", 0.0)
        self.running += 1

    def end(self) -> None:
        """Count it no longer."""
        self.running -= 1


def _bucket(rate: float, burst: float) -> Bucket | None:
    return None if math.isinf(rate) else Bucket(rate, max(1.0, rate * burst))


def _too_many(name: str, allowed: str, wait: float) -> TooManyRequests:
    return TooManyRequests(f"'{name}' may make {allowed}, and has used them up", retry_after=wait)
