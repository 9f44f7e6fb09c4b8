"""What is remembered of requests under which workers died or hung. Pure.

A request that killed a worker is *quarantined*: the same inputs are refused for a while. One that ran while a
worker died of an unknown cause is *accused*: its like runs in a batch of its own, and is acquitted when it
has its answer. One that *hung* is quarantined the second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.serving.policy.retries import Fingerprint, Quarantine
from actors.values.requests import InferRequest

QUARANTINE_SECONDS: Final = 600.0

# Fingerprints; a batch that killed its worker has one for each request.
_ACCUSED: Final = 4096


class Blame:
    """The memory of one model version."""

    __slots__ = ("_hung", "accused", "clean", "quarantine")

    def __init__(self) -> None:
        self.clean = True  # no request is quarantined or accused
        self.quarantine = Quarantine(QUARANTINE_SECONDS)
        self.accused = Quarantine(QUARANTINE_SECONDS, capacity=_ACCUSED)  # requests that ran as a worker died
        self._hung = Quarantine(QUARANTINE_SECONDS)  # requests that hung once, perhaps by bad luck

    def look(self) -> None:
        """Forget what was long ago, so that `clean` is right again."""
        self.clean = not (self.quarantine or self.accused)

    def known(
        self, marks: Mapping[InferRequest, Fingerprint], now: float
    ) -> Mapping[InferRequest, Fingerprint]:
        """Return those of `marks` under which a worker has died before."""
        return {request: mark for request, mark in marks.items() if self.accused.holds(mark, now)}

    def recognise(self, request: InferRequest, now: float) -> None:
        """If `request` is accused, have it run in a batch of its own.

        So it harms no other request, and if the worker dies again, the culprit is known for certain.
        """
        request.accused = self.accused.find(request, now)
        if request.accused is not None:
            request.batch_key = object()

    def acquit(self, request: InferRequest) -> None:
        """The accused `request` has its answer, and its worker lives."""
        if isinstance(request.accused, Fingerprint):
            self.accused.discard(request.accused)
            request.accused = None

    def accuse(self, request: InferRequest, now: float, mark: Fingerprint) -> None:
        """Have requests like `request` run alone."""
        self.accused.add(request, now, mark)
        self.clean = False

    def convict(self, request: InferRequest, now: float, mark: Fingerprint | None) -> None:
        """Quarantine `request`."""
        self.quarantine.add(request, now, mark)
        self.clean = False

    def hung(self, request: InferRequest, now: float, mark: Fingerprint | None) -> bool:
        """Remember a request that hung; return whether it is quarantined for that.

        A request is not run again after a hang, so a second hang comes from a request with the same inputs.
        """
        if not self._hung.match(request, now):
            self._hung.add(request, now, mark)
            return False
        self.convict(request, now, mark)
        return True
