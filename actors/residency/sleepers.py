"""Language models whose engines may sleep, as the residency actor knows them.

Each model is one: all of its versions are put to sleep together, and woken together. What they do by
themselves is noticed at the actor's next turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import trio

from actors.residency.policy import KeptBy, Resident
from actors.residency.residents import OnDemand, Residents, standing_of, wanted_since
from actors.seams.bell import Bell
from actors.serving.standing import Status
from actors.values.events import Event, Log
from actors.values.generation.sleeping import SleepState
from actors.values.specs import ModelKey

NOT_AGAIN_SECONDS: Final = 1.0
"""How long a model that could not be put to sleep is left alone."""


class Sleepers:
    """See the module. It holds nothing that a restart may not lose."""

    def __init__(self, residents: Residents, log: Log, measure: Bell) -> None:
        """`measure` has memory measured now."""
        self._residents = residents
        self._log = log
        self._measure = measure

    def parts(self, model: OnDemand, whole: Resident) -> list[Resident]:
        """A language model as the plan sees it: what it is about to give up is listed apart."""
        sleepers = self._residents.sleepers(model.key)
        standing = standing_of(sleepers)
        if not sleepers or whole.leaving:
            return [whole]
        rests = min(whole.nbytes, model.resting(min(each.level for each in sleepers)))
        if wanted_since(sleepers) is not None:
            whole = replace(whole, hold=KeptBy.WANTED)
        elif standing in {SleepState.FALLING, SleepState.WAKING}:
            whole = replace(whole, hold=KeptBy.CHANGE)
        if standing is SleepState.AWAKE:
            return [replace(whole, rests=rests)]
        if standing is SleepState.FALLING or (standing is SleepState.ASLEEP and not model.counted):
            going = replace(whole, nbytes=whole.nbytes - rests, hold=KeptBy.CHANGE, leaving=True)
            return [replace(whole, nbytes=rests), going]
        return [whole]

    def put_to_sleep(self, model: OnDemand, newcomer: ModelKey | None) -> None:
        """Have a model's engines fall asleep, for the memory that `newcomer` needs."""
        had = self._residents.resident(model.key)
        if not model.counted:  # what was measured last may be what it took asleep
            had = max(had, model.last or 0)
        model.freeing = had, why_freed(newcomer)
        for state in self._residents.roster.serving(model.key).values():
            if state.sleeper is not None:
                state.sleeper.fall_asleep(state.sleeper.level, trio.current_time() + state.spec.drain_timeout)

    def wake(self, model: OnDemand, reserved: int) -> None:
        """Wake a model's engines, which are expected to take so many bytes."""
        sleepers = self._residents.sleepers(model.key)
        model.reserved, model.counted = reserved, False
        model.wanted_at = wanted_since(sleepers) or trio.current_time()
        for sleeper in sleepers:
            sleeper.wake()

    def wake_those_that_end(self) -> None:
        """What has been accepted is answered, whether there is room or not, where nothing comes after it."""
        known = self._residents.roster.keys()
        for key in known:
            for state in self._residents.states(key):
                sleeper = state.sleeper
                if sleeper is None or sleeper.wanted_since is None or sleeper.state is SleepState.WAKING:
                    continue
                if self._residents.closed or state.status in {Status.UNLOADING, Status.UNAVAILABLE}:
                    sleeper.wake()

    def follow(self, model: OnDemand, now: float) -> None:
        """See what has become of a model's engines since the last turn."""
        sleepers = self._residents.sleepers(model.key)
        if not sleepers:
            model.seen, model.counted = SleepState.AWAKE, True
            return
        before, standing = model.seen, standing_of(sleepers)
        if standing is None or standing is before:
            return
        model.seen, model.counted = standing, False
        if standing is SleepState.ASLEEP:
            model.sleeps += 1
        elif standing is SleepState.AWAKE and before in {SleepState.ASLEEP, SleepState.WAKING}:
            self._has_woken_up(model, now)
        if before is SleepState.FALLING and standing is not SleepState.ASLEEP:
            model.not_before, model.freeing = now + NOT_AGAIN_SECONDS, None
            why = "; ".join(each.trouble for each in sleepers if each.trouble)
            self._log(Event.MODEL_KEPT_AWAKE, level="warning", model=str(model.key), reason=why)
        self._measure.ring()

    def _has_woken_up(self, model: OnDemand, now: float) -> None:
        seconds = now - model.wanted_at if model.wanted_at else 0.0
        model.wanted_at = 0.0
        model.awakenings += 1
        model.awakening_seconds += seconds
        self._log(Event.MODEL_WOKEN, model=str(model.key), seconds=round(seconds, 3))

    def measured(self, model: OnDemand, standing: SleepState | None, nbytes: int) -> None:
        """Note what a model takes, which stood so all the time."""
        if standing is SleepState.AWAKE:
            model.measured(nbytes)
        elif standing is SleepState.ASLEEP:
            model.rested = nbytes
            if model.freeing is not None:
                (had, why), model.freeing = model.freeing, None
                self._log(
                    Event.MODEL_SLEPT, model=str(model.key), reason=why, freed_bytes=max(0, had - nbytes)
                )
        else:
            return
        model.counted = model.counted or standing is model.seen


def why_freed(newcomer: ModelKey | None) -> str:
    """Return why memory is taken from a model."""
    return "memory is over the budget" if newcomer is None else f"memory is needed for '{newcomer}'"


def has_woken(model: OnDemand) -> bool:
    """Whether it takes again, or is about to, what it had given up."""
    return model.awakenings > 0 or model.seen is SleepState.WAKING
