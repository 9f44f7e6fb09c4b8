"""What a run is held to, in figures.

The defaults are those of a run of ten minutes. Times are seconds unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The goals' limits, and what the checker has to know of the workload."""

    load: float = 0.9  # of the ordinary load that was to be sent
    # By how much an answer may be read after its deadline: what the client's own loop takes.
    late: float = 0.05
    worker_p50: float = 0.5
    worker_p99: float = 1.5
    in_flight_p99: float = 0.1
    hang: float = 0.25  # between the limit and the log's line
    actor_p99: float = 0.05
    supervisor_p99: float = 1.5  # the time in which a killed worker is replaced
    unaffected: float = 2.0  # times the baseline
    goodput: float = 0.8  # of the capacity
    back: float = 5.0  # until descriptors, threads and children are where they were

    execution_timeout: float = 2.0  # of the models in which hangs are injected
    overloaded: str = "slow"
    # Good answers a second that the overloaded model can give: two instances of 20 ms each.
    capacity: float = 100.0
    queue_patience: float = 0.5  # that its queue keeps a request
    # From an error or a fault until the log tells of it.
    told: float = 1.0
    # The share of the planned faults that the harness did not hold back itself.
    injected: float = 0.5
    # From the end of the overload until what had queued up is answered.
    draining: float = 1.0
    refusals: tuple[str, ...] = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # what it may answer beyond that
    retried: frozenset[str] = frozenset({"add_sub"})  # kinds whose executions may be run again
    # What may differ from the calm phase: clients open and close connections all the time, and idle threads
    # live for 10 s.
    slack: Mapping[str, int] = field(default_factory=lambda: {"descriptors": 8, "threads": 2})
