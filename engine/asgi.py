"""The ASGI application: `hypercorn engine.asgi`, on asyncio, or with `-k trio`.

Configuration comes from `TRITIUM_*` variables, one for each flag of `tritium serve`. The lifespan starts the
tree, with its gRPC and metrics ports, and drains it at the end. HTTP connections belong to the ASGI server.
See `engine.server.hosting`.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # hypercorn's default worker is asyncio; this module and no other meets it
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping

import sniffio

import engine.core.chosen  # noqa: F401  # before anything that it chooses
from engine.core.ending import end, under_hypercorn
from engine.server.hosting import ONE_PROCESS, HostedTree, Message, OwnLoop, SameLoop, StartupFailed
from protocols.http.admission import (
    DISCARD_PAUSE,
    DISCARD_TIME,
    MOST_DISCARDED,
    SMALL_BODY,
    Admission,
)
from protocols.http.answers import Answer

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Application:
    """Serves the models that the environment names, under any ASGI server on trio or asyncio."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._host: SameLoop | _OnAsyncio | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one lifespan or one HTTP request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            if self._host is None:
                raise RuntimeError("Tritium needs the ASGI lifespan: start the server with it switched on")
            await self._host.handle(scope, receive, send)
        else:
            await receive()
            await send({"type": f"{scope['type']}.close"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        tree = HostedTree(self._environ)
        host = SameLoop(tree) if sniffio.current_async_library() == "trio" else _OnAsyncio(tree)
        try:
            await host.start()
        except StartupFailed as error:
            if under_hypercorn():
                end(str(error), alone=str(error) != ONE_PROCESS)
            sys.stderr.write(f"error: {error}\n")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._host = host
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await host.stop()
        await send({"type": "lifespan.shutdown.complete"})
        tree.end_process()


class _OnAsyncio:
    """The tree lives on a thread of its own, and requests cross over."""

    def __init__(self, tree: HostedTree) -> None:
        self._own = OwnLoop(tree)
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Start the tree; returns when it stands. Raises StartupFailed."""
        loop = asyncio.get_running_loop()
        standing: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if standing.done():
                return
            if error is None:
                standing.set_result(None)
            else:
                standing.set_exception(error)

        self._own.start(
            lambda error: _tell(loop, settle, error),
            lambda: _tell(loop, self._ended.set),
        )
        await standing

    async def stop(self) -> None:
        """Drain and end the tree."""
        self._own.stop()
        await self._ended.wait()

    async def handle(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; a client that leaves has its inference cancelled."""
        body = await self._body(scope, receive)
        if body is None:
            return
        if isinstance(body, Answer):
            await _refuse(body, receive, send)
            return
        loop = asyncio.get_running_loop()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        crossing = self._own.exchange(scope, body, lambda message: _tell(loop, messages.put_nowait, message))
        # After the body there is nothing left to receive but the disconnect.
        gone = asyncio.ensure_future(_disconnect(receive))
        gone.add_done_callback(lambda found: None if found.cancelled() else crossing.leave())
        try:
            while (message := await messages.get()) is not None:
                await send(message)
                if message.get("more_body", False):
                    crossing.taken()
        except BaseException:
            crossing.leave()
            raise
        finally:
            gone.cancel()

    async def _body(self, scope: Message, receive: Receive) -> bytes | Answer | None:
        """Return the body, the refusal of one that may not come, or None if the client left too early."""
        parts: list[bytes] = []
        size = 0
        verdict: Admission | None = None
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > SMALL_BODY:
                if verdict is None:
                    verdict = await self._admitted(scope)
                if isinstance(verdict, Answer):
                    return verdict
                if size > verdict.most:
                    return verdict.too_long(size)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _admitted(self, scope: Message) -> Admission:
        """Ask the application, on its own thread, whether a long body may come."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Admission] = loop.create_future()

        def settle(verdict: Admission) -> None:
            if not answer.done():
                answer.set_result(verdict)

        self._own.admit(scope, lambda verdict: _tell(loop, settle, verdict))
        return await answer


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call `function` on `loop` from the tree's thread, unless the server closed its loop without waiting."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


async def _refuse(answer: Answer, receive: Receive, send: Send) -> None:
    """Answer a request whose body is still coming, and drop that; see `protocols.http.admission`."""
    body = b"".join(answer.buffers)
    headers = [*answer.headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    # A server that is told that the answer is over would close the connection on what still comes.
    await send({"type": "http.response.body", "body": body, "more_body": True})
    dropped = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_TIME):
            while dropped < MOST_DISCARDED:
                async with asyncio.timeout(DISCARD_PAUSE):
                    message = await receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


app = Application(os.environ)
