"""Faults by name.

Each family of faults is a module with `FAULTS`, a sequence; `chaos.flags` says which families a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chaos.faults.base import LONGEST, Fault


def catalogue(*families: Iterable[Fault]) -> Mapping[str, Fault]:
    """Return the faults of these families by name.

    Raises ValueError for a name that two faults have, or a fault that lasts too long.
    """
    faults: dict[str, Fault] = {}
    for fault in (each for family in families for each in family):
        if fault.name in faults:
            raise ValueError(f"two faults are called '{fault.name}'; each needs a name of its own")
        if not 0 <= fault.lasts <= LONGEST:
            raise ValueError(
                f"fault '{fault.name}' lasts {fault.lasts} s; a run has room for 0 to {LONGEST} s each"
            )
        faults[fault.name] = fault
    return faults
