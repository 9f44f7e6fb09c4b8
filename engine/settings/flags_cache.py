"""Flags about the response cache. `engine.settings.cache` reads what they mean."""

from __future__ import annotations

from typing import Final

from engine.settings.flag import Flag, Group, Kind, cache_config

CACHE_FLAGS: Final = (
    Flag(
        name="cache-config",
        group=Group.CACHE,
        metavar="CACHE,SETTING=VALUE",
        repeatable=True,
        check=cache_config,
        help="Keep answers of models with response_cache.enable: local,size=BYTES in the server's memory, or"
        " redis,host=HOST and redis,port=PORT in a Redis server. One cache, so repeatable for its settings only.",
    ),
    Flag(
        name="response-cache-byte-size",
        kind=Kind.INT,
        group=Group.CACHE,
        default="0",
        metavar="BYTES",
        help="Deprecated by Triton: --cache-config=local,size=BYTES.",
    ),
)
