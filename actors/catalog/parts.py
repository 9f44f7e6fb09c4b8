"""What ensembles are composed of: load the parts first, find circles, check again when a part has changed.

Contract: repository.md section 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace

import trio

from actors.catalog.found import FoundModel
from actors.catalog.lane import Lanes
from actors.catalog.operations import ModelSource, Need, Recompose, Unload
from actors.values.errors import ErrorCode, TritiumError
from actors.values.interfaces import PermitIn
from actors.values.specs import ModelKey

Find = Callable[[str, str], Awaitable[ModelKey]]
"""From a name and a preferred namespace to the model. Raises TritiumError where there is none."""

Compose = Callable[[FoundModel], FoundModel]
"""Completes an ensemble from its composing models, which are loaded, or says why they don't fit."""


class Parts:
    """Which model is composed of which, by what the lanes know. Passive."""

    def __init__(
        self,
        lanes: Lanes,
        source: ModelSource,
        find: Find,
        compose: Compose,
        awaited_by: Callable[[str], AbstractSet[str]],
        *,
        again: bool,
    ) -> None:
        """With `again`, a part that could not be loaded is tried again for each ensemble.

        `awaited_by` returns the models whose loads a model's own load waits for: the model has asked for them
        while it loads.
        """
        self._lanes = lanes
        self._source = source
        self._find = find
        self._compose = compose
        self._again = again
        self._awaited_by = awaited_by

    async def ensure(self, key: ModelKey, found: FoundModel) -> FoundModel:
        """Load a model's composing models unless they are loaded, and return it as they make it up."""
        names = sorted({name for spec in found.specs for name in spec.depends_on})
        if not names:
            return found
        # Before waiting for any load: circles are detected by this.
        self._lanes.of(key).deployment.want(found)
        parts: list[ModelKey] = []

        async def load(name: str) -> None:
            try:
                part = await self._find(name, key.namespace)
                parts.append(part)
                if not self._way(part, key) and not self._awaits(part, key):
                    await self._lanes.of(part).ask(Need(self._source, self.ensure, again=self._again))
            except TritiumError:
                # The composition of the model tells what is missing, and why.
                return

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(load, name)
        circles = ((key, *way) for part in parts if (way := self._way(part, key)))
        circle = next(circles, None)
        return _circular(found, circle) if circle else self._compose(found)

    def _way(self, start: ModelKey, end: ModelKey) -> tuple[ModelKey, ...]:
        """Return a path from `start` to `end` through composing models; () if there is none."""
        paths: list[tuple[ModelKey, ...]] = [(start,)]
        seen = {start}
        for path in paths:  # `paths` grows meanwhile
            if path[-1] == end:
                return path
            lane = self._lanes.find(path[-1])
            parts = frozenset[str]() if lane is None else lane.deployment.parts
            for key in self._lanes.all():
                if key.name in parts and key not in seen:
                    seen.add(key)
                    paths.append((*path, key))
        return ()

    def _awaits(self, part: ModelKey, key: ModelKey) -> bool:
        """Whether `part` has itself asked for a load that waits for `key`'s load.

        Then `key` must not wait for it.
        """
        names = self._awaited_by(part.name)
        return any(each.name in names and self._way(each, key) for each in self._lanes.all())

    def needs(self, name: str, part: str) -> bool:
        """Whether `name` is composed of `part`, directly or through other models, as far as is known."""
        starts = [key for key in self._lanes.named(name) if name != part]
        return any(self._way(start, end) for start in starts for end in self._lanes.named(part))

    async def recheck_ensembles_of(self, name: str, seen: set[ModelKey]) -> None:
        """Have the ensembles of a model check themselves again now, and their ensembles too."""
        for key in self._lanes.ensembles_of(name):
            if key not in seen:
                seen.add(key)
                with suppress(TritiumError):  # the error is logged
                    await self._lanes.of(key).ask(Recompose())
                await self.recheck_ensembles_of(key.name, seen)

    def alone_in(self, keys: Sequence[ModelKey]) -> Sequence[ModelKey]:
        """Return the models that only `keys`, and each other, are composed of: `unload` would unload them."""
        gone = list(keys)
        for each in gone:  # which grows meanwhile
            gone += self._unneeded(self._lanes.of(each).deployment.depends_on, gone)
        return gone[len(keys) :]

    async def unload(self, names: frozenset[str], permit: PermitIn) -> None:
        """Unload models that no client asked for by name, and that no loaded model is composed of.

        `permit` is asked again of each: another model may have left meanwhile.
        """
        for key in self._unneeded(names):
            lane = self._lanes.of(key)
            permit(key.name, key.namespace)
            parts = lane.deployment.depends_on
            await lane.ask(Unload())
            await self.unload(parts, permit)

    def _unneeded(self, names: frozenset[str], gone: Sequence[ModelKey] = ()) -> Sequence[ModelKey]:
        """Return those of `names` that no model would need without `gone`, and that are not of these."""
        left = {key: lane.deployment for key, lane in self._lanes.all().items() if key not in gone}
        names -= frozenset[str]().union(*(each.depends_on for each in left.values()))
        return [key for key, each in left.items() if key.name in names and not each.explicit]


def _circular(found: FoundModel, circle: Sequence[ModelKey]) -> FoundModel:
    """Return an ensemble that contains itself as one that can't be loaded.

    Contract: repository.md section 7.
    """
    name, first = circle[0].name, circle[1].name
    text = f"circular dependency between ensembles: {name} -> ... -> {first} -> {name}"
    path = " -> ".join(key.name for key in reversed(circle))
    return replace(
        found,
        specs=(),
        reason=f"{ErrorCode.INVALID_ARG.rendered}: {text}",
        unfit=text,
        errors=(f"{text} (the whole circle: {path})",),
    )
