"""How confined models are that other models want loaded or unloaded, for `engine.server.model_control`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors.catalog.operations import ModelSource
from actors.serving.routing.roster import Roster
from actors.values.confinement import Sandbox
from actors.values.specs import Ensemble, ModelKey, ModelSpec


class Confinements:
    """The sandboxes of a model and of those that it is composed of: in the repository, and as they serve."""

    def __init__(self, source: ModelSource, roster: Roster) -> None:
        self._source = source
        self._roster = roster

    async def found(self, name: str) -> Mapping[str, Sandbox]:
        """Return the sandboxes, by name, that a load of `name` would come to.

        A model that is in no repository, or can't be loaded, is left out: a load of it fails by itself.
        Raises as `ModelSource.read` does.
        """
        levels: dict[str, Sandbox] = {}
        names = [name]
        for each in names:  # which grows meanwhile
            model = await self._source.read(ModelKey(each), None, lambda phase, details: None)
            if model is not None:
                model.settle()
                self._add(each, model.specs, levels, names)
        return levels

    async def serving(self, name: str) -> Mapping[str, Sandbox]:
        """Return the sandboxes, by name, of what serves."""
        levels: dict[str, Sandbox] = {}
        names = [name]
        for each in names:  # which grows meanwhile
            for key in self._roster.keys(each):
                states = [*self._roster.serving(key).values(), *self._roster.background(key)]
                self._add(each, [state.spec for state in states], levels, names)
        return levels

    @staticmethod
    def _add(name: str, specs: Iterable[ModelSpec], levels: dict[str, Sandbox], names: list[str]) -> None:
        for spec in specs:
            names += [part for part in spec.depends_on if part not in names]
            its = spec.confinement.sandbox
            if isinstance(spec.scheduling, Ensemble):
                continue  # it has no code
            if name not in levels or levels[name].holds(its):
                levels[name] = its
