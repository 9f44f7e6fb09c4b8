"""The page of gRPC methods, docs/reference/grpc.md, from the services' descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from protocols.grpc.methods import CATEGORIES
from protocols.kserve.proto import grpc_service_pb2, health_pb2, reflection_v1_pb2, reflection_v1alpha_pb2
from tests.house.graph import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "grpc.md"

_ABOUT: Final = {
    "ServerLive": "whether the process serves",
    "ServerReady": "whether every essential model is ready; [readiness.md](../readiness.md)",
    "ModelReady": "whether the version serves",
    "ServerMetadata": "name, version and extensions of the server",
    "ModelMetadata": "versions, inputs and outputs",
    "ModelInfer": "one inference",
    "ModelStreamInfer": "inferences of one stream, with any number of answers; [decoupled.md](../decoupled.md)",
    "ModelConfig": "the completed [configuration](../model_configuration.md)",
    "ModelStatistics": "counts and durations of one model, or of all",
    "RepositoryIndex": "the models that there are, and their state",
    "RepositoryModelLoad": "load a model, or load it again; [serving.md](../serving.md)",
    "RepositoryModelUnload": "unload a model",
    "SystemSharedMemoryStatus": "regions of system memory; [shared_memory.md](../shared_memory.md)",
    "SystemSharedMemoryRegister": "register one",
    "SystemSharedMemoryUnregister": "unregister one, or all",
    "CudaSharedMemoryStatus": "regions of GPU memory; [shared_memory.md](../shared_memory.md)",
    "CudaSharedMemoryRegister": "register one",
    "CudaSharedMemoryUnregister": "unregister one, or all",
    "TraceSetting": "read or change which requests are traced; [tracing.md](../tracing.md)",
    "LogSettings": "read or change what is logged; [logs.md](../logs.md)",
    "Check": "health, as load balancers ask for it",
    "Watch": "the same, told again when it changes",
    "List": "the health of all services; not offered: UNIMPLEMENTED",
    "ServerReflectionInfo": "the services and their messages, for tools such as grpcurl",
}
_SERVICES: Final = (grpc_service_pb2, health_pb2, reflection_v1_pb2, reflection_v1alpha_pb2)

_INTRODUCTION: Final = """\
# gRPC methods

This page is written by `python -m tests.house.reference` from the descriptors of the services. By default
they are on port 8001. [errors.md](errors.md) has the statuses, [http.md](http.md) the same over HTTP.

*Category* is what `--grpc-restricted-protocol` puts behind a key in the metadata; a method without one can't
be restricted so. A rule of an [auth file](../identity.md) allows actions with the same names; to change what
is traced or logged needs `settings`.
"""


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(_table(service) for service in services())


def services() -> Iterator[Any]:
    """Yield the descriptors of the services."""
    for module in _SERVICES:
        yield from module.DESCRIPTOR.services_by_name.values()


def _table(service: Any) -> str:
    rows = "".join(_row(service, method) for method in service.methods)
    head = "| method | | from | to | category |\n|---|---|---|---|---|\n"
    return f"\n## `{service.full_name}`\n\n{head}{rows}"


def _row(service: Any, method: Any) -> str:
    category = CATEGORIES.get(f"/{service.full_name}/{method.name}")
    shown = f"`{category.value}`" if category else "–"
    asked = ("stream of " if method.client_streaming else "") + f"`{method.input_type.name}`"
    told = ("stream of " if method.server_streaming else "") + f"`{method.output_type.name}`"
    return f"| `{method.name}` | {_ABOUT[method.name]} | {asked} | {told} | {shown} |\n"
