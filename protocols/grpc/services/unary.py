"""What handlers of unary calls have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from actors.values.errors import Unsupported

if TYPE_CHECKING:
    from protocols.grpc.call import ServerStream

Request = TypeVar("Request")


async def only_request(stream: ServerStream[Request, Any]) -> Request:
    """Return the one request of a unary call; raise Unsupported where there is none (gRPC's status table)."""
    request = await stream.recv_message()
    if request is None:
        raise Unsupported("the call ended before its request message")
    return request
