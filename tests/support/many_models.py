"""Several models on real workers that may call each other, without a repository and without a frontend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

from actors.calls.subjects import Subjects
from actors.serving.model import ModelState
from actors.serving.records import Recorder
from actors.serving.routing.router import Router
from actors.supervision.supervisor import Supervisor
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.events import Log
from actors.values.requests import InferRequest
from actors.values.specs import DynamicBatching, InputSpec, InstanceSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from engine.processes.backends import BackendTraits
from engine.processes.launch import WorkerLauncher
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.ports import Port

SUPPORT = Path(__file__).parent

BACKENDS = {
    "calling": "calling_backends:Calling",
    "calling_in_thread": "tests.support.calling_backends:Calling",
    "recording": "calling_backends:Recording",
    "doubling": "worker_backends:Doubling",
    "pausing": "worker_backends:Pausing",
    "streaming": "decoupled_backends:Streaming",
}


class Models:
    """Models that run, by name."""

    def __init__(self, subtrees: ModelSubtrees, router: Router) -> None:
        self.subtrees = subtrees
        self.router = router
        self.states: dict[str, ModelState] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def load(self, spec: ModelSpec) -> ModelState:
        state = self.states[spec.name] = self.subtrees.make_state(spec)
        self.router.roster.load_begun(state.spec.key, state)
        await self.subtrees.start(state)
        await state.standing.load_finished.wait()
        assert state.reason == "", state.reason
        self.router.roster.serve(spec.key, {spec.version: state})
        return state

    def request(self, name: str, rows: Any, **options: Any) -> InferRequest:
        """A request whose INPUT is `rows`, or one row of four times that number."""
        array = np.asarray(rows, np.float32)
        return InferRequest(
            model_name=name,
            inputs=[Tensor.from_numpy("INPUT", array if array.ndim else np.full((1, 4), array))],
            reply=Port(),
            accepted_at=trio.current_time(),
            **options,
        )

    async def send(self, name: str, rows: Any, **options: Any) -> InferRequest:
        request = self.request(name, rows, **options)
        await self.router.resolve(name).submit(request)
        return request

    async def answer(self, request: InferRequest) -> np.ndarray[Any, Any]:
        """Wait, and return OUTPUT; raises the error that came instead."""
        assert isinstance(request.reply, Port)
        answer = await request.reply.wait()
        if isinstance(answer, TritiumError):
            raise answer
        output = answer.outputs[0].as_numpy().copy()
        answer.release()
        return output

    async def outcome(self, request: InferRequest) -> np.ndarray[Any, Any] | TritiumError:
        """Wait, and return OUTPUT or the error that came instead."""
        try:
            return await self.answer(request)
        except TritiumError as error:
            return error

    async def infer(self, name: str, rows: Any, **options: Any) -> np.ndarray[Any, Any]:
        return await self.answer(await self.send(name, rows, **options))

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [keys for name, keys in self.events if name == event]


def model(name: str, backend: str, *, instances: int = 1, **changes: Any) -> ModelSpec:
    defaults: dict[str, Any] = {
        "name": name,
        "version": 1,
        "platform": backend,
        "backend": backend,
        "max_batch_size": 8,
        "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),),
        "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),),
        "scheduling": DynamicBatching(),
        "instances": tuple(InstanceSpec(name=f"{name}_0_{number}") for number in range(instances)),
        "model_directory": SUPPORT,
        "version_directory": SUPPORT,
        "artifact": "",
        "config_json": b"{}",
    }
    return ModelSpec(**{**defaults, **changes})


def calling(name: str = "caller", mode: str = "once", *, callee: str = "callee", **changes: Any) -> ModelSpec:
    parameters = {"mode": mode, "callee": callee, **changes.pop("parameters", {})}
    return model(name, "calling", parameters=parameters, **changes)


@asynccontextmanager
async def open_models(
    *specs: ModelSpec,
    subjects: Subjects | None = None,
    within: float = 60.0,
    recorder: Callable[[Log], Recorder] | None = None,
) -> AsyncIterator[Models]:
    """Run models around the block, all loaded. The block gets `within` seconds."""
    router = Router()
    supervisor = Supervisor()
    traits = {name: BackendTraits(name=name, target=target) for name, target in BACKENDS.items()}
    events: list[tuple[str, dict[str, Any]]] = []

    def log(event: Any, *, level: str = "info", **keys: object) -> None:
        events.append((str(event), {"level": level, **keys}))

    launcher = WorkerLauncher(traits, environ={**os.environ, "PYTHONPATH": str(SUPPORT)}, log=log)
    subtrees = ModelSubtrees(
        supervisor,
        router,
        launcher,
        log=log,
        metrics=MetricsSettings(),
        stop_within=5.0,
        subjects=subjects,
        recorder=None if recorder is None else recorder(log),
    )
    models = Models(subtrees, router)
    models.events = events
    async with trio.open_nursery() as nursery:
        root = Supervisor([supervisor.spec("models")])
        await nursery.start(
            lambda task_status: root.serve(observer=subtrees.observe, task_status=task_status)
        )
        with trio.fail_after(within):
            for spec in specs:
                await models.load(spec)
            yield models
            await subtrees.drain(10.0)
        root.stop()
