"""Simulated text workers: a true tokenizer in this process, which takes its time, and dies."""

from __future__ import annotations

from functools import cache

import trio

from actors.generation.texts import TextWorker, TextWorkers
from actors.seams.bell import Bell
from actors.values.specs import ModelSpec
from chaos.languages.texts import SteppedTextWorker
from chaos.simulation.world.workers import World
from engine.processes.text.launching import tokenizer_folder
from engine.worker.text.loading import load

_STEPS = (0.0, 0.0, 0.001, 0.02)
"""Seconds that a piece of its work takes: one of these."""

_load = cache(load)  # no folder of the simulated disk ever changes


class Texts:
    """All text workers of a simulated machine."""

    def __init__(self, world: World) -> None:
        self.alive: dict[str, list[SteppedTextWorker]] = {}  # by model
        self.deaths = 0
        self._world = world
        self._pids = 10_000

    def of(self, spec: ModelSpec) -> TextWorkers:
        """Return what launches those of a version."""
        return _VersionTexts(self, spec)

    def kill(self, model: str) -> None:
        """Have the text workers of a model die."""
        for worker in self.alive.pop(model, []):
            self._world.note("text worker", worker.pid, f"of {model} dies")
            self.deaths += 1
            worker.dies()

    async def launch(self, spec: ModelSpec) -> TextWorker:
        """Start one: it reports a little later that it is ready."""
        world = self._world
        await trio.sleep(world.chance.uniform(0.001, 0.05))
        self._pids += 1
        todo = Bell()
        worker = SteppedTextWorker(_load(tokenizer_folder(spec)), pid=self._pids, on_order=todo.ring)
        self.alive.setdefault(spec.name, []).append(worker)
        world.note("text worker", worker.pid, "launched for", f"{spec.name}/{spec.version}")

        async def live() -> None:
            await trio.sleep(world.chance.uniform(0.01, 0.2))
            worker.readies()
            heard = 0
            while not worker.dead:
                heard = await todo.wait(heard)
                while worker.busy:
                    await trio.sleep(world.chance.choice(_STEPS))
                    worker.works()

        world.start(live, f"text worker {worker.pid}")
        return worker


class _VersionTexts(TextWorkers):
    def __init__(self, texts: Texts, spec: ModelSpec) -> None:
        self._texts = texts
        self._spec = spec

    async def launch(self) -> TextWorker:
        """See `TextWorkers`."""
        return await self._texts.launch(self._spec)
