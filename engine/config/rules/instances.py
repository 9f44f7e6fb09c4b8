"""Instance groups and their rate limiters, metrics and warmup samples.

Contract: model_config.md section 4.9, scheduling.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from typing import Final

from actors.values.errors import ErrorCode
from engine.config.complete import ENSEMBLE
from engine.models.problems import Problem, Severity
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup, ModelWarmup

_KINDS: Final = frozenset(ModelInstanceGroup.Kind.values())
_TENSORRT: Final = "tensorrt_plan"
# Of one group: each is a process, or a thread with memory of its own.
_MOST_INSTANCES: Final = 4096
_LOWEST_COMPUTE_CAPABILITY: Final = "6"


def instance_groups(config: ModelConfig, gpus: int) -> Iterator[Problem]:
    """Check `instance_group`; `gpus` is how many there are. An ensemble has none."""
    if config.platform == ENSEMBLE:
        return
    if not config.instance_group:
        yield Problem(message=f"must specify one or more 'instance group's for {config.name}")
    for at, group in enumerate(config.instance_group):
        yield from _instance_group(config, group, f"instance_group[{at}]", gpus)
    if config.instance_group and all(group.passive for group in config.instance_group):
        # Ours: Triton loads it, and its requests wait for ever.
        yield Problem(
            message=f"all instances of model {config.name} are passive, so that none could execute its requests",
            key="instance_group[0].passive",
            hint="leave 'passive' out of one group",
        )
    yield from _resources(config)


def _instance_group(config: ModelConfig, group: ModelInstanceGroup, key: str, gpus: int) -> Iterator[Problem]:
    who = f"instance group {group.name} of model {config.name}"
    kind = ModelInstanceGroup.Kind.Name(group.kind) if group.kind in _KINDS else str(group.kind)
    if group.kind in (ModelInstanceGroup.KIND_MODEL, ModelInstanceGroup.KIND_CPU):
        if group.gpus:
            yield Problem(
                message=f"{who} has kind {kind} but specifies one or more GPUs",
                key=f"{key}.gpus",
                hint="leave 'gpus' out, or write kind: KIND_GPU",
            )
    elif group.kind == ModelInstanceGroup.KIND_GPU:
        if not gpus:
            yield Problem(
                message=f"{who} has kind KIND_GPU but no GPUs are available",
                key=f"{key}.kind",
                hint="leave 'kind' out: a GPU is used where there is one",
            )
        elif not group.gpus:
            yield Problem(message=f"{who} has kind KIND_GPU but specifies no GPUs", key=f"{key}.gpus")
        for gpu in group.gpus if gpus else ():
            if not 0 <= gpu < gpus:
                yield _bad_gpu(who, key, gpu, gpus)
    else:
        yield Problem(message=f"{who} has unexpected kind {kind}", key=f"{key}.kind", code=ErrorCode.INTERNAL)
    instances = group.count * max(len(group.gpus), 1)
    if instances > _MOST_INSTANCES:
        yield Problem(
            message=f"{who} has {instances} instances, more than {_MOST_INSTANCES}",
            key=f"{key}.count",
            hint="for a GPU, 'count' is per GPU" if group.gpus else "about one for each core is plenty",
        )
    if group.profile and config.platform != _TENSORRT:
        # The missing space is Triton's, and clients match on it.
        yield Problem(
            message=(
                f"{who} and platform {config.platform}specifies profile field"
                " which is only supported for TensorRT models"
            ),
            key=f"{key}.profile",
            hint="leave it out",
        )
    for profile in group.profile if config.platform == _TENSORRT else ():
        if not (profile.isascii() and profile.isdigit()):
            yield Problem(
                message=(
                    f"{who} and platform {config.platform} specifies invalid profile {profile}."
                    " The field should contain the string representation of a non-negative integer."
                ),
                key=f"{key}.profile",
            )


def _bad_gpu(who: str, key: str, gpu: int, gpus: int) -> Problem:
    return Problem(
        message=(
            f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA"
            f" compute compatibility of {_LOWEST_COMPUTE_CAPABILITY} are: {', '.join(map(str, range(gpus)))}"
        ),
        key=f"{key}.gpus",
    )


def _resources(config: ModelConfig) -> Iterator[Problem]:
    """A rate limiter's resource belongs to each device, or to all of them, throughout a model."""
    shared: dict[str, bool] = {}
    told: set[str] = set()
    for at, group in enumerate(config.instance_group):
        for number, resource in enumerate(group.rate_limiter.resources):
            name = resource.name
            if name not in told and shared.setdefault(name, getattr(resource, "global")) != getattr(
                resource, "global"
            ):
                told.add(name)
                yield Problem(
                    message=(
                        f'Resource "{name}" is present as both global and device-specific resource in the model'
                        " configuration."
                    ),
                    key=f"instance_group[{at}].rate_limiter.resources[{number}]",
                    hint="write 'global' everywhere or nowhere, or give it another name",
                )


# -- the metrics of a model that can be customised (contract, model_config.md section 4.11)

FIRST_RESPONSE_HISTOGRAM: Final = "nv_inference_first_response_histogram_ms"


def model_metrics(config: ModelConfig) -> Iterator[Problem]:
    """Check `model_metrics`."""
    for at, control in enumerate(config.model_metrics.metric_control):
        key = f"model_metrics.metric_control[{at}]"
        if not control.HasField("metric_identifier"):
            yield Problem(
                message="metric control must specify 'metric_identifier'",
                key=key,
                hint=f'add: metric_identifier {{ family: "{FIRST_RESPONSE_HISTOGRAM}" }}',
            )
        elif not control.metric_identifier.family:
            yield Problem(
                message="metric identifier must specify non-empty 'family'",
                key=key,
                hint=f'add: family: "{FIRST_RESPONSE_HISTOGRAM}"',
            )
        elif control.metric_identifier.family != FIRST_RESPONSE_HISTOGRAM:
            yield Problem(
                severity=Severity.WARNING,
                message=f"metric family '{control.metric_identifier.family}' can not be customised",
                key=key,
                hint=f"only {FIRST_RESPONSE_HISTOGRAM} can",
            )
        if not control.HasField("histogram_options"):
            yield Problem(
                message="metric control must specify 'histogram_options'",
                key=key,
                hint="add: histogram_options { buckets: [ 10, 100, 1000 ] }",
            )
        elif not control.histogram_options.buckets:
            yield Problem(
                message="histogram options must specify non-empty 'buckets'",
                key=key,
                hint="such as buckets: [ 10, 100, 1000 ]",
            )
        elif control.metric_identifier.family == FIRST_RESPONSE_HISTOGRAM:
            buckets = control.histogram_options.buckets
            if not all(map(isfinite, buckets)) or any(low >= high for low, high in pairwise(buckets)):
                yield Problem(
                    message=f"histogram options must specify finite, ascending 'buckets' for {config.name}",
                    key=f"{key}.histogram_options.buckets",
                    hint="upper bounds in milliseconds; the one of +Inf is added",
                )


# -- warmup samples, as far as their data files don't matter (contract, scheduling.md section 10)

# Triton prepares warmup inputs as a request without an id, and its prefix shows.
WARMUP_PREFIX: Final = "[request id: <id_unknown>] "
_LARGEST_BATCH: Final = 65_536  # each is a request in memory


def warmup(config: ModelConfig) -> Iterator[Problem]:
    """Check `model_warmup`; samples of batch size 0 are skipped."""
    for at, sample in enumerate(config.model_warmup):
        yield from sample_problems(config, sample, f"model_warmup[{at}]")


def sample_problems(config: ModelConfig, sample: ModelWarmup, where: str) -> Iterator[Problem]:
    """Check one sample, whose key is `where`."""
    if not sample.batch_size:
        return
    if sample.batch_size > _LARGEST_BATCH:
        yield Problem(
            message=(
                f"warmup sample '{sample.name}' for {config.name} has batch size {sample.batch_size},"
                f" more than {_LARGEST_BATCH}"
            ),
            key=f"{where}.batch_size",
            hint="use 'count' to run a sample more often",
        )
    for name, tensor in sorted(sample.inputs.items()):
        key = f'{where}.inputs["{name}"]'
        if tensor.data_type == DataType.TYPE_INVALID or tensor.data_type not in DataType.values():
            yield Problem(
                message=f"warmup setting expects input '{name}' to have 'data_type' set",
                key=key,
                hint="such as data_type: TYPE_FP32",
            )
        if any(dim < 0 for dim in tensor.dims):
            yield Problem(
                message=f"warmup setting expects all variable-size dimensions are specified for input '{name}'",
                key=f"{key}.dims",
                hint="write the sizes, without the batch dimension",
            )
        if tensor.WhichOneof("input_data_type") is None:
            yield Problem(
                message=f"{WARMUP_PREFIX}warmup setting expects input '{name}' to have input_data_type set",
                key=key,
                hint="add: random_data: true",
            )
