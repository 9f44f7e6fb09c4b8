"""Bounded inboxes and the addresses that lead to them.

Theory of operation. A `Ref` is an address, a tree path, and outlives the actor that lives there. An `Inbox`
is a bounded trio memory channel. It belongs to the row in the supervisor's table rather than to the actor, so
it can stay when the actor goes. When an actor dies, its supervisor tells the Ref (`Ref.died`):

- calls that the actor had received, and not answered, fail with `ActorDied` at once;
- messages still queued, and senders still waiting for room, stay for the next life if the inbox is kept;
  otherwise calls among them fail with `ActorDied` and casts are lost, as OTP loses a mailbox.

Dicts stand in for sets, because their order makes a simulated run repeatable.

A `Down` notice for a monitored actor does not pass through the bounded channel: there is at most one for each
monitor, and a watcher with a full inbox must still hear of the death.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import trio

from actors.supervision.errors import ActorDied, CallTimedOut
from actors.supervision.restart import ExitReason, NotStarted

DEFAULT_TIMEOUT = 5.0
"""Seconds a call waits unless told otherwise, as `gen_server:call` does."""

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Down:
    """The monitored actor at `path` is no longer alive."""

    path: str
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class InboxStatistics:
    """Messages waiting, how many fit, senders waiting for room, and callers waiting for an answer."""

    depth: int
    capacity: int
    waiting: int
    unanswered: int


class Call(Generic[M]):
    """A message whose sender waits for an answer. The actor answers this object once, now or later.

    Read it as `case Call(Unload(name)) as call: call.answer(...)`. Answering a caller that has gone away is
    normal and does nothing; answering twice is a bug and raises RuntimeError.
    """

    __match_args__ = ("message",)
    __slots__ = ("_answered", "_error", "_event", "_value", "abandoned", "message", "received")

    def __init__(self, message: M) -> None:
        self.message = message
        # The caller has stopped waiting: timed out, cancelled, or told that the actor died.
        self.abandoned = False
        self.received = False  # the actor has it, so it dies with the actor
        self._answered = False
        self._event = trio.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"Call({self.message!r})"

    def answer(self, value: object = None) -> None:
        """Give the caller its answer."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller. The actor lives on: this is an answer, not a crash."""
        self._settle(None, error)

    def abandon(self, error: ActorDied) -> None:
        """Tell the caller that no answer will come. For inboxes."""
        if not self._answered and not self.abandoned:
            self.abandoned = True
            self._error = error
            self._event.set()

    async def wait(self) -> Any:
        """The answer. For inboxes, once."""
        try:
            await self._event.wait()
        finally:
            if not self._event.is_set():
                self.abandoned = True
        if self._error is not None:
            raise self._error
        return self._value

    def _settle(self, value: object, error: Exception | None) -> None:
        if self._answered:
            raise RuntimeError(f"{self!r} was answered twice; a call takes one answer")
        self._answered = True
        if not self.abandoned:
            self._value, self._error = value, error
            self._event.set()


class Monitor:
    """A standing request for one `Down`; made by `Ref.monitor`."""

    __slots__ = ("_inbox", "_ref")

    def __init__(self, ref: "Ref[Any]", inbox: "Inbox[Any]") -> None:
        self._ref = ref
        self._inbox = inbox

    def cancel(self) -> None:
        """Expect no `Down` any more; one that is already in the inbox stays there."""
        self._ref.unwatch(self)
        self._inbox.unwatch(self)

    def fire(self, down: Down) -> None:
        """Deliver the notice. For refs."""
        self._inbox.unwatch(self)
        self._inbox.notify(down)


class Inbox(Generic[M]):
    """A bounded queue of messages drained by one task.

    `receive`, `receive_nowait` and `async for` are the actor's side. Messages come in through a `Ref`: as
    they are or, if their sender waits for an answer, as a `Call`. A `Down` comes ahead of both. The other
    methods are the supervisor's.
    """

    __slots__ = (
        "_capacity",
        "_died",
        "_idle",
        "_interrupted",
        "_monitors",
        "_notices",
        "_path",
        "_receive",
        "_send",
        "_unanswered",
    )

    def __init__(self, path: str, capacity: int) -> None:
        self._path = path
        self._capacity = capacity
        channel: tuple[trio.MemorySendChannel[M | Call[M]], trio.MemoryReceiveChannel[M | Call[M]]]
        channel = trio.open_memory_channel(capacity)
        self._send, self._receive = channel
        self._unanswered: dict[Call[M], None] = {}  # received, queued, or waiting for room
        self._notices: deque[Down] = deque()
        self._monitors: dict[Monitor, None] = {}
        self._idle: trio.CancelScope | None = None  # around the one task that waits in receive()
        self._interrupted = False
        self._died: ExitReason | None = None

    async def receive(self) -> M | Call[M] | Down:
        """The next message. Raises trio.EndOfChannel once the actor is asked to stop.

        It then raises even if messages are queued. They are left for a `finish` that reads them
        (`receive_nowait`) or for the next life.
        """
        if self._idle is not None:
            raise trio.BusyResourceError(
                f"inbox {self._path!r} is already being received from; one task drains it"
            )
        while True:
            if self._notices:
                await trio.lowlevel.checkpoint()
                return self._notices.popleft()
            if self._interrupted:
                raise trio.EndOfChannel
            with trio.CancelScope() as self._idle:
                try:
                    return self._taken(await self._receive.receive())
                finally:
                    self._idle = None

    def receive_nowait(self) -> M | Call[M] | Down:
        """The next message if there is one, also while stopping. Raises trio.WouldBlock if there is none."""
        if self._notices:
            return self._notices.popleft()
        return self._taken(self._receive.receive_nowait())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M | Call[M] | Down:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def statistics(self) -> InboxStatistics:
        """How full the inbox is."""
        channel = self._receive.statistics()
        return InboxStatistics(
            depth=channel.current_buffer_used + len(self._notices),
            capacity=self._capacity,
            waiting=channel.tasks_waiting_send,
            unanswered=len(self._unanswered),
        )

    # The sender's side, used by Ref.

    async def put(self, item: M | Call[M]) -> None:
        """Queue `item`, waiting for room. Raises ActorDied if the actor goes first."""
        try:
            await self._send.send(item)
        except trio.BrokenResourceError:
            assert self._died is not None, "only `close` breaks the channel"
            raise ActorDied(self._path, self._died) from None

    async def ask(self, call: Call[M]) -> Any:
        """Queue `call` as `put` does, and wait for its answer."""
        # Registered before it is queued: the actor may take it, and die of it, before this task runs again.
        self._unanswered[call] = None
        try:
            await self.put(call)
            return await call.wait()
        finally:
            self._unanswered.pop(call, None)

    def put_nowait(self, item: M) -> None:
        """Queue `item`. Raises trio.WouldBlock if there is no room."""
        self._send.send_nowait(item)

    def notify(self, down: Down) -> None:
        """Deliver a notice past the bound."""
        if self._died is None:
            self._notices.append(down)
            self._wake()

    # The supervisor's side.

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent here; an inbox that was closed stays closed."""
        return self._died is None

    def reopen(self) -> None:
        """A new life begins: `receive` works again."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Ask the actor to stop: `receive` raises EndOfChannel from now on."""
        self._interrupted = True
        self._wake()

    def bereave(self, reason: ExitReason) -> None:
        """The actor died and another will take over: fail the calls it had received, keep the rest."""
        self._fail([call for call in self._unanswered if call.received], reason)
        self._drop_monitors()

    def close(self, reason: ExitReason) -> None:
        """The actor died and nothing is kept: fail every call, wake every sender."""
        self._died = reason
        self._receive.close()
        self._fail(list(self._unanswered), reason)
        self._drop_monitors()

    def watch(self, monitor: Monitor) -> None:
        """Remember a monitor of this inbox, to cancel it when the watcher dies."""
        self._monitors[monitor] = None

    def unwatch(self, monitor: Monitor) -> None:
        """Forget a monitor that has fired or was cancelled."""
        self._monitors.pop(monitor, None)

    def _taken(self, item: M | Call[M]) -> M | Call[M]:
        if isinstance(item, Call):
            item.received = True
        return item

    def _fail(self, calls: list[Call[M]], reason: ExitReason) -> None:
        for call in calls:
            call.abandon(ActorDied(self._path, reason))

    def _drop_monitors(self) -> None:
        for monitor in list(self._monitors):
            monitor.cancel()
        self._notices.clear()

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()


class Ref(Generic[M_contra]):
    """The address of the actor at a tree path. It outlives restarts, also those of ancestors.

    A dead actor is an error and never silence: `call`, `cast` and `cast_nowait` raise ActorDied with the
    reason, unless a kept inbox waits for its next life. Refs come from `Registry.ref` or from a child's
    context.
    """

    __slots__ = ("__weakref__", "_gone", "_inbox", "_monitors", "is_alive", "last_exit", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_alive = False
        self.last_exit: ExitReason = NotStarted()
        self._inbox: Inbox[M_contra] | None = None
        self._gone: trio.Event | None = None  # made when a task waits for the death
        self._monitors: dict[Monitor, None] = {}

    def __repr__(self) -> str:
        return f"<Ref {self.path!r} {'alive' if self.is_alive else self.last_exit}>"

    async def call(
        self, message: M_contra, *, timeout: float | None = None, deadline: float | None = None
    ) -> Any:
        """Send `message` and wait for the answer, until `timeout` seconds from now or `deadline`.

        With both, the earlier counts; with neither, five seconds as in OTP. The same limit holds while the
        caller waits for a full inbox. Raises ActorDied as soon as the actor is dead, CallTimedOut at the
        limit, and the error that the actor passed to `Call.fail`.
        """
        inbox = self._target()
        call = Call(message)
        with trio.move_on_at(_limit(timeout, deadline)):
            return await inbox.ask(call)
        trouble = (
            "gave no answer in time" if call.received else "has not got to the message: its inbox is busy"
        )
        raise CallTimedOut(f"actor {self.path!r} {trouble}: {message!r}")

    async def cast(self, message: M_contra) -> None:
        """Send `message`, waiting for room. Raises ActorDied."""
        await self._target().put(message)

    def cast_nowait(self, message: M_contra) -> None:
        """Send `message` if there is room. Raises trio.WouldBlock if there is none, ActorDied."""
        self._target().put_nowait(message)

    def monitor(self, inbox: Inbox[Any]) -> Monitor:
        """Have one `Down` delivered to `inbox` when the actor dies; at once if it is dead already."""
        monitor = Monitor(self, inbox)
        if self.is_alive:
            self._monitors[monitor] = None
            inbox.watch(monitor)
        else:
            inbox.notify(Down(self.path, self.last_exit))
        return monitor

    async def wait_died(self) -> ExitReason:
        """Wait until the actor is dead; return why it last died."""
        if self.is_alive:
            if self._gone is None:
                self._gone = trio.Event()
            await self._gone.wait()
        else:
            await trio.lowlevel.checkpoint()
        return self.last_exit

    def statistics(self) -> InboxStatistics | None:
        """How full the inbox is; None if there is no inbox."""
        return None if self._inbox is None else self._inbox.statistics()

    # The supervisor's side.

    def born(self, inbox: Inbox[M_contra] | None) -> None:
        """A life begins, reading from `inbox`."""
        self.is_alive = True
        self._inbox = inbox

    def died(self, reason: ExitReason, *, keep: bool = False) -> None:
        """The life is over. With `keep` its inbox waits for the next one, otherwise it is closed."""
        self.is_alive = False
        self.last_exit = reason
        self._hand_over(reason, keep=keep)
        down = Down(self.path, reason)
        monitors, self._monitors = self._monitors, {}
        for monitor in monitors:
            monitor.fire(down)
        if self._gone is not None:
            self._gone.set()
            self._gone = None

    def bury(self) -> None:
        """There will be no next life after all: close the inbox if one was kept."""
        self._hand_over(self.last_exit, keep=False)

    def unwatch(self, monitor: Monitor) -> None:
        """Forget a monitor that was cancelled."""
        self._monitors.pop(monitor, None)

    def _hand_over(self, reason: ExitReason, *, keep: bool) -> None:
        if self._inbox is None:
            return
        if keep:
            self._inbox.bereave(reason)
        else:
            self._inbox.close(reason)
            self._inbox = None

    def _target(self) -> Inbox[M_contra]:
        if self._inbox is not None:
            return self._inbox
        if self.is_alive:
            raise TypeError(f"child {self.path!r} has no inbox; give its spec a capacity, such as inbox=64")
        raise ActorDied(self.path, self.last_exit)


def _limit(timeout: float | None, deadline: float | None) -> float:
    if timeout is None:
        return trio.current_time() + DEFAULT_TIMEOUT if deadline is None else deadline
    limit = trio.current_time() + timeout
    return limit if deadline is None else min(limit, deadline)
