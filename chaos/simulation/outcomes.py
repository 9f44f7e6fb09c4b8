"""What came of a request, as its client saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.simulation.plan import Request

ANSWERED = "OK"
GONE = "GONE"  # the client left before there was an answer
LOST = "LOST"  # the connection ended without one


@dataclass(slots=True)
class Outcome:
    """One request and what became of it.

    `code` is `ANSWERED`, `GONE`, `LOST`, or an error's code by its name.
    """

    request: Request
    began: float
    ended: float = 0.0
    code: str = ""
    message: str = ""
    values: list[int] = field(default_factory=list)
    version: int = 0
    finals: int = 0  # final parts that came: one is right
    parts_after_final: int = 0

    @property
    def ok(self) -> bool:
        """Whether it was answered well."""
        return self.code == ANSWERED

    def __str__(self) -> str:
        what = self.values if self.ok and len(self.values) < 12 else f"{len(self.values)} values"
        told = f" version {self.version}: {what}" if self.ok else f": {self.message}"
        return f"{self.request.id} to {self.request.model} by {self.request.wire}: {self.code}{told}"


Outcomes = Sequence[Outcome]
