"""The direct path's side of one connection: it sends answers, and keeps what is left to the task."""

from __future__ import annotations

from collections.abc import Callable

import trio

from actors.values.callers import Peer
from actors.values.tensors import Buffer
from actors.values.tracing.spans import Trace
from protocols.http.answers import Answer
from protocols.http.conversation import Conversation
from protocols.http.direct.exchange import Desk, Exchange
from protocols.http.direct.path import DirectPath
from protocols.http.parser import Head, Request
from protocols.http.tracing.noting import over, sending
from protocols.transport.sockets import ConnectionLost, Transport


class FrontDesk(Desk):
    """Has the requests of one connection answered on the `direct` path; without one, it takes none.

    It is `open` while a request is under way, and until the task has done what that left to it: `settle`.
    """

    __slots__ = (
        "_bug",
        "_conversation",
        "_direct",
        "_exchange",
        "_late",
        "_parked",
        "_rest",
        "_sleeper",
        "_trace",
        "_transport",
        "open",
    )

    def __init__(self, transport: Transport, conversation: Conversation, direct: DirectPath | None) -> None:
        self.open = False
        self._transport = transport
        self._conversation = conversation
        self._direct = direct
        self._exchange: Exchange | None = None  # is under way
        self._trace: Trace | None = None  # of the request whose answer was not sent, if it is traced
        # What is left to the task.
        self._late: Exchange | Answer | None = None
        self._rest: list[Buffer] = []
        self._bug: Exception | None = None
        # Where the task waits: for the answer, or for bytes.
        self._sleeper: trio.lowlevel.Task | None = None
        self._parked = False

    # For the connection

    def take(self, request: Request) -> bool:
        """Have `request` answered; False where it must be put to the application. Raises nothing."""
        conversation = self._conversation
        conversation.begin(request)
        if self._direct is None or conversation.disconnected:
            return False
        try:
            return self._direct.begin(request, self)
        except Exception as bug:  # noqa: BLE001
            self.failed(bug)  # the task fails of it, and not the caller that takes its turn
            return True

    @property
    def under_way(self) -> bool:
        """Whether a request waits for its answer."""
        return self._exchange is not None

    async def wait(self, turn: Callable[[], bool]) -> None:
        """Wait for bytes until a `turn` has left something to the task, or until it is roused.

        A turn returns False where the task must go on, besides what is left to it here.
        """

        def taken() -> bool:
            self._parked = False  # a task that goes on anyway needs no waking
            self._parked = turn() and (not self.open or self.under_way)
            return self._parked

        self._parked = True
        try:
            await self._transport.wait_turns(taken)
        except trio.ClosedResourceError:
            return  # roused
        finally:
            self._parked = False

    async def settle(self) -> bool:
        """Wait for the end of a request that is under way, and do what that left to the task.

        Returns whether the connection goes on behind it. A bug is answered 500 and raised.
        """
        if self._exchange is not None:
            self._sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)
        conversation = self._conversation
        bug, late, rest = self._bug, self._late, self._rest
        self.open, self._bug, self._late, self._rest = False, None, None, []
        trace, self._trace = self._trace, None
        try:
            if bug is not None:
                raise bug
            if isinstance(late, Exchange):
                late = await late.answer_late()
            if late is not None:
                conversation.answered = True
                if trace is not None:
                    sending(trace)
                await conversation.respond(late)
            elif rest:
                await conversation.write_rest(rest, None)
        except ConnectionLost:
            raise  # the client is gone
        except Exception:
            await conversation.tell_bug()
            raise
        finally:
            if trace is not None:
                over(trace, sent=conversation.answered)
        return conversation.keep_alive

    def abandon(self) -> None:
        """The connection ends: leave what is under way, and let go of it."""
        late, self._late = self._late, None
        if isinstance(late, Exchange):
            late.close()
        elif late is not None and late.release is not None:
            late.release()
        if self._exchange is not None:
            self._exchange.leave()
        if self._trace is not None:
            self._end_trace(sent=False)
        self._conversation.give_back()

    # For the direct path: see `Desk`

    def peer(self, head: Head) -> Peer:
        """See `Desk`."""
        return self._conversation.peer(head)

    def client(self, head: Head) -> tuple[str, int] | None:
        """See `Desk`."""
        return self._conversation.client(head)

    def begun(self, exchange: Exchange) -> None:
        """See `Desk`."""
        self.open = True
        self._exchange = exchange
        self._conversation.on_disconnect = exchange.leave

    def came_at(self) -> float:
        """See `Desk`."""
        return self._conversation.came_at

    def traced(self, trace: Trace) -> None:
        """See `Desk`."""
        self._trace = trace

    def declined(self) -> None:
        """See `Desk`."""
        self.open = False
        self._over()
        if self._trace is not None:
            self._end_trace(sent=False)

    def answered(self, answer: Answer | None) -> None:
        """See `Desk`."""
        conversation = self._conversation
        self._over()
        if answer is None or conversation.answered:  # it has left, or was told of the end
            if answer is not None and answer.release is not None:
                answer.release()
            conversation.keep_alive = False
            self._leave_open()
            return
        if answer.release is not None:  # it is large, and goes out in a turn of its own
            self._late = answer
            self._leave_open()
            return
        conversation.answered = True
        if self._trace is not None:
            sending(self._trace)
        self._rest = conversation.respond_at_once(answer)
        if self._trace is not None and not self._rest:
            self._end_trace(sent=True)
        if self._rest or conversation.ahead or self._sleeper is not None or not conversation.keep_alive:
            self._leave_open()
        else:
            self.open = False
            conversation.rest(used=True)

    def postponed(self, exchange: Exchange) -> None:
        """See `Desk`."""
        self._over()
        self._late = exchange
        self._leave_open()

    def failed(self, bug: Exception) -> None:
        """See `Desk`."""
        self._over()
        self._bug = bug
        self._leave_open()

    def _end_trace(self, *, sent: bool) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            over(trace, sent=sent)

    def _over(self) -> None:
        self._exchange = self._conversation.on_disconnect = None

    def _leave_open(self) -> None:
        self.open = True
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)
        elif self._parked:
            self._transport.rouse()

    def _stop_sleeping(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED
