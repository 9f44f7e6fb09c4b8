"""Instance groups and their rate limiters.

Contract: model_config.md section 4.9, scheduling.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from actors.values.errors import ErrorCode
from engine.config.complete import ENSEMBLE
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup

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
