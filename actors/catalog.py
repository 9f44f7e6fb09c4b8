"""The catalog actor: which model versions should run. It starts their subtrees and knows how each load ended.

The control mode is `none`: everything in the repository at start, nothing afterwards. A restarted catalog goes on where
the last one was, because the versions themselves are the router's and the supervisor's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from actors.messages.errors import Unavailable
from actors.messages.events import Event, Log
from actors.model import ModelState, Status
from actors.router import Router
from actors.specs import ModelSpec
from actors.supervision.context import ChildContext

POLLING: str = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """One model of the repository: its versions, or why it has none. Warnings are for the log."""

    name: str
    specs: Sequence[ModelSpec] = ()
    versions: Sequence[int] = ()  # chosen by the version policy, also where there are no specs
    reason: str = ""
    warnings: Sequence[str] = ()


class ModelTree(Protocol):
    """Starts and ends the subtree of a model version; `engine.tree` knows what one consists of."""

    def make_state(self, spec: ModelSpec) -> ModelState:
        """Return the state of a version about to be loaded, known to nobody yet."""

    async def start(self, state: ModelState) -> None:
        """Start the subtree; returns when its actors stand. The load ends with `state.load_finished`."""

    async def end(self, state: ModelState) -> None:
        """End the subtree. Idempotent."""


class Catalog:
    """The catalog's actor; `finished` is set when every model found at start is ready or has failed."""

    def __init__(
        self,
        router: Router,
        tree: ModelTree,
        find_models: Callable[[], Awaitable[Sequence[FoundModel]]],
        *,
        log: Log,
        loads_at_once: int,
        extra_attempts: int,
    ) -> None:
        self._router = router
        self._tree = tree
        self._find_models = find_models
        self._log = log
        self._loads_at_once = loads_at_once
        self._extra_attempts = extra_attempts
        self.finished = trio.Event()

    async def run(self, ctx: ChildContext) -> None:
        """Load everything, then stand by."""
        ctx.started()
        limiter = trio.CapacityLimiter(self._loads_at_once)
        if not self.finished.is_set():
            async with trio.open_nursery() as nursery:
                for found in await self._find_models():
                    for warning in found.warnings:
                        self._log(Event.MODEL_LOADING, level="warning", model=found.name, warning=warning)
                    if found.reason:
                        self._router.add_broken(found.name, found.versions, found.reason)
                        self._log(
                            Event.MODEL_UNAVAILABLE, level="error", model=found.name, reason=found.reason
                        )
                    for spec in found.specs:
                        nursery.start_soon(self._load, spec, limiter)
            self.finished.set()
        await trio.sleep_forever()

    async def _load(self, spec: ModelSpec, limiter: trio.CapacityLimiter) -> None:
        known = self._router.find(spec.name, spec.version)
        if known is not None and known.status is not Status.LOADING:
            return
        async with limiter:
            for attempt in range(1 + self._extra_attempts):
                state = self._tree.make_state(spec)
                self._router.add(state)
                self._log(Event.MODEL_LOADING, model=spec.name, version=spec.version, attempt=attempt + 1)
                await self._tree.start(state)
                await state.load_finished.wait()
                if state.status is Status.READY:
                    return
                await self._tree.end(state)

    # -- for actors.interfaces.Repository ------------------------------------------------------------------------

    async def load(self, name: str, parameters: object) -> None:
        """Refuse: the control mode is none (contract, http.md section 4)."""
        del name, parameters
        raise Unavailable(POLLING)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Refuse: the control mode is none (contract, http.md section 4)."""
        del name, unload_dependents
        raise Unavailable(POLLING)
