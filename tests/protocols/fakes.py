"""A server in memory that implements `actors.values.interfaces`, for the frontends' tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import trio

from actors.regions.devices import Devices
from actors.regions.policy import RegionLimits
from actors.regions.registry import RegionRegistry
from actors.steering.register import Register
from actors.values.datatypes import DataType
from actors.values.errors import InvalidArgument, NotFound, TritiumError, Unavailable
from actors.values.events import Portion, WantedEvents
from actors.values.interfaces import (
    DeepReport,
    IndexEntry,
    LogState,
    Models,
    PermitIn,
    Server,
    ServerIdentity,
    anywhere,
)
from actors.values.marks import ClientMarks
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import Direct, InputSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.values.tracing.settings import TraceControl
from protocols.transport.receiving import Claim, ReceivingRoom
from tests.support.doubles import ServedDouble
from tests.support.traced import tracing_of

Outcome = InferResponse | TritiumError


def make_spec(
    name: str = "add",
    *,
    inputs: Sequence[tuple[str, DataType, tuple[int, ...]]] = (
        ("A", DataType.FP32, (16,)),
        ("B", DataType.FP32, (16,)),
    ),
    outputs: Sequence[tuple[str, DataType, tuple[int, ...]]] = (
        ("S", DataType.FP32, (16,)),
        ("D", DataType.FP32, (16,)),
    ),
    max_batch_size: int = 8,
    version: int = 1,
    labels: tuple[str, ...] = (),
    decoupled: bool = False,
) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=version,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=tuple(InputSpec(name=n, datatype=t, dims=d) for n, t, d in inputs),
        outputs=tuple(OutputSpec(name=n, datatype=t, dims=d, labels=labels) for n, t, d in outputs),
        scheduling=Direct(),
        instances=(),
        model_directory=Path(),
        version_directory=Path(),
        artifact="model.onnx",
        config_json=b'{"name":"%s"}' % name.encode(),
        decoupled=decoupled,
    )


class FakeModel(ServedDouble):
    """Answers with `execute(request)`, at once; where that gives None, when a test says so."""

    def __init__(self, spec: ModelSpec, execute: Callable[[FakeModel, InferRequest], Outcome | None]) -> None:
        self.spec = spec
        self.marks: ClientMarks | None = None
        self.execute = execute
        self.submitted: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.released = 0
        self.on_submit: Callable[[], None] = lambda: None

    async def submit(self, request: InferRequest) -> None:
        self.submit_nowait(request)

    def submit_nowait(self, request: InferRequest) -> None:
        for tensor in request.inputs:
            if tensor.name not in self.spec.inputs_by_name:
                raise InvalidArgument(
                    f"unexpected inference input '{tensor.name}' for model '{self.spec.name}'"
                )
        self.submitted.append(request)
        outcome = self.execute(self, request)
        if outcome is not None:
            request.reply.put(outcome, final=True)
        self.on_submit()

    def cancel(self, request: InferRequest) -> None:
        self.cancelled.append(request)

    def respond(
        self, request: InferRequest, outputs: Sequence[Tensor], **parameters: bool | float | str
    ) -> InferResponse:
        response = InferResponse(
            model_name=self.spec.name,
            model_version=self.spec.version,
            id=request.id,
            outputs=outputs,
            parameters=parameters or None,
            timing=(1_000_000, 2_000, 3_000, 4_000),
        )
        response.on_release(self._release)
        return response

    def _release(self) -> None:
        self.released += 1


def add_sub(model: FakeModel, request: InferRequest) -> Outcome:
    a, b = (tensor.as_numpy() for tensor in request.inputs)
    return model.respond(request, [Tensor.from_numpy("S", a + b), Tensor.from_numpy("D", a - b)])


def identity(model: FakeModel, request: InferRequest) -> Outcome:
    outputs = [
        Tensor(declared.name, tensor.datatype, tensor.shape, tensor.data)
        for declared, tensor in zip(model.spec.outputs, request.inputs, strict=True)
    ]
    return model.respond(request, outputs)


def zeros(model: FakeModel, request: InferRequest) -> Outcome:
    """Answer with as many bytes as the only input says."""
    count = int(request.inputs[0].as_numpy().ravel()[0])
    return model.respond(request, [Tensor("Y", DataType.UINT8, (count,), memoryview(bytearray(count)))])


def hold(_model: FakeModel, _request: InferRequest) -> None:
    return None


def fail(_model: FakeModel, _request: InferRequest) -> Outcome:
    return Unavailable("Exceeds maximum queue size")


class FakeModels:
    def __init__(self, models: Sequence[FakeModel]) -> None:
        self.by_name = {model.spec.name: model for model in models}

    def resolve(self, name: str, version: str = "") -> FakeModel:
        model = self.by_name.get(name)
        if model is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version and int(version) != model.spec.version:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return model

    def versions(self, name: str) -> Sequence[int]:
        return [self.resolve(name).spec.version]

    def statistics(self, name: str = "", version: str = "") -> Sequence[Mapping[str, object]]:
        if name and name not in self.by_name:
            raise InvalidArgument(f"requested model '{name}' is not available")
        return [
            {
                "name": model.spec.name,
                "version": str(model.spec.version),
                "inference_count": len(model.submitted),
            }
            for model in self.by_name.values()
            if name in {"", model.spec.name}
        ]


class FakeRepository:
    def __init__(self) -> None:
        self.entries = [
            IndexEntry(name="add", version=1, state="READY"),
            IndexEntry(name="broken", version=2, state="UNAVAILABLE", reason="no such file"),
            IndexEntry(name="resting"),
        ]
        self.explicit = False
        self.found_in = ""  # the repository in which models are found
        self.loaded: list[tuple[str, Mapping[str, object]]] = []
        self.unloaded: list[tuple[str, bool]] = []

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        return [entry for entry in self.entries if entry.state == "READY" or not ready_only]

    def _check(self) -> None:
        if not self.explicit:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def load(self, name: str, parameters: Mapping[str, object], *, permit: PermitIn = anywhere) -> None:
        self._check()
        permit(name, self.found_in)
        self.loaded.append((name, parameters))

    async def unload(
        self, name: str, *, unload_dependents: bool = False, permit: PermitIn = anywhere
    ) -> None:
        self._check()
        permit(name, self.found_in)
        self.unloaded.append((name, unload_dependents))


class FakeHealth:
    def __init__(self) -> None:
        self.exiting = self.withdrawn = self.held = False
        self.is_live = self.is_ready = self.is_model_ready = True
        self.models: FakeModels | None = None
        self.parts: list[Mapping[str, object]] = []
        self.deep_probes = 0
        self.turned = trio.Event()

    def live(self) -> bool:
        return self.is_live

    def hold(self, held: bool) -> None:
        self.held = held

    async def ready(self) -> bool:
        return self.is_ready

    async def wait_turned(self, ready: bool) -> None:
        while self.is_ready is ready and not self.exiting:
            await self.turned.wait()

    def turn(self, **changes: bool) -> None:
        """Change what is said, and wake up the watchers."""
        for name, value in changes.items():
            setattr(self, name, value)
        self.turned.set()
        self.turned = trio.Event()

    async def deep(self) -> DeepReport:
        self.deep_probes += 1
        document = {"ready": self.is_ready, "live": True, "parts": self.parts}
        return DeepReport(ready=self.is_ready, document=document)

    async def model_ready(self, name: str, version: str = "") -> bool:
        if self.models is not None:
            self.models.resolve(name, version)
        return self.is_model_ready


class FakeIntrospection:
    def tree(self) -> Mapping[str, object]:
        return {"name": "root", "children": []}


class FakeEvents:
    """A stream that gives the portions it is told of, one after the other, and then ends."""

    def __init__(self) -> None:
        self.portions: list[Portion] = []
        self.asked: list[tuple[WantedEvents, str | None, bool, bool]] = []
        self.refusal: TritiumError | None = None
        self.open = 0

    def follow(
        self,
        wanted: WantedEvents,
        after: str | None,
        *,
        live: bool = True,
        outlives_draining: bool = False,
    ) -> FakeFollowing:
        if self.refusal is not None:
            raise self.refusal
        if after == "never":
            raise InvalidArgument("'never' is no id of an event")
        self.asked.append((wanted, after, live, outlives_draining))
        self.open += 1
        return FakeFollowing(self)


class FakeFollowing:
    def __init__(self, events: FakeEvents) -> None:
        self._events = events
        self._closed = False

    async def take(self) -> Portion | None:
        await trio.lowlevel.checkpoint()
        return self._events.portions.pop(0) if self._events.portions and not self._closed else None

    def close(self) -> None:
        self._events.open -= not self._closed
        self._closed = True


class FakeTraffic:
    def __init__(self) -> None:
        self.plans: dict[str, Mapping[str, object]] = {"add": {"weights": {"1": 1}}}

    def describe(self, name: str) -> Mapping[str, object]:
        if name not in self.plans:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return {"model": name, "plan": self.plans[name]}

    def change(self, name: str, document: Mapping[str, object]) -> Mapping[str, object]:
        self.describe(name)
        self.plans[name] = document
        return self.describe(name)


class FakeLogs:
    """What is logged; every state that it had is in `states`."""

    formats = ("default", "ISO8601", "json")

    def __init__(self) -> None:
        self.states = [LogState(file="server.log")]

    def describe(self) -> LogState:
        return self.states[-1]

    def change(self, state: LogState) -> None:
        self.states.append(state)


class FakeServer:
    """The parts, for tests to set and read, and `server`, which frontends get."""

    def __init__(
        self,
        models: Sequence[FakeModel] | None = None,
        *,
        allow_shm: bool = True,
        devices: Devices | None = None,
    ) -> None:
        self.models = FakeModels(default_models() if models is None else models)
        self.repository = FakeRepository()
        self.health = FakeHealth()
        self.health.models = self.models
        self.traffic = FakeTraffic()
        # The real one. Its actor does not run, so that no output may be long.
        self.regions = RegionRegistry(
            allowed=allow_shm,
            limits=RegionLimits(),
            claims=lambda: Claim(ReceivingRoom()),
            devices=devices,
        )
        self.register = Register(boot="b00t", available=lambda: 5)
        self.events = FakeEvents()
        self.logs = FakeLogs()
        self.traces: TraceControl | None = tracing_of(rate=1000)
        self.server = Server(
            identity=ServerIdentity(
                name="tritium", version="0.1.0", extensions=("classification", "statistics")
            ),
            models=cast("Models", self.models),
            repository=self.repository,
            health=self.health,
            introspection=FakeIntrospection(),
            events=self.events,
            traffic=self.traffic,
            shared_memory=self.regions,
            steering=self.register,
            logs=self.logs,
            traces=self.traces,
        )

    def model(self, name: str = "add") -> FakeModel:
        return self.models.by_name[name]


def default_models() -> list[FakeModel]:
    number = ("X", DataType.INT64, (1,))
    return [
        FakeModel(make_spec(), add_sub),
        FakeModel(
            make_spec(
                "strings", inputs=[("X", DataType.BYTES, (-1,))], outputs=[("Y", DataType.BYTES, (-1,))]
            ),
            identity,
        ),
        FakeModel(
            make_spec(
                "scores",
                inputs=[("X", DataType.FP32, (-1,))],
                outputs=[("Y", DataType.FP32, (-1,))],
                labels=("cat", "dog"),
            ),
            identity,
        ),
        FakeModel(
            make_spec("zeros", inputs=[number], outputs=[("Y", DataType.UINT8, (-1,))], max_batch_size=0),
            zeros,
        ),
        FakeModel(make_spec("held", inputs=[number], outputs=[("Y", DataType.INT64, (1,))]), hold),
        FakeModel(make_spec("full", inputs=[number], outputs=[("Y", DataType.INT64, (1,))]), fail),
        FakeModel(
            make_spec("streams", inputs=[number], outputs=[("Y", DataType.INT64, (1,))], decoupled=True), hold
        ),
    ]


def tensor(name: str, array: object, datatype: DataType | None = None) -> Tensor:
    return Tensor.from_numpy(name, np.asarray(array), datatype)
