"""From what a model says of itself to the fields that its configuration leaves out.

Contract: model_config.md section 7.1. These are decisions over values: nothing here reads a file or runs
anything. Each edits a configuration in place, tells its `Provenance` of every step, and returns what keeps
the configuration from being completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import json_format

from engine.config.inspection.onnx_file import ZIPMAP
from engine.config.inspection.wire import Port, Ports
from engine.config.provenance import DEFAULT, Provenance
from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import ModelConfig

DEFAULT_MAX_BATCH_SIZE: Final = 4
MAX_BATCH_SETTING: Final = "default-max-batch-size"

_TAKEN_OVER: Final = ("max_batch_size", "input", "output")
_SCHEDULERS: Final = ("dynamic_batching", "sequence_batching")


def is_complete(config: ModelConfig) -> bool:
    """Whether both sides are given, so that the model file is not asked."""
    return bool((config.input or config.batch_input) and config.output)


def fill_from_onnx(
    config: ModelConfig, ports: Ports, provenance: Provenance, settings: Mapping[str, str]
) -> list[Problem]:
    """Apply the rules for ONNX models: sides that are missing, the batch size, a scheduler for it."""
    if is_complete(config) or config.max_batch_size < 0:
        return []
    default, problems = _default_max_batch_size(config, settings)
    everything = (*ports.inputs, *ports.outputs)
    batchable = bool(everything) and all(
        port.shape is not None and port.shape[:1] == (-1,) for port in everything
    )
    # What the file says nothing of may still have a batch dimension, if the owner says so.
    deniable = any(port.shape is not None and port.shape[:1] != (-1,) for port in everything)
    if deniable and config.max_batch_size > 0:
        problems.append(_no_batching(config))
    if problems:
        return problems
    if batchable and config.max_batch_size == 0:
        config.max_batch_size = default
        given = MAX_BATCH_SETTING in settings
        provenance.note(config, f"--backend-config {MAX_BATCH_SETTING}" if given else DEFAULT)
    problems = _fill_sides(config, ports)
    provenance.note(config, "model file (onnx)")
    if batchable and config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
        provenance.note(config, DEFAULT)
    return problems


def fill_from_program(
    config: ModelConfig, ports: Ports, provenance: Provenance, origin: str
) -> list[Problem]:
    """Fill in the missing sides of a PyTorch model.

    Batching stays as configured: Triton completes nothing here, and a leading symbol may be anything. If
    batching is configured, all leading dimensions must be one and the same symbol.
    """
    if is_complete(config) or config.max_batch_size < 0:
        return []
    leading = {port.symbols[:1] for port in (*ports.inputs, *ports.outputs)}
    if config.max_batch_size > 0 and (len(leading) != 1 or leading <= {(), ("",)}):
        return [_no_batching(config)]
    problems = _fill_sides(config, ports)
    provenance.note(config, origin)
    return problems


def _default_max_batch_size(config: ModelConfig, settings: Mapping[str, str]) -> tuple[int, list[Problem]]:
    text = settings.get(MAX_BATCH_SETTING)
    if text is None:
        return DEFAULT_MAX_BATCH_SIZE, []
    try:
        value = int(text)
    except ValueError:
        value = 1 << 31
    if value >= 1 << 31:
        return 0, [
            Problem(
                message=f"autofill failed for model '{config.name}': {MAX_BATCH_SETTING} is '{text}'",
                hint=f"--backend-config={config.backend},{MAX_BATCH_SETTING}=N takes a whole number",
            )
        ]
    return max(value, 0), []


def _no_batching(config: ModelConfig) -> Problem:
    return Problem(
        message=(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero"
            " max_batch_size is specified"
        ),
        key="max_batch_size",
        hint="leave 'max_batch_size' out, or export the model so that all its inputs and outputs begin with a dimension of any size",
    )


def _fill_sides(config: ModelConfig, ports: Ports) -> list[Problem]:
    """Fill in whichever side is empty."""
    problems: list[Problem] = []
    if not config.input and not config.batch_input:
        supplied = _supplied_by_the_server(config)
        for port in ports.inputs:
            if port.name not in supplied:
                problems += _fill_one(config, "input", port, config.input.add)
    if not config.output:
        for port in ports.outputs:
            problems += _fill_one(config, "output", port, config.output.add)
    return problems


def _supplied_by_the_server(config: ModelConfig) -> frozenset[str]:
    """Return the model's inputs that clients do not send: a scheduler's controls and states."""
    sequences = config.sequence_batching
    return frozenset(
        [control.name for control in sequences.control_input]
        + [state.input_name for state in sequences.state]
    )


def _fill_one(config: ModelConfig, side: str, port: Port, add: Any) -> list[Problem]:
    if port.datatype is None:
        return [
            Problem(
                message=f"unsupported datatype TYPE_INVALID for {side} '{port.name}' for model '{config.name}'",
                hint=f"it is of type {port.spelling} in the model file, which requests can't carry"
                + (f": {ZIPMAP}" if port.spelling == "sequence" else ""),
            )
        ]
    if port.shape is None:
        return [
            Problem(
                message=(
                    f"autofill failed for model '{config.name}': the model file gives no shape for {side}"
                    f" '{port.name}'"
                ),
                hint=f"add: {snippet(side, [port], batches=config.max_batch_size > 0)}",
            )
        ]
    tensor = add()
    tensor.name = port.name
    tensor.data_type = port.datatype.number
    dims = port.shape[1:] if config.max_batch_size > 0 else port.shape
    tensor.dims.extend(dims or (1,))
    if not dims and config.max_batch_size > 0:
        # One element a row, which has a dimension here and none in the model.
        tensor.reshape.SetInParent()
    return []


def snippet(side: str, ports: Sequence[Port], *, batches: bool) -> str:
    """Return `ports` as they would stand in a `config.pbtxt`; what is not known of one is guessed."""
    entries = []
    for port in ports:
        datatype = "TYPE_FP32" if port.datatype is None else port.datatype.config_name
        dims: tuple[int, ...] = (-1,)
        if port.shape is not None:
            dims = port.shape[1:] if batches else port.shape
        shown = ", ".join(map(str, dims or (1,)))
        quoted = port.name.replace("\\", "\\\\").replace('"', '\\"')
        entries.append(f'{{ name: "{quoted}" data_type: {datatype} dims: [ {shown} ] }}')
    return f"{side} [ {', '.join(entries)} ]"


# -- what a backend's own hook returns


def fill_from_answer(
    config: ModelConfig, answer: Mapping[str, Any], provenance: Provenance, origin: str
) -> list[Problem]:
    """Take over what is allowed from the configuration that a backend has completed, given as JSON values."""
    wanted: dict[str, Any] = {key: answer[key] for key in _TAKEN_OVER if key in answer}
    if config.WhichOneof("scheduling_choice") is None:
        wanted |= {key: answer[key] for key in _SCHEDULERS if answer.get(key) is not None}
    policy = answer.get("model_transaction_policy")
    if policy is not None:
        wanted["model_transaction_policy"] = policy
    completed = ModelConfig()
    try:
        json_format.ParseDict(wanted, completed)
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        return [
            Problem(
                message=f"autofill failed for model '{config.name}': {origin} gives no valid values: {error}"
            )
        ]
    if "max_batch_size" in wanted:
        config.max_batch_size = completed.max_batch_size
    for side in ("input", "output"):
        if side in wanted:
            config.ClearField(side)
            getattr(config, side).MergeFrom(getattr(completed, side))
    for scheduler in _SCHEDULERS:
        if completed.HasField(scheduler):
            getattr(config, scheduler).CopyFrom(getattr(completed, scheduler))
    if completed.model_transaction_policy.decoupled != config.model_transaction_policy.decoupled and policy:
        config.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    provenance.note(config, origin)
    return []
