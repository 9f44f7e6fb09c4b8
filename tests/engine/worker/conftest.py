"""One model version on real workers, without a repository and without a frontend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import DynamicBatching, InputSpec, InstanceSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from engine.processes.backends import BackendTraits
from engine.processes.launch import WorkerLauncher
from engine.processes.spares import Spares
from engine.server.version_tree import ModelSubtrees
from engine.settings.reporting import MetricsSettings
from tests.support.ports import Port

SUPPORT = Path(__file__).parents[2] / "support"


class Running:
    """A model version that runs, and what a test may do with it."""

    def __init__(
        self,
        state: ModelState,
        supervisor: Supervisor,
        events: list[tuple[str, dict[str, Any]]],
        spares: Spares,
    ) -> None:
        self.state = state
        self.spares = spares
        self.supervisor = supervisor
        self.events = events

    def request(self, rows: np.ndarray[Any, Any] | list[float], **options: Any) -> InferRequest:
        """A request whose INPUT is [n, 4] rows, or one row filled with each of the given numbers."""
        array = np.asarray(rows, np.float32)
        if array.ndim == 1:
            array = np.repeat(array[:, None], 4, axis=1)
        return InferRequest(
            model_name=self.state.spec.name,
            inputs=[Tensor.from_numpy("INPUT", array)],
            reply=Port(),
            accepted_at=trio.current_time(),
            **options,
        )

    async def send(self, *values: float) -> InferRequest:
        """Submit a request of one row for each value."""
        request = self.request(list(values))
        await self.state.submit(request)
        return request

    async def answer(self, request: InferRequest) -> InferResponse | TritiumError:
        assert isinstance(request.reply, Port)
        return await request.reply.wait()

    def send_together(self, *values: float) -> list[InferRequest]:
        """Submit a request of one row for each value, all in one turn of the loop."""
        requests = [self.request([value]) for value in values]
        for request in requests:
            self.state.intake.submit_nowait(request, in_company=True)
        return requests

    async def answered(self, *requests: InferRequest) -> None:
        """Wait until each of these is answered, and by no error."""
        for request in requests:
            assert not isinstance(await self.answer(request), TritiumError)

    async def outcome(self, *values: float) -> InferResponse | TritiumError:
        """Submit and wait; return what came of it, a refusal included."""
        try:
            return await self.answer(await self.send(*values))
        except TritiumError as refused:
            return refused

    async def infer(self, *values: float) -> np.ndarray[Any, Any]:
        """Submit, wait, and return OUTPUT; raises the error that came instead."""
        answer = await self.answer(await self.send(*values))
        if isinstance(answer, TritiumError):
            raise answer
        output = answer.outputs[0].as_numpy().copy()
        answer.release()
        return output

    def pid(self, instance: int = 0) -> int:
        """The worker's process, from the tree."""
        return int(str(self.info(instance)["pid"]))

    def begun(self, instance: int = 0) -> frozenset[int]:
        """The batches that an instance's model has in its hands."""
        worker = self.state.instances[instance].worker
        return frozenset() if worker is None else worker.executing()

    def begun_with(self, request: InferRequest, instance: int = 0) -> bool:
        """Whether an instance's model executes this request; an earlier one may remain a moment longer."""
        worker = self.state.instances[instance].worker
        if worker is None:
            return False
        begun = worker.executing()
        return any(
            batch.id in begun and batch.place_of(request) is not None for batch in worker.outstanding.values()
        )

    def info(self, instance: int = 0) -> dict[str, object]:
        return self.node(f"models/{self.state.spec.name}/1/instances/{instance}")["info"]

    def node(self, path: str) -> dict[str, Any]:
        return _find(self.supervisor.tree().as_dict(), path)

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [keys for name, keys in self.events if name == event]


def _find(node: dict[str, Any], path: str) -> dict[str, Any]:
    if node["path"] == path:
        return node
    for child in node["children"]:
        if path == child["path"] or path.startswith(child["path"] + "/"):
            return _find(child, path)
    raise AssertionError(f"nothing at {path}")


async def until(condition, *, within=20.0):
    """Wait for something that other processes bring about."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110  # what other processes do sets no event here
            await trio.sleep(0.005)


def make_spec(backend: str, *, name: str = "model", **changes: Any) -> ModelSpec:
    defaults: dict[str, Any] = {
        "name": name,
        "version": 1,
        "platform": backend,
        "backend": backend,
        "max_batch_size": 64,
        "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),),
        "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),),
        "scheduling": DynamicBatching(),
        "instances": (InstanceSpec(name=f"{name}_0_0"),),
        "model_directory": SUPPORT,
        "version_directory": SUPPORT,
        "artifact": "",
        "config_json": b"{}",
    }
    return ModelSpec(**{**defaults, **changes})


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve() -> Serve:
    """Open a model version on a backend of `tests/support/worker_backends.py`."""

    @asynccontextmanager
    async def opened(
        backend: str, *, wait: bool = True, spare_workers: int = 0, **changes: Any
    ) -> AsyncIterator[Running]:
        classes = {
            "doubling": "Doubling",
            "pausing": "Pausing",
            "selective": "Selective",
            "hostile": "Hostile",
            "impure": "Impure",
            "strings": "Strings",
            "moody": "Moody",
            "joining": "Joining",
        }
        traits = {
            name: BackendTraits(name=name, target=f"worker_backends:{cls}") for name, cls in classes.items()
        }
        traits["in_thread"] = BackendTraits(name="in_thread", target="tests.support.worker_backends:Doubling")
        traits["joining_in_thread"] = BackendTraits(
            name="joining_in_thread", target="tests.support.worker_backends:Joining"
        )
        traits["greedy"] = BackendTraits(name="greedy", target="greedy_backends:Greedy")
        traits["streaming"] = BackendTraits(name="streaming", target="decoupled_backends:Streaming")
        traits["streaming_in_thread"] = BackendTraits(
            name="streaming_in_thread", target="tests.support.decoupled_backends:Streaming"
        )
        events: list[tuple[str, dict[str, Any]]] = []

        def log(event: Any, *, level: str = "info", **keys: object) -> None:
            events.append((str(event), {"level": level, **keys}))

        router = Router()
        models = Supervisor()
        environ = {**os.environ, "PYTHONPATH": str(SUPPORT)}
        launcher = WorkerLauncher(traits, environ=environ, spare_workers=spare_workers, log=log)
        subtrees = ModelSubtrees(
            models,
            router,
            launcher,
            log=log,
            metrics=MetricsSettings(),
            stop_within=5.0,
        )
        async with trio.open_nursery() as nursery:
            # Hung under a root, so that paths are those of the server: `models/<name>/<version>`.
            root = Supervisor([ChildSpec("spares", launcher.spares.run), models.spec("models")])
            await nursery.start(
                lambda task_status: root.serve(observer=subtrees.observe, task_status=task_status)
            )
            state = subtrees.make_state(make_spec(backend, **changes))
            router.roster.load_begun(state.spec.key, state)
            await subtrees.start(state)
            running = Running(state, models, events, launcher.spares)
            with trio.fail_after(120):
                if wait:
                    await state.standing.load_finished.wait()
                yield running
                await subtrees.drain(10.0)
            root.stop()

    return opened
