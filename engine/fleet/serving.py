"""What the controller tells over HTTP: `/metrics` for Prometheus, `/v2/tritium/fleet/status` as JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from engine.fleet.picture import Picture
from engine.fleet.showing import document, exposition

_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = b"application/json"

Message = MutableMapping[str, Any]


class Window:
    """An ASGI application that shows what a controller sees."""

    def __init__(self, picture: Callable[[], Picture]) -> None:
        self._picture = picture

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            # A server that is told nothing here takes it for a failure.
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        if scope["type"] != "http":
            return
        status, kind, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _JSON, b'{"error":"it is asked with GET"}'
        match path:
            case "/metrics":
                return 200, _TEXT, exposition(self._picture()).encode()
            case "/v2/tritium/fleet/status":
                return 200, _JSON, json.dumps(document(self._picture())).encode()
            case "/v2/health/live" | "/v2/health/ready":
                return 200, _JSON, b""
            case _:
                return 404, _JSON, b'{"error":"there are /metrics and /v2/tritium/fleet/status"}'


async def show(window: Window, address: str, *, ended: trio.Event) -> None:
    """Serve at HOST:PORT until `ended`. Raises OSError where that can't be."""
    config = Config()
    config.bind = [address]
    config.accesslog = config.errorlog = None
    config.graceful_timeout = 0.5
    await serve(window, config, shutdown_trigger=ended.wait)
