"""The JSON documents that describe server, models and repository (contract, http.md sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actors.values.datatypes import DataType
from actors.values.interfaces import IndexEntry, ServerIdentity
from actors.values.specs import ModelSpec
from protocols.kserve.documents import dump, text


def server_metadata(identity: ServerIdentity) -> bytes:
    """Return the body of `GET /v2`."""
    return dump({"name": identity.name, "version": identity.version, "extensions": list(identity.extensions)})


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> bytes:
    """Return the body of a model's metadata, which reports `versions`."""
    return dump(
        {
            "name": spec.name,
            "versions": [str(version) for version in versions],
            "platform": spec.platform,
            "inputs": [
                _tensor(declared.name, declared.datatype, declared.dims, batches=spec.batches)
                for declared in spec.inputs
            ],
            "outputs": [
                _tensor(declared.name, declared.datatype, declared.dims, batches=spec.batches)
                for declared in spec.outputs
            ],
        }
    )


def _tensor(name: str, datatype: DataType, dims: Sequence[int], *, batches: bool) -> dict[str, Any]:
    shape = [-1, *dims] if batches else list(dims)
    return {"name": name, "datatype": datatype.protocol_name, "shape": shape}


def statistics(model_stats: Sequence[Mapping[str, object]]) -> bytes:
    """Return the body of the statistics endpoints."""
    return dump({"model_stats": list(model_stats)})


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """Return the body of the repository index."""
    return dump([_index_entry(entry) for entry in entries])


def _index_entry(entry: IndexEntry) -> dict[str, Any]:
    document: dict[str, Any] = {"name": entry.name}
    if entry.version:
        document["version"] = str(entry.version)
    if entry.state:
        document["state"] = entry.state
    if entry.reason:
        document["reason"] = text(entry.reason)
    if entry.progress is not None:
        document["progress"] = dict(entry.progress)
    return document


def error(message: str) -> bytes:
    """Return the body of any failure."""
    return dump({"error": text(message)})
