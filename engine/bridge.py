"""Carries ASGI calls from an asyncio server to the engine's trio loop, which runs on a thread of its own.

A call crosses twice: its whole body over, its whole answer back. What the asyncio side needs to know of trio is one
token; what the trio side needs to know of asyncio is one function that may be called from any thread.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # half of this module lives on the asyncio loop of whoever serves the application
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import trio

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]

MAX_BODY_SIZE: Final = 2**31 - 1  # the largest length that Triton's frontend can express


class BridgedCall:
    """One request on the trio side. It is its own `tritium.disconnect` hook."""

    def __init__(
        self, scope: Message, body: bytes, finish: Callable[[Answer | Exception | None], None]
    ) -> None:
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        self._scope = scope
        self._body = body
        self._finish = finish
        self._answer: Answer | None = None

    def left(self) -> None:
        """The client left, or its server gave up on it."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    async def run(self, app: Application) -> None:
        """Have `app` answer and send the answer, or the exception, back."""
        extensions = {"tritium.response": {}, "tritium.disconnect": self}
        try:
            await app({**self._scope, "extensions": extensions}, self._receive, self._send)
        except Exception as error:  # noqa: BLE001  # goes to the server that called, which logs it and answers 500
            self._finish(error)
        else:
            self._finish(self._answer)

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: Message) -> None:
        self._answer = (message["status"], message["headers"], b"".join(message["body"]))
        if message["release"] is not None:
            message["release"]()


class Bridge:
    """An ASGI application for asyncio that is answered by `begin` on the trio loop that `token` stands for."""

    def __init__(self, token: trio.lowlevel.TrioToken, begin: Callable[[BridgedCall], None]) -> None:
        self._token = token
        self._begin = begin

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; nothing is sent to a client that left."""
        body = await _read_body(receive)
        if body is None:
            return
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer | None] = loop.create_future()

        def finish(outcome: Answer | Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, outcome)

        call = BridgedCall(scope, body, finish)
        try:
            self._token.run_sync_soon(self._begin, call)
        except trio.RunFinishedError:
            await _send_answer(send, (503, [], b'{"error":"Server exiting"}'))
            return
        watcher = loop.create_task(self._watch(receive, call))
        try:
            got = await answer
        except asyncio.CancelledError:
            self._leave(call)
            raise
        finally:
            watcher.cancel()
        if got is not None:
            await _send_answer(send, got)

    async def _watch(self, receive: Receive, call: BridgedCall) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._leave(call)

    def _leave(self, call: BridgedCall) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call.left)


async def _read_body(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_SIZE:
            raise ValueError(f"request body exceeds the maximum allowed size of {MAX_BODY_SIZE} bytes")
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send_answer(send: Send, answer: Answer) -> None:
    status, headers, body = answer
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _settle(future: asyncio.Future[Answer | None], outcome: Answer | Exception | None) -> None:
    if future.done():
        return  # its waiter was cancelled
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class TrioThread:
    """Runs one async function on a trio loop in a thread that ends with the process."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._run = run
        self._thread = threading.Thread(target=self._main, name="tritium-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:  # noqa: BLE001  # the thread's end is somebody else's news
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def wait_ended(self) -> None:
        """Wait, on asyncio, until the function has returned; raise what it raised."""
        await asyncio.shield(asyncio.wrap_future(self._ended))


async def wait_for(future: concurrent.futures.Future[str]) -> str:
    """Return, on asyncio, what another thread set."""
    return await asyncio.wrap_future(future)
