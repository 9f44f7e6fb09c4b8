"""Which response cache the operator asked for.

Contract: repository.md section 10, scheduling.md section 8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engine.settings.forms import SettingsError, integer, to_size, truth
from engine.settings.option import Given

USERNAME_VARIABLE: Final = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE: Final = "TRITONCACHE_REDIS_PASSWORD"

CACHE_BYTES: Final = integer("BYTES", most=2**63 - 1, wide=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCache:
    """A cache in the server's memory, of up to `size` bytes."""

    size: int

    def options(self) -> list[tuple[str, str]]:
        """Return what an operator wants to see at start-up."""
        return [("response_cache", f"local, {self.size} bytes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTls:
    """How the server's identity is checked: paths of PEM files.

    If they are empty: the system's authorities, no client certificate, and `host`.
    """

    cert: str = ""
    key: str = ""
    cacert: str = ""
    sni: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCache:
    """A cache in a Redis server. Times are seconds; 0 leaves it to Tritium."""

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    connect_timeout: float = 0.0
    socket_timeout: float = 0.0
    pool_size: int = 1
    wait_timeout: float = 1.0
    tls: RedisTls | None = None

    def options(self) -> list[tuple[str, str]]:
        """Return what an operator wants to see at start-up, which is not the password."""
        kind = "rediss" if self.tls is not None else "redis"
        return [("response_cache", f"{kind}://{self.host}:{self.port}/{self.db}")]


CacheSettings: TypeAlias = LocalCache | RedisCache


def read_cache(given: Given) -> CacheSettings | None:
    """Return the cache that was asked for, if any. Raises SettingsError."""
    size = CACHE_BYTES.read(given.word("response-cache-byte-size") or "0", "response-cache-byte-size")
    if size:
        given.warnings.append(
            f"--response-cache-byte-size is deprecated: --cache-config=local,size={size} is the same"
        )
        return LocalCache(size=size)
    caches: dict[str, dict[str, str]] = {}
    for value in given.all("cache-config"):
        name, _, pair = value.partition(",")
        setting, _, word = pair.partition("=")
        caches.setdefault(name, {})[setting] = word
    if len(caches) > 1:
        raise SettingsError(
            "found multiple cache configurations, but only a single cache is currently supported",
            hint="--cache-config was given for " + " and ".join(f"'{name}'" for name in caches),
        )
    for name, settings in caches.items():
        reader = _READERS.get(name)
        if reader is None:
            raise SettingsError(
                f"--cache-config names an unknown cache '{name}'", hint="the caches are local and redis"
            )
        return reader(_Options(name, settings), given.environ)
    return None


class _Options:
    """One cache's settings."""

    def __init__(self, cache: str, settings: Mapping[str, str]) -> None:
        self._cache = cache
        self._settings = settings

    def text(self, name: str, default: str = "") -> str:
        return self._settings.get(name, default)

    def required(self, name: str, such_as: str) -> str:
        value = self.text(name)
        if not value:
            raise SettingsError(
                f"--cache-config {self._cache} needs '{name}'",
                hint=f"--cache-config={self._cache},{name}={such_as}",
            )
        return value

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
        word = self.text(name, str(default))
        if not re.fullmatch(r"[0-9]{1,10}", word) or not least <= int(word) <= most:
            raise SettingsError(
                f"--cache-config {self._cache},{name} takes a whole number from {least} to {most}. Got {word}"
            )
        return int(word)

    def milliseconds(self, name: str, default: int) -> float:
        return self.number(name, default) / 1000

    def switch(self, name: str) -> bool:
        word = self.text(name, "false").lower()
        value = truth(word)
        if value is None:
            raise SettingsError(f"--cache-config {self._cache},{name} takes true or false. Got {word}")
        return value

    def refuse_others(self, known: Sequence[str]) -> None:
        """Raise SettingsError for a setting that is not `known`.

        This comes before other checks, because a setting that is missing may have been misspelt.
        """
        for name in self._settings:
            if name not in known:
                raise SettingsError(
                    f"unknown --cache-config setting '{name}' of cache '{self._cache}'",
                    hint="settings are " + ", ".join(known),
                )


def _local(options: _Options, _: Mapping[str, str]) -> LocalCache:
    options.refuse_others(("size",))
    size = to_size(options.required("size", "1048576"), "cache-config=local,size")
    return LocalCache(size=size)


_TLS: Final = ("cert", "key", "cacert", "sni")
_REDIS: Final = (
    "host",
    "port",
    "user",
    "password",
    "db",
    "connect_timeout",
    "socket_timeout",
    "pool_size",
    "wait_timeout",
    "tls_enabled",
    *_TLS,
)


def _redis(options: _Options, environ: Mapping[str, str]) -> RedisCache:
    options.refuse_others(_REDIS)
    files = {name: options.text(name) for name in _TLS}
    tls = RedisTls(**files) if options.switch("tls_enabled") else None
    if tls is None and any(files.values()):
        given = next(name for name, value in files.items() if value)
        raise SettingsError(
            f"--cache-config redis,{given} has no meaning without TLS",
            hint="--cache-config=redis,tls_enabled=true",
        )
    if bool(files["cert"]) != bool(files["key"]):
        raise SettingsError("--cache-config redis: 'cert' and 'key' go together")
    host = options.required("host", "localhost")
    return RedisCache(
        host=host,
        port=_port(options),
        user=options.text("user") or environ.get(USERNAME_VARIABLE, ""),
        password=options.text("password") or environ.get(PASSWORD_VARIABLE, ""),
        db=options.number("db", 0),
        connect_timeout=options.milliseconds("connect_timeout", 0),
        socket_timeout=options.milliseconds("socket_timeout", 0),
        pool_size=options.number("pool_size", 1, least=1, most=1024),
        wait_timeout=options.milliseconds("wait_timeout", 1000),
        tls=tls,
    )


def _port(options: _Options) -> int:
    word = options.required("port", "6379")
    if not re.fullmatch(r"[0-9]{1,5}", word) or not 0 < int(word) < 65536:
        raise SettingsError(f"--cache-config redis,port takes 1 to 65535. Got {word}")
    return int(word)


_READERS: Final[Mapping[str, Callable[[_Options, Mapping[str, str]], CacheSettings]]] = {
    "local": _local,
    "redis": _redis,
}
