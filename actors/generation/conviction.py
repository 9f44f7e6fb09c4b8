"""What follows for others where a request to a language model is known to kill engines."""

from __future__ import annotations

import trio

from actors.serving.model import ModelState
from actors.serving.policy.blame import QUARANTINE_SECONDS
from actors.serving.records import named
from actors.values.events import Event, Log
from actors.values.requests import InferRequest


class Conviction:
    """Refuses what is like a poisonous request, for a while, on behalf of one version."""

    def __init__(self, state: ModelState, log: Log | None) -> None:
        self._state = state
        self._log = log

    def convict(self, request: InferRequest, how: str) -> None:
        """Two engines have died of a client's request, the last one as `how` says."""
        state = self._state
        state.statistics.quarantined += 1
        state.blame.convict(request, trio.current_time(), None)
        if self._log is not None:
            self._log(
                Event.REQUEST_QUARANTINED,
                level="warning",
                model=state.spec.name,
                version=state.spec.version,
                requests=named([request]),
                reason=how,
                seconds=QUARANTINE_SECONDS,
            )

    def refused(self, request: InferRequest) -> bool:
        """Whether a queued request is like one that was convicted meanwhile; if so, it is answered."""
        return not self._state.blame.clean and self._state.intake.refused(request)
