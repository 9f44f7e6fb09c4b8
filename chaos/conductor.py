"""Injects the faults of a plan at their times, and writes down each injection and when its cause was gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TextIO

import trio

from chaos.clients.clients import Clients
from chaos.faults.base import Fault, Injection, NoTarget, Restrained, Stage, Trouble
from chaos.flags import clashing
from chaos.plan import Plan, Planned
from chaos.record.outcome import now
from chaos.record.records import Healed, Injected, PassedOver, Record, line_of

Tell = Callable[[str], None]


class Conductor:
    """Injects into one stage. `tell` gets a line for people about each fault."""

    def __init__(
        self, stage: Stage, clients: Clients, catalogue: Mapping[str, Fault], out: TextIO, tell: Tell
    ) -> None:
        self._stage = stage
        self._clients = clients
        self._catalogue = catalogue
        self._out = out
        self._tell = tell
        self._count = 0
        self._active: list[str] = []

    async def run(self, plan: Plan, began: float) -> None:
        """Inject what is planned for a run that began at `began` (records' time).

        Returns when everything is healed.
        """
        async with trio.open_nursery() as nursery:
            for planned in plan.faults:
                await trio.sleep(max(0.0, began + planned.at - now()))
                self._count += 1
                nursery.start_soon(self._one, self._count, planned)

    async def _one(self, n: int, planned: Planned) -> None:
        fault = self._catalogue[planned.fault]
        # A fault that was planned to be over by now has taken longer.
        clashes = clashing(fault.name, self._active)
        if clashes:
            self._pass_over(n, fault, f"{' and '.join(clashes)} is not over", restraint=True)
            return
        self._active.append(fault.name)
        try:
            await self._strike(n, fault, planned)
        finally:
            self._active.remove(fault.name)

    async def _strike(self, n: int, fault: Fault, planned: Planned) -> None:
        stage = replace(self._stage, send=partial(self._clients.send, by=n))
        began = now()
        try:
            injection = await fault.inject(stage, random.Random(planned.target))
        except NoTarget as why:
            self._pass_over(n, fault, str(why), restraint=isinstance(why, Restrained))
            return
        # A fault's own bug is trouble to be seen, and no reason to lose the run.
        except Exception as error:  # noqa: BLE001
            self._failed(n, fault, began, error)
            return
        told = {each.name: getattr(injection, each.name) for each in fields(Injected)}
        self._write(Injected(**{**told, "n": n, "fault": fault.name}))
        self._tell(f"{n:3} {fault.name}: {injection.detail}")
        try:
            await trio.sleep(fault.lasts)
        finally:
            await self._heal(n, fault, injection)

    async def _heal(self, n: int, fault: Fault, injection: Injection) -> None:
        trouble = ""
        with trio.CancelScope(shield=True):
            try:
                await injection.undo()
            except Exception as error:  # noqa: BLE001 (the same)
                trouble = _words(error)
                self._tell(f"{n:3} {fault.name}: TROUBLE, {trouble}")
        self._write(Healed(t=now(), n=n, trouble=trouble))

    def _pass_over(self, n: int, fault: Fault, why: str, *, restraint: bool) -> None:
        self._tell(f"{n:3} {fault.name}: passed over, {why}")
        self._write(PassedOver(t=now(), n=n, fault=fault.name, why=why, restraint=restraint))

    def _failed(self, n: int, fault: Fault, began: float, error: Exception) -> None:
        """An injection did not succeed: that, too, is in the record, and excuses nothing."""
        trouble = _words(error)
        self._tell(f"{n:3} {fault.name}: TROUBLE, {trouble}")
        self._write(Injected(t=began, n=n, fault=fault.name, models=(), detail="the injection failed"))
        self._write(Healed(t=now(), n=n, trouble=trouble))

    def _write(self, record: Record) -> None:
        self._out.write(line_of(record) + "\n")
        self._out.flush()


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, Trouble) else repr(error)
