"""What a caller may see of lists, and bring along with a load. Without a caller: everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from actors.values.auditing import Auditor
from actors.values.callers import Action, Caller, Peer
from actors.values.errors import PermissionDenied, TritiumError
from actors.values.interfaces import DeepReport, IndexEntry, PermitIn, anywhere
from protocols.kserve.auditing import tell_denied

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


def visible_report(caller: Caller | None, report: DeepReport) -> Mapping[str, object]:
    """Return what `caller` may see of a deep probe. Its parts name models, and why they are not ready."""
    if caller is None or caller.may_all(Action.METADATA):
        return report.document
    return {name: value for name, value in report.document.items() if name != "parts"}


def check_sees_all(caller: Caller | None) -> None:
    """Raise PermissionDenied unless `caller` may see every model, as the supervision tree shows them."""
    if caller is not None and not caller.may_all(Action.STATISTICS):
        raise PermissionDenied(
            f"the tree shows all models, and '{caller.name}' may use '{Action.STATISTICS.value}' on some only"
        )


def permit_in(caller: Caller | None, model: str, parameters: Iterable[str] = ()) -> PermitIn:
    """Return what judges a load or an unload by the repository in which `model` is found."""
    if caller is None:
        return anywhere
    uploads = _brings_files(parameters)

    def permit(repository: str) -> None:
        caller.require(Action.MODEL_REPOSITORY, model, repository)
        if uploads:
            caller.require(Action.UPLOAD, model, repository)

    return permit


def check_upload(
    caller: Caller | None,
    model: str,
    parameters: Iterable[str],
    peer: Peer | None = None,
    auditor: Auditor | None = None,
) -> None:
    """Raise PermissionDenied if a load's `parameters` bring files, and `caller` at `peer` may bring none."""
    if caller is None or not _brings_files(parameters):
        return
    try:
        caller.require(Action.UPLOAD, model)
    except TritiumError as error:
        if auditor is not None:
            tell_denied(auditor, Action.UPLOAD.value, model, caller, peer or Peer(), error)
        raise


def _brings_files(parameters: Iterable[str]) -> bool:
    return any(name.startswith(UPLOAD) for name in parameters)
