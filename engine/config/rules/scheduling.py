"""How requests are scheduled: sequence batching (contract, model_config.md section 4.7) and dynamic batching.

What needs the initial-state files is checked where they are read: `engine.config.files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.models.problems import Problem
from protocols.kserve.proto.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelQueuePolicy,
    ModelSequenceBatching,
)

_KEY: Final = "sequence_batching"
_CHECKPOINT: Final = "tritium.checkpoint"
_LISTS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_ALL_LISTS: Final = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
_ANY_LIST: Final = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
_CORRELATION_TYPES: Final = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)


def sequence_batching(config: ModelConfig) -> Iterator[Problem]:
    """Check `sequence_batching`, if it is set."""
    yield from _checkpoint(config)
    if not config.HasField("sequence_batching"):
        return
    if config.response_cache.enable:
        yield Problem(
            message=(
                f"Response Cache does not currently support model {config.name} with sequence batching"
                " scheduler. Please disable the response cache."
            ),
            key="response_cache.enable",
            hint="leave 'response_cache' out",
        )
    yield from _controls(config)
    yield from _name_clashes(config)
    yield from _strategy(config)
    yield from _states(config)


def _checkpoint(config: ModelConfig) -> Iterator[Problem]:
    wanted = config.parameters[_CHECKPOINT].string_value if _CHECKPOINT in config.parameters else ""
    if wanted == "true" and not config.sequence_batching.state:
        yield Problem(
            message=(
                f"'{_CHECKPOINT}' is 'true', but model '{config.name}' has no implicit state that could be kept where an"
                " instance dies"
            ),
            key=f'parameters["{_CHECKPOINT}"]',
            hint="declare what the model remembers by sequence_batching { state [ ... ] }, or leave it out",
        )


def _name_clashes(config: ModelConfig) -> Iterator[Problem]:
    """Refuse clients what the scheduler gives to a model: its names are its own.

    Contract: scheduling.md section 6.3.
    """
    taken = {tensor.name: "an input of the configuration" for tensor in config.input}
    for at, control in enumerate(config.sequence_batching.control_input):
        if control.name in taken:
            yield _clash(control.name, f"{_KEY}.control_input[{at}].name", taken[control.name])
    taken.update({control.name: "a control tensor" for control in config.sequence_batching.control_input})
    for at, state in enumerate(config.sequence_batching.state):
        if state.input_name in taken:
            yield _clash(state.input_name, f"{_KEY}.state[{at}].input_name", taken[state.input_name])


def _clash(name: str, key: str, other: str) -> Problem:
    return Problem(
        message=f"sequence batching tensor '{name}' has the name of {other}",
        key=key,
        hint="the scheduler gives it to the model, so it is not listed under 'input'",
    )


def _controls(config: ModelConfig) -> Iterator[Problem]:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for at, tensor in enumerate(config.sequence_batching.control_input):
        key = f"{_KEY}.control_input[{at}]"
        if not tensor.name:
            yield Problem(
                message=f"sequence batching control tensor must have a name for {config.name}",
                key=key,
                hint="it is the name of the model's own input",
            )
        elif tensor.name in tensors or len(tensor.control) > 1:
            yield Problem(
                message=(
                    f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds"
                    f" for {config.name}"
                ),
                key=f"{key}.name" if tensor.name in tensors else f"{key}.control[1]",
                hint="give each control a tensor of its own",
            )
        tensors.add(tensor.name)
        for number, control in enumerate(tensor.control):
            yield from _control(config, control, kinds, f"{key}.control[{number}]")


def _control(
    config: ModelConfig, control: ModelSequenceBatching.Control, kinds: set[int], key: str
) -> Iterator[Problem]:
    """Check one control; `kinds` are those that came before it."""
    if control.kind not in ModelSequenceBatching.Control.Kind.values():
        return  # told by `engine.config.validate`
    kind = ModelSequenceBatching.Control.Kind.Name(control.kind)
    where = f"for {kind} for {config.name}"
    if control.kind in kinds:
        yield Problem(
            message=f"sequence batching specifies multiple {kind} tensors for {config.name}",
            key=f"{key}.kind",
            hint="keep one of them",
        )
    kinds.add(control.kind)
    given = [name for name in _LISTS if getattr(control, name)]
    if control.kind == ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
        if given:
            yield Problem(
                message=f"sequence batching must not specify either {_ANY_LIST} {where}",
                key=f"{key}.{given[0]}",
                hint="the correlation id itself is the value: give it a 'data_type'",
            )
        if control.data_type not in _CORRELATION_TYPES:
            yield Problem(
                message=(
                    f"unexpected data type for control {kind} for {config.name}. Allowed data types are TYPE_UINT64,"
                    " TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
                ),
                key=f"{key}.data_type",
                hint="TYPE_UINT64 takes every number that a client may send",
            )
    elif not given:
        yield Problem(
            message=f"sequence batching must specify either {_ANY_LIST} {where}",
            key=key,
            hint="such as int32_false_true: [ 0, 1 ]",
        )
    elif len(given) > 1:
        yield Problem(
            message=f"sequence batching specifies more than one from {_ALL_LISTS} {where}",
            key=f"{key}.{given[1]}",
            hint="keep the one of the tensor's datatype",
        )
    elif len(getattr(control, given[0])) != 2:
        yield Problem(
            message=f"sequence batching control '{given[0]}' must have exactly 2 entries {where}",
            key=f"{key}.{given[0]}",
            hint="the values of false and of true",
        )


def _strategy(config: ModelConfig) -> Iterator[Problem]:
    sequences = config.sequence_batching
    if sequences.HasField("oldest"):
        yield from _preferred(
            config,
            "sequence batching preferred batch size",
            sequences.oldest.preferred_batch_size,
            f"{_KEY}.oldest.preferred_batch_size",
        )
    if sequences.HasField("direct") and not 0.0 <= sequences.direct.minimum_slot_utilization <= 1.0:
        yield Problem(
            message=f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}",
            key=f"{_KEY}.direct.minimum_slot_utilization",
            hint="it is a share of the slots, such as 0.5",
        )


def _states(config: ModelConfig) -> Iterator[Problem]:
    names: set[str] = set()
    for at, state in enumerate(config.sequence_batching.state):
        key, name = f"{_KEY}.state[{at}]", state.input_name
        initial = state.initial_state
        if len(initial) > 1:
            yield Problem(
                message=(
                    f"initial_state field for state input '{name}' must contain exactly one or zero element."
                    f" Found '{len(initial)}' elements."
                ),
                key=f"{key}.initial_state[1]",
                hint="keep one of them",
            )
        if name in names:
            yield Problem(
                message=f"State input name '{name}' specified more than once.",
                key=f"{key}.input_name",
                hint="each state has an input of its own",
            )
        names.add(name)
        if len(initial) == 1:
            yield from _initial_state(state, initial[0], f"{key}.initial_state[0]")
        if state.use_growable_memory:
            yield from _growable(config, state, f"{key}.use_growable_memory")


def _initial_state(
    state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState, key: str
) -> Iterator[Problem]:
    name = state.input_name
    if initial.data_type != state.data_type:
        yield Problem(
            message=(
                f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            ),
            key=f"{key}.data_type",
            hint=f"the state's is {_type_name(state.data_type)}",
        )
    if not initial.name:
        yield Problem(
            message=f"Field 'name' must be set when using initial_state for state input '{name}'.",
            key=key,
            hint='any name will do: add name: "zeros"',
        )
    dims = tuple(initial.dims)
    if len(dims) != len(state.dims):
        yield Problem(
            message=(
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state"
                f" input '{name}'. {len(dims)} != {len(state.dims)}"
            ),
            key=f"{key}.dims",
            hint=f"the state has dims {list(state.dims)}",
        )
    elif any(dim < 0 for dim in dims):
        yield Problem(
            message=f"'initial_state' field for state input name '{name}' contains variable dimensions.",
            key=f"{key}.dims",
            hint="a value has sizes: write them",
        )
    else:
        different = [
            (ours, theirs) for ours, theirs in zip(dims, state.dims, strict=True) if theirs not in (-1, ours)
        ]
        if different:
            ours, theirs = different[0]
            yield Problem(
                message=(
                    f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description."
                    f" {ours} != {theirs}"
                ),
                key=f"{key}.dims",
                hint=f"the state has dims {list(state.dims)}",
            )
    if initial.WhichOneof("state_data") is None:
        # The missing space is Triton's, and clients match on it.
        yield Problem(
            message=f"initial_state setting expects state'{name}' to have state_data set",
            key=key,
            hint="add: zero_data: true",
        )


def _type_name(number: int) -> str:
    return DataType.Name(number) if number in DataType.values() else str(number)


def _growable(config: ModelConfig, state: ModelSequenceBatching.State, key: str) -> Iterator[Problem]:
    name = state.input_name
    if not state.use_same_buffer_for_input_output:
        yield Problem(
            message=(
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input"
                f" name '{name}'."
            ),
            key=key,
            hint="the field is 'use_same_buffer_for_input_output'",
        )
    if any(group.kind != ModelInstanceGroup.KIND_GPU for group in config.instance_group):
        yield Problem(
            message=(
                "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change"
                " the instance type to KIND_GPU or set 'use_growable_memory' to false for state input"
                f" '{name}'."
            ),
            key=key,
            hint="add: instance_group { kind: KIND_GPU }",
        )


# -- dynamic batching: preferred sizes, priorities, queue policies (contract, model_config.md section 4.6)


def dynamic_batching(config: ModelConfig) -> Iterator[Problem]:
    """Check `dynamic_batching`, if it is set."""
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        yield from _preferred(
            config,
            "dynamic batching preferred size",
            batching.preferred_batch_size,
            "dynamic_batching.preferred_batch_size",
        )
        yield from _priorities(config, batching)
        yield from _ordering(config, batching)


def _preferred(config: ModelConfig, what: str, sizes: Sequence[int], key: str) -> Iterator[Problem]:
    if any(size <= 0 for size in sizes):
        yield Problem(
            message=f"{what} must be positive for {config.name}",
            key=key,
            hint="leave it out to prefer the largest batch",
        )
    if any(size > max(config.max_batch_size, 0) for size in sizes):
        yield Problem(
            message=f"{what} must be <= max batch size for {config.name}",
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
            hint="it is the level of requests that name none",
        )
    beyond = [level for level in sorted(batching.priority_queue_policy) if not 1 <= level <= levels]
    if beyond:
        yield Problem(
            message=f"priority queue policy must have priority level in range [1, {levels}] for {config.name}",
            key=f'dynamic_batching.priority_queue_policy["{beyond[0]}"]',
            hint=f"'priority_levels' is {levels}",
        )


def _ordering(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Problem]:
    if not batching.preserve_ordering:
        return
    key = "dynamic_batching.preserve_ordering"
    if batching.priority_levels > 1:
        yield Problem(
            message=f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}",
            key=key,
            hint="leave out 'preserve_ordering' or 'priority_levels'",
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
            hint="leave out 'preserve_ordering', or use timeout_action: REJECT",
        )
