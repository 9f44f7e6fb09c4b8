"""The rules a completed configuration must keep, in the order of the contract.

Contract: model_config.md sections 4 and 6. Every rule that is broken is told, not only the first; the first
becomes the reason for which the model is not loaded. The rules themselves are in `engine.config.rules`, by
the part of the schema that they are about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.config.complete import ENSEMBLE
from engine.config.rules.ensembles import ensemble
from engine.config.rules.finding import escapes
from engine.config.rules.foreign import elsewhere, misnamed, of_ones_own
from engine.config.rules.instances import instance_groups, model_metrics, warmup
from engine.config.rules.language import language
from engine.config.rules.scheduling import dynamic_batching, sequence_batching
from engine.config.rules.tensors import tensors
from engine.config.wording import enum_hint, is_map
from engine.environments.declared import PATH_PARAMETER
from engine.models.problems import Problem, did_you_mean
from engine.processes.backends import BackendTraits
from protocols.kserve.proto.model_config_pb2 import ModelConfig

# The pairs that Triton insists on; other backends take any platform.
_PLATFORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow_graphdef"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
}
# What authors of configurations call a platform or a backend, and what it is.
_PLATFORM_ALIASES: Final[Mapping[str, str]] = {
    "onnx_onnxv1": "onnxruntime_onnx",
    "onnx": "onnxruntime_onnx",
    "pytorch_torchscript": "pytorch_libtorch",
    "torchscript": "pytorch_libtorch",
    "tensorrt": "tensorrt_plan",
}
_BACKEND_ALIASES: Final[Mapping[str, str]] = {
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "torch": "pytorch",
    "libtorch": "pytorch",
    "torchscript": "pytorch",
    **dict.fromkeys(("xgboost", "lightgbm", "treelite", "sklearn", "cuml"), "fil"),
}
_BACKEND_DIRECTORY: Final = "/opt/tritonserver/backends"  # where Triton looks unless it is told otherwise

# Enums whose unknown numbers a rule of the contract has a text for.
_HAVE_A_RULE: Final = frozenset(
    (
        "inference.ModelInput.data_type",
        "inference.ModelOutput.data_type",
        "inference.ModelWarmup.Input.data_type",
        "inference.BatchInput.data_type",
        "inference.BatchInput.kind",
        "inference.BatchOutput.kind",
        "inference.ModelInstanceGroup.kind",
    )
)


def validate(config: ModelConfig, *, backends: Mapping[str, BackendTraits], gpus: int = 0) -> list[Problem]:
    """Return every broken rule of `config`, a completed configuration."""
    return [
        *_identity(config, backends),
        *dynamic_batching(config),
        *sequence_batching(config),
        *ensemble(config),
        *language(config, backends.get(config.backend)),
        *_cache(config),
        *model_metrics(config),
        *tensors(config),
        *instance_groups(config, gpus),
        *_library(config, backends),
        *warmup(config),
        *_unknown_numbers(config, ""),
    ]


def _identity(config: ModelConfig, backends: Mapping[str, BackendTraits]) -> Iterator[Problem]:
    name = config.name
    if not name:
        yield Problem(message="model configuration must specify 'name'")
    if not config.backend and config.platform != ENSEMBLE:
        yield Problem(
            message=f"unexpected platform type '{config.platform}' for {name}",
            key="platform",
            hint=_platform_hint(config.platform, backends),
        )
    expected = _PLATFORMS.get(config.backend)
    if expected is not None and config.platform not in expected:
        yield Problem(
            message=f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            key="platform",
            hint=f"'{config.backend}' goes with {' or '.join(expected)}",
        )
    if config.max_batch_size < 0:
        yield Problem(
            message=f"'max_batch_size' must be non-negative value for {name}",
            key="max_batch_size",
            hint="0 means that shapes have no batch dimension",
        )
    if not config.version_policy.WhichOneof("policy_choice"):
        yield Problem(message=f"must specify 'version policy' for {name}", key="version_policy")


def _platform_hint(platform: str, backends: Mapping[str, BackendTraits]) -> str:
    if not platform:
        return "name the 'backend'"
    if platform in _PLATFORM_ALIASES:
        return f"did you mean '{_PLATFORM_ALIASES[platform]}'?"
    if platform in backends or platform in _PLATFORMS:
        return f'that is a backend: write backend: "{platform}"'
    known = [ENSEMBLE, *(name for names in _PLATFORMS.values() for name in names)]
    hint = "" if platform in known else elsewhere(platform) or did_you_mean(platform, known)
    return hint or "name the 'backend'"


def _library(config: ModelConfig, backends: Mapping[str, BackendTraits]) -> Iterator[Problem]:
    """Check that the backend is there, and that `runtime` names no file outside of it."""
    name = config.backend
    if (
        not name
        or config.platform == ENSEMBLE
        or config.platform not in _PLATFORMS.get(name, (config.platform,))
    ):
        return  # what is wrong with such a pair is told already
    if escapes(config.runtime):
        yield Problem(
            message=(
                f"backend library name '{config.runtime}' escapes backend directory '{_BACKEND_DIRECTORY}/{name}',"
                f" for model '{config.name}', check model config runtime field"
            ),
            key="runtime",
            hint="leave 'runtime' out",
        )
    traits = backends.get(name)
    if traits is None or traits.unavailable:
        yield Problem(
            message=(
                f"unable to find backend library for backend '{name}',"
                " try specifying runtime on the model configuration."
            ),
            key="backend",
            hint=f"its module can't be imported: {traits.unavailable}"
            if traits
            else _backend_hint(name, backends),
        )
    elif traits.missing and not (traits.has_environments and PATH_PARAMETER in config.parameters):
        yield Problem(
            message=f"model '{config.name}' can't run with backend '{name}' here, {traits.missing}",
            key="backend",
        )


def _backend_hint(name: str, backends: Mapping[str, BackendTraits]) -> str:
    meant = _BACKEND_ALIASES.get(name, "")
    platform_of = [backend for backend, platforms in _PLATFORMS.items() if name in platforms]
    if meant in backends:
        return f"did you mean '{meant}'?"
    if platform_of:
        return f"that is a platform; its backend is '{platform_of[0]}'"
    here = f"backends here: {', '.join(sorted(backends)) or 'none'}"
    own = of_ones_own(name)
    return (
        elsewhere(name)
        or misnamed(name)
        or did_you_mean(name, backends)
        or (f"{here}; {own}" if own else here)
    )


def _cache(config: ModelConfig) -> Iterator[Problem]:
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield Problem(
            message=(
                f"Response Cache does not currently support model {config.name} with 'decoupled' transaction policy."
                " Please disable the response cache."
            ),
            key="response_cache.enable",
            hint="leave 'response_cache' out",
        )


def _unknown_numbers(message: Any, prefix: str) -> Iterator[Problem]:
    """Tell of enum fields that hold a number without a name.

    protobuf reads any number, and no feature knows these.
    """
    for field, value in message.ListFields():
        key = prefix + field.name
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for name in sorted(value):
                    yield from _unknown_numbers(value[name], f'{key}["{name}"].')
        elif field.message_type is not None:
            elements = enumerate(value) if field.is_repeated else [(None, value)]
            for at, element in elements:
                yield from _unknown_numbers(element, f"{key}." if at is None else f"{key}[{at}].")
        elif _has_no_name(field, value):
            yield Problem(
                message=f"'{field.name}' has no value {value}", key=key, hint=enum_hint(field.enum_type, "")
            )


def _has_no_name(field: Any, value: Any) -> bool:
    enum = field.enum_type
    return enum is not None and field.full_name not in _HAVE_A_RULE and value not in enum.values_by_number
