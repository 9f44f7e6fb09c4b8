"""Which RPCs an operator can put behind a secret metadata key (contract, grpc.md section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocols.kserve.categories import Category

INFERENCE_SERVICE: Final = "/inference.GRPCInferenceService/"
KEY_PREFIX: Final = "triton-grpc-protocol-"

_RPCS: Final[Mapping[Category, tuple[str, ...]]] = {
    Category.HEALTH: ("ServerLive", "ServerReady", "ModelReady"),
    Category.METADATA: ("ServerMetadata", "ModelMetadata"),
    Category.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    Category.SHARED_MEMORY: (
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ),
    Category.MODEL_CONFIG: ("ModelConfig",),
    Category.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    Category.STATISTICS: ("ModelStatistics",),
    Category.TRACE: ("TraceSetting",),
    Category.LOGGING: ("LogSettings",),
}

CATEGORIES: Final[Mapping[str, Category]] = {
    "/grpc.health.v1.Health/Check": Category.HEALTH,
    **{INFERENCE_SERVICE + rpc: category for category, rpcs in _RPCS.items() for rpc in rpcs},
}
"""The category of each RPC, by full path. RPCs that are not in it can't be restricted."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The metadata that opens an RPC: a `key`, in lower case as HTTP/2 has it, and its one `value`.

    `refusal` is the message for a call without it, with UNAVAILABLE.
    """

    key: str
    value: str
    refusal: str


def restriction(path: str, restricted: Mapping[Category, tuple[str, str]]) -> Restriction | None:
    """Return the restriction of the RPC at `path`, None where it is open.

    `restricted` holds keys without their prefix.
    """
    category = CATEGORIES.get(path)
    opened_by = None if category is None else restricted.get(category)
    if opened_by is None:
        return None
    key, value = opened_by
    return Restriction(
        (KEY_PREFIX + key).lower(),
        value,
        f"This protocol is restricted, expecting header '{KEY_PREFIX}{key}'",
    )
