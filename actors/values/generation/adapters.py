"""LoRA adapters of language models."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Adapter(NamedTuple):
    """One adapter, as its file or its client has named it.

    `root` is its place as it was written, and `path` where the engine finds it. `id` tells whether its files
    are still the same; it is empty where that can't be known, as of a name of a hub's.
    """

    name: str
    root: str
    path: str
    id: str = ""

    @property
    def told(self) -> dict[str, str]:
        """What an engine is told of it, with each request that is for it."""
        return {"name": self.name, "path": self.path, "id": self.id}


class AdapterControl(Protocol):
    """Loads and unloads adapters of models that serve."""

    async def load(self, model: str, name: str, path: str, *, in_place: bool) -> None:
        """Have a model serve an adapter by a name, from a folder among those that the operator allows.

        With `in_place` it may take the place of one that has this name. Returns once an engine has loaded it.
        Raises TritiumError.
        """

    def unload(self, model: str, name: str) -> None:
        """Have a model serve an adapter no longer. Requests that have begun end with it.

        Raises NoSuchAdapter, or another TritiumError.
        """
