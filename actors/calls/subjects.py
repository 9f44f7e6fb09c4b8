"""The questions and messages of workers to the server, by subject: a table that the composition root fills.

The table knows no subject itself. The code that answers or hears a subject registers for it, and is told when
a worker is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from actors.serving.asks import Asker
from actors.values.errors import NotFound
from actors.values.specs import ModelSpec
from actors.wire.call_fields import Attached
from actors.wire.frames import FrameError


@dataclass(frozen=True, slots=True, eq=False)
class CallingWorker:
    """One life of one worker, as the handlers of its questions know it. Equality is identity."""

    spec: ModelSpec
    instance: str
    worker: Asker | None = None  # with its batches; None where it has none


Ask = Callable[[Mapping[str, object], Mapping[str, bytes], CallingWorker], Awaitable[Mapping[str, object]]]
"""Answers a question: body, attachments, caller.

Raises TritiumError, which is told to the worker, and FrameError.
"""

Tell = Callable[[Mapping[str, object], CallingWorker], None]
"""Takes a message of a worker: body, caller.

Raises FrameError for a message that no well-behaved worker sends.
"""


class Subjects:
    """The questions and messages of workers, by subject: a table that the composition root fills."""

    def __init__(self) -> None:
        self._asks: dict[str, Ask] = {}
        self._tells: dict[str, Tell] = {}
        self._ends: list[Callable[[CallingWorker], None]] = []

    def answer(self, subject: str, handler: Ask) -> None:
        """Have `handler` answer questions on `subject`."""
        self._asks[subject] = handler

    def hear(self, subject: str, handler: Tell) -> None:
        """Have `handler` called with the messages of workers on `subject`."""
        self._tells[subject] = handler

    def on_end(self, handler: Callable[[CallingWorker], None]) -> None:
        """Have `handler` called when a worker is gone, whether or not it had asked or told."""
        self._ends.append(handler)

    async def ask(self, attached: Attached, caller: CallingWorker) -> Mapping[str, object]:
        """Return the answer to a question.

        Raises the errors of handlers, and NotFound for a subject without a handler.
        """
        handler = self._asks.get(attached.subject)
        if handler is None:
            raise NotFound(f"this server does not answer questions on '{attached.subject}'")
        return await handler(attached.body, attached.attachments, caller)

    def tell(self, attached: Attached, caller: CallingWorker) -> None:
        """Pass on a worker's message. Raises FrameError for a subject without a handler."""
        handler = self._tells.get(attached.subject)
        if handler is None:
            raise FrameError(f"a worker tells of '{attached.subject}'")
        handler(attached.body, caller)

    def ended(self, caller: CallingWorker) -> None:
        """A worker is gone."""
        for handler in self._ends:
            handler(caller)
