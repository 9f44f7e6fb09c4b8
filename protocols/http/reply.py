"""The HTTP frontend's reply ports. In one of them a task waits, and learns that its client left.

A server of ours gives a hook for that in `scope["extensions"]["tritium.disconnect"]`. Under any other server,
a task waits in `receive()`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

import trio

from actors.values.callers import Caller
from actors.values.errors import Internal, TritiumError
from actors.values.requests import InferRequest, InferResponse, ReplyPort, release


class SingleReply(ReplyPort):
    """Takes the answer to one request, and says once that it is here.

    HTTP wants exactly one response. Anything else is an error to the client. A part that came too late,
    beyond the first, or after the client left is released on the spot.
    """

    __slots__ = ("_closed", "_count", "_outcome")

    def __init__(self) -> None:
        self._outcome: InferResponse | TritiumError | None = None
        self._count = 0
        self._closed = False  # the final part came, or the client left

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """Take one part. Synchronous, never raises."""
        if self._closed:
            release(part)
            return
        self._count += 1
        if self._outcome is None:
            self._outcome = part
        else:
            release(part)
        if final:
            self._closed = True
            self._finish()

    def close(self) -> None:
        """The client left: release the parts that came and those that still come, and say so."""
        if self._outcome is not None:
            release(self._outcome)
        self._outcome = None
        if not self._closed:
            self._closed = True
            self._finish()

    @abstractmethod
    def _finish(self) -> None:
        """The final part came, or the client left. Must not raise."""

    def _answer(self) -> InferResponse | TritiumError | None:
        """Return the answer, once it is here; None where the client left first."""
        if self._count > 1 and self._outcome is not None:
            release(self._outcome)
            return Internal(f"expected a single response, got {self._count}")
        return self._outcome


class HttpReply(SingleReply):
    """Wakes the one task that waits for the answer."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        super().__init__()
        self._task: trio.lowlevel.Task | None = None

    def _finish(self) -> None:
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> InferResponse | TritiumError | None:
        """Return the answer once its final part has come; None where the client left first."""
        if not self._closed:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        return self._answer()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")


class DisconnectHook(Protocol):
    """What the `tritium.disconnect` extension gives.

    It says whether the client has left, and takes a function to call when the client leaves.
    """

    disconnected: bool
    on_disconnect: Callable[[], None] | None


async def carried_out(
    work: Callable[[DisconnectHook], Awaitable[T]],
    request: InferRequest,
    scope: MutableMapping[str, Any],
    receive: Receive,
) -> None:
    """Do the work of `request`, which is told when the client goes, and count it for its caller."""
    hook: DisconnectHook | None = scope.get("extensions", {}).get("tritium.disconnect")
    caller: Caller | None = scope.get("tritium.caller")
    if caller is not None:
        request.made_by(caller)
    try:
        if hook is not None:
            await work(hook)
        else:
            await watched(receive, work)
    finally:
        if caller is not None and caller.counted:
            caller.end()


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
