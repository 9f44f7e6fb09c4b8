"""A response cache that another process keeps, on a network that may fail.

The store is asked on threads, with a time limit, and not while it is down.

A request waits for a look-up at most `patience` seconds, then it runs. After several failed look-ups in a row
the store is no longer asked (`actors.caching.policy.breaker`). It is asked again once a trial, which no request
waits for, has shown that it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from actors.caching.policy.breaker import Breaker
from actors.caching.policy.cache import KeptAnswer
from actors.seams.bell import Bell
from actors.seams.threads import in_thread
from actors.supervision.context import ChildContext
from actors.supervision.offload import Offload
from actors.values.events import Event, Log

LOOK_UPS: Final = 1024  # at the same time
INSERTIONS: Final = 256
INSERTION_BYTES: Final = 64 * 1024 * 1024


class Store(Protocol):
    """The place where entries are kept.

    Its methods block, are called on threads, several at once, and raise any error that occurs.
    """

    name: str

    def get(self, key: bytes) -> KeptAnswer | None:
        """Return the entry for `key`. Raises MalformedEntry for one that this server did not write so."""

    def put(self, key: bytes, entry: KeptAnswer) -> None:
        """Keep `entry`."""

    def try_it(self) -> None:
        """Find out whether the store answers."""


class MalformedEntry(Exception):
    """The data that was found is no entry: a miss, but no sign that the store is down."""


@dataclass(slots=True)
class FarCounts:
    """The results of look-ups and insertions."""

    hits: int = 0
    misses: int = 0
    errors: int = 0  # look-ups and insertions that failed, or took too long
    # Those that were not tried, since the store was down or too many were under way.
    skipped: int = 0


class FarCache:
    """Implements `actors.caching.cache.FarStore` over a `Store`.

    Passive; `looking`, `inserting` and `watch` are its actors.
    """

    def __init__(self, store: Store, *, threads: int, patience: float, log: Log) -> None:
        """`threads` calls are made at once; each may take `patience` seconds, with its wait for a thread."""
        self.counts = FarCounts()
        limiter = trio.CapacityLimiter(threads)
        self.looking = Offload(limiter=limiter, jobs=LOOK_UPS, nbytes=0)
        self.inserting = Offload(limiter=limiter, jobs=INSERTIONS, nbytes=INSERTION_BYTES)
        self._store = store
        self._patience = patience
        self._breaker = Breaker()
        self._log = log
        self._broken = Bell()

    @property
    def available(self) -> bool:
        """Whether the store is asked at present."""
        return self._breaker.closed

    def look_up(self, key: bytes, found: Callable[[KeptAnswer | None], None]) -> bool:
        """Call `found` with the entry for `key`, or None.

        If the store is not asked at present, return False and never call `found`.
        """
        return self._submit(self.looking, partial(self._store.get, key), partial(self._on_got, found))

    def insert(self, key: bytes, entry: KeptAnswer) -> None:
        """Keep `entry` if that is possible."""
        self._submit(self.inserting, partial(self._store.put, key, entry), self._on_put, nbytes=entry.nbytes)

    def _submit(
        self,
        offload: Offload,
        work: Callable[[], KeptAnswer | None],
        done: Callable[[KeptAnswer | None, Exception | None], None],
        *,
        nbytes: int = 0,
    ) -> bool:
        taken = self._breaker.closed and offload.submit(work, done, nbytes=nbytes, within=self._patience)
        self.counts.skipped += not taken
        return taken

    def _on_got(
        self, found: Callable[[KeptAnswer | None], None], entry: KeptAnswer | None, error: Exception | None
    ) -> None:
        if error is None:
            self._breaker.succeeded()
        else:
            self._failed(error)
        if entry is not None:
            self.counts.hits += 1
        else:
            self.counts.misses += 1
        found(entry)

    def _on_put(self, _: KeptAnswer | None, error: Exception | None) -> None:
        if error is None:
            self._breaker.succeeded()
        else:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.counts.errors += 1
        if isinstance(error, MalformedEntry):
            return
        if self._breaker.failed():
            self._log(
                Event.CACHE_UNAVAILABLE,
                level="warning",
                cache=self._store.name,
                reason=f"{error}: every request is a miss until it answers again",
            )
            self._broken.ring()

    async def watch(self, ctx: ChildContext) -> None:
        """Try a store that is down again and again, and use it once it answers. An actor's start function."""
        ctx.started()
        limiter = trio.CapacityLimiter(1)
        told = False
        while True:
            if self._breaker.closed:
                told = True
                await self._broken.next_ring()
            await trio.sleep(self._breaker.pause)
            error = await self._trial(limiter)
            ctx.publish(available=error is None)
            if error is None:
                self._breaker.succeeded()
                self._log(Event.CACHE_AVAILABLE, cache=self._store.name)
                continue
            self._breaker.failed()
            if not told:
                told = True
                self._log(Event.CACHE_UNAVAILABLE, level="warning", cache=self._store.name, reason=str(error))

    async def _trial(self, limiter: trio.CapacityLimiter) -> Exception | None:
        try:
            with trio.fail_after(self._patience):
                await in_thread(self._store.try_it, limiter=limiter, abandon_on_cancel=True)
        except trio.TooSlowError:
            return TimeoutError(f"no answer within {self._patience:g} s")
        except Exception as error:  # noqa: BLE001
            # Any exception of a client library means that the store does not answer.
            return error
        return None
