"""From a name to the model that answers: what frontends and callers hold. Passive.

Implements `actors.values.interfaces.Models`. Texts are those of contract http.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from actors.serving.routing.roster import Roster
from actors.serving.standing import Status
from actors.values.errors import InvalidArgument, NotFound, Unavailable
from actors.values.requests import ServedModel
from actors.values.specs import ModelKey
from actors.values.versions import parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTheWay:
    """A load that is going on: its phase in words, and in how many seconds it may be over."""

    told: str
    retry_after: float


def _nothing_loads(name: str, namespace: str) -> OnTheWay | None:
    del name, namespace
    return None


class Router:
    """Resolves names by the roster of what there is."""

    def __init__(
        self,
        *,
        namespacing: bool = False,
        on_the_way: Callable[[str, str], OnTheWay | None] = _nothing_loads,
    ) -> None:
        """With `namespacing`, models of several repositories may share a name.

        `on_the_way` returns the load of a model of this name, of that namespace if one is given.
        """
        self.namespacing = namespacing
        self.roster = Roster()
        self._on_the_way = on_the_way
        # The roster's own, since a request pays for each step to them.
        self._fronts = self.roster.fronts
        self._known = self.roster.known
        self._named = self.roster.named

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return the version that is to answer. See `actors.values.interfaces.Models`.

        With a `namespace`, the model is that of this repository, whether or not others have one of the same
        name.
        """
        if not version:
            front = self.roster.front(ModelKey(name, namespace)) if namespace else self._fronts.get(name)
            if front is not None:
                return front
        number = parse_version(version) if version else 0  # checked before the model is
        key = ModelKey(name, namespace)
        if not (namespace and key in self._known):
            key = self._only_key(name, number)
        known = self._known[key]
        if not version:
            nothing = NotFound(f"Request for unknown model: '{name}' has no available versions")
            raise self._loading(key, number) or nothing
        state = known.serving.get(number)
        if state is not None and state.status is Status.READY:
            return state
        if not known.serving and number in known.dormant:
            return known.dormant[number]
        if (
            state is None
            and number not in known.past
            and all(each.spec.version != number for each in known.background)
        ):
            loading = None if known.serving else self._loading(key, number)
            raise loading or NotFound(f"Request for unknown model: '{name}' version {number} is not found")
        raise self._loading(key, number) or _not_ready(name, number)

    def _loading(self, key: ModelKey, number: int) -> Unavailable | None:
        """Return the error of a model or version that is being loaded: what it waits for, and how long.

        `number` is the version; 0 stands for the model.
        """
        way = self._on_the_way(key.name, key.namespace)
        if way is None:
            return None
        state = f"version {number} is not at ready state" if number else "has no available versions"
        told = f"Request for unknown model: '{key.name}' {state}: {way.told}"
        return Unavailable(told, retry_after=way.retry_after)

    def _only_key(self, name: str, number: int = 0) -> ModelKey:
        keys = self._named.get(name, ())
        if not keys:
            unknown = f"Request for unknown model: '{name}' is not found"
            loading = self._loading(ModelKey(name), number)
            raise loading or (InvalidArgument(unknown) if self.namespacing else NotFound(unknown))
        if len(keys) > 1:
            raise ambiguous(name, len(keys))
        return keys[0]

    def versions(self, name: str) -> Sequence[int]:
        """Return the READY versions of `name`, ascending.

        For a model that is not loaded, these are the versions that it would have.
        """
        known = self._known.get(self._only_key(name))
        if known is None:
            return []
        return sorted(known.ready or (() if known.serving else known.dormant))

    def statistics(self, name: str = "", version: str = "") -> Sequence[Mapping[str, object]]:
        """Return `model_stats` elements. See `actors.values.interfaces.Models`."""
        number = parse_version(version) if version else 0
        ready = [state for state in self.roster.states() if state.status is Status.READY]
        if name:
            keys = self._named.get(name, ())
            if len(keys) > 1:
                raise ambiguous(name, len(keys))
            ready = [state for state in ready if state.spec.name == name]
            if not ready:
                raise InvalidArgument(f"requested model '{name}' is not available")
        if name and version:
            ready = [state for state in ready if state.spec.version == number]
            if not ready:
                raise InvalidArgument(f"requested model version is not available for model '{name}'")
        return [state.describe_statistics() for state in ready]


def ambiguous(name: str, count: int) -> InvalidArgument:
    """Return the error of a name that several models have (contract, repository.md section 2)."""
    return InvalidArgument(
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve"
        " ambiguity."
    )


def _not_ready(name: str, number: int) -> Unavailable:
    return Unavailable(f"Request for unknown model: '{name}' version {number} is not at ready state")
