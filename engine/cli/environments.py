"""Environments of Python models for `tritium check`, which has no loop of its own and no log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from actors.values.events import Event
from actors.values.specs import Runtime
from engine.environments.cache import EnvironmentCache
from engine.environments.declared import Environment
from engine.environments.layout import EnvironmentFailed


def prepared(
    cache: EnvironmentCache, environments: Sequence[Environment]
) -> Mapping[Environment, Runtime | EnvironmentFailed]:
    """Build environments as the server would; return the outcome of each.

    The steps are told on standard error.
    """
    import trio  # a check that needs none of this is quicker without

    from engine.environments.builder import EnvironmentBuilder

    def report(phase: str, details: Mapping[str, object]) -> None:
        del phase
        sys.stderr.write(f"{details['environment']}: {details['step']}\n")

    def log(event: Event, *, level: str = "info", **keys: object) -> None:
        del event, level, keys  # the steps tell as much

    builder = EnvironmentBuilder(cache, environ=os.environ, log=log)
    return trio.run(builder.prepare, environments, report)
