"""What one generation uses, counted in steps: for its tenant's account, and for the times that are promised.

A token costs an addition and a comparison. Generations of models with neither have no meter.
"""

from __future__ import annotations

from typing import Final

from actors.generation.policy.charging import STEP, Account, TokenPrices
from actors.generation.policy.promises import Pace, Promises
from actors.values.requests import InferRequest

PACED: Final = 16
"""Tokens of a choice over which the time between two of them is a mean."""


class Meter:
    """See the module."""

    __slots__ = (
        "_account",
        "_choices",
        "_measured",
        "_pace",
        "_prices",
        "_promises",
        "_request",
        "_step",
        "_tokens",
        "_until",
    )

    def __init__(
        self,
        request: InferRequest,
        prices: TokenPrices,
        account: Account | None,
        promises: Promises | None,
        pace: Pace | None,
    ) -> None:
        """`pace` is the request's with `promises`."""
        self._request = request
        self._prices = prices
        self._account = account
        self._promises = promises
        self._pace = pace
        self._choices = 0
        self._tokens = 0
        self._until = 1
        self._step = STEP
        self._measured = 0  # tokens, when the pace was last told of them
        if promises is not None and pace is not None:
            promises.taken(pace)

    def prompted(self, prompt: int, most: int, choices: int, now: float) -> None:
        """The prompts have so many tokens; at most so many are generated, in so many choices."""
        self._prices.learn_prompt(self._request, prompt)
        self._choices = choices
        if self._account is not None:
            self._account.prompted(prompt, most)
        if self._promises is not None and self._pace is not None:
            self._step = min(STEP, PACED * max(1, choices)) if self._account is not None else PACED * choices
            self._promises.ready(self._pace, prompt, now)

    def generated(self, count: int, now: float) -> None:
        """The engine has generated `count` more tokens."""
        self._tokens += count
        if self._tokens >= self._until:
            self._pass(now)

    def _pass(self, now: float) -> None:
        self._until = self._tokens + self._step
        if self._account is not None:
            self._account.generated(self._tokens)
        if self._promises is None or self._pace is None:
            return
        if not self._pace.began:
            self._promises.begins(self._pace, self._choices, now)
        else:
            self._promises.goes_on(self._pace, self._tokens - self._measured, now)
        self._measured = self._tokens

    def interrupted(self, lost: int) -> None:
        """Its engine has died, and with it `lost` tokens that are generated again."""
        self._tokens -= lost
        self._measured = self._tokens
        if self._promises is not None and self._pace is not None:
            self._promises.interrupted(self._pace)

    def end(self, prompt: int, generated: int, now: float) -> None:
        """It is over, and this is what it has used in all."""
        if self._account is not None:
            self._account.end(prompt, generated)
        if self._promises is not None and self._pace is not None:
            self._promises.ends(self._pace, now)
