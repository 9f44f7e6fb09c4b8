"""Messages that describe server, models and repository, as `protocols.kserve.metadata` has them in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from google.protobuf import json_format

from actors.values.datatypes import DataType
from actors.values.interfaces import IndexEntry, ServerIdentity
from actors.values.specs import ModelSpec
from protocols.kserve.proto import grpc_service_pb2 as pb
from protocols.kserve.proto.model_config_pb2 import ModelConfig


def server_metadata(identity: ServerIdentity) -> pb.ServerMetadataResponse:
    """Return the answer to ServerMetadata."""
    return pb.ServerMetadataResponse(
        name=identity.name, version=identity.version, extensions=identity.extensions
    )


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> pb.ModelMetadataResponse:
    """Return the answer to ModelMetadata, which reports `versions`."""
    return pb.ModelMetadataResponse(
        name=spec.name,
        versions=[str(version) for version in versions],
        platform=spec.platform,
        inputs=[_tensor(spec, each.name, each.datatype, each.dims) for each in spec.inputs],
        outputs=[_tensor(spec, each.name, each.datatype, each.dims) for each in spec.outputs],
    )


def _tensor(
    spec: ModelSpec, name: str, datatype: DataType, dims: Sequence[int]
) -> pb.ModelMetadataResponse.TensorMetadata:
    shape = [-1, *dims] if spec.batches else list(dims)
    return pb.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype.protocol_name, shape=shape)


@lru_cache(maxsize=256)
def model_config(config_json: bytes) -> ModelConfig:
    """Return the message whose JSON form a spec carries. Callers share it and must not change it."""
    return json_format.Parse(config_json, ModelConfig())


def model_statistics(model_stats: Sequence[Mapping[str, object]]) -> pb.ModelStatisticsResponse:
    """Return the answer to ModelStatistics; the fields have the same names as over HTTP."""
    # Messages made of keywords take a tenth of the time that
    # `json_format` takes, so a thousand models are no pause.
    elements: Iterable[Any] = model_stats
    return pb.ModelStatisticsResponse(model_stats=[_model_statistics(**element) for element in elements])


def _model_statistics(*, tritium: object = None, **fields: Any) -> pb.ModelStatistics:
    """Return one element. Values that Triton's message has no field for are told over HTTP only."""
    del tritium
    return pb.ModelStatistics(**fields)


def repository_index(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """Return the answer to RepositoryIndex."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version=str(entry.version) if entry.version else "",
                state=entry.state,
                reason=entry.reason.encode("utf-8", "replace").decode(),
            )
            for entry in entries
        ]
    )
