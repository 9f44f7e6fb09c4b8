"""Mistakes in `sequence_batching`: each with its exact text, its place, its field and a hint.

The texts are those of the contract, model_config.md section 4.7.
"""

import pytest

HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 4\n'


def sequence(text):
    return f"{HEAD}sequence_batching {{\n  {text}\n}}\n"


def control(text):
    return sequence(f'control_input {{ name: "C" control {{ {text} }} }}')


def state(text, more=""):
    return sequence(
        f'state {{ input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 2, -1 ] {text} }}{more}'
    )


def initial(text):
    return state(f"initial_state {{ {text} }}")


# Each: an id, the text, and every error: its place, key, message and hint. The strategy begins on line 5.
BROKEN = [
    ('a cache of a sequence model', HEAD + "sequence_batching { }\nresponse_cache { enable: true }",
     [((5, 18), 'response_cache.enable', 'Response Cache does not currently support model m with sequence batching scheduler. Please disable the response cache.', "leave 'response_cache' out")]),
    ('a control without a name', sequence("control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }"),
     [((5, 3), 'sequence_batching.control_input[0]', 'sequence batching control tensor must have a name for m', "it is the name of the model's own input")]),
    ('a tensor of two controls', sequence('control_input { name: "C" } control_input { name: "C" }'),
     [((5, 47), 'sequence_batching.control_input[1].name', "sequence batching control tensor 'C' is specified for multiple control kinds for m", "give each control a tensor of its own")]),
    ('two controls of one tensor', sequence('control_input { name: "C" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }, { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] }'),
     [((5, 100), 'sequence_batching.control_input[0].control[1]', "sequence batching control tensor 'C' is specified for multiple control kinds for m", "give each control a tensor of its own")]),
    ('a control with the name of an input', 'input { name: "C" data_type: TYPE_FP32 dims: 1 }\n' + sequence('control_input { name: "C" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'),
     [((6, 19), 'sequence_batching.control_input[0].name', "sequence batching tensor 'C' has the name of an input of the configuration", "the scheduler gives it to the model, so it is not listed under 'input'")]),
    ('a state with the name of a control', sequence('control_input { name: "C" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n  state { input_name: "C" output_name: "T" data_type: TYPE_FP32 dims: 1 }'),
     [((6, 11), 'sequence_batching.state[0].input_name', "sequence batching tensor 'C' has the name of a control tensor", "the scheduler gives it to the model, so it is not listed under 'input'")]),
    ('a checkpoint of nothing', sequence('oldest { }') + 'parameters { key: "tritium.checkpoint" value { string_value: "true" } }',
     [((7, 1), 'parameters["tritium.checkpoint"]', "'tritium.checkpoint' is 'true', but model 'm' has no implicit state that could be kept where an instance dies", "declare what the model remembers by sequence_batching { state [ ... ] }, or leave it out")]),
    ('two tensors of one kind', sequence("\n".join(f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] }} }}' for name in "AB")),
     [((6, 37), 'sequence_batching.control_input[1].control[0].kind', 'sequence batching specifies multiple CONTROL_SEQUENCE_END tensors for m', 'keep one of them')]),
    ('a boolean control without values', control("kind: CONTROL_SEQUENCE_READY"),
     [((5, 29), 'sequence_batching.control_input[0].control[0]', "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_READY for m", 'such as int32_false_true: [ 0, 1 ]')]),
    ('a control with values of two types', control("int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ]"),
     [((5, 66), 'sequence_batching.control_input[0].control[0].bool_false_true', "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_START for m", "keep the one of the tensor's datatype")]),
    ('a control with one int32', control("kind: CONTROL_SEQUENCE_END int32_false_true: 1"),
     [((5, 66), 'sequence_batching.control_input[0].control[0].int32_false_true', "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_END for m", 'the values of false and of true')]),
    ('a control with three floats', control("kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1, 2 ]"),
     [((5, 68), 'sequence_batching.control_input[0].control[0].fp32_false_true', "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m", 'the values of false and of true')]),
    ('a control with one bool', control("bool_false_true: true"),
     [((5, 39), 'sequence_batching.control_input[0].control[0].bool_false_true', "sequence batching control 'bool_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m", 'the values of false and of true')]),
    ('values for a correlation id', control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 int32_false_true: [ 0, 1 ]"),
     [((5, 91), 'sequence_batching.control_input[0].control[0].int32_false_true', "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_CORRID for m", "the correlation id itself is the value: give it a 'data_type'")]),
    ('a correlation id of floats', control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
     [((5, 69), 'sequence_batching.control_input[0].control[0].data_type', 'unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING', 'TYPE_UINT64 takes every number that a client may send')]),
    ('a correlation id of no type', control("kind: CONTROL_SEQUENCE_CORRID"),
     [((5, 29), 'sequence_batching.control_input[0].control[0].data_type', 'unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING', 'TYPE_UINT64 takes every number that a client may send')]),
    ('a control of no kind', control("kind: 9"),
     [((5, 39), 'sequence_batching.control_input[0].control[0].kind', "'kind' has no value 9", 'one of CONTROL_SEQUENCE_START, CONTROL_SEQUENCE_READY, CONTROL_SEQUENCE_END, CONTROL_SEQUENCE_CORRID')]),
    ('a preferred size of zero', sequence("oldest { preferred_batch_size: [ 0, 4 ] }"),
     [((5, 12), 'sequence_batching.oldest.preferred_batch_size', 'sequence batching preferred batch size must be positive for m', 'leave it out to prefer the largest batch')]),
    ('a preferred size beyond the batch', sequence("oldest { preferred_batch_size: 5 }"),
     [((5, 12), 'sequence_batching.oldest.preferred_batch_size', 'sequence batching preferred batch size must be <= max batch size for m', "'max_batch_size' is 4")]),
    ('more than all slots', sequence("direct { minimum_slot_utilization: 1.5 }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('fewer slots than none', sequence("direct { minimum_slot_utilization: -0.5 }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('slots that are no number', sequence("direct { minimum_slot_utilization: nan }"),
     [((5, 12), 'sequence_batching.direct.minimum_slot_utilization', 'sequence batching minimum slot utilization must be in range (0.0, 1.0] for m', 'it is a share of the slots, such as 0.5')]),
    ('two initial states', state('initial_state [ { name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true }, { name: "J" } ]'),
     [((5, 164), 'sequence_batching.state[0].initial_state[1]', "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements.", 'keep one of them')]),
    ('an initial state of another type', initial('name: "I" data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true'),
     [((5, 107), 'sequence_batching.state[0].initial_state[0].data_type', "The data type used for 'initial_state' field of state 'S' does not match the state data type.", "the state's is TYPE_FP32")]),
    ('an initial state without a name', initial("data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true"),
     [((5, 81), 'sequence_batching.state[0].initial_state[0]', "Field 'name' must be set when using initial_state for state input 'S'.", 'any name will do: add name: "zeros"')]),
    ('a state twice', state("", '\n  state { input_name: "S" output_name: "U" data_type: TYPE_FP32 dims: 1 }'),
     [((6, 11), 'sequence_batching.state[1].input_name', "State input name 'S' specified more than once.", 'each state has an input of its own')]),
    ('an initial state of another rank', initial('name: "I" data_type: TYPE_FP32 dims: 2 zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. 1 != 2", 'the state has dims [2, -1]')]),
    ('an initial state of any size', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "'initial_state' field for state input name 'S' contains variable dimensions.", 'a value has sizes: write them')]),
    ('an initial state of another size', initial('name: "I" data_type: TYPE_FP32 dims: [ 3, 3 ] zero_data: true'),
     [((5, 128), 'sequence_batching.state[0].initial_state[0].dims', "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2", 'the state has dims [2, -1]')]),
    ('an initial state without data', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ]'),
     [((5, 81), 'sequence_batching.state[0].initial_state[0]', "initial_state setting expects state'S' to have state_data set", 'add: zero_data: true')]),
    ('a file that is too small', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "short"'),
     [((5, 143), 'sequence_batching.state[0].initial_state[0].data_file', 'initial_state setting expects 24 bytes, but the data provided from shortonly has 3 bytes.', "data files are named relative to the model's directory initial_state/")]),
    ('a file that is not there', initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "absent"'),
     [((5, 143), 'sequence_batching.state[0].initial_state[0].data_file', "failed to read initial state data file 'absent' for state 'S': No such file or directory", "data files are named relative to the model's directory initial_state/")]),
    ('a growable state in two buffers', state("use_growable_memory: true") + "instance_group { kind: KIND_GPU gpus: 0 }",
     [((5, 81), 'sequence_batching.state[0].use_growable_memory', "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'S'.", "the field is 'use_same_buffer_for_input_output'")]),
    ('a growable state on the CPU', state("use_growable_memory: true use_same_buffer_for_input_output: true") + "instance_group { kind: KIND_CPU }",
     [((5, 81), 'sequence_batching.state[0].use_growable_memory', "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'S'.", 'add: instance_group { kind: KIND_GPU }')]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_mistake_is_told_with_its_place_and_a_hint(load, errors_of, text, errors):
    loaded = load(
        text, files={"1/model.py": b"", "initial_state/short": b"123"}, gpus=1, run_model_code=False
    )
    assert errors_of(loaded) == errors
    assert loaded.reason == f"Invalid argument: {errors[0][2]}"


@pytest.mark.parametrize("size", [24, 100])
def test_a_file_that_is_large_enough_is_no_mistake(load, size):
    text = initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "enough"')
    loaded = load(text, files={"1/model.py": b"", "initial_state/enough": bytes(size)}, run_model_code=False)
    assert loaded.errors == ()
    [spec] = loaded.specs
    assert spec.scheduling.states[0].initial.data == bytes(24)


def test_strings_in_a_file_are_checked(load):
    text = sequence(
        'state { input_name: "S" output_name: "T" data_type: TYPE_STRING dims: 1'
        ' initial_state { name: "I" data_type: TYPE_STRING dims: 1 data_file: "text" } }'
    )
    files = {"1/model.py": b"", "initial_state/text": b"\x09\0\0\0short"}
    (error,) = load(text, files=files, run_model_code=False).errors
    assert error.message.startswith("initial state data file 'text': ")
    assert error.key == "sequence_batching.state[0].initial_state[0].data_file"


def test_a_file_outside_of_the_directory_is_not_read(load):
    text = initial('name: "I" data_type: TYPE_FP32 dims: [ 2, 3 ] data_file: "../config.pbtxt"')
    (error,) = load(text, files={"1/model.py": b""}, run_model_code=False).errors
    assert error.message == (
        "initial state data file '../config.pbtxt' for state 'S' is outside the model's initial_state directory"
    )
