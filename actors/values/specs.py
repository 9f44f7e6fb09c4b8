"""A model's configuration as actors need it: plain values, checked by `engine.config` when it made them.

Times are seconds. Nothing here is protobuf, and nothing here is ever edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from actors.values.confinement import Confinement, Sandbox
from actors.values.datatypes import DataType
from actors.values.generation.adapters import Adapter
from actors.values.hardware.gpus import Gpu, GpuMemory
from actors.values.padding import CutBack, Padded
from actors.values.tensors import Tensor
from actors.values.traffic import TrafficPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A declared input. `dims` excludes the batch dimension; -1 is any size."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None  # what the backend sees in place of `dims`
    optional: bool = False
    ragged: bool = False
    padded: Padded | None = None
    feeds: bool = False  # a `batch_input` of the configuration is made from it


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """A declared output. `dims` is what clients see; `labels` is empty without a label file."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None  # the shape the backend gives, where it differs from `dims`
    labels: tuple[str, ...] = ()
    cuts: tuple[CutBack, ...] = ()  # back to the requests' own sizes, if inputs are padded
    scattered: bool = False  # a `batch_output` of the configuration says how it is cut


class TimeoutAction(Enum):
    """What happens to a request whose time in the queue is up."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy (contract, scheduling.md section 3.3), in seconds."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout: float = 0.0  # 0: none
    allow_timeout_override: bool = False
    # 0: bounded by `QueueBounds`. There a full queue makes callers wait instead of refusing them.
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """How much may wait for one model before its callers do (DESIGN section 4)."""

    requests: int = 1024
    nbytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Direct:
    """The default scheduler: each request is an execution of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levelled:
    """A scheduling whose queue may have priority levels, each with a policy: level 1 goes first.

    Part of Triton's ModelDynamicBatching (contract, scheduling.md section 3.3).
    """

    priority_levels: int = 0  # 0: none
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching(Levelled):
    """Triton's ModelDynamicBatching (contract, scheduling.md section 3), in seconds."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay: float = 0.0
    preserve_ordering: bool = False


class ControlKind(Enum):
    """What a control tensor tells a sequence model (contract, scheduling.md section 6.3)."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSpec:
    """A control tensor, of shape [1] and a batch dimension of 1 where the model batches.

    `false_true` are the two values of START, END and READY; CORRID has none.
    """

    name: str
    kind: ControlKind
    datatype: DataType
    false_true: tuple[float, float] = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Implicit state: an output that becomes an input of the sequence's next request (contract, section 6.6).

    `initial` is what the first request of a sequence gets, without a batch dimension.
    """

    input_name: str
    output_name: str
    datatype: DataType
    dims: tuple[int, ...]
    initial: Tensor
    same_buffer: bool = False
    growable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStrategy:
    """Each sequence has a row of the batch to itself (contract, scheduling.md section 6.4), in seconds."""

    max_queue_delay: float = 0.0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestStrategy:
    """Requests of up to `max_candidate_sequences` sequences are batched, the oldest first, in seconds.

    Contract: scheduling.md section 6.5.
    """

    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay: float = 0.0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatching:
    """Triton's ModelSequenceBatching (contract, scheduling.md section 6), in seconds.

    `checkpoint` (`tritium.checkpoint`): a sequence with implicit state goes on if its instance dies.
    """

    strategy: DirectStrategy | OldestStrategy = DirectStrategy()
    max_idle: float = 1.0
    controls: tuple[ControlSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()
    iterative: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One step.

    The maps go from the composing model's tensor names to the ensemble's; version -1 is the latest.
    """

    model_name: str
    model_namespace: str = ""
    model_version: int = -1
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Triton's ModelEnsembling (contract, scheduling.md section 7).

    `max_inflight_requests` bounds each step; 0: no bound.
    """

    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageServing(Levelled):
    """A language model: an engine that takes and gives token ids, and a worker that makes text of them."""

    streams: int = 0  # requests under way at once; 0: any number
    max_tokens: int = 0  # of an answer where the client does not say; 0: as many as there is room for
    tokenizer: str = ""  # its folder; empty: the model's own
    tools: str = ""  # how calls of tools are written; empty: as the chat template tells
    reasoning: str = ""  # whether answers begin with reasoning; empty: likewise
    health_check: bool = False  # refuse requests while no engine lives, instead of having them wait
    vllm_metrics: bool = False  # tell the metrics of Triton's vLLM backend, too
    resume: bool = True  # whether another engine takes over when one dies
    resume_within: float = 60.0  # seconds in which that has to happen
    hang_within: float = 60.0  # seconds of silence after which an engine or a text worker hangs; 0: never
    adapters: tuple[Adapter, ...] = ()  # LoRA adapters that its files name
    queued_prompt_tokens: int = 0  # tokens that an engine may have before it; 0: as its steps tell
    weights: Path | None = None  # the folder that has the model, if it is not the version's directory
    # How deep engines sleep when their memory is wanted (`actors.values.generation.sleeping`); 0: they don't.
    sleep: int = 0


Scheduling: TypeAlias = Direct | DynamicBatching | SequenceBatching | Ensemble | LanguageServing


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource that an instance holds while it executes (contract, scheduling.md section 5).

    It exists per device, or once in the server.
    """

    name: str
    count: int
    shared: bool = False  # `global` in the configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """Triton's ModelRateLimiter. A priority of 2 gets half the share of 1; 0 counts as 1."""

    resources: tuple[Resource, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One worker: `lanes` executions may run in it at once, sharing the loaded model."""

    name: str
    kind: Literal["CPU", "GPU", "MODEL"] = "CPU"
    device_id: int = 0
    lanes: int = 1
    passive: bool = False  # it loads the model but is never given a batch
    rate_limit: RateLimit = RateLimit()
    host_policy: str = ""  # its name; empty: the policy of its kind and device
    secondary_devices: tuple[tuple[str, int], ...] = ()  # kind and number
    # The cores its worker runs on, by its host policy; empty: any.
    cores: tuple[int, ...] = ()
    # GPUs of which its load takes the one with most free memory; empty: it has one.
    candidates: tuple[int, ...] = ()
    own_gpu: bool = False  # its worker is to see its GPU only
    gpu: Gpu | None = None  # that GPU, where it is known
    # What its worker finds in CUDA_VISIBLE_DEVICES; empty: what the server does.
    visible: str = ""

    @property
    def unplaced(self) -> InstanceSpec:
        """As the configuration has it: wherever a load has put it."""
        return replace(self, device_id=self.candidates[0], gpu=None, visible="") if self.candidates else self

    @property
    def ordinal(self) -> int:
        """The number of its GPU as its worker counts."""
        return 0 if self.visible else self.device_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupSample:
    """A batch that runs before an instance joins: each of `requests` is one request's tensors."""

    name: str
    requests: tuple[tuple[Tensor, ...], ...]
    count: int = 1


class ModelKey(NamedTuple):
    """The name that tells one model from all others.

    The namespace is empty unless models are told apart by their repository.
    """

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


class Probe(Enum):
    """What a new version's probe inference must show before requests are sent to it (`tritium.probe`)."""

    # If it replaces a version: an answer, without an error if the replaced version answers its probe without
    # one.
    COMPARE = "compare"
    # An answer without an error, even if it replaces no version.
    REQUIRED = "required"
    OFF = "off"


class Residency(Enum):
    """When a model is in memory (`tritium.residency`)."""

    ALWAYS = "always"  # loaded at start, or on request, and never evicted
    ON_DEMAND = "on_demand"  # loaded by its first request, evicted when memory is short
    PINNED = "pinned"  # loaded by its first request, never evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How a model's queue is shared out (`tritium.fairness`).

    At most one of the four ways to identify tenants is set; none: no tenants.
    """

    tenant_header: str = ""  # lower case; its value is the tenant
    tenant_parameter: str = ""  # the same, for a request parameter
    tenant_address: bool = False  # the client's address is the tenant
    tenant_identity: bool = False  # the identity is, which the server has established
    weights: Mapping[str, float] = field(default_factory=dict)  # by tenant, relative to each other
    default_weight: float = 1.0  # of tenants that are not listed
    unlisted_together: bool = False  # unlisted tenants are one tenant, instead of one each
    # Requests of one tenant that may wait; 0: only the queue's bound.
    max_queued: int = 0
    refuses: bool = False  # refuse requests beyond that bound, instead of making them wait
    # Seconds after which a waiting request counts as one of the level above; 0: off.
    ageing: float = 0.0

    @property
    def by_tenant(self) -> bool:
        """Whether tenants are told apart."""
        return bool(
            self.tenant_header or self.tenant_parameter or self.tenant_address or self.tenant_identity
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The latency that a model promises (`tritium.slo`), and the means to keep it."""

    # Seconds from acceptance to answer that 99 of 100 requests may take; 0: only their own deadlines count.
    p99: float = 0.0
    refuse: bool = True  # refuse requests that can't be answered in time
    # Tune the batching delay and the batch size, within their configured bounds.
    tune: bool = True
    # Of a language model, in place of p99: seconds to the first token, and between two; 0: not promised.
    ttft: float = 0.0
    itl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a model's processes run on: its workers, and the one that completes its configuration.

    Two of them are equal, and hash alike, if a process started for one may serve the other.
    """

    interpreter: str = ""  # its path; empty: the server's own
    environ: tuple[tuple[str, str], ...] = ()  # variables that it adds to a worker's, sorted by name
    # Digest of the sources of the environment; empty where it is never compared.
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycle:
    """When a worker is replaced by a fresh one (`tritium.recycle`). 0 means no ceiling."""

    memory: int = 0  # bytes
    requests: int = 0
    seconds: float = 0.0  # since it began to serve


class Retry(Enum):
    """Whether a batch that was executing when its worker died may run again (`tritium.retry`)."""

    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One version of one model, as it should run."""

    name: str
    version: int
    platform: str  # as reported in metadata: the config's platform, or its backend
    backend: str  # a name among the `tritium.backends` entry points
    max_batch_size: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    scheduling: Scheduling
    instances: tuple[InstanceSpec, ...]
    model_directory: Path
    version_directory: Path
    artifact: str  # file name in the version directory
    config_json: bytes  # body of the config endpoint
    parameters: Mapping[str, str] = field(default_factory=dict)  # all config parameters
    settings: Mapping[str, str] = field(default_factory=dict)  # merged backend settings from the command line
    warmup: tuple[WarmupSample, ...] = ()
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    # The histogram's bounds in milliseconds; empty: the default ones.
    first_response_buckets: tuple[float, ...] = ()
    decoupled: bool = False
    response_cache: bool = False
    isolation: Literal["process", "thread"] = "process"
    retry: Retry = Retry.ALWAYS
    execution_timeout: float = 0.0  # 0: off
    # Whether requests are suspected when a worker dies under them. Those of an engine are its generator's.
    suspects: bool = True
    queue_bounds: QueueBounds = field(default_factory=QueueBounds)
    threads: int = 0  # CPU threads a worker may use; 0: cores // instances
    namespace: str = ""  # its repository's, if models are told apart by repository
    # Digest of every file that it is made from; empty where it is never compared.
    content: str = ""
    depends_on: tuple[str, ...] = ()  # models that an ensemble is composed of
    load_timeout: float = 0.0  # seconds one attempt to load may take; 0: off
    drain_timeout: float = 30.0  # seconds for a retired version to answer its accepted requests
    probe: Probe = Probe.COMPARE
    probe_interval: float = 0.0  # seconds between inferences that readiness makes; 0: off
    essential: bool = True  # whether the server is ready only while this model is
    residency: Residency = Residency.ALWAYS
    traffic: TrafficPlan | None = None
    fairness: Fairness | None = None
    slo: Slo | None = None
    recycle: Recycle | None = None
    confinement: Confinement = field(default_factory=Confinement)
    gpu_memory: GpuMemory = field(default_factory=GpuMemory)  # that an instance may take of its GPU
    gpu_compute: int = 0  # percent of its GPU's threads that an instance may use, under MPS; 0: all
    runtime: Runtime = field(default_factory=Runtime)
    # What runs the backend, as `module:Class`; empty if its name says that. A model may bring one along.
    target: str = ""
    # What lies elsewhere and is the model's by links, where a strict sandbox has to know.
    linked: tuple[Path, ...] = ()
    device_tensors: bool = False  # whether its backend takes and gives tensors that lie on a GPU
    gpu_tensors: bool = False  # of an ensemble (`tritium.gpu_tensors`): they stay there between steps

    @property
    def key(self) -> ModelKey:
        """The model that this is a version of."""
        return ModelKey(self.name, self.namespace)

    @cached_property
    def inputs_by_name(self) -> Mapping[str, InputSpec]:
        """Declared inputs by name."""
        return {spec.name: spec for spec in self.inputs}

    @cached_property
    def outputs_by_name(self) -> Mapping[str, OutputSpec]:
        """Declared outputs by name."""
        return {spec.name: spec for spec in self.outputs}

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Declared outputs in the configuration's order."""
        return tuple(spec.name for spec in self.outputs)

    @cached_property
    def backend_inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of the model itself: the declared inputs, then the controls and states.

        Clients never send controls and states.
        """
        if not isinstance(self.scheduling, SequenceBatching):
            return self.inputs
        controls = (
            InputSpec(name=control.name, datatype=control.datatype, dims=(1,))
            for control in self.scheduling.controls
        )
        states = (
            InputSpec(name=state.input_name, datatype=state.datatype, dims=state.dims)
            for state in self.scheduling.states
        )
        return (*self.inputs, *controls, *states)

    @cached_property
    def backend_outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of the model itself: the declared outputs, then the states that are not outputs."""
        if not isinstance(self.scheduling, SequenceBatching):
            return self.outputs
        states = (
            OutputSpec(name=state.output_name, datatype=state.datatype, dims=state.dims)
            for state in self.scheduling.states
            if state.output_name not in self.outputs_by_name
        )
        return (*self.outputs, *states)

    @cached_property
    def state_names(self) -> tuple[str, ...]:
        """Outputs that are states of a sequence: the model is always asked for them."""
        return (
            tuple(state.output_name for state in self.scheduling.states)
            if isinstance(self.scheduling, SequenceBatching)
            else ()
        )

    @property
    def plain(self) -> bool:
        """Whether each request is executed once, is answered once, and leaves nothing behind."""
        alone = isinstance(self.scheduling, (Direct, DynamicBatching))
        return alone and not self.decoupled and not self.response_cache

    @property
    def shares_gpu_memory(self) -> bool:
        """Whether its workers on a GPU may read and leave tensors there, wherever its other instances are.

        A strict sandbox has no handle of a GPU's memory, as that gives all of its owner's allocation.
        """
        takes = self.device_tensors and self.plain and self.isolation == "process"
        return takes and self.confinement.sandbox is not Sandbox.STRICT

    @property
    def directories(self) -> Sequence[Path]:
        """Where the files are that each of its workers loads."""
        weights = self.scheduling.weights if isinstance(self.scheduling, LanguageServing) else None
        return (self.version_directory,) if weights is None else (self.version_directory, weights)

    @cached_property
    def gpu(self) -> int:
        """The GPU on which tensors may come to it and from it: all of its instances are there. -1: none."""
        if not self.shares_gpu_memory:
            return -1
        devices = {each.device_id if each.kind == "GPU" else -1 for each in self.instances}
        return devices.pop() if len(devices) == 1 else -1

    @cached_property
    def device_inputs(self) -> frozenset[str]:
        """Inputs that may lie on its GPU, if it has one: those that go to the model as they are."""
        return frozenset(
            each.name
            for each in self.inputs
            if self.shares_gpu_memory
            and each.datatype is not DataType.BYTES
            and not (each.ragged or each.feeds)
            and each.reshape is None
            and each.padded is None
        )

    @cached_property
    def device_outputs(self) -> frozenset[str]:
        """Outputs that may stay on its GPU, if any: those that come from the model as clients see them."""
        return frozenset(
            each.name
            for each in self.outputs
            if self.shares_gpu_memory
            and each.datatype is not DataType.BYTES
            and not (each.cuts or each.scattered)
            and each.reshape is None
        )

    @property
    def batches(self) -> bool:
        """Whether shapes carry a leading batch dimension."""
        return self.max_batch_size > 0
