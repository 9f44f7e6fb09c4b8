"""The repository as an operator sees it over the network.

It shows what runs, what is on its way, and what else there is to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import trio

from actors.catalog.catalog import Catalog
from actors.catalog.operations import Listing, ModelSource
from actors.serving.routing.roster import Roster
from actors.values.interfaces import UNLOADED, IndexEntry, PermitIn, anywhere
from actors.values.specs import ModelKey

LISTING_SECONDS: Final = 5.0
"""How long a repository may take to be listed; after that the index tells what is known without."""


class RepositoryView:
    """Implements `actors.values.interfaces.Repository`.

    The index comes from the roster and the repositories; changes go through the catalog.
    """

    def __init__(self, roster: Roster, catalog: Catalog, source: ModelSource) -> None:
        self._roster = roster
        self._catalog = catalog
        self._source = source

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return every version with its state, and the models that were never loaded.

        Contract: repository.md section 4.
        """
        if ready_only:
            return self._roster.index(ready_only=True)
        listing = Listing(keys=(), failures=("it takes too long",))
        with trio.move_on_after(LISTING_SECONDS):
            listing = await self._source.listing()
        entries = self._roster.index()
        there = {*listing.keys, *self._catalog.busy}
        # Then it is not known that something is gone.
        if listing.failures:
            there.update(ModelKey(entry.name, entry.namespace) for entry in entries)
        return with_progress(self._catalog, merged(entries, there))

    async def load(self, name: str, parameters: Mapping[str, object], *, permit: PermitIn = anywhere) -> None:
        """Load a model."""
        await self._catalog.load(name, parameters, permit=permit)

    async def unload(
        self, name: str, *, unload_dependents: bool = False, permit: PermitIn = anywhere
    ) -> None:
        """Unload a model."""
        await self._catalog.unload(name, unload_dependents=unload_dependents, permit=permit)


def known(roster: Roster, catalog: Catalog) -> list[IndexEntry]:
    """Return the versions that were ever asked to run, and the loads under way. No repository is asked."""
    entries = roster.index()
    there = {ModelKey(entry.name, entry.namespace) for entry in entries}
    return with_progress(catalog, merged(entries, {*there, *catalog.busy}))


def with_progress(catalog: Catalog, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return the entries; those of models with an operation under way tell how far that is."""
    found = ((entry, catalog.progress(ModelKey(entry.name, entry.namespace))) for entry in entries)
    return [entry if progress is None else replace(entry, progress=progress) for entry, progress in found]


def merged(entries: Iterable[IndexEntry], present: Iterable[ModelKey]) -> list[IndexEntry]:
    """Add models that were never loaded, by name alone.

    A model that was unloaded and is in no repository any more is left out. A model that serves is listed even
    if its directory has gone: Triton hides it, and an operator would look for it in vain.
    """
    there = set(present)
    shown = [
        entry
        for entry in entries
        if entry.reason != UNLOADED or ModelKey(entry.name, entry.namespace) in there
    ]
    known = {ModelKey(entry.name, entry.namespace) for entry in shown}
    shown += [IndexEntry(name=key.name, namespace=key.namespace) for key in there - known]
    return sorted(shown, key=lambda entry: (entry.name, entry.namespace, entry.version))
