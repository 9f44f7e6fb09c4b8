"""Keeping promised times of a language model: to the first token, and between two tokens of a choice.

Both are estimated for each new request, and one that can't make them is refused at once, while its client
still has time to go elsewhere. `Promises` is told of each request that enters, begins, goes on and ends:

- *To the first token.* What is ahead is counted in tokens of prompts: of requests in the queue, in the text
  worker, on their way to the engine, and there without a token yet. It is divided by the rate at which such
  tokens were begun while more waited; so what else holds up requests (streams that run, a full cache) counts,
  too. Then comes the request's own prompt, by how long prompts of that length took with none ahead.
- *Between two tokens.* The time of a step is a straight line over the choices that run, through what was
  measured lately; read off for all that will run beside the new request.

Refusing must not last for ever, although it prevents the measurements that could show an improvement. So if
nothing waits, or nothing runs, none is refused for the promise's sake. And if nothing was measured for
`PROBE_AFTER`, and nothing waits, one request is let in as a probe. What is held against estimates is
controlled as in `actors.serving.policy.slo`.

Times are seconds on the caller's clock. Pure: `now` is told.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from actors.serving.policy.slo import (
    PROBE_AFTER,
    RESUME,
    Refusing,
    SloSample,
    Strictness,
    TimeSample,
    refusal,
)
from actors.values.requests import InferRequest
from actors.values.specs import Slo

TTFT: Final = "ttft"
ITL: Final = "itl"

# What one measurement leaves of the old ones: about the last fifty count.
_MEMORY: Final = 0.98
# Busy seconds of which the rate is a mean, roughly.
_SPAN: Final = 5.0


class Unkept(Enum):
    """Why a request was refused, as `tritium_slo_refused_total` labels it."""

    DEADLINE = "deadline"  # its own
    TIMEOUT = "timeout"  # of the queue policy
    TTFT = TTFT
    ITL = ITL


_TOLD: Final = {
    Unkept.DEADLINE: "the first token would take about {expected:.3f} s, and the request's own deadline is"
    " {limit:.3f} s away",
    Unkept.TIMEOUT: "about {expected:.3f} s would pass in the queue, whose timeout is {limit:.3f} s",
    Unkept.TTFT: "the first token would take about {expected:.3f} s, and it promises {limit:.3f} s",
    Unkept.ITL: "about {expected:.4f} s would pass between two tokens, and it promises {limit:.4f} s",
}


class Fit:
    """Seconds as a straight line over a size, by least squares. Old measurements fade."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._size = self._seconds = self._square = self._product = 0.0  # sums

    def add(self, size: float, seconds: float) -> None:
        """Learn that something of this size took so long."""
        self._weight = self._weight * _MEMORY + 1.0
        self._size = self._size * _MEMORY + size
        self._seconds = self._seconds * _MEMORY + seconds
        self._square = self._square * _MEMORY + size * size
        self._product = self._product * _MEMORY + size * seconds

    def at(self, size: float) -> float:
        """Return how long something of this size takes; NaN if nothing is known. More never takes less."""
        if not self._weight:
            return math.nan
        usual, seconds = self._size / self._weight, self._seconds / self._weight
        spread = self._square / self._weight - usual * usual
        if spread <= 1e-9 * usual * usual:
            return seconds
        slope = max(0.0, (self._product / self._weight - usual * seconds) / spread)
        return max(0.0, seconds + slope * (size - usual))


class Rate:
    """An amount a second, over about the last seconds in which it was measured; NaN before."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Learn that `amount` came in `seconds`."""
        fade = math.exp(-seconds / _SPAN)
        self._amount = self._amount * fade + amount
        self._seconds = self._seconds * fade + seconds

    def after(self, seconds: float) -> float:
        """Return the rate, if nothing has come for `seconds`."""
        fade = math.exp(-seconds / _SPAN)
        spent = self._seconds * fade + seconds
        return self._amount * fade / spent if self._seconds else math.nan


class Pace:
    """One accepted request, as `Promises` sees it."""

    __slots__ = ("accepted_at", "alone", "began", "choices", "last", "over", "queued", "ready_at", "tokens")

    def __init__(self, tokens: float, accepted_at: float) -> None:
        self.tokens = tokens  # of its prompts, about
        self.accepted_at = accepted_at
        self.queued = True
        self.ready_at = -1.0  # when its prompts were token ids
        self.alone = False  # no other was then without its first token
        self.choices = 0  # that run, once it has begun
        self.began = False
        self.last = -1.0  # when its steps were measured last
        self.over = False


class Promises:
    """See the module."""

    def __init__(self, slo: Slo, most_streams: float = math.inf) -> None:
        """`most_streams`: more requests than that are never under way; at least 1."""
        self.refused = dict.fromkeys(Unkept, 0)
        self._slo = slo
        self._most = most_streams
        self._backlog = 0.0  # tokens of prompts whose first token is still to come
        self._queued = 0.0  # those of them in the queue
        self._waiting = 0  # requests that these are of
        self._ready = 0  # those of them whose prompts are token ids
        self._running = 0  # choices
        self._begun = 0  # requests that these are of
        self._rate = Rate()
        self._service = Fit()  # over tokens of a prompt
        self._step = Fit()  # over choices that run
        self._busy_since = math.inf  # more than one request waits since then
        self._confirmed = -math.inf  # when a time was last measured, or a probe let in
        self._kept = {TTFT: Strictness(slo.ttft), ITL: Strictness(slo.itl)}
        self._refusing = {TTFT: Refusing(), ITL: Refusing()}

    # -- what is learnt --------------------------------------------------------------------------------------

    def enters(self, tokens: float, accepted_at: float, now: float) -> Pace:
        """A request with a prompt of about `tokens` was accepted."""
        pace = Pace(tokens, accepted_at)
        self._backlog += tokens
        self._queued += tokens
        self._waiting += 1
        if self._waiting == 2:
            self._busy_since = now
        return pace

    def taken(self, pace: Pace) -> None:
        """A request has left the queue."""
        if pace.queued:
            pace.queued = False
            self._queued -= pace.tokens

    def ready(self, pace: Pace, tokens: int, now: float) -> None:
        """Its prompts are token ids, and are on their way to the engine."""
        self._backlog += tokens - pace.tokens
        pace.tokens = tokens
        pace.ready_at = now
        pace.alone = not self._ready
        self._ready += 1

    def begins(self, pace: Pace, choices: int, now: float) -> None:
        """Its first token has come."""
        self._stops_waiting(pace)
        pace.began, pace.choices, pace.last = True, choices, now
        self._running += choices
        self._begun += 1
        self._confirmed = now
        if pace.alone:
            self._service.add(pace.tokens, now - pace.ready_at)
        taken = now - pace.ready_at
        if self._busy_since <= now:
            self._rate.add(pace.tokens, now - self._busy_since)
        elif taken > 0 and pace.tokens / taken > self._rate.after(0.0):
            # It does at least this much; with a rate from slower times too few would wait to measure it anew.
            self._rate.add(pace.tokens, taken)
        self._busy_since = now if self._waiting else math.inf
        if self._slo.ttft:
            self._kept[TTFT].learn((now - pace.accepted_at,), now)

    def goes_on(self, pace: Pace, tokens: int, now: float) -> None:
        """So many tokens of it have come since it began, or this was last told."""
        since, pace.last = pace.last, now
        if since < 0.0 or not pace.choices:
            return
        step = (now - since) * pace.choices / tokens
        self._step.add(self._running, step)
        self._confirmed = now
        if self._slo.itl:
            self._kept[ITL].learn((step,), now)

    @staticmethod
    def interrupted(pace: Pace) -> None:
        """Its engine has died: the time until another goes on is no step's, and none of its prompt's."""
        pace.last = -1.0
        pace.alone = False

    def ends(self, pace: Pace, now: float) -> None:
        """It is over, however it ended. Idempotent."""
        if pace.over:
            return
        pace.over = True
        if pace.began:
            self._running -= pace.choices
            self._begun -= 1
            return
        self._stops_waiting(pace)
        if self._waiting < 2 and self._busy_since < math.inf:
            self._busy_since = now if self._waiting else math.inf

    def _stops_waiting(self, pace: Pace) -> None:
        self.taken(pace)
        self._backlog -= pace.tokens
        self._waiting -= 1
        self._ready -= pace.ready_at >= 0.0
        if not self._waiting:
            self._backlog = self._queued = 0.0  # what rounding has left

    # -- what is decided -------------------------------------------------------------------------------------

    def ahead(self, share: float, callers: int) -> float:
        """Return the tokens of prompts that go before a new request.

        `share` of the queue goes before it, and all that has left the queue; and of so many `callers` that
        wait for room nothing is known but their number.
        """
        usual = self._backlog / self._waiting if self._waiting else 0.0
        return self._backlog - self._queued + self._queued * share + usual * callers

    def waits(self, ahead: float, now: float) -> float:
        """Return the time until so many tokens of prompts have begun; 0 where that is not known.

        If none has begun for a while, although some wait, that counts.
        """
        rate = self._rate.after(max(0.0, now - self._busy_since))
        if math.isnan(rate) or not ahead:
            return 0.0
        return ahead / rate if rate else math.inf

    def first_token(self, tokens: float, ahead: float, now: float) -> float:
        """Return the time to the first token of a prompt of `tokens`. It leaves out what is not known."""
        own = self._service.at(tokens)
        return self.waits(ahead, now) + (0.0 if math.isnan(own) else own)

    def between(self, choices: int) -> float:
        """Return the time between two tokens with `choices` more; 0 where that is not known."""
        beside = float(self._running + choices)
        room = self._most - self._begun
        if room > 0:
            beside += min(float(self._waiting), room - 1.0)
        else:
            beside -= self._running / self._begun  # one of them ends before it begins
        step = self._step.at(beside)
        return 0.0 if math.isnan(step) else step

    def limit(self, time: str) -> float:
        """Return how long a promised time may be expected to be; infinite without the promise."""
        promised = self._slo.ttft if time == TTFT else self._slo.itl
        return promised * self._kept[time].value if promised else math.inf

    def admit(
        self,
        request: InferRequest,
        *,
        tokens: float,
        choices: int,
        ahead: float,
        patience: float,
        now: float,
    ) -> None:
        """Let `request` pass, or raise Overloaded: it can't be answered in time.

        Its prompts have about `tokens`, and so many `choices` are asked for. `ahead`: see `Promises.ahead`.
        `patience` is how long its queue policy lets it wait.
        """
        if not self._slo.refuse or request.synthetic:
            return
        found = self._hopeless(request, tokens, choices, ahead, patience, now)
        if found is None:
            return
        if not self._waiting and now - self._confirmed >= PROBE_AFTER:
            self._confirmed = now
            return
        why, expected, limit, wait = found
        self.refused[why] += 1
        raise refusal(request, _TOLD[why].format(expected=expected, limit=limit), wait)

    def _hopeless(
        self, request: InferRequest, tokens: float, choices: int, ahead: float, patience: float, now: float
    ) -> tuple[Unkept, float, float, float] | None:
        expected = self.first_token(tokens, ahead, now)
        left = request.deadline - now
        if left <= 0:
            # It is late already, and the queue says so.
            return None
        if expected > left:
            return Unkept.DEADLINE, expected, left, expected - left
        waits = self.waits(ahead, now)
        if waits > patience:
            return Unkept.TIMEOUT, waits, patience, waits - patience
        limit = self.limit(TTFT) - max(0.0, now - request.accepted_at)
        if self._refusing[TTFT].decide(expected, limit, free=not self._waiting):
            return Unkept.TTFT, expected, self._slo.ttft, expected - limit * RESUME
        if choices:
            step, limit = self.between(choices), self.limit(ITL)
            if self._refusing[ITL].decide(step, limit, free=not self._running):
                return Unkept.ITL, step, self._slo.itl, 0.0
        return None

    def sample(self, waiting: int) -> SloSample:
        """Return a snapshot, as of when something was measured last. See `Promising`."""
        del waiting
        usual = self._backlog / self._waiting if self._waiting else 0.0
        expected = {TTFT: self.first_token(usual, self._backlog, -math.inf), ITL: self.between(1)}
        promised = {TTFT: self._slo.ttft, ITL: self._slo.itl}
        return SloSample(
            p99=0.0,
            measured=math.nan,
            service=math.nan,
            rate=math.nan,
            wait=math.nan,
            limit=math.nan,
            refusing=any(each.on for each in self._refusing.values()),
            delay=None,
            size=None,
            refused={why.value: count for why, count in self.refused.items()},
            times={
                time: TimeSample(
                    promised=promised[time] or math.nan,
                    measured=kept.measured,
                    expected=expected[time] or math.nan,
                    limit=self.limit(time),
                )
                for time, kept in self._kept.items()
            },
            prompt_rate=self._rate.after(0.0),
        )
