"""What a caller may see of lists, and bring along with a load. Without a caller: everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from actors.values.callers import Action, Caller
from actors.values.interfaces import IndexEntry

UPLOAD: Final = "file:"
"""What the name of a load's parameter begins with that brings a file (contract, http.md section 4)."""


def visible_entries(caller: Caller | None, entries: Sequence[IndexEntry]) -> Sequence[IndexEntry]:
    """Return the lines of the repository index that `caller` may see."""
    if caller is None:
        return entries
    return [each for each in entries if caller.may(Action.MODEL_REPOSITORY, each.name, each.namespace)]


def visible_statistics(
    caller: Caller | None, statistics: Sequence[Mapping[str, object]]
) -> Sequence[Mapping[str, object]]:
    """Return the elements of the statistics that `caller` may see."""
    if caller is None:
        return statistics
    return [each for each in statistics if caller.may(Action.STATISTICS, str(each["name"]))]


def check_upload(caller: Caller | None, model: str, parameters: Iterable[str]) -> None:
    """Raise PermissionDenied if a load's `parameters` bring files, and `caller` may bring none."""
    if caller is not None and any(name.startswith(UPLOAD) for name in parameters):
        caller.require(Action.UPLOAD, model)
