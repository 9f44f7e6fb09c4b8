"""The methods that a listener serves, by path, and the meaning of a request's header block to them.

The table is built once from grpclib's generated bases. A header block
is read once for all calls that repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from grpclib.const import Handler, Status

from protocols.grpc.codec.head import CallHead, Refusal, read_head
from protocols.grpc.options import GrpcOptions
from protocols.grpc.restrictions import CATEGORIES, Restriction, restriction
from protocols.kserve.categories import Category

if TYPE_CHECKING:
    from protocols.grpc.call import UnaryMethod


class Service(Protocol):
    """What grpclib's generated bases give.

    `unary_methods`, by path, is optional and wins over the mapping.
    """

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return handlers by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One RPC: answered by `unary` without a task, or by `handler` in one of its own."""

    path: str
    infer: bool
    restriction: Restriction | None
    unary: UnaryMethod | None
    handler: Handler


def method_table(
    services: Iterable[Service], restricted: Mapping[Category, tuple[str, str]]
) -> dict[str, Method]:
    """Return the methods of `services` by path. Raises ValueError where two claim the same."""
    table: dict[str, Method] = {}
    for service in services:
        unary_methods: Mapping[str, Any] = getattr(service, "unary_methods", {})
        for path, handler in service.__mapping__().items():
            if path in table:
                raise ValueError(f"two services claim {path}")
            table[path] = Method(
                path=path,
                infer=CATEGORIES.get(path) is Category.INFERENCE,
                restriction=restriction(path, restricted),
                unary=unary_methods.get(path),
                handler=handler,
            )
    return table


class Router:
    """Says what a request's header list means to these services."""

    def __init__(self, services: Iterable[Service], options: GrpcOptions) -> None:
        self._methods = method_table(services, options.restricted)
        self._compresses = options.compression != "none"

    def head(self, fields: Sequence[tuple[bytes, bytes]]) -> CallHead[Method]:
        """Return the head of a call.

        It has the refusal of a restricted method, and no coding that is not wanted.
        """
        head = read_head(fields, self._methods)
        method = head.method
        if head.answer_coding and not (self._compresses and method is not None and method.infer):
            head = replace(head, answer_coding=b"")
        if method is None or method.restriction is None or head.refusal is not None:
            return head
        if head.metadata.get(method.restriction.key) == method.restriction.value:
            return head
        return replace(head, refusal=Refusal(Status.UNAVAILABLE, method.restriction.refusal))
