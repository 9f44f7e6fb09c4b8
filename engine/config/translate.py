"""A completed, valid configuration → the plain values that actors and backends work from.

Microseconds become seconds here and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypedDict

from actors.values.datatypes import BY_NUMBER, DataType
from actors.values.padding import Padded
from actors.values.specs import (
    ControlKind,
    ControlSpec,
    Direct,
    DirectStrategy,
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    InputSpec,
    InstanceSpec,
    LanguageServing,
    ModelSpec,
    OldestStrategy,
    OutputSpec,
    QueuePolicy,
    RateLimit,
    Resource,
    Scheduling,
    SequenceBatching,
    StateSpec,
    TimeoutAction,
    WarmupSample,
)
from actors.values.tensors import Tensor, element_count
from engine.config.jsonform import config_json
from engine.config.rules.instances import FIRST_RESPONSE_HISTOGRAM
from engine.processes.backends import BackendTraits
from engine.settings.parameters import TritiumSettings
from engine.worker.backends.fil.parameters import default_file
from protocols.kserve.proto.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
    ModelRateLimiter,
    ModelSequenceBatching,
)

_MICROSECONDS: Final = 1_000_000

_KINDS: Final[Mapping[int, Literal["CPU", "GPU", "MODEL"]]] = {
    ModelInstanceGroup.KIND_CPU: "CPU",
    ModelInstanceGroup.KIND_GPU: "GPU",
    ModelInstanceGroup.KIND_MODEL: "MODEL",
}
_TIMEOUT_ACTIONS: Final[Mapping[int, TimeoutAction]] = {
    ModelQueuePolicy.REJECT: TimeoutAction.REJECT,
    ModelQueuePolicy.DELAY: TimeoutAction.DELAY,
}


def translate(
    config: ModelConfig,
    *,
    version: int,
    version_directory: Path,
    model_directory: Path,
    traits: BackendTraits,
    tritium: TritiumSettings,
    uncounted: frozenset[int] = frozenset(),
    settings: Mapping[str, str] | None = None,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    warmup: tuple[WarmupSample, ...] = (),
    states: Mapping[str, bytes] | None = None,
) -> ModelSpec:
    """Return the specification of one version of a model.

    `config` has been completed and has passed `validate` and `refusals`. `uncounted` are the instance groups
    without a written count. `settings` is what the command line says for this backend. `states` is what files
    say that sequence states begin with.
    """
    return ModelSpec(
        name=config.name,
        version=version,
        platform=config.platform or config.backend,
        backend=config.backend,
        max_batch_size=config.max_batch_size,
        inputs=tuple(_input(tensor, tritium, config) for tensor in config.input),
        outputs=tuple(
            _output(tensor, (labels or {}).get(tensor.name, ()), tritium, config)
            for tensor in {each.name: each for each in config.output}.values()
        ),
        scheduling=_scheduling(config, traits, tritium, states or {}),
        instances=instances(config, traits, tritium, uncounted),
        model_directory=model_directory,
        version_directory=version_directory,
        artifact=artifact(config, traits),
        target=traits.target if traits.implementation else "",
        config_json=config_json(config),
        parameters={key: config.parameters[key].string_value for key in sorted(config.parameters)},
        settings=dict(settings or {}),
        warmup=warmup,
        metric_tags=dict(sorted(config.metric_tags.items())),
        first_response_buckets=_first_response_buckets(config),
        decoupled=config.model_transaction_policy.decoupled,
        response_cache=config.response_cache.enable,
        isolation=tritium.isolation,
        retry=tritium.retry,
        execution_timeout=tritium.execution_timeout,
        queue_bounds=tritium.queue_bounds,
        threads=tritium.threads,
        depends_on=depends_on(config),
        load_timeout=tritium.load_timeout,
        drain_timeout=tritium.drain_timeout,
        probe=tritium.probe,
        probe_interval=tritium.probe_interval,
        essential=tritium.essential,
        residency=tritium.residency,
        traffic=tritium.traffic,
        fairness=tritium.fairness,
        slo=tritium.slo,
        recycle=tritium.recycle,
        confinement=tritium.confinement,
        gpu_memory=tritium.gpu_memory,
        gpu_compute=tritium.gpu_compute,
        device_tensors=traits.device_tensors,
        gpu_tensors=tritium.gpu_tensors,
    )


def depends_on(config: ModelConfig) -> tuple[str, ...]:
    """Return the models that an ensemble is composed of, each once, in the order of its steps."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


# Of platforms whose file has another name than the backend's usual one.
_ARTIFACT_OF: Final[Mapping[str, str]] = {"torch_aoti": "model.pt2"}


def artifact(config: ModelConfig, traits: BackendTraits) -> str:
    """Return the model's file name inside its version directory; the path of a backend in Python."""
    usual = _ARTIFACT_OF.get(config.platform, traits.default_artifact)
    if config.backend == "fil":
        usual = default_file({key: value.string_value for key, value in config.parameters.items()})
    return traits.implementation or config.default_model_filename or usual


def instances(
    config: ModelConfig, traits: BackendTraits, tritium: TritiumSettings, uncounted: frozenset[int]
) -> tuple[InstanceSpec, ...]:
    """Return one specification a worker: `<group>_<i>`, counted through all devices of a group.

    A group shares one worker on each device if `tritium.worker` says so. It also does if `tritium.worker`
    says nothing, the backend can, and no count was written. Then what was only a default costs no second copy
    of the weights.
    """
    specs: list[InstanceSpec] = []
    numbers: Counter[str] = Counter()
    for position, group in enumerate(config.instance_group):
        shared = tritium.worker == "model" or (
            tritium.worker is None and traits.concurrent and position in uncounted
        )
        workers, lanes = (1, group.count) if shared else (group.count, tritium.concurrency)
        open_ = tritium.gpu_placement == "free_memory" and group.kind == ModelInstanceGroup.KIND_GPU
        for device in group.gpus[:1] if open_ else group.gpus or (0,):
            for _ in range(workers):
                name = f"{group.name}_{numbers[group.name]}"
                numbers[group.name] += 1
                specs.append(
                    InstanceSpec(
                        name=name,
                        kind=_KINDS[group.kind],
                        device_id=device,
                        lanes=lanes,
                        passive=group.passive,
                        rate_limit=_rate_limit(group.rate_limiter),
                        host_policy=group.host_policy,
                        cores=tritium.cores[len(specs) % len(tritium.cores)] if tritium.cores else (),
                        candidates=tuple(group.gpus) if open_ else (),
                        own_gpu=tritium.gpus_seen == "own",
                        secondary_devices=tuple(
                            (type(each).SecondaryDeviceKind.Name(each.kind), each.device_id)
                            for each in group.secondary_devices
                        ),
                    )
                )
    return tuple(specs)


def _input(tensor: ModelInput, tritium: TritiumSettings, config: ModelConfig) -> InputSpec:
    buckets = tritium.pad_to.get(tensor.name)
    return InputSpec(
        name=tensor.name,
        datatype=BY_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        optional=tensor.optional,
        ragged=tensor.allow_ragged_batch,
        padded=None if buckets is None else Padded(buckets, tritium.pad_values.get(tensor.name, 0)),
        feeds=any(tensor.name in each.source_input for each in config.batch_input),
    )


def _output(
    tensor: ModelOutput, labels: tuple[str, ...], tritium: TritiumSettings, config: ModelConfig
) -> OutputSpec:
    return OutputSpec(
        name=tensor.name,
        datatype=BY_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=_reshape(tensor),
        labels=labels,
        cuts=tritium.pad_outputs.get(tensor.name, ()),
        scattered=any(tensor.name in each.target_name for each in config.batch_output),
    )


def _reshape(tensor: ModelInput | ModelOutput) -> tuple[int, ...] | None:
    return tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None


def _first_response_buckets(config: ModelConfig) -> tuple[float, ...]:
    chosen: tuple[float, ...] = ()
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE_HISTOGRAM:  # the last one counts
            chosen = tuple(control.histogram_options.buckets)
    return chosen


def _rate_limit(limiter: ModelRateLimiter) -> RateLimit:
    return RateLimit(
        resources=tuple(
            Resource(name=each.name, count=each.count, shared=getattr(each, "global"))
            for each in limiter.resources
        ),
        priority=limiter.priority,
    )


def _scheduling(
    config: ModelConfig, traits: BackendTraits, tritium: TritiumSettings, states: Mapping[str, bytes]
) -> Scheduling:
    if traits.language:
        return LanguageServing(
            streams=tritium.streams,
            max_tokens=tritium.max_tokens,
            tokenizer=tritium.tokenizer,
            tools=tritium.tool_parser,
            reasoning=tritium.reasoning_parser,
            health_check=_is_true(config, "ENABLE_VLLM_HEALTH_CHECK"),
            vllm_metrics=_is_true(config, "REPORT_CUSTOM_METRICS"),
            resume=tritium.resume,
            resume_within=tritium.resume_within,
            hang_within=_hang_within(tritium),
            **_levels(config.dynamic_batching),
            queued_prompt_tokens=tritium.queued_prompt_tokens,
            sleep=tritium.sleep,
        )
    if config.HasField("ensemble_scheduling"):
        return _ensemble(config.ensemble_scheduling)
    if config.HasField("dynamic_batching"):
        return _dynamic_batching(config.dynamic_batching)
    if config.HasField("sequence_batching"):
        return _sequence_batching(config.sequence_batching, states, checkpoint=tritium.checkpoint)
    return Direct()


def _hang_within(tritium: TritiumSettings) -> float:
    """Return how long an engine may be silent: a limit of executions holds for that, too."""
    limits = (tritium.hang_within, tritium.execution_timeout)
    return min((each for each in limits if each), default=0.0)


def _is_true(config: ModelConfig, parameter: str) -> bool:
    """Read a switch as Triton's vLLM backend does (contract, llm.md section 3)."""
    return parameter in config.parameters and config.parameters[parameter].string_value.lower() == "true"


def _sequence_batching(
    batching: ModelSequenceBatching, states: Mapping[str, bytes], *, checkpoint: bool
) -> SequenceBatching:
    return SequenceBatching(
        strategy=_strategy(batching),
        max_idle=batching.max_sequence_idle_microseconds / _MICROSECONDS,
        controls=tuple(
            _control(tensor.name, control) for tensor in batching.control_input for control in tensor.control
        ),
        states=tuple(_state(state, states) for state in batching.state),
        iterative=batching.iterative_sequence,
        checkpoint=checkpoint,
    )


def _strategy(batching: ModelSequenceBatching) -> DirectStrategy | OldestStrategy:
    if batching.HasField("oldest"):
        return OldestStrategy(
            max_candidate_sequences=max(0, batching.oldest.max_candidate_sequences),
            preferred_batch_sizes=tuple(sorted(set(batching.oldest.preferred_batch_size))),
            max_queue_delay=batching.oldest.max_queue_delay_microseconds / _MICROSECONDS,
            preserve_ordering=batching.oldest.preserve_ordering,
        )
    return DirectStrategy(
        max_queue_delay=batching.direct.max_queue_delay_microseconds / _MICROSECONDS,
        minimum_slot_utilization=batching.direct.minimum_slot_utilization,
    )


def _control(name: str, control: ModelSequenceBatching.Control) -> ControlSpec:
    kind = ControlKind(ModelSequenceBatching.Control.Kind.Name(control.kind))
    if kind is ControlKind.CORRID:
        return ControlSpec(name=name, kind=kind, datatype=BY_NUMBER[control.data_type])
    for values, datatype in (
        (control.int32_false_true, DataType.INT32),
        (control.fp32_false_true, DataType.FP32),
    ):
        if values:
            return ControlSpec(name=name, kind=kind, datatype=datatype, false_true=(values[0], values[1]))
    false, true = control.bool_false_true
    return ControlSpec(name=name, kind=kind, datatype=DataType.BOOL, false_true=(false, true))


def _state(state: ModelSequenceBatching.State, given: Mapping[str, bytes]) -> StateSpec:
    datatype = BY_NUMBER[state.data_type]
    dims = tuple(state.initial_state[0].dims) if state.initial_state else ()
    # Without dims, the memory has no special content, and variable dimensions are 1 (contract, section 6.6).
    if not dims:
        dims = tuple(1 if dim < 0 else dim for dim in state.dims)
    zeros = bytes(element_count(dims) * (datatype.size or 4))  # BYTES: each an empty string
    return StateSpec(
        input_name=state.input_name,
        output_name=state.output_name,
        datatype=datatype,
        dims=tuple(state.dims),
        initial=Tensor(state.input_name, datatype, dims, given.get(state.input_name, zeros)),
        same_buffer=state.use_same_buffer_for_input_output,
        growable=state.use_growable_memory,
    )


def _ensemble(ensemble: ModelEnsembling) -> Ensemble:
    return Ensemble(
        steps=tuple(
            EnsembleStep(
                model_name=step.model_name,
                model_namespace=step.model_namespace,
                model_version=step.model_version,
                input_map=dict(step.input_map),
                output_map=dict(step.output_map),
            )
            for step in ensemble.step
        ),
        max_inflight_requests=ensemble.max_inflight_requests,
    )


def _dynamic_batching(batching: ModelDynamicBatching) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay=batching.max_queue_delay_microseconds / _MICROSECONDS,
        preserve_ordering=batching.preserve_ordering,
        **_levels(batching),
    )


class _Levels(TypedDict):
    """Those of `actors.values.specs.Levelled`."""

    priority_levels: int
    default_priority_level: int
    default_queue_policy: QueuePolicy
    priority_queue_policies: dict[int, QueuePolicy]


def _levels(batching: ModelDynamicBatching) -> _Levels:
    policies = batching.priority_queue_policy
    return _Levels(
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policies={level: _queue_policy(policies[level]) for level in sorted(policies)},
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=_TIMEOUT_ACTIONS.get(policy.timeout_action, TimeoutAction.REJECT),
        default_timeout=policy.default_timeout_microseconds / _MICROSECONDS,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
