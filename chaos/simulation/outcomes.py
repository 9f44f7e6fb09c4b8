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
    texts: dict[int, str] = field(default_factory=dict)  # of a language model, by choice
    finishes: dict[int, str] = field(default_factory=dict)  # and why each has ended
    attempts: int = 1  # engines that a choice has taken, one after the other
    late: bool = False  # it was ended by its deadline, with what there was
    twice: int = 0  # pieces behind the end of a choice
    version: int = 0
    finals: int = 0  # final parts that came: one is right
    parts_after_final: int = 0

    def take(self, choice: int, text: str, finish: str, *, reason: str, attempts: int) -> None:
        """Add a piece of what a language model says."""
        self.attempts = max(self.attempts, attempts)
        self.twice += choice in self.finishes
        self.texts[choice] = self.texts.get(choice, "") + text
        if finish:
            self.finishes[choice] = finish
            self.late = self.late or reason == "deadline"

    @property
    def ok(self) -> bool:
        """Whether it was answered well."""
        return self.code == ANSWERED

    def __str__(self) -> str:
        what: object = self.values if self.ok and len(self.values) < 12 else f"{len(self.values)} values"
        if self.request.told is not None:
            what = f"{self.code} {self.message} {self.finishes} {self.texts}"
            return f"{self.request.id} by {self.request.wire}, {self.request.told}: {what}"
        told = f" version {self.version}: {what}" if self.ok else f": {self.message}"
        return f"{self.request.id} to {self.request.model} by {self.request.wire}: {self.code}{told}"


Outcomes = Sequence[Outcome]
