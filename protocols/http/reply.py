"""The HTTP frontend's reply port: the connection's own task waits in it."""

from __future__ import annotations

import trio

from actors.values.errors import Internal, TritiumError
from actors.values.requests import InferResponse, ReplyPort, release


class HttpReply(ReplyPort):
    """Takes the answer to one request and wakes the one task that waits for it.

    HTTP wants exactly one response. Anything else is an error to the client. A part that came too late,
    beyond the first, or after the client left is released on the spot.
    """

    __slots__ = ("_closed", "_count", "_outcome", "_task")

    def __init__(self) -> None:
        self._outcome: InferResponse | TritiumError | None = None
        self._count = 0
        self._closed = False  # the final part came, or the client left
        self._task: trio.lowlevel.Task | None = None

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
            self._finish()

    def close(self) -> None:
        """The client left: release the parts that came and those that still come, and wake the task."""
        if self._outcome is not None:
            release(self._outcome)
        self._outcome = None
        if not self._closed:
            self._finish()

    def _finish(self) -> None:
        self._closed = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> InferResponse | TritiumError | None:
        """Return the answer once its final part has come; None where the client left first."""
        if not self._closed:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._count > 1 and self._outcome is not None:
            release(self._outcome)
            return Internal(f"expected a single response, got {self._count}")
        return self._outcome

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
