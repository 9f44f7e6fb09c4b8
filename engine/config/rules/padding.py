"""What `tritium.pad_to`, `tritium.pad_value` and `tritium.pad_outputs` may say of a model's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from actors.padding.policy import fits
from actors.values.datatypes import BY_NUMBER, DataType
from engine.config.complete import ENSEMBLE
from engine.models.problems import Problem, Severity, did_you_mean
from engine.settings.parameters import TritiumSettings, problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

PAD_TO: Final = "tritium.pad_to"
PAD_VALUE: Final = "tritium.pad_value"
PAD_OUTPUTS: Final = "tritium.pad_outputs"


def padding(config: ModelConfig, tritium: TritiumSettings) -> Iterator[Problem]:
    """Yield what is wrong with the padding of a completed configuration."""
    if not (tritium.pad_to or tritium.pad_values or tritium.pad_outputs):
        return
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        for key in (PAD_TO, PAD_VALUE, PAD_OUTPUTS):
            if key in config.parameters:
                message = f"'{key}' is set for an ensemble, which has no tensors of its own"
                yield problem(key, message, "set it for its models")
        return
    inputs = {tensor.name: tensor for tensor in config.input}
    outputs = {tensor.name: tensor for tensor in config.output}
    wrong = [
        *_inputs(config, tritium, inputs),
        *_values(tritium, inputs),
        *_cuts(config, tritium, outputs),
    ]
    yield from wrong or _uncut(tritium, outputs)


def _inputs(
    config: ModelConfig, tritium: TritiumSettings, inputs: Mapping[str, ModelInput]
) -> Iterator[Problem]:
    for name, axes in tritium.pad_to.items():
        tensor = inputs.get(name)
        if tensor is None:
            yield _unknown(PAD_TO, "input", name, inputs)
            continue
        if tensor.allow_ragged_batch:
            yield problem(
                PAD_TO,
                f"'{PAD_TO}' names input '{name}', which has 'allow_ragged_batch' and is not padded",
                "choose one of the two: see docs/ragged.md",
            )
        if tensor.HasField("reshape"):
            yield problem(
                PAD_TO,
                f"'{PAD_TO}' names input '{name}', which has a 'reshape'",
                "leave 'reshape' out, or pad on the client's side",
            )
        for axis in axes:
            yield from _open_dimension(config, PAD_TO, "input", tensor, axis)
    for at, scattered in enumerate(config.batch_output):
        for source in scattered.source_input:
            if source in tritium.pad_to:
                yield Problem(
                    message=f"'batch_output' cuts by input '{source}', which '{PAD_TO}' pads",
                    key=f"batch_output[{at}].source_input",
                    hint=f"cut the output with '{PAD_OUTPUTS}'",
                )


def _values(tritium: TritiumSettings, inputs: Mapping[str, ModelInput]) -> Iterator[Problem]:
    for name, value in tritium.pad_values.items():
        tensor = inputs.get(name)
        if tensor is None:
            yield _unknown(PAD_VALUE, "input", name, inputs)
            continue
        if name not in tritium.pad_to:
            message = f"'{PAD_VALUE}' names input '{name}', which is not padded"
            yield problem(PAD_VALUE, message, f"add it to '{PAD_TO}', or leave it out")
        datatype = BY_NUMBER.get(tensor.data_type)
        if datatype is DataType.BYTES:
            message = f"'{PAD_VALUE}' names input '{name}' of TYPE_STRING"
            yield problem(PAD_VALUE, message, "leave it out: text is padded with empty strings")
        elif datatype is not None and not fits(value, datatype):
            message = f"'{PAD_VALUE}' is {value} for input '{name}', which {datatype.config_name} can't hold"
            yield problem(PAD_VALUE, message, "use a value of that type, or leave it out for 0")


def _cuts(
    config: ModelConfig, tritium: TritiumSettings, outputs: Mapping[str, ModelOutput]
) -> Iterator[Problem]:
    scattered = {name for each in config.batch_output for name in each.target_name}
    if tritium.pad_outputs and config.model_transaction_policy.decoupled:
        message = f"'{PAD_OUTPUTS}' is set for a decoupled model, whose responses are sent as they are"
        yield problem(PAD_OUTPUTS, message, "leave it out, and cut in the model")
    states = {state.output_name for state in config.sequence_batching.state}
    for name, cuts in tritium.pad_outputs.items():
        tensor = outputs.get(name)
        if tensor is None:
            yield _unknown(PAD_OUTPUTS, "output", name, outputs)
            continue
        if tensor.HasField("reshape") or name in scattered or name in states:
            what = "a 'reshape'" if tensor.HasField("reshape") else "a shape that follows from elsewhere"
            yield problem(
                PAD_OUTPUTS, f"'{PAD_OUTPUTS}' names output '{name}', which has {what}", "leave it out"
            )
        for cut in cuts:
            yield from _open_dimension(config, PAD_OUTPUTS, "output", tensor, cut.axis)
            if cut.source_axis not in tritium.pad_to.get(cut.source, {}):
                padded = [f"{each}:{axis}" for each, axes in tritium.pad_to.items() for axis in axes]
                yield problem(
                    PAD_OUTPUTS,
                    f"'{PAD_OUTPUTS}' cuts output '{name}' like '{cut.source}:{cut.source_axis}', which"
                    f" '{PAD_TO}' does not pad",
                    f"one of {', '.join(padded)}" if padded else f"set '{PAD_TO}'",
                )


def _uncut(tritium: TritiumSettings, outputs: Mapping[str, ModelOutput]) -> Iterator[Problem]:
    """Tell of outputs that may have a padded size, and that clients get as they are."""
    for name, tensor in outputs.items():
        if tritium.pad_to and -1 in tensor.dims and name not in tritium.pad_outputs:
            yield Problem(
                message=f"output '{name}' has a dimension of any size, and '{PAD_OUTPUTS}' does not say how"
                " it is cut:"
                " clients get it in the padded size if it has one",
                key=f'parameters["{PAD_TO}"]',
                severity=Severity.WARNING,
                hint=f"add it to '{PAD_OUTPUTS}', such as '{name}:1={_first(tritium)}'",
            )


def _first(tritium: TritiumSettings) -> str:
    return next(f"{name}:{axis}" for name, axes in tritium.pad_to.items() for axis in axes)


def _open_dimension(
    config: ModelConfig, key: str, side: str, tensor: ModelInput | ModelOutput, axis: int
) -> Iterator[Problem]:
    """Check that a dimension is one of any size."""
    lead = 1 if config.max_batch_size > 0 else 0
    named = f"'{key}' names dimension {axis} of {side} '{tensor.name}'"
    free = [str(at + lead) for at, dim in enumerate(tensor.dims) if dim == -1]
    hint = f"of any size (-1) is {' and '.join(free)}" if free else "only a dimension of -1 can be padded"
    if lead and axis == 0:
        yield problem(key, f"{named}, which is the batch dimension", hint)
    elif axis - lead >= len(tensor.dims):
        yield problem(key, f"{named}, which has {len(tensor.dims) + lead} dimensions, counted from 0", hint)
    elif tensor.dims[axis - lead] != -1:
        yield problem(key, f"{named}, which is always {tensor.dims[axis - lead]}", hint)


def _unknown(key: str, side: str, name: str, known: Mapping[str, object]) -> Problem:
    hint = did_you_mean(name, known) or f"one of {', '.join(known)}"
    return problem(key, f"'{key}' names {side} '{name}', which the model does not have", hint)
