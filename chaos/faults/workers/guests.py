"""Guests: copies of models that a fault brings in for itself, harms, and takes away.

No other fault chooses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from chaos.faults.base import NoTarget, Stage, until
from chaos.faults.shelves import Shelf, ask_for, gone, serving_alone, until_states
from chaos.faults.targets import Instance, instances
from chaos.workload.repository import EXECUTION_TIMEOUT, INSTANCES, write_model


async def welcome(
    stage: Stage, guest: str, *, timeout: float | None = EXECUTION_TIMEOUT
) -> tuple[Shelf, Sequence[Instance]]:
    """Bring in a guest, and return its shelf and its instances once all of them serve.

    `timeout` is as for `write_model`. Raises NoTarget if the guest is there already, and Trouble if it does
    not come to serve.
    """
    shelf = Shelf(stage, guest)
    if shelf.path.exists():
        raise NoTarget(f"'{guest}' is being harmed already")
    write = partial(write_model, shelf.beside(), guest, run=stage.folder, timeout=timeout)
    whole = await trio.to_thread.run_sync(write)
    whole.rename(shelf.path)
    try:
        await ask_for(stage.server, "load", guest)
        await until_states(stage.server, guest, serving_alone(1), "it should serve")
        return shelf, await all_of(stage, guest)
    except BaseException:
        shelf.remove()
        raise


async def send_off(stage: Stage, shelf: Shelf) -> None:
    """Take a guest away. `until_gone` waits until nothing of it serves."""
    try:
        await ask_for(stage.server, "unload", shelf.model)
    finally:
        shelf.remove()


async def until_gone(stage: Stage, guest: str) -> None:
    """Wait until nothing of a guest serves. Raises Trouble if that takes too long."""
    await until_states(stage.server, guest, gone, "nothing of it should serve")


async def all_of(stage: Stage, guest: str) -> Sequence[Instance]:
    """Return a guest's instances, once all of them serve. Raises Trouble if that takes too long."""
    return await until(
        partial(instances, stage, (guest,)),
        lambda serving: len(serving) == INSTANCES,
        lambda serving: f"'{guest}' has {len(serving or ())} instances that serve, not {INSTANCES}",
    )
