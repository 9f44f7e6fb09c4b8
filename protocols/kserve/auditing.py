"""What an audit log is told of the repository and traffic calls, over HTTP and gRPC alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.values.auditing import DENIALS, Auditor, ManagedChange, Requester
from actors.values.callers import Action, Caller, Peer
from actors.values.errors import TritiumError
from protocols.kserve.apart import MANAGEMENT

LOAD = "model_load"
UNLOAD = "model_unload"
TRAFFIC = "traffic"
FLEET = "fleet"
TREE = "tree"
STREAM = "events"
LOGGING = "logging"
TRACE = "trace"
"""Actions, as the values of `protocols.http.routes.Endpoint` that ask for them."""

_BY_RPC = {call.rpc: call.endpoint for call in MANAGEMENT if call.rpc}
_ENDPOINTS = frozenset(call.endpoint for call in MANAGEMENT)


def load_change(model: str, parameters: Mapping[str, Any]) -> ManagedChange:
    """Return the load of `model` with `parameters`: `config` as text, `file:<path>` as bytes."""
    return ManagedChange(action=LOAD, model=model, files=parameters)


def unload_change(model: str, *, dependents: bool) -> ManagedChange:
    """Return the unload of `model`, perhaps with the models that only it is composed of."""
    return ManagedChange(action=UNLOAD, model=model, facts={"unload_dependents": True} if dependents else {})


def adapter_load_change(model: str, name: str, path: str, *, in_place: bool) -> ManagedChange:
    """Return the load of a LoRA adapter of `model`."""
    facts: dict[str, object] = {"adapter": name, "path": path}
    return ManagedChange(action=LOAD, model=model, facts={**facts, "in_place": True} if in_place else facts)


def adapter_unload_change(model: str, name: str) -> ManagedChange:
    """Return the unload of a LoRA adapter of `model`."""
    return ManagedChange(action=UNLOAD, model=model, facts={"adapter": name})


def traffic_change(model: str, plan: Mapping[str, object]) -> ManagedChange:
    """Return the change of how requests for `model` are shared out."""
    return ManagedChange(action=TRAFFIC, model=model, facts={"plan": plan})


def register_change(epoch: int, sequence: int | None, document: bytes | None) -> ManagedChange:
    """Return the change of the register: a document of a controller, or its epoch alone."""
    if document is None:
        return ManagedChange(action=FLEET, facts={"epoch": epoch})
    facts: dict[str, object] = {"epoch": epoch, "sequence": sequence}
    return ManagedChange(action=FLEET, facts=facts, files={"document": document})


def log_change(settings: Mapping[str, object]) -> ManagedChange:
    """Return the change of what is logged."""
    return ManagedChange(action=LOGGING, facts={"settings": settings})


def trace_change(model: str, settings: Mapping[str, object]) -> ManagedChange:
    """Return the change of the trace setting of `model`; of all models for the empty name."""
    return ManagedChange(action=TRACE, model=model, facts={"settings": settings})


def attempt(name: str, action: Action) -> str:
    """Return what a denial calls a request to an endpoint or RPC: the change it asks for, or `action`."""
    name = _BY_RPC.get(name, name)
    return name if name in _ENDPOINTS else action.value


def tell_denied(
    auditor: Auditor,
    action: str,
    model: str,
    caller: Caller | None,
    peer: Peer,
    error: TritiumError,
) -> None:
    """Record `error` if it denies something to a client."""
    if isinstance(error, DENIALS):
        auditor.denied(action, model, Requester.of(caller, peer), error)
