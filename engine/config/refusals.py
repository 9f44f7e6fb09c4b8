"""What the schema has and this version does not do.

Nothing is accepted in silence: docs/configuration/fields.md has the table. A field that changes answers is
refused (UNSUPPORTED). A field that only hints at how to be fast, and hints at something that does not exist
here, is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from actors.values.errors import ErrorCode
from engine.config.complete import ENSEMBLE
from engine.config.rules.finding import SCRIPT
from engine.models.problems import Problem, Severity, within
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup

Keys = Callable[[ModelConfig], Iterator[str]]

_TENSORRT: Final = "tensorrt"
_TENSORFLOW: Final = "tensorflow"  # it has accelerators of its own, and refuses them in its own words
_ACCELERATED: Final = frozenset(("onnxruntime", "pytorch", _TENSORFLOW))


@dataclass(frozen=True, slots=True)
class _Refusal:
    field: str  # as the message names it
    keys: Keys  # where it is set in a configuration
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Hint:
    keys: Keys
    why: str


def is_ensemble(config: ModelConfig) -> bool:
    """Whether this configuration is of an ensemble: few of a model's rules apply to it."""
    return config.platform == ENSEMBLE or config.HasField("ensemble_scheduling")


def refusals(config: ModelConfig, found: Iterable[Problem] = ()) -> list[Problem]:
    """Return an error for everything `config` asks for that this version does not do.

    `found` is what is wrong with the configuration. Of a field that is invalid, no more is said than that. So
    an owner can tell what is wrong (INVALID_ARG) from what is right and only not served yet (UNSUPPORTED).
    """
    invalid = {problem.key for problem in found if problem.is_error}
    return [
        Problem(
            message=f"'{refusal.field}' of model '{config.name}' is not supported by this version",
            key=key,
            hint=refusal.hint,
            code=ErrorCode.UNSUPPORTED,
        )
        for refusal in _REFUSALS
        for key in refusal.keys(config)
        if not any(within(wrong, key) for wrong in invalid)
    ]


def ignored_hints(config: ModelConfig) -> list[Problem]:
    """Return a warning for every hint in `config` that has no effect."""
    return [
        Problem(severity=Severity.WARNING, message=f"'{key}' has no effect: {hint.why}", key=key)
        for hint in _HINTS
        for key in hint.keys(config)
    ]


def _not_empty(key: str) -> Keys:
    """Yield the key if a list, a map or a string has content, or a switch is on."""

    def keys(config: ModelConfig) -> Iterator[str]:
        if attrgetter(key)(config):
            yield key

    return keys


def _in_each(listed: str, field: str) -> Keys:
    """Yield the key of each element of a list in which such a field is not empty."""

    def keys(config: ModelConfig) -> Iterator[str]:
        for at, element in enumerate(attrgetter(listed)(config)):
            if getattr(element, field):
                yield f"{listed}[{at}].{field}"

    return keys


def _in_python(field: str) -> Keys:
    """Yield the key of each element of a list of a Python model."""

    def keys(config: ModelConfig) -> Iterator[str]:
        if config.backend == "python" or config.runtime == SCRIPT:
            yield from (f"{field}[{at}]" for at, _ in enumerate(getattr(config, field)))

    return keys


def _operators(config: ModelConfig) -> Iterator[str]:
    if config.backend != "onnxruntime" and config.model_operations.op_library_filename:
        yield "model_operations.op_library_filename"


def _on_cpu_by_others(config: ModelConfig) -> Iterator[str]:
    """Yield each accelerator of CPUs that no backend here has."""
    field = "optimization.execution_accelerators.cpu_execution_accelerator"
    if config.backend == _TENSORFLOW:
        return
    for at, accelerator in enumerate(attrgetter(field)(config)):
        if (config.backend, accelerator.name) != ("onnxruntime", "openvino"):
            yield f"{field}[{at}]"


def _on_gpu_by_others(config: ModelConfig) -> Iterator[str]:
    """Yield each accelerator of GPUs whose backend knows none.

    A backend that knows some judges names and parameters by itself.
    """
    field = "optimization.execution_accelerators.gpu_execution_accelerator"
    if config.backend not in _ACCELERATED or config.runtime == SCRIPT:
        yield from (f"{field}[{at}]" for at, _ in enumerate(attrgetter(field)(config)))


def _other_than_tensorrt(keys: Keys) -> Keys:
    """Yield the same keys, but for models whose backend is TensorRT's own, which honours them."""

    def others(config: ModelConfig) -> Iterator[str]:
        if config.backend != _TENSORRT:
            yield from keys(config)

    return others


def _shape_tensors_in_batches(config: ModelConfig) -> Iterator[str]:
    for side in ("input", "output") if config.max_batch_size > 0 else ():
        for at, tensor in enumerate(getattr(config, side)):
            if tensor.is_shape_tensor:
                yield f"{side}[{at}].is_shape_tensor"


def _by_capability(config: ModelConfig) -> Iterator[str]:
    on_gpu = any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)
    if config.cc_model_filenames and on_gpu:
        yield "cc_model_filenames"


_REFUSALS: Final = (
    _Refusal(
        "model_operations.op_library_filename",
        _operators,
        "libraries of custom operators are for ONNX models",
    ),
    _Refusal(
        "optimization.execution_accelerators",
        _on_gpu_by_others,
        "for GPUs there are 'cuda' and 'tensorrt' for ONNX models, and 'tensorrt' for PyTorch",
    ),
    _Refusal(
        "optimization.execution_accelerators",
        _on_cpu_by_others,
        "the one that there is for CPUs is 'openvino', for ONNX models",
    ),
    _Refusal(
        "instance_group.secondary_devices",
        _other_than_tensorrt(_in_each("instance_group", "secondary_devices")),
        "they are DLA cores, which only TensorRT engines run on",
    ),
    _Refusal(
        "is_shape_tensor",
        _shape_tensors_in_batches,
        "batches of several requests have none here: write max_batch_size: 0, and dims with the batch's",
    ),
    _Refusal(
        "cc_model_filenames",
        _other_than_tensorrt(_by_capability),
        "use 'default_model_filename', or one repository for each GPU kind",
    ),
)

_HINTS: Final = (
    _Hint(_in_python("batch_input"), "a Python model takes its requests one by one, and knows their shapes"),
    _Hint(_in_python("batch_output"), "a Python model answers its requests one by one"),
    _Hint(
        _in_each("sequence_batching.state", "use_same_buffer_for_input_output"),
        "states are kept in the server's memory, and what the model writes is its input the next time either way",
    ),
    _Hint(
        _in_each("sequence_batching.state", "use_growable_memory"),
        "states are kept in the server's memory, and each may have another size than the one before",
    ),
    _Hint(
        _other_than_tensorrt(_not_empty("optimization.priority")),
        "the operating system's priority of a worker is left alone",
    ),
    _Hint(
        _other_than_tensorrt(_not_empty("optimization.cuda.graphs")), "only TensorRT uses CUDA graphs here"
    ),
    _Hint(
        _other_than_tensorrt(_not_empty("optimization.cuda.busy_wait_events")),
        "only TensorRT waits on CUDA events here",
    ),
    _Hint(
        _other_than_tensorrt(_not_empty("optimization.cuda.graph_spec")),
        "only TensorRT uses CUDA graphs here",
    ),
    _Hint(
        _other_than_tensorrt(_not_empty("optimization.cuda.output_copy_stream")),
        "only TensorRT copies on CUDA streams of its own here",
    ),
    _Hint(
        _not_empty("optimization.gather_kernel_buffer_threshold"),
        "batches are gathered in host memory",
    ),
)


# -- which rules a configuration breaks for certain, if some of its fields can't be read
#
# `engine.config.parse` leaves out what it can't read, and the rules are checked on the rest, so that an
# author learns of everything at once. What is missing because it was left out is no mistake of its own.
# A comparison with what was left out says nothing.

# Fields that the rules about others look at. While such a field can't be read, what the rule says of the
# others is open.
_JUDGED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("name",),
    "backend": (
        "platform",
        "backend",
        "parameters",
        "input",
        "output",
        "instance_group",
        "ensemble_scheduling",
    ),
    "platform": ("platform", "backend", "input", "output", "instance_group", "ensemble_scheduling"),
    "default_model_filename": ("platform", "backend"),
    "max_batch_size": ("dynamic_batching", "sequence_batching", "input", "output"),
    "input": ("batch_input", "batch_output", "ensemble_scheduling", "output", "model_warmup"),
    "output": ("batch_output", "ensemble_scheduling", "input"),
    "ensemble_scheduling": ("platform", "input", "output"),
    "dynamic_batching": ("platform",),
    "sequence_batching": ("platform", "response_cache"),
    "instance_group": ("sequence_batching",),
    "version_policy": ("parameters",),
}
_TOP: Final = re.compile(r"\w+")
_INDEX: Final = re.compile(r"\[[0-9]+\]\Z")


def certain(problems: Iterable[Problem], spoilt: Iterable[str]) -> list[Problem]:
    """Return the problems of a partial configuration that hold whatever its `spoilt` fields should have been.

    A problem without a key is about something missing, which may well be there.
    """
    fields = {_INDEX.sub("", key) for key in spoilt}  # one element left out moves those behind it
    judged = {name for key in fields if _counts(key) for name in _JUDGED_BY.get(_top(key), ())}
    return [
        problem
        for problem in problems
        if problem.key
        and _top(problem.key) not in judged
        and not any(within(problem.key, field) or within(field, problem.key) for field in fields)
    ]


def _counts(key: str) -> bool:
    """Whether rules about other fields look at `key`: of a tensor, they want its name and nothing else."""
    return _top(key) not in ("input", "output") or "." not in key or key.endswith(".name")


def _top(key: str) -> str:
    found = _TOP.match(key)
    return found[0] if found else ""
