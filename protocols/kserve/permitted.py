"""What a caller may see of lists, and bring along with a load. Without a caller: everything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from actors.values.auditing import Auditor
from actors.values.callers import Action, Caller, Peer
from actors.values.errors import InvalidArgument, PermissionDenied, TritiumError
from actors.values.interfaces import DeepReport, IndexEntry, PermitIn, Regions, anywhere
from actors.values.regions import RegionPlaces
from actors.values.requests import InferRequest
from protocols.kserve.auditing import tell_denied

LONGEST_CONFIG: Final = 512 * 1024
"""Characters of a configuration that is searched for models. The interpreter is held while it is parsed."""

UPLOAD: Final = "file:"
"""What the name of a load's parameter begins with that brings a file (contract, http.md section 4)."""

_STEP_MODEL: Final = (
    "model_name",
    "modelName",
)  # in both spellings of JSON for protobuf; no other message has it


_AGENTS: Final = ("model_repository_agents", "modelRepositoryAgents")


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


def check_sees_all(caller: Caller | None, shown: str = "the tree shows all models") -> None:
    """Raise PermissionDenied unless `caller` may see every model, as `shown` says."""
    if caller is not None and not caller.may_all(Action.STATISTICS):
        raise PermissionDenied(
            f"{shown}, and '{caller.name}' may use '{Action.STATISTICS.value}' on some only"
        )


def check_traces(caller: Caller | None, model: str) -> None:
    """Raise unless `caller` may change the trace setting of `model`; of all models for the empty name."""
    if caller is None:
        return
    caller.require(Action.SETTINGS, model)
    if not model and not caller.may_all(Action.SETTINGS):
        raise PermissionDenied(
            f"this changes the traces of all models, and '{caller.name}' may use '{Action.SETTINGS.value}' on"
            " some only; name a model"
        )


def permit_in(caller: Caller | None, parameters: Iterable[str] = ()) -> PermitIn:
    """Return what judges a load or an unload by each model that it changes, where that is found."""
    if caller is None:
        return anywhere
    uploads = _brings_files(parameters)

    def permit(model: str, repository: str) -> None:
        caller.require(Action.MODEL_REPOSITORY, model, repository)
        if uploads:
            caller.require(Action.UPLOAD, model, repository)

    return permit


class Named(NamedTuple):
    """What a load's configuration names: models as steps of an ensemble, and whether repository agents."""

    models: frozenset[str] = frozenset()
    agents: bool = False


def named_in(config: object) -> Named:
    """Return what a load's `config`, a ModelConfig in JSON, names.

    What can't be read names nothing: the load refuses it. Raises InvalidArgument for a text that is longer
    than `LONGEST_CONFIG`.
    """
    if not isinstance(config, str):
        return Named()
    if len(config) > LONGEST_CONFIG:
        raise InvalidArgument(
            f"'config' has {len(config)} characters, and may have {LONGEST_CONFIG} at most where rules say"
            " which models a caller may ask: put the rest into the model's config.pbtxt"
        )
    names: set[str] = set()
    agents = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal agents
        names.update(value for key, value in pairs if key in _STEP_MODEL and isinstance(value, str))
        agents = agents or any(key in _AGENTS for key, _ in pairs)

    try:
        json.loads(config, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return Named()
    return Named(frozenset(names), agents)


def check_config(
    caller: Caller, model: str, named: Named, peer: Peer | None = None, auditor: Auditor | None = None
) -> None:
    """Raise PermissionDenied if `caller` may not bring the configuration of `model` that names these.

    It may itself ask the models that its ensemble would ask. Agents are code of the operator's, which does to
    the model's files what their parameters say: they may fetch some, so that is an upload.
    """
    for each in named.models:
        _require(caller, Action.INFERENCE, each, peer, auditor)
    if named.agents:
        _require(caller, Action.UPLOAD, model, peer, auditor)


def check_upload(
    caller: Caller | None,
    model: str,
    parameters: Iterable[str],
    peer: Peer | None = None,
    auditor: Auditor | None = None,
) -> None:
    """Raise PermissionDenied if a load's `parameters` bring files, and `caller` at `peer` may bring none."""
    if caller is not None and _brings_files(parameters):
        _require(caller, Action.UPLOAD, model, peer, auditor)


def attach(regions: Regions, request: InferRequest, places: RegionPlaces, caller: Caller | None) -> None:
    """Have `request`, which `caller` makes, hold the regions that it names.

    Raises what `Regions.attach` raises, and before that as `Caller.require`: who may not use shared memory is
    not told which regions there are. The audit log is not told yet: see `tell_regions_denied`.
    """
    if caller is not None:
        caller.require(Action.SHARED_MEMORY)
    regions.attach(request, places)


def tell_regions_denied(
    error: TritiumError, caller: Caller | None, peer: Peer, auditor: Auditor | None
) -> None:
    """Tell the audit log that decoding a request has ended in `error`, if `attach` denied something."""
    if auditor is not None:
        tell_denied(auditor, Action.SHARED_MEMORY.value, "", caller, peer, error)


def _require(caller: Caller, action: Action, model: str, peer: Peer | None, auditor: Auditor | None) -> None:
    """Raise PermissionDenied if `caller` may not do this, and tell the audit log."""
    try:
        caller.require(action, model)
    except TritiumError as error:
        if auditor is not None:
            tell_denied(auditor, action.value, model, caller, peer or Peer(), error)
        raise


def _brings_files(parameters: Iterable[str]) -> bool:
    return any(name.startswith(UPLOAD) for name in parameters)
