"""One look at every repository, for the watcher (`actors.catalog.settling`).

A source that hangs holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

import outcome
import trio

from actors.catalog.settling import NoAnswer, Observation, Seen, View
from actors.seams.threads import in_thread
from engine.repository.source import Source, SourceUnavailable

PATIENCE: Final = 5.0
"""Seconds that one observation waits for sources; what takes longer is in the next."""

HUNG_AFTER: Final = 60.0
"""Seconds without any sign of life after which a source is said not to answer.

A hard NFS mount hangs for ever.
"""


@runtime_checkable
class Looked(Protocol):
    """A source that knows more about its models than a stamp."""

    def look(self, name: str, *, alive: Callable[[], None]) -> Seen | None:
        """Return what is there of a model, or None; `alive` is called now and then.

        Raises SourceUnavailable.
        """


def view(source: Source, *, alive: Callable[[], None] = lambda: None) -> View:
    """Look at one source. Blocks."""
    seen: dict[str, Seen] = {}
    try:
        look = source.look if isinstance(source, Looked) else _stamp_only(source)
        for name in source.names():
            alive()
            found = look(name, alive=alive)
            if found is not None:  # else it has vanished since it was listed
                seen[name] = found
    except SourceUnavailable as error:
        return NoAnswer(str(error))
    return seen


def _stamp_only(source: Source) -> Callable[..., Seen | None]:
    def look(name: str, *, alive: Callable[[], None]) -> Seen | None:
        del alive
        stamp = source.stamp(name)
        return None if stamp is None else Seen(stamp)

    return look


class Observer:
    """Looks at all sources at once, each on a thread of its own, whenever it is called.

    There are never two threads for one source. A mount that hangs so costs one thread, whatever becomes of
    the caller: this object outlives the watcher. A look that takes longer than `patience` seconds goes on and
    is part of a later observation; its source is not in the present one. After `hung_after` seconds without a
    sign of life the source is reported as unavailable.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        patience: float = PATIENCE,
        hung_after: float = HUNG_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookers = [_Looker(source, clock) for source in sources]
        self._patience = patience
        self._hung_after = hung_after
        self._clock = clock
        self._limiter = trio.CapacityLimiter(max(1, len(sources)))

    async def __call__(self) -> Observation:
        """Return one look at each source that has answered."""
        with trio.move_on_after(self._patience):
            async with trio.open_nursery() as nursery:
                for looker in self._lookers:
                    if looker.idle:
                        nursery.start_soon(self._look, looker)
        observation: dict[str, View] = {}
        for looker in self._lookers:
            seen = looker.take()
            if seen is not None:
                observation[looker.uri] = seen
            elif looker.busy and self._clock() - looker.alive_at > self._hung_after:
                observation[looker.uri] = NoAnswer(f"{looker.uri} does not answer")
        return observation

    async def _look(self, looker: _Looker) -> None:
        await in_thread(looker.run, abandon_on_cancel=True, limiter=self._limiter)


class _Looker:
    """One source, and the look at it that is going on. `run` is called on a thread, the rest is not."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self.uri = source.uri
        self.alive_at = 0.0
        self._source = source
        self._clock = clock
        self._looking = threading.Lock()
        self._ended: outcome.Value[View] | outcome.Error | None = None

    @property
    def busy(self) -> bool:
        """Whether a look is going on."""
        return self._looking.locked()

    @property
    def idle(self) -> bool:
        """Whether no look is going on, and the result of the last one has been taken."""
        return not self.busy and self._ended is None

    def run(self) -> None:
        """Look, unless a look is going on.

        Any error is kept as the outcome, because perhaps no caller waits for this thread any more.
        """
        if self._looking.acquire(blocking=False):
            try:
                self._alive()
                self._ended = outcome.capture(view, self._source, alive=self._alive)
            finally:
                self._looking.release()

    def take(self) -> View | None:
        """Return what was seen, once.

        An error that no source should raise says no more than one that it may.
        """
        ended, self._ended = self._ended, None
        match ended:
            case outcome.Error(error):
                return NoAnswer(f"{self.uri} can't be read: {type(error).__name__}: {error}")
            case outcome.Value():
                return ended.value
        return None

    def _alive(self) -> None:
        self.alive_at = self._clock()
