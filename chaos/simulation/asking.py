"""Calls of gRPC to a server on a Unix socket, and how the simulation names errors: by the names of `ErrorCode`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from actors.values.errors import ErrorCode
from chaos.wires.frames import DATA, END_STREAM, Calls, frame, message
from chaos.wires.http import Broken
from protocols.status import grpc_status

STATUS: Final = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    422: "POISONED",
    500: "INTERNAL",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""By HTTP status. 400 stands for several codes; the commonest is taken."""

_OF_FLEETS: Final = frozenset((ErrorCode.TAKEN_OVER, ErrorCode.OTHER_REPLICA))
"""Codes that share a number with another one; a server that stands alone answers with none of them."""

_NAMES: Final = {grpc_status(code): code.name for code in ErrorCode if code not in _OF_FLEETS}
_LARGE: Final = 2**30


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """One call, on a connection of its own. `status` is there once `receive` has returned None."""

    _calls: Calls

    @classmethod
    @asynccontextmanager
    async def to(
        cls,
        address: bytes,
        method: str,
        *,
        deadline: float = 0.0,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[GrpcCall]:
        """Begin a call of `method`, which may take `deadline` seconds; 0 is without a limit."""
        limit = {"grpc-timeout": f"{round(deadline * 1000)}m"} if deadline else {}
        async with await Calls.open(address) as calls:
            await calls.begin(window=_LARGE)
            await calls.send(calls.grant(0, _LARGE) + calls.headers(1, method, {**metadata, **limit}))
            yield cls(calls)

    @property
    def status(self) -> tuple[str, str]:
        """The status' name, empty if all is well, and its message."""
        answer = self._calls.so_far(1)
        return _NAMES.get(answer.status, f"gRPC {answer.status}") if answer.status else "", answer.details

    async def send(self, body: bytes, *, last: bool) -> None:
        """Send a message. Raises Broken."""
        await self._calls.send(frame(DATA, END_STREAM if last else 0, 1, message(body)))

    async def receive(self) -> bytes | None:
        """Return the next message, or None if the call has ended. Raises Broken."""
        return await self._calls.receive(1)


async def ask_grpc(
    address: bytes, method: str, body: bytes, *, deadline: float = 0.0
) -> tuple[str, str, bytes]:
    """Make a unary call; return its status' name, empty if all is well, its message, and the answer.

    Raises Broken, OSError.
    """
    async with GrpcCall.to(address, method, deadline=deadline) as call:
        await call.send(body, last=True)
        found: list[bytes] = []
        while (part := await call.receive()) is not None:
            found.append(part)
        if len(found) > 1:
            raise Broken(f"{len(found)} answers to a call that has one")
        return *call.status, b"".join(found)
