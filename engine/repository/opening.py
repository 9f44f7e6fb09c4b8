"""The repositories of the command line, opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from actors.values.errors import InvalidArgument
from engine.provenance.ed25519 import LibraryMissing, require_library
from engine.provenance.keys import TrustedFiles
from engine.provenance.trust import KeysUnusable
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.signed import SignedModels
from engine.repository.source import Source
from engine.settings.cache import RedisCache
from engine.settings.settings import ControlMode, Settings
from engine.settings.uris import is_remote

_NO_CHANGES: ControlMode = "none"


def open_signed(settings: Settings) -> SignedModels | None:
    """Return what admits signed models if only these are loaded.

    Raises InvalidArgument if their signatures can't be checked.
    """
    if not settings.provenance.require_signed:
        return None
    keys = TrustedFiles(settings.provenance.trusted_keys)
    try:
        require_library()
        keys.trust()
    except (LibraryMissing, KeysUnusable) as error:
        raise InvalidArgument(f"--require-signed: {error}") from error
    return SignedModels(keys, Path(settings.model_cache_directory))


def open_sources(settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
    """Return the repositories, each once. Raises TritiumError for one that can't be opened."""
    cache = Path(settings.model_cache_directory)

    def opened(uri: str) -> Source:
        if not is_remote(uri):
            return open_local(settings, uri, digests)
        from engine.repository.remote.source import open_source  # only they pay for it

        return open_source(uri, environ, cache_directory=cache, cache_bytes=settings.model_cache_size)

    once = {uri if is_remote(uri) else str(Path(uri).resolve()): uri for uri in settings.model_repositories}
    return [opened(uri) for uri in once.values()]


def open_local(settings: Settings, path: str, digests: Digests) -> LocalSource:
    """Return a repository in a local directory."""
    # Without changes there is nothing to compare, except what an earlier server left in a cache that outlives
    # it.
    # A private copy of a signed model is compared by what is found as it is made.
    compare = (
        settings.control_mode != _NO_CHANGES or isinstance(settings.cache, RedisCache)
    ) and not settings.provenance.require_signed
    return LocalSource(path, digests=digests, compare=compare, links=settings.links)
