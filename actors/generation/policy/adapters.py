"""Which LoRA adapters the clients of a language model may name. Pure.

    the file   `multi_lora.json` of a version, as it was read last
    orders     what was loaded and unloaded by API. They are the model's, and outlive its versions

The later word counts: an order goes before the file, until the file says something new of that name.

No engine keeps this set: each request brings the adapter that it is for, and an engine that does not have it
loads it. So nothing has to reach all engines, and one that starts again needs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from actors.values.errors import InvalidArgument
from actors.values.generation.adapters import Adapter
from actors.values.generation.facts import NoSuchAdapter

MOST_LOADED: Final = 4096
"""Adapters of a model that may be loaded by API at once."""


class AdapterOrders:
    """What was loaded and unloaded by API, of one model."""

    __slots__ = ("changes", "loaded", "unloaded")

    def __init__(self) -> None:
        self.loaded: dict[str, Adapter] = {}
        self.unloaded: set[str] = set()  # of those that a file has
        self.changes = 0


class Adapters:
    """The adapters of one version; see the module."""

    __slots__ = ("_file", "_named", "_orders", "_roots", "_seen")

    def __init__(self, file: Sequence[Adapter] = (), orders: AdapterOrders | None = None) -> None:
        """`file` has the adapters of `multi_lora.json`."""
        self._orders = orders or AdapterOrders()
        self._file = {each.name: each for each in file}
        self._seen = -1
        self._named: Mapping[str, Adapter] = {}
        self._roots: Mapping[str, str] = {}

    @property
    def named(self) -> Mapping[str, Adapter]:
        """All of them, by name. Asked once a request."""
        if self._seen != self._orders.changes:
            self._look()
        return self._named

    @property
    def roots(self) -> Mapping[str, str]:
        """Where each is from, as it was written."""
        if self._seen != self._orders.changes:
            self._look()
        return self._roots

    def _look(self) -> None:
        orders = self._orders
        named = {name: each for name, each in self._file.items() if name not in orders.unloaded}
        named.update(orders.loaded)
        self._named = MappingProxyType(named)
        self._roots = MappingProxyType({name: each.root for name, each in named.items()})
        self._seen = orders.changes

    def follow(self, file: Sequence[Adapter]) -> None:
        """The file was read again. What is new or different there goes before what was ordered."""
        orders, before = self._orders, self._file
        self._file = {each.name: each for each in file}
        for name in {*before, *self._file}:
            if before.get(name) != self._file.get(name):
                orders.loaded.pop(name, None)
                orders.unloaded.discard(name)
        orders.changes += 1

    def over(self, file: Sequence[Adapter]) -> Adapters:
        """Return the adapters of another version of the model, whose file has these."""
        return Adapters(file, self._orders)

    def check_new(self, name: str, *, in_place: bool) -> None:
        """Raise InvalidArgument where an adapter can't be loaded by this name, in vLLM's words."""
        if name in self.named and not in_place:
            raise InvalidArgument(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in"
                " place, set 'load_inplace' to True."
            )
        loaded = self._orders.loaded
        if name not in loaded and len(loaded) >= MOST_LOADED:
            raise InvalidArgument(f"{len(loaded)} adapters are loaded, which is the most: unload some first")

    def load(self, adapter: Adapter) -> None:
        """Have an adapter from now on."""
        self._orders.loaded[adapter.name] = adapter
        self._orders.unloaded.discard(adapter.name)
        self._orders.changes += 1

    def unload(self, name: str) -> None:
        """Have an adapter no longer. Raises NoSuchAdapter, in vLLM's words."""
        if name not in self.named:
            raise NoSuchAdapter(f"The lora adapter '{name}' cannot be found.")
        self._orders.loaded.pop(name, None)
        if name in self._file:
            self._orders.unloaded.add(name)
        self._orders.changes += 1
