"""The way of generations through the death of their engine. Passive; it belongs to a `Generator`.

    lost      their engine is dead; looked into at the generator's next turn, all that it had together
    moved     their engine leaves, and has ended them: they are free
    free      they may begin again, and go ahead of new work
    suspects  they begin again one at a time: the next one when that on trial has shown its first steps

While one is on trial, nothing else begins: a death would be its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from actors.generation.policy.suspects import FIRST_STEPS, look_into
from actors.values.errors import Poisoned, Unavailable, WorkerLost
from actors.values.requests import InferRequest

if TYPE_CHECKING:
    from actors.generation.generation import EngineRun
    from actors.generation.policy.journal import Choice

UNLUCKY: Final = "too many have under this request, and it is not tried once more"

LEFT: Final = "its engine has left"
REFUSED: Final = "It and its like are refused for a while"


class Resumption:
    """See the module."""

    def __init__(self, on_poisoned: Callable[[InferRequest, str], None]) -> None:
        """`on_poisoned` is told which client's request is known to kill, and how it did."""
        self._on_poisoned = on_poisoned
        self._lost: list[tuple[EngineRun, WorkerLost]] = []
        self._free: deque[EngineRun] = deque()  # these and suspects: the dead engine's
        self._suspects: deque[EngineRun] = deque()
        self._on_trial: EngineRun | None = None

    def __len__(self) -> int:
        """How many wait for an engine."""
        return len(self._lost) + len(self._free) + len(self._suspects)

    def lost(self, run: EngineRun, error: WorkerLost) -> None:
        """The engine of `run` has died."""
        self._lost.append((run, error))

    def moved(self, run: EngineRun) -> None:
        """The engine of `run` has ended it, as it leaves."""
        if run.generation.lose(run.choice, LEFT, dead=False):
            self._free.append(run)

    def look_into_deaths(self) -> None:
        """Decide about what was lost since the last time."""
        if not self._lost:
            return
        lost, self._lost = self._lost, []
        for blamed in (False, True):
            own = {run.choice: (run, error) for run, error in lost if error.blamed is blamed and run.wanted}
            if own:
                self._decide(own, blamed=blamed)

    def _decide(self, lost: Mapping[Choice, tuple[EngineRun, WorkerLost]], *, blamed: bool) -> None:
        findings = look_into(list(lost), blamed=blamed)
        for choice in findings.poisoned:
            run, error = lost[choice]
            why = f"{run.parent.prefix}{error.how}, for the second time under this request. {REFUSED}"
            if run.wanted:  # else another of its choices was found to kill just now
                self._on_poisoned(run.parent, error.how)
            run.generation.give_up(Poisoned(why))
        for choice in findings.unlucky:
            run, error = lost[choice]
            run.generation.give_up(Unavailable(f"{run.parent.prefix}{error.how}: {UNLUCKY}"))
        for choices, line in ((findings.innocent, self._free), (findings.suspect, self._suspects)):
            for choice in choices:
                run, error = lost[choice]
                if run.wanted and run.generation.lose(choice, error.how):
                    line.append(run)

    @property
    def was_on_trial(self) -> bool:
        """Whether a suspect was on trial when `next` last looked."""
        return self._on_trial is not None

    @property
    def trial(self) -> bool:
        """Whether a suspect is on trial."""
        run = self._on_trial
        return run is not None and run.wanted and not run.ended and run.choice.steps < FIRST_STEPS

    def next(self) -> EngineRun | None:
        """Return what the engine is to have now, and no longer keep it; None if there is nothing to give.

        A suspect is on trial from here on.
        """
        if self.trial:
            return None
        self._on_trial = None
        while self._free:
            lost = self._free.popleft()
            if lost.is_open:
                return lost.generation.take_up(lost.choice)
        while self._suspects:
            lost = self._suspects.popleft()
            if lost.is_open:
                self._on_trial = lost.generation.take_up(lost.choice)
                return self._on_trial
        return None
