"""What faults by clients have in common: they do their harm while they are healed, and judge its effect."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chaos.faults.base import Fault, Injection, Stage, Trouble
from chaos.faults.network.asking import Question, ask_grpc, ask_http, together
from chaos.record.outcome import now
from chaos.record.records import Excuse

Attacking = Callable[[Stage, random.Random], Awaitable[Sequence[str]]]
"""Does the harm, within a few seconds, and returns what it saw that should not have been."""

NEWCOMERS = ("echo", "add_sub")
_MOST_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack(Fault):
    """A fault by clients.

    `inject` only decides. `heal` attacks, takes everything back, and asks as new clients do. It raises
    Trouble if anything was not as it should be. So the time from the injection to the healing is that of the
    attack. `models` are those that may feel it as latency; there are none if it must not be felt at all.
    """

    attack: Attacking
    detail: str
    models: Sequence[str] = ()
    excuses: Sequence[Excuse] = ()

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Return what is about to happen; its `heal` does it."""
        return Injection(
            t=now(),
            models=self.models,
            detail=self.detail,
            excuses=self.excuses,
            undo=partial(self._carry_out, stage, target),
        )

    async def _carry_out(self, stage: Stage, target: random.Random) -> None:
        troubles = [*await self.attack(stage, target), *await newcomers(stage, target)]
        if troubles:
            more = f"; and {len(troubles) - _MOST_TOLD} more" if len(troubles) > _MOST_TOLD else ""
            raise Trouble("; ".join(troubles[:_MOST_TOLD]) + more)


async def newcomers(stage: Stage, target: random.Random) -> list[str]:
    """Ask on fresh connections of either kind, as any new client would.

    Returns what is wrong with the answers.
    """
    troubles = await together(
        partial(ask, stage.server, Question.draw(model, target))
        for model in NEWCOMERS
        for ask in (ask_http, ask_grpc)
    )
    return [f"a newcomer: {each}" for each in troubles]
