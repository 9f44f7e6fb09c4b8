"""An actor: state owned by one task that drains one inbox."""

from typing import Generic, TypeVar

from actors.supervision.context import ChildContext
from actors.supervision.inbox import Call, Down, Inbox

M = TypeVar("M")


class Actor(Generic[M]):
    """Handles one message after another; no other task touches what it owns.

    Subclass, override `handle`, and start a fresh instance for each life:

        ChildSpec("counter", lambda ctx: Counter(ctx, start=0).run(), inbox=64)

    While it handles a message it handles no other, so slow work goes to a child or a thread and comes back as
    a message. If `handle` raises, this life ends, and the supervisor decides about the next.
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
        """Let the supervisor go on to the next sibling; `value` goes to the starter of this actor."""
        self.ctx.started(value)

    async def prepare(self) -> None:
        """Open what the actor needs before it is ready. An exception here is a failed start."""

    async def handle(self, message: M | Call[M] | Down) -> None:
        """Handle one message, as it was cast.

        A `Call` is to be answered now or later; a `Down` was asked for by monitor.
        """
        raise NotImplementedError(f"{type(self).__name__} received {message!r} and has no `handle`")

    async def finish(self) -> None:
        """Clean up after a request to stop, within the shutdown budget; not after a crash or a kill."""
