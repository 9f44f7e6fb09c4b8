"""Which environments this machine has, and what runs in them.

This never builds one: see `engine.environments.builder`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from actors.values.specs import Runtime
from engine.environments.declared import Environment, Kind
from engine.environments.layout import EnvironmentFailed, Facts, read_marker


class NotBuilt(Exception):
    """The environment has to be built first."""


class Environments(Protocol):
    """What the code that reads configurations asks of environments."""

    def runtime(self, environment: Environment) -> Runtime:
        """Return what runs in it. Raises NotBuilt, and EnvironmentFailed if there can't be one."""


class Standing:
    """What is known of environments while one model is read: the results of `EnvironmentBuilder.prepare`."""

    def __init__(
        self, cache: Environments, outcomes: Mapping[Environment, Runtime | EnvironmentFailed]
    ) -> None:
        self._cache = cache
        self._outcomes = outcomes

    def runtime(self, environment: Environment) -> Runtime:
        """See `Environments`."""
        outcome = self._outcomes.get(environment)
        if outcome is None:
            return self._cache.runtime(environment)
        if isinstance(outcome, EnvironmentFailed):
            raise outcome
        return outcome


class EnvironmentCache:
    """The built environments in one directory, which several servers may share. Implements `Environments`."""

    def __init__(self, directory: Path, *, environ: Mapping[str, str]) -> None:
        """`environ` is the server's. The directory may be missing until the first environment is built."""
        self._directory = directory.absolute()
        self._environ = environ

    def runtime(self, environment: Environment) -> Runtime:
        """Return what runs in an environment that is here.

        Raises NotBuilt; always for a directory, which is not ours.
        """
        facts = None if environment.kind is Kind.DIRECTORY else read_marker(self.path(environment))
        if facts is None:
            raise NotBuilt
        return self.described(environment, facts)

    def path(self, environment: Environment) -> Path:
        """Return where the environment is, or is to be built."""
        return self._directory / environment.name

    def described(self, environment: Environment, facts: Facts) -> Runtime:
        """Return what runs in an environment of which these are the facts."""
        searched = {
            name: os.pathsep.join(filter(None, (paths, self._environ.get(name, ""))))
            for name, paths in facts.search.items()
        }
        return Runtime(
            interpreter=facts.interpreter,
            environ=tuple(sorted({**facts.environ, **searched}.items())),
            digest=environment.digest,
        )
