"""The rules a completed configuration must keep (contract, model_config.md sections 4 and 6), in the order of the contract.

Every rule that is broken is told, not only the first; the first becomes the reason for which the model is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import isfinite, prod
from typing import Final

from actors.messages.errors import ErrorCode
from engine.config.backends import BackendTraits
from engine.config.complete import ENSEMBLE
from engine.config.problems import Problem, Severity, did_you_mean
from protocols.kserve.proto.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
)

# The pairs that Triton insists on; other backends take any platform.
_PLATFORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
}
# Triton prepares warmup inputs as a request without an id, and its prefix shows.
WARMUP_PREFIX: Final = "[request id: <id_unknown>] "

_KINDS: Final = frozenset(ModelInstanceGroup.Kind.values())
_TENSORRT: Final = "tensorrt_plan"
FIRST_RESPONSE_HISTOGRAM: Final = "nv_inference_first_response_histogram_ms"
_LOWEST_COMPUTE_CAPABILITY: Final = "6"
_WARMUP_LARGEST_BATCH: Final = 65_536  # each is a request in memory


def validate(config: ModelConfig, *, backends: Mapping[str, BackendTraits], gpus: int = 0) -> list[Problem]:
    """Return every broken rule of `config`, a completed configuration."""
    return [
        *_identity(config, backends),
        *_batching(config),
        *_metrics(config),
        *_tensors(config),
        *_instance_groups(config, gpus),
        *_warmup(config),
    ]


def _identity(config: ModelConfig, backends: Mapping[str, BackendTraits]) -> Iterator[Problem]:
    name = config.name
    if not name:
        yield Problem(message="model configuration must specify 'name'")
    if not config.backend and config.platform != ENSEMBLE:
        yield Problem(
            message=f"unexpected platform type '{config.platform}' for {name}",
            key="platform",
            hint="name the 'backend'",
        )
    expected = _PLATFORMS.get(config.backend)
    if expected is not None and config.platform not in expected:
        yield Problem(
            message=f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            key="platform",
            hint=f"'{config.backend}' goes with {' or '.join(expected)}",
        )
    elif config.backend:
        yield from _library(config, backends)
    if config.max_batch_size < 0:
        yield Problem(
            message=f"'max_batch_size' must be non-negative value for {name}",
            key="max_batch_size",
            hint="0 means that shapes have no batch dimension",
        )
    if not config.version_policy.WhichOneof("policy_choice"):
        yield Problem(message=f"must specify 'version policy' for {name}", key="version_policy")


def _library(config: ModelConfig, backends: Mapping[str, BackendTraits]) -> Iterator[Problem]:
    traits = backends.get(config.backend)
    if traits is None or traits.unavailable:
        if traits is not None:
            hint = f"its module can't be imported: {traits.unavailable}"
        else:
            known = ", ".join(sorted(backends)) or "none"
            hint = did_you_mean(config.backend, backends) or f"backends here: {known}"
        yield Problem(
            message=(
                f"unable to find backend library for backend '{config.backend}',"
                " try specifying runtime on the model configuration."
            ),
            key="backend",
            hint=hint,
        )


def _batching(config: ModelConfig) -> Iterator[Problem]:
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        yield from _preferred(config, batching)
        yield from _priorities(config, batching)
        yield from _ordering(config, batching)


def _preferred(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    key = "dynamic_batching.preferred_batch_size"
    if any(size <= 0 for size in batching.preferred_batch_size):
        yield Problem(message=f"dynamic batching preferred size must be positive for {config.name}", key=key)
    if any(size > max(config.max_batch_size, 0) for size in batching.preferred_batch_size):
        yield Problem(
            message=f"dynamic batching preferred size must be <= max batch size for {config.name}",
            key=key,
            hint=f"'max_batch_size' is {config.max_batch_size}",
        )


def _priorities(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    levels = batching.priority_levels
    if not levels:
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield Problem(
            message=f"default priority level must be in range [1, {levels}] for {config.name}",
            key="dynamic_batching.default_priority_level",
        )
    if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        yield Problem(
            message=f"priority queue policy must have priority level in range [1, {levels}] for {config.name}",
            key="dynamic_batching.priority_queue_policy",
        )


def _ordering(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    if not batching.preserve_ordering:
        return
    key = "dynamic_batching.preserve_ordering"
    if batching.priority_levels > 1:
        yield Problem(
            message=f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}",
            key=key,
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(
        policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds
        for policy in policies
    ):
        yield Problem(
            message=(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
                f" for {config.name}"
            ),
            key=key,
        )


def _metrics(config: ModelConfig) -> Iterator[Problem]:
    for at, control in enumerate(config.model_metrics.metric_control):
        key = f"model_metrics.metric_control[{at}]"
        if not control.HasField("metric_identifier"):
            yield Problem(message="metric control must specify 'metric_identifier'", key=key)
        elif not control.metric_identifier.family:
            yield Problem(message="metric identifier must specify non-empty 'family'", key=key)
        elif control.metric_identifier.family != FIRST_RESPONSE_HISTOGRAM:
            yield Problem(
                severity=Severity.WARNING,
                message=f"metric family '{control.metric_identifier.family}' can not be customised",
                key=key,
                hint=f"only {FIRST_RESPONSE_HISTOGRAM} can",
            )
        if not control.HasField("histogram_options"):
            yield Problem(message="metric control must specify 'histogram_options'", key=key)
        elif not control.histogram_options.buckets:
            yield Problem(message="histogram options must specify non-empty 'buckets'", key=key)
        elif control.metric_identifier.family == FIRST_RESPONSE_HISTOGRAM:
            buckets = control.histogram_options.buckets
            if not all(map(isfinite, buckets)) or any(low >= high for low, high in pairwise(buckets)):
                yield Problem(
                    message=f"histogram options must specify finite, ascending 'buckets' for {config.name}",
                    key=f"{key}.histogram_options.buckets",
                    hint="upper bounds in milliseconds; the one of +Inf is added",
                )


def _tensors(config: ModelConfig) -> Iterator[Problem]:
    for at, given in enumerate(config.input):
        yield from _tensor(config, given, "input", f"input[{at}]")
        if given.format != ModelInput.FORMAT_NONE and len(given.dims) != 3:
            yield Problem(
                message=f"model input NHWC/NCHW require 3 dims for {config.name}", key=f"input[{at}].format"
            )
    for at, output in enumerate(config.output):
        yield from _tensor(config, output, "output", f"output[{at}]")
    yield from _repeated(config, "input", [given.name for given in config.input])
    yield from _repeated(config, "output", [output.name for output in config.output])


def _repeated(config: ModelConfig, side: str, names: list[str]) -> Iterator[Problem]:
    for at, name in enumerate(names):
        if name and names[:at].count(name) == 1:  # told at its second place, and once
            yield Problem(
                message=f"model {side} '{name}' is specified more than once for {config.name}",
                key=f"{side}[{at}].name",
            )


def _tensor(config: ModelConfig, tensor: ModelInput | ModelOutput, side: str, key: str) -> Iterator[Problem]:
    def broken(rule: str, field: str) -> Problem:
        return Problem(message=f"model {side} '{tensor.name}' {rule} for {config.name}", key=f"{key}.{field}")

    if not tensor.name:
        yield Problem(message=f"model {side} must specify 'name' for {config.name}", key=key)
    if tensor.data_type == DataType.TYPE_INVALID or tensor.data_type not in DataType.values():
        yield broken("must specify 'data_type'", "data_type")
    if not tensor.dims:
        yield broken("must specify 'dims'", "dims")
    elif any(dim < 1 and dim != -1 for dim in tensor.dims):
        yield broken("dimension must be integer >= 1, or -1 to indicate a variable-size dimension", "dims")
    elif tensor.HasField("reshape"):
        yield from _reshape(config.max_batch_size, tuple(tensor.dims), tuple(tensor.reshape.shape), broken)
    if config.platform != _TENSORRT:
        if tensor.is_shape_tensor:
            yield broken("shape tensors are only supported for TensorRT platform", "is_shape_tensor")
        if tensor.is_non_linear_format_io:
            yield broken(
                "Non-linear IO format is only supported for the TensorRT platform", "is_non_linear_format_io"
            )
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        yield broken(f"Non-linear IO format {side} requires 3 dims", "is_non_linear_format_io")


def _reshape(
    max_batch_size: int, dims: tuple[int, ...], shape: tuple[int, ...], broken: Callable[[str, str], Problem]
) -> Iterator[Problem]:
    """Check that both shapes hold the same elements, also between any variable-size dimensions."""
    if not shape and max_batch_size == 0:
        yield broken(
            "cannot have empty reshape for non-batching model as scalar tensors are not supported", "reshape"
        )
    elif any(dim < 1 and dim != -1 for dim in shape):
        yield broken(
            "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension", "reshape"
        )
    elif _element_count(dims) != _element_count(shape):
        yield broken("has different size for dims and reshape", "reshape")
    elif dims.count(-1) != shape.count(-1):
        yield broken("has different number of variable-size dimensions for dims and reshape", "reshape")
    elif _segments(dims) != _segments(shape):
        yield broken("has different size for dims and reshape", "reshape")


def _element_count(shape: tuple[int, ...]) -> int:
    return -1 if -1 in shape else prod(shape)


def _segments(shape: tuple[int, ...]) -> list[int]:
    """Return the element counts before, between and after the variable-size dimensions."""
    products = [1]
    for dim in shape:
        if dim == -1:
            products.append(1)
        else:
            products[-1] *= dim
    return products


def _instance_groups(config: ModelConfig, gpus: int) -> Iterator[Problem]:
    if config.platform != ENSEMBLE and not config.instance_group:
        yield Problem(message=f"must specify one or more 'instance group's for {config.name}")
    for at, group in enumerate(config.instance_group):
        yield from _instance_group(config, group, f"instance_group[{at}]", gpus)


def _instance_group(config: ModelConfig, group: ModelInstanceGroup, key: str, gpus: int) -> Iterator[Problem]:
    who = f"instance group {group.name} of model {config.name}"
    kind = ModelInstanceGroup.Kind.Name(group.kind) if group.kind in _KINDS else str(group.kind)
    if group.kind in (ModelInstanceGroup.KIND_MODEL, ModelInstanceGroup.KIND_CPU):
        if group.gpus:
            yield Problem(message=f"{who} has kind {kind} but specifies one or more GPUs", key=f"{key}.gpus")
    elif group.kind == ModelInstanceGroup.KIND_GPU:
        if not gpus:
            yield Problem(message=f"{who} has kind KIND_GPU but no GPUs are available", key=f"{key}.kind")
        elif not group.gpus:
            yield Problem(message=f"{who} has kind KIND_GPU but specifies no GPUs", key=f"{key}.gpus")
        for gpu in group.gpus if gpus else ():
            if not 0 <= gpu < gpus:
                yield _bad_gpu(who, key, gpu, gpus)
    else:
        yield Problem(message=f"{who} has unexpected kind {kind}", key=f"{key}.kind", code=ErrorCode.INTERNAL)
    if group.profile and config.platform != _TENSORRT:
        # The missing space is Triton's, and clients match on it.
        yield Problem(
            message=(
                f"{who} and platform {config.platform}specifies profile field"
                " which is only supported for TensorRT models"
            ),
            key=f"{key}.profile",
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


def _warmup(config: ModelConfig) -> Iterator[Problem]:
    """Check what needs no file (contract, scheduling.md section 10); samples of batch size 0 are skipped."""
    for at, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            continue
        if sample.batch_size > _WARMUP_LARGEST_BATCH:
            yield Problem(
                message=(
                    f"warmup sample '{sample.name}' for {config.name} has batch size {sample.batch_size},"
                    f" more than {_WARMUP_LARGEST_BATCH}"
                ),
                key=f"model_warmup[{at}].batch_size",
            )
        for name, tensor in sorted(sample.inputs.items()):
            key = f'model_warmup[{at}].inputs["{name}"]'
            if tensor.data_type == DataType.TYPE_INVALID or tensor.data_type not in DataType.values():
                yield Problem(
                    message=f"warmup setting expects input '{name}' to have 'data_type' set", key=key
                )
            if any(dim < 0 for dim in tensor.dims):
                yield Problem(
                    message=f"warmup setting expects all variable-size dimensions are specified for input '{name}'",
                    key=f"{key}.dims",
                )
            if tensor.WhichOneof("input_data_type") is None:
                yield Problem(
                    message=f"{WARMUP_PREFIX}warmup setting expects input '{name}' to have input_data_type set",
                    key=key,
                )
