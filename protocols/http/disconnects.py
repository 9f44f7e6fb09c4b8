"""How the application learns, while it waits for a model, that its client has left.

A server of ours gives a hook in `scope["extensions"]["tritium.disconnect"]`. Under any other server, a task
waits in `receive()`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

import trio

from actors.values.errors import TritiumError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")


class DisconnectHook(Protocol):
    """What the `tritium.disconnect` extension gives.

    It says whether the client has left, and takes a function to call when the client leaves.
    """

    disconnected: bool
    on_disconnect: Callable[[], None] | None


async def watched(receive: Receive, work: Callable[[DisconnectHook], Awaitable[T]]) -> T:
    """Return the result of `work(hook)`, on a server without a hook. This costs a task."""
    hook = _WatchedHook()
    failure: TritiumError | None = None
    results: list[T] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, receive, hook)
        try:
            results.append(await work(hook))
        except TritiumError as error:
            # Raised outside, so that the nursery does not wrap it in a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame
    return results[0]


class _WatchedHook:
    __slots__ = ("disconnected", "on_disconnect")

    def __init__(self) -> None:
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None


async def _watch(receive: Receive, hook: _WatchedHook) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    hook.disconnected = True
    if hook.on_disconnect is not None:
        hook.on_disconnect()
