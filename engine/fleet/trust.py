"""What replicas are asked with over `https://`: what is trusted, and what is shown."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from engine.fleet.loads import Tell
from engine.fleet.wanted import Tls

_LIMITS: Final = httpx.Limits(max_connections=None, keepalive_expiry=30)

Stamp = tuple[Tls, tuple[int, ...]]


class BadFile(Exception):
    """A file that TLS needs can't be used. The message names it."""


def context(tls: Tls) -> ssl.SSLContext:
    """Return what connections are made with. Raises BadFile."""
    try:
        made = ssl.create_default_context(cafile=tls.ca_file or None)
    except OSError as error:
        raise BadFile(f"tls.ca_file: {tls.ca_file} can't be used: {error.strerror or error}") from error
    if tls.certificate_file:
        try:
            # A key that is encrypted is refused: else a password would be asked for at the terminal.
            made.load_cert_chain(tls.certificate_file, tls.key_file or None, password="")
        except OSError as error:
            files = " with ".join(each for each in (tls.certificate_file, tls.key_file) if each)
            raise BadFile(f"tls: {files} can't be used: {error.strerror or error}") from error
    return made


class Clients:
    """The client that asks all replicas: another one when what it trusts or shows has changed.

    `tls` returns what the fleet's file says now. Files may be replaced, as where certificates are renewed;
    what can't be used is told, and the client before stays. Close it at the end.
    """

    def __init__(self, tls: Callable[[], Tls], tell: Tell) -> None:
        """Raises BadFile."""
        self._tls = tls
        self._tell = tell
        self._stamp = _stamp(tls())
        self._client = _client(self._stamp[0])
        self._before: httpx.AsyncClient | None = None

    async def client(self) -> httpx.AsyncClient:
        """Return the client of now."""
        stamp = _stamp(self._tls())
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                fresh = _client(stamp[0])
            except BadFile as error:
                self._tell("fleet_tls_refused", reason=str(error))
                return self._client
            # A load may be under way with the one before.
            gone, self._before, self._client = self._before, self._client, fresh
            if gone is not None:
                await gone.aclose()
        return self._client

    async def close(self) -> None:
        """End all connections."""
        for client in (self._client, self._before):
            if client is not None:
                await client.aclose()


def _client(tls: Tls) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=context(tls), trust_env=False, limits=_LIMITS)


def _stamp(tls: Tls) -> Stamp:
    times = []
    for name in (tls.ca_file, tls.certificate_file, tls.key_file):
        try:
            times.append(Path(name).stat().st_mtime_ns if name else 0)
        except OSError:
            times.append(-1)
    return tls, tuple(times)
