"""The operations on one model, and what a load request says (contract, repository.md sections 5 and 6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from actors.catalog.deployment import Deployment
from actors.catalog.found import FoundModel, Override
from actors.catalog.loading import Superseded, not_polled
from actors.values.errors import InvalidArgument, TritiumError, Unavailable
from actors.values.specs import ModelKey
from actors.values.versions import LOADED_VERSIONS, read_versions

NOWHERE: Final = "it is in no model repository"
UNATTENDED_LIVES: Final = 3


class Unreadable(Exception):
    """The repository can't be read just now; the message says which one, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The models that there are, and why some repositories could not be asked."""

    keys: Sequence[ModelKey]
    failures: Sequence[str] = ()


class ModelSource(Protocol):
    """The repositories, as the catalog asks them."""

    async def listing(self) -> Listing:
        """Return every model of the repositories that can be asked."""

    async def read(
        self, key: ModelKey, override: Override | None, report: Callable[[str, Mapping[str, object]], None]
    ) -> FoundModel | None:
        """Return the model as it stands, or None where there is no such model. `report` is told of phases.

        Raises Unreadable.
        """


Ensure = Callable[[ModelKey, FoundModel], Awaitable[FoundModel]]
"""Loads the models that an ensemble is composed of, and returns the ensemble as they make it up.

Other models are returned as they are.
"""


class Operation(ABC):
    """One thing asked of one model, and how it ended."""

    gives_way = False  # whether an order to unload takes its place
    loads = False  # whether the model may serve once it is done
    # How many lives of its lane may end before the operation is given up. A client that asked for it may try
    # again. An operation that no client waits for goes on in the next life: else the model would stay as it
    # was until something about it changes once more.
    lives = 1

    def __init__(self) -> None:
        self.error: TritiumError | None = None
        self.done = trio.Event()

    def finish(self, error: TritiumError | None = None) -> None:
        """Give the outcome to the caller that waits for it. Only the first call counts."""
        if not self.done.is_set():
            self.error = error
            self.done.set()

    async def outcome(self) -> None:
        """Wait for the end. Raises what it failed with."""
        await self.done.wait()
        if self.error is not None:
            raise self.error

    def covers(self, other: Operation) -> bool:
        """Whether `other` is needless, because this operation waits and will do what it would."""
        del other
        return False

    def give_way(self, deployment: Deployment) -> None:
        """Tell the caller that an order to unload has taken its place."""
        self.finish(Superseded(deployment.key.name, deployment.versions))

    @abstractmethod
    async def carry_out(self, deployment: Deployment) -> None:
        """Do it. Raises TritiumError."""


class _FromRepository(Operation):
    """Read the model's directory, and have the model that is found serve."""

    gives_way = loads = True

    def __init__(self, source: ModelSource, ensure: Ensure) -> None:
        super().__init__()
        self._source = source
        self._ensure = ensure

    async def _read(self, deployment: Deployment, override: Override | None = None) -> FoundModel | None:
        def report(phase: str, details: Mapping[str, object]) -> None:
            deployment.enter(phase, details=details)

        deployment.enter("reading")
        try:
            return await self._source.read(deployment.key, override, report)
        except Unreadable as error:
            deployment.could_not_read(str(error))
            raise

    async def _read_and_apply(self, deployment: Deployment) -> None:
        """Load the model if it is there. If it is loaded on demand, it stays dormant."""
        try:
            found = await self._read(deployment)
        except Unreadable as error:
            raise Unavailable(str(error)) from error
        if found is not None:
            await self._apply(deployment, found)

    async def _apply(
        self,
        deployment: Deployment,
        found: FoundModel,
        *,
        override: Override | None = None,
        forced: bool = False,
        awake: bool = False,
    ) -> None:
        applied = False
        if any(spec.depends_on for spec in found.specs):
            deployment.enter("waiting for its models")
        try:
            found = await self._ensure(deployment.key, found)
            await deployment.apply(found, override=override, forced=forced, awake=awake)
            applied = True
        finally:
            found.settle(applied=applied)


class Load(_FromRepository):
    """The operation of a load request."""

    def __init__(self, source: ModelSource, ensure: Ensure, override: Override | None) -> None:
        super().__init__(source, ensure)
        self._override = override

    async def carry_out(self, deployment: Deployment) -> None:
        """Load or reload; an unchanged model that is loaded stays."""
        deployment.explicit = True
        try:
            override, found = await self._read_as_wanted(deployment)
        except Unreadable as error:
            deployment.set_back({0: str(error)})
            raise not_polled(deployment.key, str(error)) from error
        if found is None:
            deployment.could_not_read(NOWHERE)
            deployment.set_back({0: NOWHERE})
            raise not_polled(deployment.key, NOWHERE)
        await self._apply(deployment, found, override=override, forced=self._reconfigures(), awake=True)

    def _reconfigures(self) -> bool:
        """Whether the load brings a configuration, after which a model is always loaded anew."""
        return self._override is not None and self._override.config is not None

    async def _read_as_wanted(self, deployment: Deployment) -> tuple[Override | None, FoundModel | None]:
        """Return the model as it is to serve, and the override that this takes into account, if any.

        The configuration of an earlier load stays in force over a load without one. That ends when the files
        in the repository change or the model is unloaded (contract, repository.md section 5.1).
        """
        kept = deployment.override
        if self._override is not None or kept is None:
            return self._override, await self._read(deployment, self._override)
        found = await self._read(deployment, kept)
        if found is None or (found.content and found.content == deployment.overrode):
            return kept, found
        found.settle()
        return None, await self._read(deployment)


class Start(_FromRepository):
    """The operation at start-up: models that are loaded on demand stay dormant."""

    async def carry_out(self, deployment: Deployment) -> None:
        """Load the model if it should be loaded."""
        await self._read_and_apply(deployment)


class Need(_FromRepository):
    """The operation for an ensemble that is composed of the model."""

    def __init__(self, source: ModelSource, ensure: Ensure, *, again: bool) -> None:
        """With `again`, a model that could not be loaded is tried again."""
        super().__init__(source, ensure)
        self._again = again

    async def carry_out(self, deployment: Deployment) -> None:
        """Load the model unless it is loaded. A model that is loaded on demand stays dormant."""
        if deployment.stands or (deployment.tried and not self._again):
            return
        await self._read_and_apply(deployment)


class Recompose(Operation):
    """The catalog's operation when a model that an ensemble is composed of has changed."""

    lives = UNATTENDED_LIVES

    def covers(self, other: Operation) -> bool:
        """It will see the same models."""
        return isinstance(other, Recompose)

    async def carry_out(self, deployment: Deployment) -> None:
        """Check whether the ensemble still fits together."""
        await deployment.recompose()


class LookAt(_FromRepository):
    """The watcher's operation when the model's directory has come to rest, and may have changed."""

    lives = UNATTENDED_LIVES

    def __init__(
        self,
        source: ModelSource,
        ensure: Ensure,
        could_not: Callable[[ModelKey, bool], object],
        *,
        changed: bool,
    ) -> None:
        """`changed`: something was written since the last look, if only the same content as before."""
        super().__init__(source, ensure)
        self._could_not = could_not
        self.changed = changed

    def covers(self, other: Operation) -> bool:
        """It will see the same files."""
        if not isinstance(other, LookAt):
            return False
        self.changed |= other.changed
        return True

    async def carry_out(self, deployment: Deployment) -> None:
        """Reload what has changed. A serving model is left alone if its content is the same as before.

        A model that could not be loaded is left alone too, unless it was written to: its files may have been
        away while it was tried.
        """
        if self.changed:
            deployment.refused = ""
        try:
            found = await self._read(deployment)
        except Unreadable:  # this says nothing about the model
            self._could_not(deployment.key, False)
            return
        if found is None:
            deployment.leave()
            self._could_not(deployment.key, False)  # it may be back before its absence was seen
            return
        if found.content and found.content in (deployment.content, deployment.refused):
            found.settle()
        else:
            await self._apply(deployment, found)


class Gone(Operation):
    """The watcher's operation when the model's directory is gone."""

    lives = UNATTENDED_LIVES

    async def carry_out(self, deployment: Deployment) -> None:
        """Unload and forget."""
        deployment.leave()


class Unload(Operation):
    """The operation of an unload request."""

    async def carry_out(self, deployment: Deployment) -> None:
        """Unload the model; running requests finish."""
        deployment.unload()


class Wake(Operation):
    """The operation of a request for a model that is loaded on demand."""

    gives_way = loads = True

    async def carry_out(self, deployment: Deployment) -> None:
        """Load the model unless it is loaded."""
        await deployment.wake()


class Evict(Operation):
    """The operation of the residency actor, which needs the memory."""

    # It may wait long for the last answers, after it has unloaded the model.
    gives_way = True

    def __init__(self) -> None:
        super().__init__()
        self.evicted = False

    def give_way(self, deployment: Deployment) -> None:
        """Tell the residency actor that there is no more to wait for."""
        self.finish(Unavailable(f"model '{deployment.key.name}' was unloaded"))

    async def carry_out(self, deployment: Deployment) -> None:
        """Unload the model for now."""
        self.evicted = await deployment.evict()


def check_name(name: str) -> None:
    """Raise InvalidArgument for a name that no model can have (contract, repository.md section 5)."""
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise InvalidArgument(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


def read_parameters(parameters: Mapping[str, object]) -> Override | None:
    """Return what a load request's parameters put in place of the repository's files.

    Contract, section 5.2. `tritium.versions` is Tritium's own.
    """
    config: str | None = None
    versions: tuple[int, ...] = ()
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            if not isinstance(value, str):
                raise InvalidArgument("Config parameter 'config' must have string type for its value")
            config = value
        elif key == LOADED_VERSIONS:
            versions = read_versions(value)
        elif key.startswith("file:"):
            if not isinstance(value, bytes):
                raise InvalidArgument(f"File parameter '{key}' must have bytes type for its value")
            files[key.removeprefix("file:")] = value
        else:
            raise InvalidArgument(f"Unrecognized load parameter '{key}' with type '{type(value).__name__}'")
    if files and config is None:
        raise InvalidArgument("Load parameter 'config' must be specified for model file override")
    if config is None and not versions:
        return None
    return Override(config=config, files=files, versions=versions)
