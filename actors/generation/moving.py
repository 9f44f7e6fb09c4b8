"""The way of generations off an instance of their engine that is to end: recycled, or one too many. Passive.

    there       the instance goes on with it: its turn has not come, or no other engine can go on with it
    called off  the instance was told to end it. What it says until its last word counts
    moved       another engine takes it up behind its journal, and has not said anything yet

So many may be called off or moved at once that no storm of prefills holds the others up. What can't go on
elsewhere has as long as `tritium.drain_timeout` to end where it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import trio

from actors.generation.engine import Engine
from actors.generation.engine_line import EngineLine
from actors.generation.generation import EngineRun
from actors.generation.policy.resuming import Fate
from actors.generation.resumption import Resumption
from actors.serving.standing import InstanceState
from actors.values.errors import Unavailable

MOST_MOVING: Final = 4
"""Choices that are on their way from one engine to another at once."""

LAST_STEP: Final = 5.0
"""Seconds that an instance which was told to end all that it has may take for that."""

LOOK_EVERY: Final = 0.5
"""Seconds between two looks whether there is an engine that can take over."""


class _Leaving:
    """An instance that is to end, and what it still has to do."""

    def __init__(self, runs: Iterable[EngineRun], until: float) -> None:
        self.runs = deque(runs)  # whose turn has not come
        self.staying: list[EngineRun] = []  # which can't go on elsewhere
        self.until = until


class Moves:
    """See the module. Belongs to a `Generator`. Implements `actors.serving.ports.Mover`."""

    def __init__(
        self,
        engine: Engine,
        resumption: Resumption,
        *,
        line: EngineLine,
        call_off: Callable[[EngineRun], None],
        ring: Callable[[], None],
        patience: float,
    ) -> None:
        """`call_off` has the engine end a run, and `ring` the generator take a turn.

        `patience`: seconds for what can't go on elsewhere.
        """
        self._engine = engine
        self._resumption = resumption
        self._line = line
        self._call_off = call_off
        self._ring = ring
        self._patience = patience
        self._leaving: list[_Leaving] = []
        self._under_way: list[EngineRun] = []
        self._crowded = False  # no engine has room for what is next

    async def vacate(self, instance: InstanceState) -> None:
        """See `actors.serving.ports.Mover`."""
        held = instance.held
        batches = (*held.open.values(), *held.outstanding.values())
        replies = (request.reply for batch in batches for request in batch.requests)
        runs = (reply for reply in replies if isinstance(reply, EngineRun))
        leaving = _Leaving(runs, trio.current_time() + self._patience)
        self._leaving.append(leaving)
        self._ring()
        try:
            with trio.move_on_at(leaving.until + LAST_STEP):
                await held.wait_idle()
        finally:
            self._leaving.remove(leaving)

    @property
    def under_way(self) -> bool:
        """Whether the next ones wait until others have got on."""
        return bool(self._under_way)

    def turn(self, now: float) -> float:
        """Call off what may be called off at `now`; return when to look again if nothing rings before."""
        if not self._leaving:
            self._under_way = []
            self._line.reserve(wanted=False)
            return math.inf
        look_at, was_crowded, self._crowded = math.inf, self._crowded, False
        self._under_way = [run for run in self._under_way if _is_moving(run)]
        for leaving in self._leaving:
            if leaving.until <= now:
                self._end(leaving)
                continue
            while leaving.runs and len(self._under_way) < MOST_MOVING and self._may_leave(leaving.runs[0]):
                self._next(leaving)
            look_at = min(look_at, leaving.until, now + LOOK_EVERY if leaving.runs else math.inf)
        if was_crowded:  # what was called off since is to have the room that there was for it
            self._crowded |= any(each.choice.attempts == each.attempt for each in self._under_way)
        self._line.reserve(wanted=self._crowded)
        return look_at

    def _may_leave(self, run: EngineRun) -> bool:
        """Whether an engine can take it up now. What the dead have left goes first."""
        if len(self._resumption) or self._resumption.trial:
            return False
        journal = run.generation.journal
        if not run.wanted or journal is None:
            return True
        if not self._engine.serves(journal.engine):
            return False
        has_room = self._line.has_room(run)
        self._crowded = self._crowded or not has_room
        return has_room

    def _next(self, leaving: _Leaving) -> None:
        run = leaving.runs.popleft()
        if _has_left(run):
            return
        fate, _ = run.generation.fate(run.choice, dead=False)
        if fate is Fate.LOST:
            leaving.staying.append(run)
        else:
            self._under_way.append(run)
            self._leave(run, fate)

    def _leave(self, run: EngineRun, fate: Fate) -> None:
        run.leaves = True
        if fate is Fate.AGAIN:  # nothing that its engine still says counts
            run.dropped = True
            self._resumption.moved(run)
            self._ring()
        self._call_off(run)

    def _end(self, leaving: _Leaving) -> None:
        """It has no more time."""
        runs = [*leaving.staying, *leaving.runs]
        leaving.staying.clear()
        leaving.runs.clear()
        for run in runs:
            if _has_left(run):
                continue
            fate, why = run.generation.fate(run.choice, dead=False)
            if fate is not Fate.LOST:
                self._leave(run, fate)
                continue
            run.generation.give_up(
                Unavailable(
                    f"{run.parent.prefix}its engine was recycled or scaled down, {why}, and it did not end"
                    f" within the {self._patience:g} s of 'tritium.drain_timeout' after that"
                )
            )


def _has_left(run: EngineRun) -> bool:
    """Whether its instance has nothing more to do for it."""
    return run.ended or run.leaves or not run.wanted


def _is_moving(run: EngineRun) -> bool:
    """Whether a choice that was called off has not got on in another engine yet."""
    choice = run.choice
    if not run.is_open:
        return False
    return choice.attempts == run.attempt or (choice.attempts == run.attempt + 1 and not choice.steps)
