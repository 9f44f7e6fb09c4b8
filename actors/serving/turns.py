"""The common part of all schedulers: taking turns.

A caller whose request is alone in the model may take one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import trio

from actors.serving.model import ModelState
from actors.serving.policy.retries import SuspectQueue
from actors.serving.policy.waiting_line import WaitingLine
from actors.serving.statistics import FailureReason
from actors.values.errors import ErrorCode, TritiumError
from actors.values.native import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class TurnTaker(ABC):
    """Does all the work that there is, one turn after the other.

    It holds no request: a new one finds all requests in the state.
    """

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._bug: Exception | None = None  # of a turn that a caller took for it

    @abstractmethod
    def turn(self, now: float) -> float:
        """Do all that can be done at `now`, and return when there is more to do if nothing rings before.

        Begins with `answer_door`.
        """

    def answer_door(self) -> None:
        """This turn sees what happened until here; a later change rings again.

        Raises the bug of a turn that a caller took.
        """
        self.state.doorbell.answer()
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def end_overdue(self, waiting: WaitingLine | SuspectQueue, now: float) -> float:
        """Answer the requests whose time is up at `now`; return when the next one's is.

        That is no later than `now` where too many are due for one turn. Then the doorbell has rung, and no
        request may be dispatched in this turn: its own time may be up.
        """
        expiry = waiting.next_expiry()
        if expiry > now:
            return expiry
        for request, error in waiting.expire(now):
            self.state.outcome.fail(request, error, _reason(error))
        expiry = waiting.next_expiry()
        if expiry <= now:
            self.state.doorbell.ring()
        return expiry

    def turn_at_once(self) -> None:
        """Take a turn for a caller that is not the scheduler.

        Any work that is left, and any bug, goes to the scheduler's own next turn.
        """
        try:
            wake_at = self.turn(trio.current_time())
        except Exception as bug:  # noqa: BLE001
            # The bug belongs to the supervised child, which fails with it in its next turn.
            self._bug, wake_at = bug, -math.inf
        if wake_at < math.inf:
            self.state.doorbell.ring()


def _reason(error: TritiumError) -> FailureReason:
    """Return the reason under which a request is counted that ended in a queue with `error`."""
    if error.code is ErrorCode.CANCELLED:
        return FailureReason.CANCELED
    return FailureReason.REJECTED if error.code is ErrorCode.UNAVAILABLE else FailureReason.OTHER
