"""LoRA adapters that clients load by API: from which folders, and into which engines."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

import trio

from actors.generation.generator import Generator
from actors.generation.loading_adapters import load_ahead
from actors.seams.threads import in_thread
from actors.serving.routing.roster import Roster
from actors.values.errors import InvalidArgument, NotFound, Unavailable
from actors.values.events import Event, Log
from actors.values.generation.adapters import Adapter, AdapterControl
from actors.values.specs import ModelKey
from engine.models.layout import ADAPTER_MARK
from engine.server.languages.composing import serves
from engine.worker.backends.language.model_folder import LORA_FOLDERS, identity_of

_LOOKS_AT_ONCE: Final = 2


class ServedAdapters(AdapterControl):
    """Loads and unloads adapters of the language models that serve."""

    def __init__(self, roster: Roster, log: Log) -> None:
        self._roster = roster
        self._log = log
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    async def load(self, model: str, name: str, path: str, *, in_place: bool) -> None:
        """See `AdapterControl`. Each version that serves must be able to load it."""
        generators = self._generators(model)
        generators[0].adapters.check_new(name, in_place=in_place)
        allowed = generators[0].state.spec.settings.get(LORA_FOLDERS, "")
        find = partial(find_adapter, name, path, [each for each in allowed.split(":") if each])
        adapter = await in_thread(find, limiter=self._limiter, abandon_on_cancel=True)
        for generator in generators:
            await generator.slumber.wait_awake()
            await load_ahead(generator.engine, generator.state.spec, adapter)
        generators[0].adapters.check_new(name, in_place=in_place)  # another client may have been faster
        generators[0].adapters.load(adapter)
        self._log(Event.ADAPTERS_CHANGED, model=model, loaded=[name], path=adapter.path)

    def unload(self, model: str, name: str) -> None:
        """See `AdapterControl`."""
        first, *others = self._generators(model)
        first.adapters.unload(name)
        for other in others:
            if name in other.adapters.named:
                other.adapters.unload(name)
        self._log(Event.ADAPTERS_CHANGED, model=model, unloaded=[name])

    def _generators(self, model: str) -> list[Generator]:
        """Return those of the versions that serve, the highest first. Raises TritiumError."""
        ready = self._roster.ready(ModelKey(model, ""))
        found = [state.composite for _, state in sorted(ready.items(), reverse=True) if serves(state)]
        generators = [each for each in found if isinstance(each, Generator)]
        if not generators:
            raise Unavailable(f"language model '{model}' is not ready")
        if any(each.limits.adapters is None for each in generators):
            raise InvalidArgument("LoRA feature is not enabled.")
        return generators


def find_adapter(name: str, written: str, folders: list[str]) -> Adapter:
    """Return the adapter in the folder `written`, which must be inside of one of `folders`.

    It is a path, or relative to one of these. Links count by where they lead. It reads directories, so call
    it on a thread. Raises InvalidArgument for another place, and NotFound where there is no adapter.
    """
    if not folders:
        raise InvalidArgument(
            "adapters are loaded by API from folders that the operator names, and there is none: start the"
            f" server with --backend-config=vllm,{LORA_FOLDERS}=FOLDER"
        )
    if "\0" in written:
        raise InvalidArgument("'lora_path' has a null character")
    roots = [os.path.realpath(folder).rstrip("/") + "/" for folder in folders]
    places = [(os.path.realpath(os.path.join(root, written)), root) for root in roots]
    inside = [place for place, root in places if place.startswith(root)]
    path = next((each for each in inside if os.path.isfile(os.path.join(each, ADAPTER_MARK))), None)
    if path is None and (not inside or (written[0] != "/" and len(inside) < len(places))):
        raise InvalidArgument(
            f"'lora_path' is '{written[:200]}', which is in none of the folders that adapters may be loaded"
            f" from: {', '.join(folders)}"
        )
    if path is None:
        raise NotFound(f"Loading lora {name} failed: No adapter found for {written}")
    return Adapter(name, written, path, identity_of([path]))
