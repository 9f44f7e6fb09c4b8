"""The methods that a listener serves, by path, and the meaning of a request's header block to them.

The table is built once from grpclib's generated bases. A header block is read once for all calls that repeat
it. An operator can put RPCs behind a secret metadata key (contract, grpc.md section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from grpclib.const import Handler, Status

from protocols.grpc.call import Method
from protocols.grpc.codec.request_head import CallHead, Refusal, read_head
from protocols.grpc.options import GrpcOptions
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


class Service(Protocol):
    """What grpclib's generated bases give.

    `unary_methods`, by path, is optional and wins over the mapping.
    """

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return handlers by path."""


def method_table(services: Iterable[Service]) -> dict[str, Method]:
    """Return the methods of `services` by path. Raises ValueError where two claim the same."""
    table: dict[str, Method] = {}
    for service in services:
        unary_methods: Mapping[str, Any] = getattr(service, "unary_methods", {})
        for path, handler in service.__mapping__().items():
            if path in table:
                raise ValueError(f"two services claim {path}")
            infer = CATEGORIES.get(path) is Category.INFERENCE
            table[path] = Method(infer=infer, unary=unary_methods.get(path), handler=handler)
    return table


class HeadReader:
    """Says what a request's header list means to these services."""

    def __init__(self, services: Iterable[Service], options: GrpcOptions) -> None:
        self._methods = method_table(services)
        self._restrictions = {path: restriction(path, options.restricted) for path in self._methods}
        self._compresses = options.compression != "none"

    def read(self, fields: Sequence[tuple[bytes, bytes]]) -> CallHead[Method]:
        """Return the head of a call.

        It has the refusal of a restricted method, and no coding that is not wanted.
        """
        head = read_head(fields, self._methods)
        method = head.method
        if head.answer_coding and not (self._compresses and method is not None and method.infer):
            head = replace(head, answer_coding=b"")
        restricted = self._restrictions.get(head.path)
        if restricted is None or head.refusal is not None:
            return head
        if head.metadata.get(restricted.key) == restricted.value:
            return head
        return replace(head, refusal=Refusal(Status.UNAVAILABLE, restricted.refusal))
