"""Which controller may change a fleet: the one with the highest epoch, while more than half know of it.

An epoch is a number that a controller has most replicas keep before it changes anything, and sends with every
change; a replica refuses a change with a lower one than it knows (a *fencing token*: Kleppmann, *Designing
Data-Intensive Applications*, 2017, chapter 8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

_OWN: Final = 1 << 16  # of two controllers that claim at once, one has the larger number


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """What a replica keeps for the fleet.

    `epoch` is the highest that it knows. `document` is that of the books, written with `sequence` by the
    controller of the epoch `written`; None where nothing is kept.
    """

    epoch: int = 0
    written: int = 0
    sequence: int = 0
    document: Any = None

    @property
    def age(self) -> tuple[int, int]:
        """What orders the books that are kept; the highest are the latest."""
        return self.written, self.sequence


def next_epoch(registers: Iterable[Register], chance: int) -> int:
    """Return an epoch above all, that no other controller takes for one of the same `chance`, 0 to 65535."""
    highest = max((each.epoch for each in registers), default=0)
    return (highest // _OWN + 1) * _OWN + chance % _OWN


def latest(registers: Iterable[Register]) -> Register:
    """Return the register with the books that were written last; an empty one of none."""
    return max(registers, key=lambda each: each.age, default=Register())


def enough(there: Collection[str], known: Collection[str]) -> bool:
    """Whether `there` are more than half of `known`, or half of them with the first by name."""
    twice = 2 * len(set(there) & set(known))
    return bool(known) and (twice > len(known) or (twice == len(known) and min(known) in there))


class Rival:
    """Whether another controller is at work, by what it writes. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._age: tuple[int, int] | None = None
        self._since = 0.0

    def works(self, register: Register, owner: str, me: str, patience: float, now: float) -> bool:
        """Return whether to stand by: another one has written within the time that it has for it."""
        if register.age != self._age:
            self._age, self._since = register.age, now
        return owner not in ("", me) and now - self._since < patience
