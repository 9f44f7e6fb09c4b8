"""A Redis server as a store of answers. Needs the library of the extra `tritium[redis]`.

Each entry is one string, `engine.stores.codec`'s, under a key of its own. Redis' `maxmemory-policy` decides
how long it stays.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine.stores.codec import decoded, encoded

if TYPE_CHECKING:
    from actors.caching.policy.cache import KeptAnswer
    from engine.settings.cache import RedisCache, RedisTls

PREFIX: Final = b"tritium:response:"
"""What every key in Redis begins with."""

TIMEOUT: Final = 0.5
"""Seconds for connecting, and for each answer, unless the operator sets them.

A cache that is slower than that is of no use.
"""


class RedisStore:
    """Implements `actors.caching.far_cache.Store`. Its connections are shared by the threads that call it."""

    def __init__(self, settings: RedisCache) -> None:
        """Make no connection yet.

        Raises OSError, which includes ssl.SSLError, if the TLS files can't be used.
        """
        self.name = "redis"
        options: dict[str, Any] = {
            "host": settings.host,
            "port": settings.port,
            "db": settings.db,
            "username": settings.user or None,
            "password": settings.password or None,
            "socket_connect_timeout": settings.connect_timeout or TIMEOUT,
            "socket_timeout": settings.socket_timeout or TIMEOUT,
            "socket_keepalive": True,
            # Once: a connection that has lain idle may have been closed at the other end.
            "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        }
        if settings.tls is not None:
            options["connection_class"] = _TlsConnection
            options["context"] = tls_context(settings.tls)
            options["server_name"] = settings.tls.sni or settings.host
        # One more than are used at once, for trials.
        pool = redis.ConnectionPool(max_connections=settings.pool_size + 1, **options)
        self._redis = redis.Redis(connection_pool=pool)

    def get(self, key: bytes) -> KeptAnswer | None:
        """Return the entry for `key`. See `actors.caching.far_cache.Store`."""
        value: Any = self._redis.get(PREFIX + key.hex().encode())
        return None if value is None else decoded(value)

    def put(self, key: bytes, entry: KeptAnswer) -> None:
        """Keep `entry`."""
        self._redis.set(PREFIX + key.hex().encode(), encoded(entry))

    def try_it(self) -> None:
        """Ask for a sign of life."""
        self._redis.ping()


def patience(settings: RedisCache) -> float:
    """Return how many seconds a request may wait for Redis.

    The wait is for a connection of the pool, its set-up, and the answer.
    """
    return (
        settings.wait_timeout + (settings.connect_timeout or TIMEOUT) + (settings.socket_timeout or TIMEOUT)
    )


def tls_context(tls: RedisTls) -> ssl.SSLContext:
    """Return what TLS connections are made with. Raises OSError, ssl.SSLError among them."""
    context = ssl.create_default_context(cafile=tls.cacert or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    return context


class _TlsConnection(redis.Connection):
    """A connection whose certificate may be for another name than the one that is connected to.

    The library has no such connection.
    """

    def __init__(self, *, context: ssl.SSLContext, server_name: str, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # the library has no types here
        self._context = context
        self._server_name = server_name

    def _connect(self) -> ssl.SSLSocket:
        plain = super()._connect()  # type: ignore[no-untyped-call]  # nor here
        try:
            return self._context.wrap_socket(plain, server_hostname=self._server_name)
        except BaseException:
            plain.close()
            raise
