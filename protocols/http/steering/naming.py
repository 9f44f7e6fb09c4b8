"""The name of a server in its answers, where another server writes them."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any

from protocols.http.answers import Send
from protocols.kserve.steering import REPLICA


def naming(replica: str, send: Send) -> Send:
    """Return a `send` that adds the server's name to an answer."""
    field = (REPLICA.encode(), replica.encode())

    def sending(message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], field]}
        return send(message)

    return sending
