"""The faults of a run: when each was felt, which models felt it, and what was said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos.record.records import Excuse, Healed, Injected

SETTLING: Final = 2.0
"""Seconds after its healing in which a fault may still be felt, unless one of its excuses says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A fault that was injected.

    `healed` is when its cause was gone. If that was never written down, the cause lasts for ever.
    """

    injected: Injected
    healed: float
    trouble: str

    @property
    def n(self) -> int:
        """Its number in the run."""
        return self.injected.n

    @property
    def t(self) -> float:
        """When it was injected."""
        return self.injected.t

    @property
    def felt_until(self) -> float:
        """When nothing of it should be felt any more."""
        return self.healed + max([SETTLING, *(each.after for each in self.injected.excuses)])

    def window(self, excuse: Excuse) -> tuple[float, float]:
        """Return from when to when an excuse of it holds."""
        return self.t - excuse.before, self.healed + excuse.after

    def told(self, began: float) -> str:
        """Return it in a few words."""
        return f"fault {self.n}, {self.injected.fault}, at {self.t - began:.3f} s: {self.injected.detail}"


def blows(records: Iterable[Injected | Healed]) -> list[Blow]:
    """Pair injections with healings, by number; the result is in the order of time.

    A fault without a healing has trouble, and so has a number that was used twice.
    """
    injected: dict[int, Injected] = {}
    healed: dict[int, Healed] = {}
    twice: set[int] = set()
    for record in records:
        if isinstance(record, Injected):
            if record.n in injected:
                twice.add(record.n)
            injected[record.n] = record
        else:
            healed[record.n] = record
    found = [
        Blow(
            injected=each,
            healed=healed[n].t if n in healed else float("inf"),
            trouble=_trouble(healed.get(n), n in twice),
        )
        for n, each in injected.items()
    ]
    return sorted(found, key=lambda blow: (blow.t, blow.n))


def _trouble(healed: Healed | None, twice: bool) -> str:
    said = [] if not twice else ["its number was used twice"]
    said += ["it was never healed"] if healed is None else [healed.trouble] if healed.trouble else []
    return "; ".join(said)


def by_number(blows: Iterable[Blow]) -> Mapping[int, Blow]:
    """Return the blows by their numbers."""
    return {blow.n: blow for blow in blows}
