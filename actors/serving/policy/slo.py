"""Keeping a promised latency: refuse requests that would be late, and shape batches so that fewer are.

`Admission` is told of every batch that is handed over and of every batch that comes back. From that it knows
two things:

- the *rate* of answers while more requests wait than one batch takes. Only such intervals tell what the model
  is capable of. At other times it answers what it is asked, which can only show that it is capable of more
  than was thought. Until there was such an interval, the rate is unknown and no request is refused for it.
- the *service time* of a batch, from its hand-over to its answer.

The expected time of a request is the time for the requests ahead of it, at that rate, and then its own
service. It is compared with the time left until its deadline, with how long its queue policy lets it wait,
and with the promised p99. A request that can't make it is refused at once, while its client still has time to
go elsewhere.

Refusing must not last for ever, although it prevents the measurements that could show an improvement. So if
no batch has confirmed the measurements for `PROBE_AFTER`, one request is admitted as a probe. If no request
waits, none is refused for the promise's sake. And once refusing has begun, it stops only when the expected
time has fallen clearly below the limit, not just under it.

Estimates have errors. So the limit that is held against the promise is itself controlled: if more than one
answer in a hundred came late it shrinks, and while none do it grows back (`Controller`). The same controller
shortens the batching delay, and makes batches smaller if a batch alone takes too long: multiplicative
decrease, additive increase, never beyond what is configured.

Times are seconds on the caller's clock. Pure: `now` is told.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final, Protocol

from actors.serving.policy.batching import BatchPolicy, Dispatch, Policy, Wait
from actors.values.errors import Overloaded
from actors.values.families import Families, Family, Slice, SplitFamily, by
from actors.values.requests import InferRequest
from actors.values.specs import Slo

PROBE_AFTER: Final = 1.0
"""Seconds without an answer after which a request is admitted whatever its expected time is."""

RESUME: Final = 0.8
"""Refusing for the promise's sake ends if the expected time is below this part of the limit."""

LONGEST_RETRY: Final = 60.0
"""The longest time after which a client is told to try again, in seconds."""

LATE: Final = 0.01
"""The part of all answers that may take longer than the p99."""

# What each new measurement leaves of the old ones: about the last ten count.
_MEMORY: Final = 0.9
# A controller looks at this many answers, or at those of _PATIENCE seconds; fewer than _LEAST say nothing.
_WINDOW: Final = 100
_PATIENCE: Final = 1.0
_LEAST: Final = 10
# Factor of the delay, if too many answers came late.
_DECREASE: Final = 0.5
# Factor of the batch size, if a batch itself takes too long.
_SHRINK: Final = 0.75
# Steps from nothing to what is configured.
_STEPS: Final = 16
# Part of the p99: more is asked of batches only if answers take less.
_CALM: Final = 0.8
# Factor of the limit, if too many answers came late.
_TIGHTEN: Final = 0.9
_RELAX: Final = 0.02
# Part of the p99: a limit below it would refuse nearly all requests, and measure nothing.
_TIGHTEST: Final = 0.3


class Refused(Enum):
    """Why a request was refused, as `tritium_slo_refused_total` labels it."""

    DEADLINE = "deadline"  # its own
    TIMEOUT = "timeout"  # of the queue policy
    P99 = "p99"  # what the model promises


_TOLD: Final = {
    Refused.DEADLINE: "about {expected:.3f} s are needed, and the request's own deadline is {limit:.3f} s"
    " away",
    Refused.TIMEOUT: "about {expected:.3f} s would pass in the queue, whose timeout is {limit:.3f} s",
    Refused.P99: "about {expected:.3f} s are needed, and it promises {limit:.3f} s",
}


class Strictness:
    """How much of a promise estimates are held against: less of it while more than 1 % come late."""

    def __init__(self, promise: float) -> None:
        """`promise` is in seconds."""
        self.value = 1.0  # the part of the promise
        self.measured = math.nan  # the p99 of the last window
        self._promise = promise
        self._times: list[float] = []
        self._began = -math.inf

    def learn(self, times: Iterable[float], now: float) -> bool | None:
        """Learn how long something took; return whether too much was late, None until a window is full."""
        if not self._times:
            self._began = now
        self._times += times
        count = len(self._times)
        if count < _WINDOW and (count < _LEAST or now - self._began < _PATIENCE):
            return None
        taken, self._times = sorted(self._times), []
        self.measured = taken[math.ceil(count * (1 - LATE)) - 1]
        late = sum(each > self._promise for each in taken) > LATE * count
        if late:
            self.value = max(_TIGHTEST, self.value * _TIGHTEN)
        else:  # by what it is a measure of: many small windows are late by one answer
            self.value = min(1.0, self.value + _RELAX * min(1.0, count / _WINDOW))
        return late


class Refusing:
    """Whether requests are refused for a promise's sake: until what is expected is well below the limit."""

    def __init__(self) -> None:
        self.on = False

    def decide(self, expected: float, limit: float, *, free: bool) -> bool:
        """Return whether a request is refused. `free`: none is, whatever is expected."""
        if free or expected <= limit * RESUME:
            self.on = False
        elif expected > limit:
            self.on = True
        return self.on


class _Mean:
    """A mean over about the last ten measurements; NaN before the first."""

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
    """Sets batching delay, batch size and strictness of admission by the number of late answers.

    `policy` is how batches are formed now; it begins as, and never goes beyond, `configured`.
    """

    def __init__(self, p99: float, configured: BatchPolicy) -> None:
        self.policy = configured
        self._strictness = Strictness(p99)
        self._p99 = p99
        self._configured = configured
        self._size = float(configured.max_batch_size)
        self._batches = 0  # of the window
        # Those that left others waiting.
        self._crowded = 0
        # Those that were as large as they may be.
        self._full = 0
        self._slowest = 0.0  # service of one

    @property
    def strictness(self) -> float:
        """Multiplied by the p99, it is the limit for the expected time of a new request."""
        return self._strictness.value

    @property
    def measured(self) -> float:
        """The p99 of the last window."""
        return self._strictness.measured

    def batch(
        self, rows: int, service: float, latencies: Iterable[float], now: float, *, crowded: bool = False
    ) -> None:
        """Learn of a batch of `rows` rows that took `service`, and each request's whole time (`latencies`).

        `crowded`: more requests waited than the batch took.
        """
        self._batches += 1
        self._crowded += crowded
        self._full += rows >= self.policy.max_batch_size
        self._slowest = max(self._slowest, service)
        late = self._strictness.learn(latencies, now)
        if late is None:
            return
        if late:
            self._back_off()
        elif self.measured < _CALM * self._p99:
            self._grow()
        self._batches = self._crowded = self._full = 0
        self._slowest = 0.0

    def _back_off(self) -> None:
        delay = self.policy.max_queue_delay * _DECREASE
        if delay < self._configured.max_queue_delay / _STEPS / 2:
            delay = 0.0
        # A request that comes just after a batch was formed waits for that batch and then for its own. If a
        # queue has built up, the size is not at fault: smaller batches would only lengthen the queue, because
        # they do less in a given time.
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
    """The batch policy that a controller has set, in the form of `BatchPolicy`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @property
    def max_rows(self) -> int:
        """How many rows of candidates `decide` wants to see."""
        return self._controller.policy.max_rows

    @property
    def present(self) -> BatchPolicy:
        """The policy that is set now."""
        return self._controller.policy

    def decide(self, candidates: Iterable[InferRequest], *, oldest: float, now: float) -> Dispatch | Wait:
        """Decide as the present policy does."""
        return self._controller.policy.decide(candidates, oldest=oldest, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSample:
    """One time that a language model promises. Unknown values are NaN."""

    promised: float
    measured: float  # the p99 of the last window
    expected: float  # of a request that came now
    limit: float  # for that


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSample:
    """What admission knows and has set at one moment. Unknown values are NaN. Seconds, requests, rows."""

    p99: float  # promised; 0 for none
    measured: float  # of the last window
    service: float  # of a batch
    rate: float  # requests a second that the model answers while it is busy
    # The expected time of a request that came now.
    wait: float
    # The limit for that time.
    limit: float
    refusing: bool
    delay: float | None  # None: batches are formed as configured
    size: int | None
    refused: dict[str, int]
    # Of a language model: the times that it promises, by their names, and tokens of prompts a second.
    times: Mapping[str, TimeSample] = field(default_factory=dict)
    prompt_rate: float = math.nan

    def document(self) -> dict[str, object]:
        """Return it as JSON values; what is not known is null."""
        told = _known_values(self)
        if self.times:
            of_batches = ("p99", "measured", "service", "rate", "wait", "limit", "delay", "size")
            told = {name: value for name, value in told.items() if name not in of_batches}
            return {**told, "times": {name: _known_values(each) for name, each in self.times.items()}}
        return {name: value for name, value in told.items() if name not in ("times", "prompt_rate")}


def _known_values(sample: SloSample | TimeSample) -> dict[str, object]:
    values = {each.name: getattr(sample, each.name) for each in dataclasses.fields(sample)}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _known(name: str, explanation: str, read: Callable[[SloSample], float | None]) -> Family[SloSample]:
    """Return the family of a value; a model that has measured nothing has no series for it."""

    def value(sample: SloSample) -> float | None:
        found = read(sample)
        return found if found is not None and math.isfinite(found) else None

    return Family(name, "gauge", explanation, value)


def _times(read: Callable[[TimeSample], float], sample: SloSample) -> Iterator[Slice]:
    known = ((name, read(each)) for name, each in sample.times.items())
    return by("time", ((name, value) for name, value in known if math.isfinite(value)))


_OF_TIMES: Final[tuple[tuple[str, str, Callable[[TimeSample], float]], ...]] = (
    ("time_promised", "The time that a language model promises", lambda time: time.promised),
    ("time_measured", "The p99 of that time lately", lambda time: time.measured),
    ("time_expected", "That time of a request that came now", lambda time: time.expected),
    ("time_limit", "How long it may be expected to be", lambda time: time.limit),
)

FAMILIES: Final[Families[SloSample]] = (
    _known("tritium_slo_p99_seconds", "The p99 that the model promises", lambda slo: slo.p99 or None),
    _known("tritium_slo_measured_p99_seconds", "The p99 of the last answers", lambda slo: slo.measured),
    _known(
        "tritium_slo_service_seconds", "How long a batch takes from its hand-over", lambda slo: slo.service
    ),
    _known(
        "tritium_slo_rate", "Requests a second that the model answers while more wait", lambda slo: slo.rate
    ),
    _known("tritium_slo_wait_seconds", "How long a request that came now would take", lambda slo: slo.wait),
    _known("tritium_slo_limit_seconds", "How long it may be expected to take", lambda slo: slo.limit),
    _known("tritium_slo_refusing", "1 while requests are refused for the p99", lambda slo: int(slo.refusing)),
    _known("tritium_slo_delay_seconds", "Batching delay that is in force", lambda slo: slo.delay),
    _known("tritium_slo_batch_size", "Largest batch that is formed, in rows", lambda slo: slo.size),
    *(
        SplitFamily(f"tritium_slo_{name}_seconds", "gauge", explanation, partial(_times, read))
        for name, explanation, read in _OF_TIMES
    ),
    _known(
        "tritium_slo_prompt_rate",
        "Tokens of prompts a second that a language model begins while more wait",
        lambda slo: slo.prompt_rate,
    ),
    SplitFamily(
        "tritium_slo_refused_total",
        "counter",
        "Requests that were refused because they could not have been answered in time",
        lambda slo: by("reason", slo.refused.items()),
    ),
)


class Promising(Protocol):
    """What keeps a model's promise, and tells of it."""

    def sample(self, waiting: int) -> SloSample:
        """Return a snapshot, with `waiting` requests in the queue."""


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
        # When the last batch came back while more requests waited than one batch takes.
        self._saturated_since = math.inf
        # More requests wait than the last batch took.
        self._busy = False
        self._refusing = Refusing()  # for the promise's sake

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
            # It does at least this much. With a rate from slower times the queue would stay too short to ever
            # measure it again.
            self._rate.add(requests, service)
        if self._controller is not None:
            self._controller.batch(rows, service, latencies, now, crowded=self._busy)

    # -- what is decided

    def expected(self, ahead: float) -> float:
        """Return the time until the answer of a request with `ahead` requests before it.

        It is at least 0, and leaves out what is not known.
        """
        rate, service = self._rate.value, self._service.value
        waits = ahead / rate if rate > 0 else 0.0
        return waits + (service if service >= 0 else 0.0)

    def admit(self, request: InferRequest, *, ahead: float, patience: float, now: float) -> None:
        """Let `request` pass, or raise Overloaded: it can't be answered in time.

        `ahead` is how many requests go before it, `patience` how long its queue policy lets it wait.
        """
        if not self._slo.refuse or request.synthetic:
            return
        found = self._hopeless(request, ahead, patience, now)
        if found is None:
            return
        if now - self._confirmed >= PROBE_AFTER:
            # This request is the probe; until it is back the others are judged.
            self._confirmed = now
            return
        why, expected, limit = found
        self.refused[why] += 1
        raise refusal(request, _TOLD[why].format(expected=expected, limit=limit), expected - limit * RESUME)

    def _hopeless(
        self, request: InferRequest, ahead: float, patience: float, now: float
    ) -> tuple[Refused, float, float] | None:
        expected = self.expected(ahead)
        left = request.deadline - now
        if left <= 0:
            # It is late already, and the queue says so.
            return None
        if expected > left:
            return Refused.DEADLINE, expected, left
        waits = self.expected(ahead) - self.expected(0.0)
        if waits > patience:
            return Refused.TIMEOUT, waits, patience
        limit = self.limit - max(0.0, now - request.accepted_at)
        if self._refusing.decide(expected, limit, free=ahead <= 0):
            return Refused.P99, expected, self._slo.p99
        return None

    @property
    def limit(self) -> float:
        """How long a new request may be expected to take under the promise; infinite without a promise."""
        return math.inf if self._controller is None else self._slo.p99 * self._controller.strictness

    def sample(self, waiting: int) -> SloSample:
        """Return a snapshot, with `waiting` requests in the queue."""
        controller = self._controller
        policy = controller.policy if controller is not None and self._tunes else None
        return SloSample(
            p99=self._slo.p99,
            measured=math.nan if controller is None else controller.measured,
            service=self._service.value,
            rate=self._rate.value,
            wait=self.expected(waiting),
            limit=self.limit,
            refusing=self._refusing.on,
            delay=None if policy is None else policy.max_queue_delay,
            size=None if policy is None else policy.max_batch_size,
            refused={why.value: count for why, count in self.refused.items()},
        )


def refusal(request: InferRequest, told: str, wait: float) -> Overloaded:
    """Return the error for a client whose request can't be answered in time.

    `told` says why, and in about `wait` seconds it could be.
    """
    after = float(math.ceil(min(LONGEST_RETRY, max(1.0, wait))))
    return Overloaded(
        f"{request.prefix}model '{request.model_name}' can't answer in time: {told};"
        f" try again in {after:.0f} s",
        retry_after=after,
    )
