"""An actor: state owned by one task that drains one inbox."""

from typing import Generic, TypeVar

from actors.supervision.context import ChildContext
from actors.supervision.inbox import Call, Down, Inbox

M = TypeVar("M")


class Actor(Generic[M]):
    """Handles one message after another; whatever it owns, no other task touches.

    Subclass, override `handle`, and start a fresh instance for each life:

        ChildSpec("counter", lambda ctx: Counter(ctx, start=0).run(), inbox=64)

    While a message is handled no other is, so slow work goes to a child or a thread and comes back as a
    message. An exception out of `handle` ends this life, and its supervisor decides about the next.
    """

    def __init__(self, ctx: ChildContext) -> None:
        self.ctx = ctx
        self.inbox: Inbox[M] = ctx.inbox

    async def run(self) -> None:
        """One life: prepare, be ready, handle messages until asked to stop, finish. May be overridden."""
        await self.prepare()
        self.ready()
        async for message in self.inbox:
            await self.handle(message)
        await self.finish()

    def ready(self, value: object = None) -> None:
        """Let the supervisor go on to the next sibling; `value` goes to who started this actor."""
        self.ctx.started(value)

    async def prepare(self) -> None:
        """Before the actor is ready: open what it needs. Raising here is a failed start."""

    async def handle(self, message: M | Call[M] | Down) -> None:
        """One message, as it was cast; a `Call`, to be answered now or later; or a `Down` asked for by monitor."""
        raise NotImplementedError(f"{type(self).__name__} received {message!r} and has no `handle`")

    async def finish(self) -> None:
        """After the actor was asked to stop, within its shutdown budget; not after a crash or a kill."""
