"""The repositories of the command line, opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.source import Source
from engine.settings.cache import RedisCache
from engine.settings.settings import ControlMode, Settings
from engine.settings.uris import is_remote

_NO_CHANGES: ControlMode = "none"


def open_sources(settings: Settings, environ: Mapping[str, str], digests: Digests) -> Sequence[Source]:
    """Return the repositories, each once. Raises TritiumError for one that can't be opened."""
    cache = Path(settings.model_cache_directory)
    # Without changes there is nothing to compare, except what an earlier server left in a cache that outlives
    # it.
    compare = settings.control_mode != _NO_CHANGES or isinstance(settings.cache, RedisCache)

    def opened(uri: str) -> Source:
        if not is_remote(uri):
            return LocalSource(uri, digests=digests, compare=compare)
        from engine.repository.remote.source import open_source  # only they pay for it

        return open_source(uri, environ, cache_directory=cache, cache_bytes=settings.model_cache_size)

    once = {uri if is_remote(uri) else str(Path(uri).resolve()): uri for uri in settings.model_repositories}
    return [opened(uri) for uri in once.values()]
