"""What a generator needs of its engine: a model version that takes and gives token ids.

Tensors of a request: `input_ids` INT32 [n], and `sampling`, a BYTES [1] of JSON: `Sampling` with every
default resolved, without texts (those are the text worker's), or `{"embed": true}`. Parts of an answer:
`token_ids` INT32 [k]; `chances`, if they were asked for, a BYTES [1] of JSON, for each id a list of [id,
logprob, rank], the chosen one first; `facts`, with the first part, a BYTES [1] of JSON: `cached` prompt
tokens and `prompt_chances`. The last part has the parameter `finish`: `stop` or `length`. Embeddings have one
part, `embedding` FP32 [d].

Facts of an engine: `context`, and those of `engine.worker.backends.language.engine.StepEngine.facts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Final

from actors.generation.policy.placement import LivingEngine
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.values.datatypes import DataType
from actors.values.errors import Unavailable
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import Direct, InputSpec, ModelSpec, OutputSpec, Probe

INPUTS: Final = (
    InputSpec(name="input_ids", datatype=DataType.INT32, dims=(-1,)),
    InputSpec(name="sampling", datatype=DataType.BYTES, dims=(1,)),
)
OUTPUTS: Final = (
    OutputSpec(name="token_ids", datatype=DataType.INT32, dims=(-1,)),
    OutputSpec(name="chances", datatype=DataType.BYTES, dims=(1,)),
    OutputSpec(name="facts", datatype=DataType.BYTES, dims=(1,)),
    OutputSpec(name="embedding", datatype=DataType.FP32, dims=(-1,)),
)
"""The tensors of an engine's model version, which is decoupled and does not batch."""


def engine_spec(spec: ModelSpec) -> ModelSpec:
    """Return the specification of the engine inside a language model's version `spec`.

    What is about clients (caches, shares, promises, probes) is the version's, and not the engine's. Who is to
    blame for a death is the generator's to find out, and whether one hangs its pulse's.
    """
    return replace(
        spec,
        max_batch_size=0,
        inputs=INPUTS,
        outputs=OUTPUTS,
        scheduling=Direct(),
        decoupled=True,
        suspects=False,
        execution_timeout=0.0,
        response_cache=False,
        warmup=(),
        fairness=None,
        slo=None,
        traffic=None,
        probe=Probe.OFF,
        probe_interval=0.0,
    )


UNHEALTHY: Final = "Model is unavailable due to unhealthy vLLM engine"
"""The words of Triton's vLLM backend, for any engine."""


class Engine(ABC):
    """See the module."""

    __slots__ = ()

    @property
    @abstractmethod
    def model(self) -> ServedModel:
        """The version, to tell what a request waits for."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the engine says of its model. While none lives, what the last one said."""

    @property
    def engines(self) -> Mapping[Hashable, LivingEngine]:
        """The engines of the version that live and are awake. A run's `seat` names one. Here, one is."""
        return {self: LivingEngine("", self.facts)}

    @property
    def workers(self) -> Mapping[str, LiveWorker]:
        """The workers that are told to sleep and to wake, by their instances' names. Here, none are."""
        return {}

    @property
    def has_requests(self) -> bool:
        """Whether any request that was submitted has no answer yet. Here, that is not known."""
        return True

    def check(self, *, resumed: bool) -> None:
        """Raise TritiumError if requests need not wait for an engine, while none lives.

        `resumed`: another engine had them before.
        """
        del resumed

    @abstractmethod
    def identity_of(self, request: InferRequest) -> str:
        """Return what identifies the model of the instance that has `request`; empty if that is not known."""

    @abstractmethod
    def serves(self, identity: str) -> bool:
        """Whether an instance that takes requests lives, and has loaded the model that this identifies."""

    @abstractmethod
    def submit_nowait(self, request: InferRequest) -> None:
        """Queue a request for the engine of its run's seat, if that can be done at once.

        Raises `trio.WouldBlock` if not, and TritiumError.
        """

    @abstractmethod
    async def submit(self, request: InferRequest) -> None:
        """Queue a request when there is room. Raises TritiumError, and Cancelled after a `cancel`."""

    @abstractmethod
    def cancel(self, request: InferRequest) -> None:
        """Nothing more of it is wanted. Never raises."""

    @abstractmethod
    def pin(self) -> None:
        """Serve, retired or not, until `unpin`."""

    @abstractmethod
    def unpin(self) -> None:
        """End `pin`."""


class EngineVersion(Engine):
    """The engine inside a language model's version."""

    __slots__ = ("_checked", "_facts", "state")

    def __init__(self, state: ModelState, *, checked: bool = False) -> None:
        """`checked`: refuse requests while no instance lives, which would wait for the next one.

        One that a worker had been sent, and never saw, waits all the same, and so does one that goes on.
        """
        self.state = state
        self._checked = checked
        self._facts: Mapping[str, Any] = {}  # as they were told last

    @property
    def model(self) -> ServedModel:
        """See `Engine`."""
        return self.state

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Engine`. All instances say the same, and also the next worker, while there is none."""
        for worker in self.state.standing.workers:
            self._facts = worker.reports.facts
            break
        return self._facts

    def identity_of(self, request: InferRequest) -> str:
        """See `Engine`. Where the answer has ended, it is what any instance says."""
        for worker in self.state.standing.workers:
            if worker.has_open(request):
                return _identity(worker.reports.facts)
        return _identity(self.facts)

    def serves(self, identity: str) -> bool:
        """See `Engine`."""
        workers = (each for each in self.workers.values() if each.sleep_state is SleepState.AWAKE)
        return any(_identity(each.reports.facts) == identity for each in workers)

    @property
    def engines(self) -> Mapping[Hashable, LivingEngine]:
        """See `Engine`. Each is known by its worker, so the next one of an instance is another."""
        return {
            worker: LivingEngine(name, worker.reports.facts)
            for name, worker in self.workers.items()
            if worker.sleep_state is SleepState.AWAKE
        }

    @property
    def workers(self) -> Mapping[str, LiveWorker]:
        """See `Engine`."""
        return {
            each.spec.name: each.worker for each in self.state.standing.rotation if each.worker is not None
        }

    @property
    def has_requests(self) -> bool:
        """See `Engine`."""
        return bool(self.state.in_flight)

    def check(self, *, resumed: bool) -> None:
        """See `Engine`."""
        standing = self.state.standing
        if not resumed:
            self._check()
        if standing.exhausted or standing.status is Status.UNAVAILABLE:
            why = standing.reason or "all instances keep dying"
            raise Unavailable(f"model '{self.state.spec.name}' is unavailable: {why}")

    def _check(self) -> None:
        if self._checked and all(each.worker is None for each in self.state.standing.rotation):
            raise Unavailable(UNHEALTHY)

    def submit_nowait(self, request: InferRequest) -> None:
        """See `Engine`."""
        self._check()
        self.state.intake.submit_nowait(request, pinned=True)

    async def submit(self, request: InferRequest) -> None:
        """See `Engine`."""
        self._check()
        await self.state.intake.submit(request, pinned=True)

    def cancel(self, request: InferRequest) -> None:
        """See `Engine`."""
        self.state.cancel(request)

    def pin(self) -> None:
        """See `Engine`."""
        self.state.pin()

    def unpin(self) -> None:
        """See `Engine`."""
        self.state.unpin()


def _identity(facts: Mapping[str, Any]) -> str:
    return str(facts.get("identity", ""))
