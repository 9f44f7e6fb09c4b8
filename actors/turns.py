"""What every scheduler has in common: it takes turns, and so may a caller whose request is alone in the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import trio

from actors.model import ModelState


class TurnTaker(ABC):
    """Does everything there is to do, one turn after the other.

    It holds no request: a new one finds all in the state.
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._bug: Exception | None = None  # of a turn that somebody else took for it

    @abstractmethod
    def turn(self, now: float) -> float:
        """Do everything that can be done at `now`, and return when there is more to do if nobody rings before.

        Begins with `answer_door`.
        """

    def answer_door(self) -> None:
        """What happened until here this turn sees; what happens later rings again.

        Raises the bug of somebody else's turn.
        """
        self.state.answer_door()
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def turn_at_once(self) -> None:
        """Take a turn for a caller who is not the scheduler; what is left for later, or goes wrong, is the scheduler's own."""
        try:
            wake_at = self.turn(trio.current_time())
        except Exception as bug:  # noqa: BLE001  # it is the supervised child's: it fails of that in its next turn
            self._bug, wake_at = bug, -math.inf
        if wake_at < math.inf:
            self.state.ring()
