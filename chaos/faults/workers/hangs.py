"""A hang that no limit ends: later requests go to the other instance, and none of them waits for the hang."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chaos.faults.base import Fault, Injection, Stage, Trouble
from chaos.faults.network.asking import Question, together
from chaos.faults.shelves import Shelf
from chaos.faults.targets import Instance, at_work, exit_of, signalled
from chaos.faults.workers.guests import all_of, send_off, until_gone, welcome
from chaos.record.outcome import now
from chaos.record.records import Ok
from chaos.wires.http import Connection

_GUEST: Final = "echo-unlimited"
_QUESTIONS: Final = 60
_WITHIN: Final = 1.5  # seconds over which they come
# Seconds for an answer, on a busy machine; the hang takes a minute.
_PATIENCE: Final = 10.0
_LOOKING: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class HangsWithoutLimit(Fault):
    """One of two instances of a guest without `tritium.execution_timeout` hangs, and clients ask the guest.

    `heal` asks, and kills the worker that hangs: an operator's way out.
    """

    guest: str = _GUEST

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Bring in the guest, and have one of its instances hang.

        Raises NoTarget if the guest is there already, and Trouble.
        """
        shelf, serving = await welcome(stage, self.guest, timeout=None)
        order = stage.control.once(self.guest, "hang")
        question = Question.draw(self.guest, target)
        client = await Connection.open(stage.server.http_port)
        try:
            await client.send(question.http)
            hit = await _executing(stage.folder, serving)
        except BaseException:
            client.close()
            shelf.remove()
            raise
        finally:
            order.withdraw()
        return Injection(
            t=now(),
            models=(self.guest,),
            detail=f"{hit.path} (pid {hit.pid}) hangs, which has no limit, and is killed in the end",
            pid=hit.pid,
            expects=[exit_of(hit, "signal_9", within=3 * _PATIENCE)],
            undo=partial(self._see, stage, shelf, hit, client),
        )

    async def _see(self, stage: Stage, shelf: Shelf, hit: Instance, client: Connection) -> None:
        try:
            async with client:
                troubles = await self._ask(stage, _QUESTIONS)
                signalled(hit.pid, signal.SIGKILL)
                troubles += await together([partial(_told, client)], patience=_PATIENCE)
            await all_of(stage, self.guest)
            troubles += await self._ask(stage, 4)
        finally:
            signalled(hit.pid, signal.SIGKILL)
            await send_off(stage, shelf)
        await until_gone(stage, self.guest)
        if troubles:
            raise Trouble("; ".join(troubles[:5]))

    async def _ask(self, stage: Stage, count: int) -> list[str]:
        async def one(number: int) -> str:
            end = await stage.send(self.guest, protocol="http" if number % 2 else "grpc")
            return (
                "" if isinstance(end, Ok) else f"the other instance should have answered, and there was {end}"
            )

        asked = (partial(one, number) for number in range(count))
        return await together(asked, within=_WITHIN, patience=_PATIENCE)


async def _told(client: Connection) -> str:
    answer = await client.answer()
    said = f"the client of the hang was told {answer.status} {answer.body[:200]!r}, not 503"
    return "" if answer.status == 503 else said


async def _executing(run: Path, serving: Sequence[Instance]) -> Instance:
    """Return the instance that executes something, once one does.

    Raises Trouble if that takes too long.
    """
    with trio.move_on_after(_PATIENCE):
        while True:
            for each in serving:
                if at_work(run, each):
                    return each
            await trio.sleep(_LOOKING)
    raise Trouble(f"nobody has begun with what was to hang, after {_PATIENCE:g} s")


FAULTS: Sequence[Fault] = (
    HangsWithoutLimit(
        name="hang_without_limit",
        weight=0.5,
        expected="A model without a limit hangs in one instance: every later request is answered by the other one, and none waits for the hang;"
        " when the worker is killed, the hang's own client is told UNAVAILABLE, and nobody else.",
    ),
)
"""The family's faults."""
