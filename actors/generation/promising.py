"""How shares in tokens and promised times take part in a language model's version. Passive."""

from __future__ import annotations

import trio

from actors.generation.policy.charging import TokenPrices
from actors.generation.policy.metering import Meter
from actors.generation.policy.promises import Pace, Promises
from actors.serving.model import ModelState
from actors.serving.policy.queueing import RequestQueue
from actors.serving.policy.waiting_line import WaitingLine
from actors.serving.ports import Stage
from actors.serving.waiting import WaitingCallers
from actors.values.errors import TritiumError
from actors.values.generation.asking import DETOKENIZE, EMBED, TOKENIZE, GenerationRequest
from actors.values.requests import InferRequest, InferResponse


class TokenPromiseStage(Stage):
    """Refuses requests that can't be answered in time, and tells `Promises` of those that are accepted."""

    def __init__(
        self, promises: Promises, prices: TokenPrices, queue: WaitingLine, line: WaitingCallers
    ) -> None:
        self._promises = promises
        self._prices = prices
        self._queue = queue
        self._line = line
        self._paces: dict[InferRequest, Pace] = {}

    def admit(self, request: InferRequest) -> None:
        """Raise Overloaded for a request that can't be answered in time."""
        kind = _kind_of(request)
        if kind in (TOKENIZE, DETOKENIZE):
            return
        queued = len(self._queue)
        share = min(1.0, self._queue.ahead_of(request) / queued) if queued else 0.0
        self._promises.admit(
            request,
            tokens=self._prices.prompt_of(request),
            choices=0 if kind == EMBED else _choices_of(request),
            ahead=self._promises.ahead(share, self._line.ahead()),
            patience=self._queue.patience(request),
            now=trio.current_time(),
        )

    def queued(self, request: InferRequest) -> None:
        """See `Stage.queued`."""
        if _kind_of(request) not in (TOKENIZE, DETOKENIZE):
            tokens, now = self._prices.prompt_of(request), trio.current_time()
            self._paces[request] = self._promises.enters(tokens, request.accepted_at, now)

    def responding(self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `Stage.responding`."""
        if final:
            pace = self._paces.pop(request, None)
            if pace is not None:
                self._promises.ends(pace, trio.current_time())

    def pace_of(self, request: InferRequest) -> Pace | None:
        """Return how an accepted request gets on; None for one without a prompt for the engine."""
        return self._paces.get(request)


def _kind_of(request: InferRequest) -> str:
    return request.ask.kind if isinstance(request, GenerationRequest) else ""


def _choices_of(request: InferRequest) -> int:
    return request.ask.choices if isinstance(request, GenerationRequest) else 1


class Metering:
    """Makes the meters of a version's generations."""

    def __init__(
        self, prices: TokenPrices, promises: Promises | None, stage: TokenPromiseStage | None
    ) -> None:
        self._prices = prices
        self._promises = promises
        self._stage = stage

    def opened(self, request: InferRequest) -> Meter:
        """Return the meter of a request just taken from the queue. It has to be brought to its `end`."""
        pace = None if self._stage is None else self._stage.pace_of(request)
        return Meter(request, self._prices, self._prices.opened(request), self._promises, pace)


def metering_of(state: ModelState, queue: RequestQueue, streams: float) -> Metering | None:
    """Have a version's queue be shared out in tokens, and its promises be kept, if it has either.

    At most `streams` requests are under way at once.
    """
    prices = TokenPrices()
    shared = queue.price_by(prices)
    slo = state.spec.slo
    if slo is None:
        return Metering(prices, None, None) if shared else None
    promises = Promises(slo, streams)
    stage = TokenPromiseStage(promises, prices, queue, state.intake.line)
    state.promise = promises
    state.join(stage)
    return Metering(prices, promises, stage)
