"""Inputs, outputs, and what is made of them for ragged batches.

Contract: model_config.md sections 4.1 to 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from engine.config.complete import ENSEMBLE
from engine.models.problems import Problem, Severity, did_you_mean
from protocols.kserve.proto.model_config_pb2 import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
)

_TENSORRT: Final = "tensorrt_plan"
_BATCH_INPUT_TYPES: Final = (DataType.TYPE_INT32, DataType.TYPE_FP32)


def tensors(config: ModelConfig) -> Iterator[Problem]:
    """Check `input` and `output`, `batch_input` and `batch_output`."""
    for at, given in enumerate(config.input):
        yield from _tensor(config, given, "input", f"input[{at}]")
        if given.format != ModelInput.FORMAT_NONE and len(given.dims) != 3:
            yield Problem(
                message=f"model input NHWC/NCHW require 3 dims for {config.name}",
                key=f"input[{at}].format",
                hint=f"it has {len(given.dims)}: write 3, or leave 'format' out",
            )
    for at, output in enumerate(config.output):
        yield from _tensor(config, output, "output", f"output[{at}]")
    yield from _repeated(config, "input", [given.name for given in config.input])
    yield from _repeated_outputs(config)
    yield from _batch_inputs(config)
    yield from _batch_outputs(config)


def _repeated(config: ModelConfig, side: str, names: list[str]) -> Iterator[Problem]:
    for at, name in enumerate(names):
        if name and names[:at].count(name) == 1:  # told at its second place, and once
            yield Problem(
                message=f"model {side} '{name}' is specified more than once for {config.name}",
                key=f"{side}[{at}].name",
                hint="give it another name",
            )


def _repeated_outputs(config: ModelConfig) -> Iterator[Problem]:
    """Tell of outputs that are given twice.

    Ensembles are published that have one output in two places (contract, llm.md section 4.2), and Triton does
    not mind. Where both say the same, one of them is enough.
    """
    alike = config.platform == ENSEMBLE
    for problem in _repeated(config, "output", [output.name for output in config.output]):
        at = int(problem.key.removeprefix("output[").partition("]")[0])
        twins = [each for each in config.output if each.name == config.output[at].name]
        if alike and all(each == twins[0] for each in twins):
            yield replace(problem, severity=Severity.WARNING, hint="remove one of them: both say the same")
        else:
            yield problem


def _tensor(config: ModelConfig, tensor: ModelInput | ModelOutput, side: str, key: str) -> Iterator[Problem]:
    def broken(rule: str, field: str, hint: str = "") -> Problem:
        message = f"model {side} '{tensor.name}' {rule} for {config.name}"
        return Problem(message=message, key=f"{key}.{field}", hint=hint)

    if not tensor.name:
        yield Problem(
            message=f"model {side} must specify 'name' for {config.name}", key=key, hint='add: name: "…"'
        )
    if tensor.data_type == DataType.TYPE_INVALID or tensor.data_type not in DataType.values():
        yield broken("must specify 'data_type'", "data_type", "such as data_type: TYPE_FP32")
    if not tensor.dims:
        yield broken("must specify 'dims'", "dims", "such as dims: [ -1 ], without the batch dimension")
    elif any(dim < 1 and dim != -1 for dim in tensor.dims):
        yield broken(
            "dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
            "dims",
            "a scalar is dims: [ 1 ] with reshape { }" if 0 in tensor.dims else "write -1",
        )
    elif tensor.HasField("reshape"):
        yield from _reshape(config.max_batch_size, tuple(tensor.dims), tuple(tensor.reshape.shape), broken)
    if config.platform != _TENSORRT:
        if tensor.is_shape_tensor:
            yield broken(
                "shape tensors are only supported for TensorRT platform", "is_shape_tensor", "leave it out"
            )
        if tensor.is_non_linear_format_io:
            yield broken(
                "Non-linear IO format is only supported for the TensorRT platform",
                "is_non_linear_format_io",
                "leave it out",
            )
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        yield broken(
            f"Non-linear IO format {side} requires 3 dims",
            "is_non_linear_format_io",
            f"it has {len(tensor.dims)}",
        )


def _reshape(
    max_batch_size: int,
    dims: tuple[int, ...],
    shape: tuple[int, ...],
    broken: Callable[[str, str, str], Problem],
) -> Iterator[Problem]:
    """Check that both shapes hold the same elements, also between any variable-size dimensions."""
    if not shape and max_batch_size == 0:
        yield broken(
            "cannot have empty reshape for non-batching model as scalar tensors are not supported",
            "reshape",
            "leave it out",
        )
    elif any(dim < 1 and dim != -1 for dim in shape):
        yield broken(
            "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension",
            "reshape",
            "the shape of a scalar is empty: reshape { }" if 0 in shape else "write -1",
        )
    elif _element_count(dims) != _element_count(shape):
        yield broken("has different size for dims and reshape", "reshape", _sizes(dims, shape))
    elif dims.count(-1) != shape.count(-1):
        yield broken(
            "has different number of variable-size dimensions for dims and reshape",
            "reshape",
            f"'dims' has {dims.count(-1)}, 'reshape' has {shape.count(-1)}",
        )
    elif _segments(dims) != _segments(shape):
        yield broken(
            "has different size for dims and reshape",
            "reshape",
            "what is between variable-size dimensions must hold as many elements on both sides",
        )


def _sizes(dims: tuple[int, ...], shape: tuple[int, ...]) -> str:
    ours, theirs = ("any number of" if -1 in side else str(prod(side)) for side in (dims, shape))
    return f"'dims' holds {ours} elements, 'reshape' {theirs}"


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


def _batch_inputs(config: ModelConfig) -> Iterator[Problem]:
    names = {tensor.name for tensor in config.input}
    for at, made in enumerate(config.batch_input):
        key = f"batch_input[{at}]"
        yield from _kind(config, "input", made, BatchInput.Kind, key)
        if (
            not made.target_name
        ):  # this rule and the next are ours: Triton passes such inputs over, or mixes them up
            yield Problem(
                message=f"batch input must specify 'target_name' for {config.name}",
                key=f"{key}.target_name",
                hint="name the input of the model that it is",
            )
        for target in made.target_name:
            if target in names:
                yield Problem(
                    message=f"batch input '{target}' is specified more than once among the inputs for"
                    f" {config.name}",
                    key=f"{key}.target_name",
                    hint="give it another name",
                )
            names.add(target)
        if made.data_type not in _BATCH_INPUT_TYPES:
            yield Problem(
                message=f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}",
                key=f"{key}.data_type",
                hint="write data_type: TYPE_INT32",
            )
        yield from _known_sources(config, made.source_input, key)


def _batch_outputs(config: ModelConfig) -> Iterator[Problem]:
    outputs = [output.name for output in config.output]
    targets: set[str] = set()
    for at, cut in enumerate(config.batch_output):
        key = f"batch_output[{at}]"
        yield from _kind(config, "output", cut, BatchOutput.Kind, key)
        for target in cut.target_name:
            if target not in outputs:
                yield Problem(
                    message=f"unknown target output name '{target}' for {config.name}",
                    key=f"{key}.target_name",
                    hint=_one_of(target, outputs),
                )
            elif target in targets:
                yield Problem(
                    message=f"target output name '{target}' can only be specified once for {config.name}",
                    key=f"{key}.target_name",
                    hint="keep one of them",
                )
            targets.add(target)
        yield from _known_sources(config, cut.source_input, key)
        yield from _cut_by_more_dims(config, cut, key)


def _cut_by_more_dims(config: ModelConfig, cut: BatchOutput, key: str) -> Iterator[Problem]:
    """Tell of an output with a variable dimension at a place that its source does not have.

    This rule is ours: Triton reads beyond the end of the source's shape.
    """
    ranks = {tensor.name: len(_own_dims(tensor)) for tensor in config.input}
    dims = {tensor.name: _own_dims(tensor) for tensor in config.output}
    for source in cut.source_input[:1]:
        for target in cut.target_name:
            if -1 in dims.get(target, ())[ranks.get(source, 64) :]:
                yield Problem(
                    message=f"batch output '{target}' can't be cut by input '{source}', which has fewer dims for"
                    f" {config.name}",
                    key=f"{key}.source_input",
                    hint=f"write dims: [ -1 ] for '{target}', or another source",
                )


def _own_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _kind(
    config: ModelConfig, side: str, batched: BatchInput | BatchOutput, kinds: Any, key: str
) -> Iterator[Problem]:
    """Check that its kind is one of `kinds`, and that it has one source."""
    sources = len(batched.source_input)
    if batched.kind not in kinds.values():
        yield Problem(
            message=f"unknown batch {side} kind '{batched.kind}' for {config.name}",
            key=f"{key}.kind",
            hint="one of " + ", ".join(kinds.keys()),
        )
    elif sources != 1:
        yield Problem(
            message=f"batch {side} kind '{kinds.Name(batched.kind)}' expects 1 source input, got {sources} for {config.name}",
            key=f"{key}.source_input",
            hint=_one_of("", [tensor.name for tensor in config.input]),
        )


def _known_sources(config: ModelConfig, sources: Sequence[str], key: str) -> Iterator[Problem]:
    inputs = [tensor.name for tensor in config.input]
    for source in sources:
        if source not in inputs:
            yield Problem(
                message=f"unknown source input name '{source}' for {config.name}",
                key=f"{key}.source_input",
                hint=_one_of(source, inputs),
            )


def _one_of(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"one of {', '.join(known)}"
