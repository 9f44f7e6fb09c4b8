"""Keeping a promised latency: refuse what would come too late, and shape batches so that less does.

`Admission` is told of every batch that is handed over and of every batch that comes back, and from that knows
two things:

- the *rate* of answers while more waits than is taken at once. Only such intervals tell what the model is capable of: at
  other times it answers what it is asked, which only shows where it is capable of more than was thought. Until there was
  one, nothing is known of the rate and nothing is refused for it.
- the *service time* of a batch, from its hand-over to its answer.

A request is expected after what waits ahead of it, at that rate, and then its own service. That is compared
with what is left until its deadline, with how long its queue policy lets it wait, and with the promised p99.
What can't make it is refused at once, while its client still has time to go elsewhere.

Refusing must not be for ever, though it keeps from being measured what might have got better. So knowledge
that no batch has confirmed for `PROBE_AFTER` admits one request, as a probe; nobody is refused for the
promise's sake where nobody waits; and whoever began to refuse stops where what is expected has fallen clearly
below the limit, not just under it.

Estimates have errors. So the limit that is held against the promise is itself controlled: where more than one
answer in a hundred came late it shrinks, and while none do it grows back (`Controller`). The same controller
shortens the batching delay, and makes batches smaller where a batch alone takes too long: multiplicative
decrease, additive increase, never beyond what is configured.

Times are seconds on the caller's clock. Pure: `now` is told.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from actors.messages.errors import Unavailable
from actors.messages.requests import InferRequest
from actors.scheduling.batching import BatchPolicy, Dispatch, Policy, Wait
from actors.specs import Slo

PROBE_AFTER: Final = 1.0
"""Seconds without an answer after which a request is admitted whatever is expected of it."""

RESUME: Final = 0.8
"""Refusing for the promise's sake ends where the expected time is below this part of the limit."""

LONGEST_RETRY: Final = 60.0
"""The longest time after which a client is told to try again, in seconds."""

LATE: Final = 0.01
"""The part of all answers that may take longer than the p99."""

_MEMORY: Final = 0.9  # what each new measurement leaves of the old ones: about the last ten count
_WINDOW: Final = 100  # answers that a controller looks at
_PATIENCE: Final = 1.0  # ... or as many as came in this time
_LEAST: Final = 10  # fewer say nothing
_DECREASE: Final = 0.5  # of the delay, where too much came late
_SHRINK: Final = 0.75  # of the batch size, where a batch itself takes too long
_STEPS: Final = 16  # from nothing to what is configured
_CALM: Final = 0.8  # of the p99: more is asked of batches only where answers take less
_TIGHTEN: Final = 0.9  # of the limit, where too much came late
_RELAX: Final = 0.02
_TIGHTEST: Final = 0.3  # of the p99: a limit below would refuse nearly all, and measure nothing


class Refused(Enum):
    """Why a request was refused, as `tritium_slo_refused_total` labels it."""

    DEADLINE = "deadline"  # its own
    TIMEOUT = "timeout"  # of the queue policy
    P99 = "p99"  # what the model promises


class _Mean:
    """A mean over about the last ten measurements; NaN before the first."""

    __slots__ = ("_amount", "_weight")

    def __init__(self) -> None:
        self._amount = 0.0
        self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        self._amount = self._amount * _MEMORY + amount
        self._weight = self._weight * _MEMORY + weight

    @property
    def value(self) -> float:
        return self._amount / self._weight if self._weight else math.nan


class Controller:
    """Sets the batching delay, the size of batches and the strictness of admission by how many answers come late.

    `policy` is how batches are formed now; it begins as, and never goes beyond, `configured`.
    """

    def __init__(self, p99: float, configured: BatchPolicy) -> None:
        self.policy = configured
        self.strictness = 1.0  # times the p99: the limit for what is expected of a new request
        self.measured = math.nan  # the p99 of the last window
        self._p99 = p99
        self._configured = configured
        self._size = float(configured.max_batch_size)
        self._latencies: list[float] = []
        self._batches = 0  # of the window
        self._crowded = 0  # those that left others waiting
        self._full = 0  # those that were as large as they may be
        self._slowest = 0.0  # service of one
        self._began = -math.inf

    def batch(
        self, rows: int, service: float, latencies: Iterable[float], now: float, *, crowded: bool = False
    ) -> None:
        """Learn of a batch of `rows` rows that took `service`, and how long each of its requests took altogether.

        `crowded`: more waited than was taken.
        """
        if not self._latencies:
            self._began = now
        self._latencies += latencies
        self._batches += 1
        self._crowded += crowded
        self._full += rows >= self.policy.max_batch_size
        self._slowest = max(self._slowest, service)
        count = len(self._latencies)
        if count >= _WINDOW or (count >= _LEAST and now - self._began >= _PATIENCE):
            self._judge()

    def _judge(self) -> None:
        latencies = sorted(self._latencies)
        count = len(latencies)
        self.measured = latencies[math.ceil(count * (1 - LATE)) - 1]
        late = sum(latency > self._p99 for latency in latencies)
        if late > LATE * count:
            self._back_off()
        else:
            self.strictness = min(1.0, self.strictness + _RELAX)
            if self.measured < _CALM * self._p99:
                self._grow()
        self._latencies.clear()
        self._batches = self._crowded = self._full = 0
        self._slowest = 0.0

    def _back_off(self) -> None:
        delay = self.policy.max_queue_delay * _DECREASE
        if delay < self._configured.max_queue_delay / _STEPS / 2:
            delay = 0.0
        self.strictness = max(_TIGHTEST, self.strictness * _TIGHTEN)
        # Whoever comes just after a batch was formed waits for that one and then for his own. Where a queue
        # has built up the size is not at fault: smaller batches would only lengthen it, since they do less in
        # a given time.
        if 2 * self._crowded > self._batches:
            self._enlarge()
        elif 2 * self._slowest > self._p99:
            self._size = max(1.0, self._size * _SHRINK)
        self._apply(delay)

    def _grow(self) -> None:
        configured = self._configured
        delay = min(
            configured.max_queue_delay, self.policy.max_queue_delay + configured.max_queue_delay / _STEPS
        )
        if self._full:  # larger ones would have been formed
            self._enlarge()
        self._apply(delay)

    def _enlarge(self) -> None:
        largest = self._configured.max_batch_size
        self._size = min(float(largest), self._size + max(1.0, largest / _STEPS))

    def _apply(self, delay: float) -> None:
        size = int(self._size)
        if (size, delay) == (self.policy.max_batch_size, self.policy.max_queue_delay):
            return
        preferred = frozenset(each for each in self._configured.preferred_batch_sizes if each <= size)
        self.policy = replace(
            self._configured, max_batch_size=size, preferred_batch_sizes=preferred, max_queue_delay=delay
        )


class TunedPolicy:
    """The batch policy that a controller has set. Has the face of `actors.scheduling.batching.BatchPolicy`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @property
    def max_rows(self) -> int:
        """How many rows of candidates `decide` wants to see."""
        return self._controller.policy.max_rows

    def decide(self, candidates: Iterable[InferRequest], *, oldest: float, now: float) -> Dispatch | Wait:
        """Decide as the policy of now does."""
        return self._controller.policy.decide(candidates, oldest=oldest, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSample:
    """What admission knows and has set at one moment; NaN where nothing is known. Seconds, requests, rows."""

    p99: float  # promised; 0 for none
    measured: float  # of the last window
    service: float  # of a batch
    rate: float  # requests a second that the model answers while it is busy
    wait: float  # what a request that came now would take
    limit: float  # what it may be expected to take
    refusing: bool
    delay: float | None  # None: batches are formed as configured
    size: int | None
    refused: dict[str, int]

    def document(self) -> dict[str, object]:
        """Return it as JSON values; what is not known is null."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }


class Admission:
    """Decides for each new request whether it can be answered in time. See the module."""

    def __init__(self, slo: Slo, policy: Policy) -> None:
        """`policy` is how batches are formed as configured."""
        self.refused = dict.fromkeys(Refused, 0)
        self._slo = slo
        tunable = policy if isinstance(policy, BatchPolicy) else BatchPolicy(max_batch_size=1)
        self._controller = Controller(slo.p99, tunable) if slo.p99 else None
        self._tunes = slo.tune and self._controller is not None and isinstance(policy, BatchPolicy)
        self.policy: Policy | TunedPolicy = policy  # how batches are formed
        if self._tunes and self._controller is not None:
            self.policy = TunedPolicy(self._controller)
        self._rate = _Mean()  # requests and seconds
        self._service = _Mean()
        self._confirmed = -math.inf  # when a batch last came back, or a probe was let in
        self._saturated_since = (
            math.inf
        )  # the last batch that came back while more waited than is taken at once
        self._busy = False  # more waits than the last batch took
        self._refusing = False  # for the promise's sake

    # -- what is learnt

    def dispatched(self, waiting: int) -> None:
        """A batch was handed over, and `waiting` requests still wait."""
        self._busy = waiting > 0
        if not self._busy:
            self._saturated_since = math.inf

    def returned(
        self, requests: int, rows: int, service: float, latencies: Iterable[float], now: float
    ) -> None:
        """A batch came back `service` after its hand-over; `latencies` are those of its clients' requests."""
        self._service.add(service, 1.0)
        self._confirmed = now
        if self._busy:
            if self._saturated_since < now:
                self._rate.add(requests, now - self._saturated_since)
            self._saturated_since = now
        elif service > 0 and requests / service > self._rate.value:
            # It does at least this much. A rate of slower times would else keep the queue too short to ever
            # be measured again.
            self._rate.add(requests, service)
        if self._controller is not None:
            self._controller.batch(rows, service, latencies, now, crowded=self._busy)

    # -- what is decided

    def expected(self, ahead: float) -> float:
        """Return how long a request takes from now on with `ahead` requests before it, as far as that is known; at least 0."""
        rate, service = self._rate.value, self._service.value
        waits = ahead / rate if rate > 0 else 0.0
        return waits + (service if service >= 0 else 0.0)

    def admit(self, request: InferRequest, *, ahead: float, patience: float, now: float) -> None:
        """Let `request` pass, or raise Unavailable: it can't be answered in time.

        `ahead` is how many requests go before it, `patience` how long its queue policy lets it wait.
        """
        if not self._slo.refuse or request.synthetic:
            return
        found = self._hopeless(request, ahead, patience, now)
        if found is None:
            return
        if now - self._confirmed >= PROBE_AFTER:
            self._confirmed = now  # this one is the probe; until it is back the others are judged
            return
        why, expected, limit = found
        self.refused[why] += 1
        raise _refusal(request, why, expected, limit)

    def _hopeless(
        self, request: InferRequest, ahead: float, patience: float, now: float
    ) -> tuple[Refused, float, float] | None:
        expected = self.expected(ahead)
        left = request.deadline - now
        if left <= 0:
            return None  # it is late already, and the queue says so
        if expected > left:
            return Refused.DEADLINE, expected, left
        waits = self.expected(ahead) - self.expected(0.0)
        if waits > patience:
            return Refused.TIMEOUT, waits, patience
        limit = self.limit - max(0.0, now - request.accepted_at)
        if ahead <= 0 or expected <= limit * RESUME:
            self._refusing = False
        elif expected > limit:
            self._refusing = True
        return (Refused.P99, expected, self._slo.p99) if self._refusing else None

    @property
    def limit(self) -> float:
        """What a new request may be expected to take, for the promise's sake; infinite without a promise."""
        return math.inf if self._controller is None else self._slo.p99 * self._controller.strictness

    def sample(self, waiting: int) -> SloSample:
        """Return what is the case now, `waiting` requests being in the queue."""
        controller = self._controller
        policy = controller.policy if controller is not None and self._tunes else None
        return SloSample(
            p99=self._slo.p99,
            measured=math.nan if controller is None else controller.measured,
            service=self._service.value,
            rate=self._rate.value,
            wait=self.expected(waiting),
            limit=self.limit,
            refusing=self._refusing,
            delay=None if policy is None else policy.max_queue_delay,
            size=None if policy is None else policy.max_batch_size,
            refused={why.value: count for why, count in self.refused.items()},
        )


def _refusal(request: InferRequest, why: Refused, expected: float, limit: float) -> Unavailable:
    wait = max(0.0, expected - limit * RESUME)
    after = float(math.ceil(min(LONGEST_RETRY, max(1.0, wait))))
    told = f"{request.prefix}model '{request.model_name}' can't answer in time: "
    match why:
        case Refused.DEADLINE:
            told += f"about {expected:.3f} s are needed, and the request's own deadline is {limit:.3f} s away"
        case Refused.TIMEOUT:
            told += f"about {expected:.3f} s would pass in the queue, whose timeout is {limit:.3f} s"
        case Refused.P99:
            told += f"about {expected:.3f} s are needed, and it promises {limit:.3f} s"
    return Unavailable(f"{told}; try again in {after:.0f} s", retry_after=after)
