"""From a name to the model version that serves: what frontends hold, and what the catalog edits.

Passive. Texts are those of contract http.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from actors.interfaces import IndexEntry
from actors.messages.errors import InvalidArgument, NotFound, Unavailable
from actors.model import ModelState, Status

_VERSION_LIMIT = 2**63


class Router:
    """Every model version that was ever asked to run, and those models that never could be."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int, ModelState]] = {}
        self._broken: dict[
            str, tuple[Sequence[int], str]
        ] = {}  # models that can't be configured: versions, and why
        self._latest: dict[str, ModelState] = {}  # the highest READY version, kept by `changed`

    def add(self, state: ModelState) -> None:
        """Know a model version, in place of an earlier one with its number."""
        self._broken.pop(state.spec.name, None)
        self._models.setdefault(state.spec.name, {})[state.spec.version] = state
        self.changed(state)

    def add_broken(self, name: str, versions: Sequence[int], reason: str) -> None:
        """Know a model that can't even be configured."""
        self._broken[name] = (versions, reason)

    def changed(self, state: ModelState) -> None:
        """A version's status is new: see which one answers for the model now."""
        name = state.spec.name
        ready = [each for each in self._models[name].values() if each.status is Status.READY]
        if ready:
            self._latest[name] = max(ready, key=lambda each: each.spec.version)
        else:
            self._latest.pop(name, None)

    def states(self) -> Iterator[ModelState]:
        """Every known version, by name and version."""
        for _, versions in sorted(self._models.items()):
            for _, state in sorted(versions.items()):
                yield state

    def find(self, name: str, version: int) -> ModelState | None:
        """Return what is known by that name and number."""
        return self._models.get(name, {}).get(version)

    # -- actors.interfaces.Models --------------------------------------------------------------------------------

    def resolve(self, name: str, version: str = "") -> ModelState:
        """Return the version that shall answer. See `actors.interfaces.Models`."""
        if not version:
            state = self._latest.get(name)
            if state is not None:
                return state
            if name in self._models or name in self._broken:
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        number = parse_version(version)
        if name not in self._models and name not in self._broken:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if number in self._broken.get(name, ((), ""))[0]:
            raise _not_ready(name, number)
        found = self._models.get(name, {}).get(number)
        if found is None:
            raise NotFound(f"Request for unknown model: '{name}' version {number} is not found")
        if found.status is not Status.READY:
            raise _not_ready(name, number)
        return found

    def versions(self, name: str) -> Sequence[int]:
        """Return the READY versions of `name`, ascending."""
        states = self._models.get(name, {}).values()
        return sorted(state.spec.version for state in states if state.status is Status.READY)

    def statistics(self, name: str = "", version: str = "") -> Sequence[Mapping[str, object]]:
        """Return `model_stats` elements. See `actors.interfaces.Models`."""
        ready = [state for state in self.states() if state.status is Status.READY]
        if name:
            ready = [state for state in ready if state.spec.name == name]
            if not ready:
                raise InvalidArgument(f"requested model '{name}' is not available")
        if version:
            number = parse_version(version)
            ready = [state for state in ready if state.spec.version == number]
            if not ready:
                raise InvalidArgument(f"requested model version is not available for model '{name}'")
        return [state.statistics.as_model_stats(state.spec.name, state.spec.version) for state in ready]

    # -- for actors.interfaces.Repository ------------------------------------------------------------------------

    def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return every version with its state. See `actors.interfaces.Repository`."""
        entries = [
            IndexEntry(
                name=state.spec.name,
                version=state.spec.version,
                state=state.status.value,
                reason=state.reason,
            )
            for state in self.states()
            if not ready_only or state.status is Status.READY
        ]
        if not ready_only:
            entries += [
                IndexEntry(name=name, version=version, state=Status.UNAVAILABLE.value, reason=reason)
                for name, (versions, reason) in self._broken.items()
                for version in versions or (0,)
            ]
        return sorted(entries, key=lambda entry: (entry.name, entry.version))

    def all_ready(self) -> bool:
        """Whether every version is READY or was unloaded on purpose (contract, repository.md section 8)."""
        return not self._broken and all(
            state.status is Status.READY or state.reason == "unloaded" for state in self.states()
        )


def _not_ready(name: str, number: int) -> Unavailable:
    return Unavailable(f"Request for unknown model: '{name}' version {number} is not at ready state")


def parse_version(text: str) -> int:
    """Return a version number. Raises InvalidArgument with the contract's texts."""
    try:
        number = int(text)
    except ValueError as error:
        raise _unparsable(text, "stoll") from error
    if not -_VERSION_LIMIT <= number < _VERSION_LIMIT:
        raise _unparsable(text, "stoll")
    if number <= 0:
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def _unparsable(text: str, detail: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to get model version from specified version string '{text}' (details: {detail}), "
        "version should be an integral value > 0"
    )
