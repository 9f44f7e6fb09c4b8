"""From what the operator asked for to a cache, and the part of the tree that works for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from actors.caching.cache import ResponseCache
from actors.caching.far_cache import FarCache
from actors.caching.policy.cache import LruCache
from actors.supervision.spec import ChildSpec, Intensity, OnExhausted
from actors.supervision.supervisor import Supervisor
from actors.values.events import Log
from engine.settings.cache import CacheSettings, LocalCache, RedisCache
from engine.settings.extras import how_to_install

INTENSITY: Final = Intensity(3, 60.0)


class CacheUnusable(Exception):
    """The cache can't be set up. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class OpenCache:
    """A cache, and the far part of it if there is one."""

    cache: ResponseCache
    far: FarCache | None = None

    def spec(self) -> ChildSpec:
        """Return the child that works for it. Without it every request that would need its work is a miss."""
        children = [
            ChildSpec("hashing", self.cache.hashing.run),
            ChildSpec("deadlines", self.cache.keep_deadlines),
        ]
        if self.far is not None:
            children += [
                ChildSpec("look-ups", self.far.looking.run),
                ChildSpec("insertions", self.far.inserting.run),
                ChildSpec("watch", self.far.watch),
            ]
        return Supervisor(children, intensity=INTENSITY).spec(
            "cache", intensity=INTENSITY, on_exhausted=OnExhausted.RETRY_AT_CAP
        )


def open_cache(settings: CacheSettings, log: Log) -> OpenCache:
    """Return the cache that was asked for. Raises CacheUnusable."""
    match settings:
        case LocalCache(size=size):
            return OpenCache(ResponseCache(near=LruCache(size), log=log))
        case RedisCache():
            far = _open_redis(settings, log)
            return OpenCache(ResponseCache(far=far, log=log), far)
        case _:
            assert_never(settings)


def _open_redis(settings: RedisCache, log: Log) -> FarCache:
    try:
        # The library is needed only by servers that use Redis.
        from engine.stores.redis_store import RedisStore, patience
    except ImportError as error:
        raise CacheUnusable(
            f"--cache-config redis needs a library that is not installed: {error}; {how_to_install('redis')}"
        ) from error
    try:
        store = RedisStore(settings)
    except OSError as error:
        raise CacheUnusable(f"--cache-config redis: the TLS files can't be used: {error}") from error
    return FarCache(store, threads=settings.pool_size, patience=patience(settings), log=log)
