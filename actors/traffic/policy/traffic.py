"""Which version answers a request that names none, and when a version loses its share. Pure.

*Shares.* Weights are relative: those of versions that can't serve are left out and the rest fill their place.
A request is sent by a point in [0, 1) that the caller draws, or by a key, so that requests with one key meet
one version. For a key, each version draws a waiting time from the hash of the key and itself, exponential
with its share as the rate, and the shortest wins (weighted rendezvous hashing). So a version wins exactly its
share of all keys. A version that leaves gives up its own keys and no others. If the shares of two versions
change, only the version that grows gains keys. Nothing is remembered. The hash has no secret, so keys meet
the same version after a restart and on every server of a fleet.

*Rollback.* The counters of a version are looked at over a sliding window. `judge` takes them and says whether
a version is to lose its share, and why.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Final

from actors.values.specs import (
    InputSpec,
    ModelSpec,
    OutputSpec,
)
from actors.values.traffic import Rollback


class Shares:
    """Versions that can serve, and the share that each has of the requests. The shares add up to 1.

    If none of the available versions has a weight, the highest of them has the whole share, as if there were
    no plan. If no version is available there are no shares, and nothing to choose.
    """

    def __init__(self, weights: Mapping[int, float], available: Iterable[int]) -> None:
        ready = sorted(available)
        largest = max((weights.get(version, 0.0) for version in ready), default=0.0)
        # Divided by the largest first, because weights may be as large as floats are.
        if largest > 0:
            scaled = {version: weights.get(version, 0.0) / largest for version in ready}
        else:
            scaled = dict.fromkeys(ready[-1:], 1.0)
        total = sum(scaled.values())
        self.by_version: Mapping[int, float] = {
            version: size / total for version, size in scaled.items() if size / total > 0
        }
        self.versions = tuple(self.by_version)
        self._bounds = tuple(accumulate(self.by_version.values()))[:-1]
        self._draws = [
            (version, share, blake2b(digest_size=8, salt=version.to_bytes(8, "little")))
            for version, share in self.by_version.items()
        ]

    @property
    def lead(self) -> int:
        """The version with the largest share; the highest of several."""
        return max(self.versions, key=lambda version: (self.by_version[version], version))

    def choose(self, point: float) -> int:
        """Return the version whose share holds `point`, from [0, 1)."""
        return self.versions[bisect_right(self._bounds, point)]

    def choose_for(self, key: str) -> int:
        """Return the version that all requests with this key meet."""
        data = key.encode("utf-8", "surrogatepass")
        chosen = self.versions[0]
        shortest = math.inf
        for version, share, draw in self._draws:
            hasher = draw.copy()
            hasher.update(data)
            wait = -math.log((int.from_bytes(hasher.digest(), "little") + 1) * 2.0**-64) / share
            if wait < shortest:
                chosen, shortest = version, wait
        return chosen


# -- which versions may answer the same requests


def difference(one: ModelSpec, other: ModelSpec) -> str:
    """Say why a request that suits one version would not suit the other; empty if it would.

    Both have the same inputs, and agree about the batch dimension and about how many answers a request gets.
    A dimension that one leaves open may be fixed by the other.
    """
    if one.batches != other.batches:
        return f"version {one.version if one.batches else other.version} alone has a batch dimension"
    if one.decoupled != other.decoupled:
        return f"version {one.version if one.decoupled else other.version} alone is decoupled"
    return _tensors_differ("input", one, one.inputs, other, other.inputs)


def outputs_differ(one: ModelSpec, other: ModelSpec) -> str:
    """Say how the answers of two versions differ in form; empty if they don't."""
    return _tensors_differ("output", one, one.outputs, other, other.outputs)


def _tensors_differ(
    kind: str,
    one: ModelSpec,
    ones: Sequence[InputSpec | OutputSpec],
    other: ModelSpec,
    others: Sequence[InputSpec | OutputSpec],
) -> str:
    names, other_names = {spec.name: spec for spec in ones}, {spec.name: spec for spec in others}
    for name in (*names, *other_names):
        mine, theirs = names.get(name), other_names.get(name)
        if mine is None or theirs is None:
            return f"version {one.version if mine else other.version} alone has {kind} '{name}'"
        if mine.datatype is not theirs.datatype or not _compatible(mine.dims, theirs.dims):
            return f"{kind} '{name}' is {_form(mine)} in version {one.version} and {_form(theirs)} in {other.version}"
        if isinstance(mine, InputSpec) and isinstance(theirs, InputSpec) and mine.optional != theirs.optional:
            return f"{kind} '{name}' is optional in version {(one if mine.optional else other).version} alone"
    return ""


def _compatible(dims: Sequence[int], others: Sequence[int]) -> bool:
    return len(dims) == len(others) and all(
        mine == theirs or -1 in (mine, theirs) for mine, theirs in zip(dims, others, strict=True)
    )


def _form(spec: InputSpec | OutputSpec) -> str:
    return f"{spec.datatype}[{','.join(map(str, spec.dims))}]"


# -- rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a version has answered since it was loaded; `seconds` is how long its successes took altogether.

    Only the version's own failures are errors: cancellations and requests that its queue refused are not.
    """

    successes: int = 0
    errors: int = 0
    seconds: float = 0.0

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            successes=self.successes - earlier.successes,
            errors=self.errors - earlier.errors,
            seconds=self.seconds - earlier.seconds,
        )

    @property
    def answers(self) -> int:
        """Successes and errors."""
        return self.successes + self.errors

    @property
    def error_rate(self) -> float:
        """Errors among the answers; 0 if there are none."""
        return self.errors / self.answers if self.answers else 0.0

    @property
    def mean_latency(self) -> float:
        """Seconds that a success took on average; 0 if there are none."""
        return self.seconds / self.successes if self.successes else 0.0


# Of a window: they bound its memory, however often it is updated.
_GRAINS: Final = 128


class Window:
    """A version's counters over the last `length` seconds, to within a hundredth of that."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._samples: deque[tuple[float, Counters]] = deque()

    def add(self, now: float, counters: Counters) -> None:
        """Note the version's counters at `now`, which never goes back."""
        samples = self._samples
        if len(samples) > 1 and samples[-1][0] - samples[-2][0] < self._length / _GRAINS:
            samples.pop()
        samples.append((now, counters))
        while len(samples) > 2 and samples[1][0] <= now - self._length:
            samples.popleft()

    @property
    def recent(self) -> Counters:
        """The counts within the window that ends with the last note."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else Counters()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A version's counters over the window, and the ages in seconds of the requests that it has in hand."""

    recent: Counters
    in_hand: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """The shares stay as they are."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """This version's share goes to the others."""

    version: int
    why: str


def judge(rule: Rollback, shares: Shares, evidence: Mapping[int, Evidence]) -> Keep | RollBack:
    """Decide whether a version is so bad that it loses its share.

    At most one loses it: the remaining ones are judged anew. The smallest share is judged first, so that if
    both suffer the new version goes and not the old one. The version with the largest share goes only if
    another has shown that it does better. The last version always stays.
    """
    if len(shares.versions) < 2:
        return Keep()
    lead = shares.lead
    complaints = {
        version: _complaint(
            rule, evidence.get(version, _NONE), None if version == lead else evidence.get(lead, _NONE)
        )
        for version in shares.versions
    }
    for version in sorted(shares.versions, key=lambda each: (shares.by_version[each], -each)):
        why = complaints[version]
        if not why:
            continue
        proven = (
            not complaint and evidence.get(other, _NONE).recent.answers >= rule.min_requests
            for other, complaint in complaints.items()
            if other != version
        )
        if version != lead or any(proven):
            return RollBack(version, why)
    return Keep()


_NONE = Evidence(Counters())


def _complaint(rule: Rollback, evidence: Evidence, lead: Evidence | None) -> str:
    """Return which rule a version breaks, and by how much; empty if it breaks none or too little is known."""
    recent = evidence.recent
    enough = recent.answers >= rule.min_requests
    if rule.max_error_rate and enough and recent.error_rate > rule.max_error_rate:
        return (
            f"error rate {recent.error_rate:.3g} over {rule.max_error_rate:g}: "
            f"{recent.errors} of {recent.answers} answers within {rule.window:g} s"
        )
    if rule.max_latency:
        count, mean = _latency(evidence, rule.max_latency)
        if count >= rule.min_requests and mean > rule.max_latency:
            return f"mean latency {mean:.3g} s over {rule.max_latency:g} s: {count} requests within {rule.window:g} s"
    if rule.max_latency_ratio and lead is not None and lead.recent.successes >= rule.min_requests:
        reference = lead.recent.mean_latency
        count, mean = _latency(evidence, rule.max_latency_ratio * reference)
        if count >= rule.min_requests and mean > rule.max_latency_ratio * reference:
            return (
                f"mean latency {mean:.3g} s over {rule.max_latency_ratio:g} times the {reference:.3g} s of the version with "
                f"the largest share: {count} requests within {rule.window:g} s"
            )
    return ""


def _latency(evidence: Evidence, limit: float) -> tuple[int, float]:
    """Return how many requests count towards a version's latency, and their mean.

    A request in hand that is already older than `limit` counts with its age: a version that hangs answers
    nothing, and would look fine for ever.
    """
    overdue = [age for age in evidence.in_hand if age > limit]
    count = evidence.recent.successes + len(overdue)
    return count, (evidence.recent.seconds + sum(overdue)) / count if count else 0.0
