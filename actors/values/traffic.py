"""How a model's requests are shared out over its versions, as it is configured or changed at run time.

A part of a model's configuration; see `actors.values.specs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A version that receives copies of requests, whose answers are compared and thrown away."""

    version: int
    fraction: float = 1.0  # of the requests that name no version
    tolerance: float = 1e-5  # relative and absolute, of floating-point elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """When a split gives all of a bad version's share to the others.

    Durations are seconds; 0 switches a rule off.
    """

    max_error_rate: float = 0.0  # of a version's answers within the window
    # Highest ratio of its mean latency to that of the version with the largest share.
    max_latency_ratio: float = 0.0
    max_latency: float = 0.0  # highest mean latency
    # With fewer requests in the window, the rules are not applied.
    min_requests: int = 20
    window: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """How requests that name no version are shared out (`tritium.traffic`).

    Weights are relative. At least one is not 0.
    """

    weights: Mapping[int, float]  # by version
    # Lower case; requests with the same value go to the same version.
    sticky_header: str = ""
    sticky_parameter: str = ""  # the same, for a request parameter
    mirror: Mirror | None = None
    rollback: Rollback | None = None
