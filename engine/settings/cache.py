"""Which response cache the operator asked for.

The settings of each cache are a sheet of their own: `--cache-config=redis,port=6379` gives one of them.

Contract: repository.md section 10, scheduling.md section 8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from engine.settings.forms import Form, SettingsError, integer, misshapen, size_text, to_size, truth
from engine.settings.option import Given
from engine.settings.secrets import concealed, read_secret
from engine.settings.sheet import declared, entries_of, read_sheet

USERNAME_VARIABLE: Final = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE: Final = "TRITONCACHE_REDIS_PASSWORD"

CACHE_BYTES: Final = integer("BYTES", most=2**63 - 1, wide=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Words:
    """What was given for one cache, by setting, and the environment."""

    cache: str = ""
    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def _setting(name: str, default: str, read: Callable[[str, str], T], *, variable: str = "") -> T:
    """Declare a setting. `read` takes its word and its name, such as `redis,port`; `variable` stands in for an empty word."""

    def from_words(words: _Words) -> T:
        word = words.given.get(name, default) or words.environ.get(variable, "")
        return read(word, f"{words.cache},{name}")

    return declared(from_words, _Words, name)


def _password(words: _Words) -> str:
    """Read the password: what stands there, or in a file, or in the environment."""
    word, path = words.given.get("password", ""), words.given.get("password_file", "")
    if word and path:
        raise SettingsError(f"--cache-config {words.cache} has both 'password' and 'password_file'")
    if path:
        return read_secret(path, f"--cache-config {words.cache},password_file")
    return word or words.environ.get(PASSWORD_VARIABLE, "")


def _cache_config(word: str, name: str) -> str:
    if not re.fullmatch("[^,]+,[^=]+=.*", word, re.DOTALL):
        raise misshapen(name, "<cache name>,<setting>=<value>", concealed(word))
    return word


CACHE_CONFIG: Final = Form("CACHE,SETTING=VALUE", _cache_config, _cache_config)


def cache_secret(word: str) -> bool:
    """Whether a word of `--cache-config` holds a password."""
    return bool(re.match("[^,]+,password=.", word))


def _needed(such_as: str, read: Callable[[str, str], T]) -> Callable[[str, str], T]:
    def read_one(word: str, name: str) -> T:
        if not word:
            cache, _, setting = name.partition(",")
            raise SettingsError(
                f"--cache-config {cache} needs '{setting}'", hint=f"--cache-config={name}={such_as}"
            )
        return read(word, name)

    return read_one


def _text(word: str, name: str) -> str:
    return word


def _size(word: str, name: str) -> int:
    return to_size(word, f"cache-config={name}")


def _switch(word: str, name: str) -> bool:
    value = truth(word)
    if value is None:
        raise SettingsError(f"--cache-config {name} takes true or false. Got {word.lower()}")
    return value


def _number(least: int = 0, most: int = 2**31 - 1) -> Callable[[str, str], int]:
    def read(word: str, name: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", word) or not least <= int(word) <= most:
            raise SettingsError(
                f"--cache-config {name} takes a whole number from {least} to {most}. Got {word}"
            )
        return int(word)

    return read


def _milliseconds(word: str, name: str) -> float:
    return _number()(word, name) / 1000


def _port(word: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", word) or not 0 < int(word) < 65536:
        raise SettingsError(f"--cache-config {name} takes 1 to 65535. Got {word}")
    return int(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCache:
    """A cache in the server's memory, of up to `size` bytes."""

    size: int = _setting("size", "", _needed("1048576", _size))

    def options(self) -> list[tuple[str, str]]:
        """Return what an operator wants to see at start-up."""
        return [("response_cache", f"local, {size_text(self.size)}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTls:
    """How the server's identity is checked: paths of PEM files.

    If they are empty: the system's authorities, no client certificate, and `host`.
    """

    cert: str = _setting("cert", "", _text)
    key: str = _setting("key", "", _text)
    cacert: str = _setting("cacert", "", _text)
    sni: str = _setting("sni", "", _text)


def _tls(words: _Words) -> RedisTls | None:
    tls = read_sheet(RedisTls, words)
    if not _switch(words.given.get("tls_enabled", "false"), f"{words.cache},tls_enabled"):
        for name in entries_of(RedisTls):
            if words.given.get(name):
                raise SettingsError(
                    f"--cache-config {words.cache},{name} has no meaning without TLS",
                    hint=f"--cache-config={words.cache},tls_enabled=true",
                )
        return None
    if bool(tls.cert) != bool(tls.key):
        raise SettingsError(f"--cache-config {words.cache}: 'cert' and 'key' go together")
    return tls


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisCache:
    """A cache in a Redis server. Times are seconds; 0 leaves it to Tritium."""

    host: str = _setting("host", "", _needed("localhost", _text))
    port: int = _setting("port", "", _needed("6379", _port))
    user: str = _setting("user", "", _text, variable=USERNAME_VARIABLE)
    password: str = declared(_password, _Words, "password", "password_file", secret=True)
    db: int = _setting("db", "0", _number())
    connect_timeout: float = _setting("connect_timeout", "0", _milliseconds)
    socket_timeout: float = _setting("socket_timeout", "0", _milliseconds)
    pool_size: int = _setting("pool_size", "1", _number(1, 1024))
    wait_timeout: float = _setting("wait_timeout", "1000", _milliseconds)
    tls: RedisTls | None = declared(_tls, _Words, "tls_enabled", *entries_of(RedisTls))

    def options(self) -> list[tuple[str, str]]:
        """Return what an operator wants to see at start-up, which is not the password."""
        kind = "rediss" if self.tls is not None else "redis"
        return [("response_cache", f"{kind}://{self.host}:{self.port}/{self.db}")]


CacheSettings: TypeAlias = LocalCache | RedisCache
_CACHES: Final[Mapping[str, type[CacheSettings]]] = {"local": LocalCache, "redis": RedisCache}


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
    for name, words in caches.items():
        if name not in _CACHES:
            raise SettingsError(
                f"--cache-config names an unknown cache '{name}'", hint="the caches are local and redis"
            )
        known = list(entries_of(_CACHES[name]))
        # This comes before other checks, because a setting that is missing may have been misspelt.
        for setting in words:
            if setting not in known:
                raise SettingsError(
                    f"unknown --cache-config setting '{setting}' of cache '{name}'",
                    hint="settings are " + ", ".join(known),
                )
        those = _Words(name, words, given.environ)
        if name == "redis":
            _tls(those)  # what is wrong with TLS is told first
        return read_sheet(_CACHES[name], those)
    return None
