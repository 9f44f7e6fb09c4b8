"""Faults by way of the repository API.

`REFUSED` is for a server that polls, `FAULTS` for one in explicit mode, `EXPLICIT`. A server does one of the
two: one that polls answers every load and unload with 503 (docs/serving/models.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from actors.values.events import Event
from chaos.faults.base import Fault, Injection, Stage, Trouble
from chaos.faults.network.asking import together
from chaos.faults.network.attacks import Attack
from chaos.faults.repository import PLAIN, answering, ask_guest, choose
from chaos.faults.setbacks import until_mended, until_told
from chaos.faults.shelves import READY, Shelf, ask_for, gone, serving_alone, states, until_states
from chaos.record.outcome import now
from chaos.record.records import LogExpected
from chaos.wires.http import Reply
from chaos.workload.repository import write_model

EXPLICIT: Final[Sequence[str]] = ("--model-control-mode=explicit", "--load-model=*")
"""The flags of a server to which `FAULTS` apply."""

_SEEN_WITHIN: Final = 3.0  # seconds until the log tells of a load
# Seconds that a load may take: longer than the models' own limit.
_LOADING: Final = 15.0


def _error(answer: Reply) -> str:
    """What an answer says went wrong, or nothing."""
    said = answer.json() if answer.body else {}
    return str(said.get("error", ""))


def _told(model: str, what: str, answer: Reply) -> str:
    return f"the {what} of '{model}' was answered {answer.status} {answer.body[:200]!r}"


# -- of a server that polls


async def _refused(stage: Stage, target: random.Random) -> list[str]:
    async def one(model: str, what: str) -> str:
        answer = await ask_for(stage.server, what, model)
        return "" if answer.status == 503 else _told(model, what, answer)

    return await together(partial(one, model, what) for model in PLAIN for what in ("load", "unload"))


# -- of one in explicit mode


_GUEST: Final = "echo-guest"
_LOADERS: Final = 3  # clients that load, and as many that unload
_TURNS: Final = 3  # of each
_PAUSE: Final = 0.1


async def _load_and_unload(stage: Stage, target: random.Random) -> list[str]:
    """Load and unload a model of the fault's own from all sides, and ask it throughout.

    In the end it serves, and goes.
    """
    shelf = Shelf(stage, _GUEST)
    write_model(shelf.beside(), _GUEST, run=stage.folder).rename(shelf.path)
    troubles: list[str] = []

    async def turns(what: str) -> str:
        for _ in range(_TURNS):
            answer = await ask_for(stage.server, what, _GUEST)
            # A model that is unloaded while it loads, or loaded while it goes, may be told so; nothing else
            # may go wrong.
            if answer.status not in (200, 400, 503):
                return _told(_GUEST, what, answer)
            await trio.sleep(_PAUSE * target.random())
        return ""

    async def ask() -> None:
        while True:
            troubles.extend(await together([partial(ask_guest, stage, _GUEST, target)]))
            await trio.sleep(_PAUSE / 5)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            troubles += await together(
                (partial(turns, what) for what in ("load", "unload") for _ in range(_LOADERS)),
                patience=_TURNS * _LOADING,
            )
            nursery.cancel_scope.cancel()
        troubles += await _one_more_visit(stage)
    finally:
        shelf.remove()
    return troubles


async def _one_more_visit(stage: Stage) -> list[str]:
    """Load and unload a model once, when no other client does: both must work. Raises Trouble."""
    loaded = await ask_for(stage.server, "load", _GUEST)
    await until_states(stage.server, _GUEST, serving_alone(1), "it was loaded, and should serve")
    await answering(stage, _GUEST)
    unloaded = await ask_for(stage.server, "unload", _GUEST)
    await until_states(stage.server, _GUEST, gone, "it was unloaded")
    return [
        _told(_GUEST, what, answer)
        for what, answer in (("load", loaded), ("unload", unloaded))
        if answer.status != 200
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded(Fault):
    """The files of a serving model change, well or badly, and several clients at once ask for its load."""

    well: bool

    async def inject(self, stage: Stage, target: random.Random) -> Injection:
        """Change a file; `heal` has it loaded, changes it back, and has that loaded."""
        shelf = choose(stage, target, ("echo", "slow", "batching"))
        right = (shelf.path / "1" / "model.py").read_bytes()
        t = now()
        shelf.put("1/model.py", right + (b"\n# changed\n" if self.well else b"\n(\n"))
        return Injection(
            t=t,
            models=(),
            detail=f"'{shelf.model}' is loaded again, {'changed' if self.well else 'broken'}",
            expects=[
                LogExpected(
                    event=Event.MODEL_SWAPPED.value if self.well else Event.MODEL_LOAD_FAILED.value,
                    keys={"model": shelf.model},
                    within=_SEEN_WITHIN,
                )
            ],
            undo=partial(self._loaded, stage, shelf, right),
        )

    async def _loaded(self, stage: Stage, shelf: Shelf, right: bytes) -> None:
        refusals: list[Reply] = []

        async def load(*, works: bool) -> str:
            answer = await ask_for(stage.server, "load", shelf.model)
            if not works:
                refusals.append(answer)
            return "" if (answer.status == 200) is works else _told(shelf.model, "load", answer)

        try:
            troubles = await together([partial(load, works=self.well)] * 2, patience=_LOADING)
            seen = await states(stage.server, shelf.model)
            if troubles or READY not in seen.values():
                troubles.append(f"'{shelf.model}' is {seen} after that")
            if not self.well:
                why = await until_told(stage.server, shelf.model)
                troubles += [_told(shelf.model, "load", each) for each in refusals if why not in _error(each)]
        finally:
            shelf.put("1/model.py", right)
        troubles += await together([partial(load, works=True)] * 2, patience=_LOADING)
        await until_states(stage.server, shelf.model, serving_alone(1), "it should serve as before")
        await until_mended(stage.server, shelf.model)
        await answering(stage, shelf.model)
        if troubles:
            raise Trouble("; ".join(troubles))


REFUSED: Final[Sequence[Fault]] = (
    Attack(
        name="control_refused",
        expected="Loads and unloads of every model at once are all refused as UNAVAILABLE, because the server polls; nothing changes.",
        attack=_refused,
        detail="every model is to be loaded and unloaded",
    ),
)
"""For a server that polls."""

FAULTS: Final[Sequence[Fault]] = (
    Attack(
        name="load_and_unload",
        expected="A model that several clients load and unload at once answers rightly, or is NOT_FOUND or UNAVAILABLE; each of them is told "
        "how it ended, and the next load and unload work; no other model notices.",
        attack=_load_and_unload,
        detail=f"'{_GUEST}' is loaded and unloaded from all sides",
    ),
    Reloaded(
        name="reload",
        expected="A model that is loaded again with other content is swapped without a failed request.",
        well=True,
    ),
    Reloaded(
        name="broken_reload",
        expected="A load that fails says so and why, and until one succeeds so do the index, the tree and a metric; the version that serves "
        "goes on, and no request fails.",
        well=False,
    ),
)
"""For a server in explicit mode."""
