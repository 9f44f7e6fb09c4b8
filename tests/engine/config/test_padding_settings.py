"""`tritium.pad_to` and what belongs to it: what a model's tensors allow, and what is told otherwise."""

import pytest

from actors.values.padding import Buckets, CutBack, Padded

INPUTS = """input [
  { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] },
  { name: "T" data_type: TYPE_STRING dims: [ -1 ] }
]
"""
OUTPUTS = 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]\n'
HEAD = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'


def parameter(key, text):
    return f'parameters {{ key: "tritium.{key}" value {{ string_value: "{text}" }} }}\n'


def config(pad_to="X:1=4,8", *, value=None, outputs="Y:1=X:1", head=HEAD, tensors=INPUTS + OUTPUTS):
    written = {"pad_to": pad_to, "pad_value": value, "pad_outputs": outputs}
    return head + tensors + "".join(parameter(key, text) for key, text in written.items() if text)


def test_a_model_is_padded_as_its_parameters_say(load):
    loaded = load(config("X:1=4,8;T:1=2,*", value="X=-1"))
    [spec] = loaded.specs
    assert [each.padded for each in spec.inputs] == [
        Padded({1: Buckets((4, 8))}, -1),
        Padded({1: Buckets((2,), longer=True)}),
    ]
    assert spec.outputs[0].cuts == (CutBack(1, "X", 1),)
    assert loaded.problems == ()


def test_without_batches_dimensions_are_counted_from_the_first(load):
    [spec] = load(config("X:0=4", outputs="Y:0=X:0", head=HEAD.replace("8", "0"))).specs
    assert spec.inputs[0].padded == Padded({0: Buckets((4,))})


def test_outputs_that_are_not_cut_are_told(load):
    loaded = load(config(outputs=None))
    [warning] = loaded.problems
    assert not warning.is_error
    assert warning.message == (
        "output 'Y' has a dimension of any size, and 'tritium.pad_outputs' does not say how it is cut:"
        " clients get it in the"
        " padded size if it has one"
    )
    assert warning.hint == "add it to 'tritium.pad_outputs', such as 'Y:1=X:1'"
    assert loaded.specs


ANY = "of any size (-1) is 1"
WRONG = [
    (config("X:1=8,4"), "'tritium.pad_to' is 'X:1=8,4', which is no valid value", None),
    (config("Z:1=4"), "'tritium.pad_to' names input 'Z', which the model does not have", "one of X, T"),
    (config("X:0=4"), "'tritium.pad_to' names dimension 0 of input 'X', which is the batch dimension", ANY),
    (config("X:2=4"), "'tritium.pad_to' names dimension 2 of input 'X', which is always 3", ANY),
    (
        config("X:3=4"),
        "'tritium.pad_to' names dimension 3 of input 'X', which has 3 dimensions, counted from 0",
        ANY,
    ),
    (
        config(tensors=INPUTS.replace("dims: [ -1, 3 ]", "dims: [ 4, 3 ]") + OUTPUTS),
        "'tritium.pad_to' names dimension 1 of input 'X', which is always 4",
        "only a dimension of -1 can be padded",
    ),
    (
        config(tensors=INPUTS.replace("3 ] }", "3 ] allow_ragged_batch: true }") + OUTPUTS),
        "'tritium.pad_to' names input 'X', which has 'allow_ragged_batch' and is not padded",
        "choose one of the two: see docs/ragged.md",
    ),
    (
        config(tensors=INPUTS.replace("3 ] }", "3 ] reshape { shape: [ -1, 3, 1 ] } }") + OUTPUTS),
        "'tritium.pad_to' names input 'X', which has a 'reshape'",
        "leave 'reshape' out, or pad on the client's side",
    ),
    (
        config(
            tensors=INPUTS + OUTPUTS + 'batch_output { target_name: "Y" source_input: "X" }\n', outputs=None
        ),
        "'batch_output' cuts by input 'X', which 'tritium.pad_to' pads",
        "cut the output with 'tritium.pad_outputs'",
    ),
    (
        config(value="Z=1"),
        "'tritium.pad_value' names input 'Z', which the model does not have",
        "one of X, T",
    ),
    (
        config("T:1=4", value="X=1", outputs=None),
        "'tritium.pad_value' names input 'X', which is not padded",
        "add it to 'tritium.pad_to', or leave it out",
    ),
    (
        config("X:1=4;T:1=4", value="T=1"),
        "'tritium.pad_value' names input 'T' of TYPE_STRING",
        "leave it out: text is padded with empty strings",
    ),
    (
        config(value="X=1e39"),
        "'tritium.pad_value' is 1e+39 for input 'X', which TYPE_FP32 can't hold",
        "use a value of that type, or leave it out for 0",
    ),
    (
        config(outputs="Z:1=X:1"),
        "'tritium.pad_outputs' names output 'Z', which the model does not have",
        "one of Y",
    ),
    (
        config(outputs="Y:2=X:1"),
        "'tritium.pad_outputs' names dimension 2 of output 'Y', which is always 3",
        ANY,
    ),
    (
        config(outputs="Y:1=T:1"),
        "'tritium.pad_outputs' cuts output 'Y' like 'T:1', which 'tritium.pad_to' does not pad",
        "one of X:1",
    ),
    (
        config(None),
        "'tritium.pad_outputs' cuts output 'Y' like 'X:1', which 'tritium.pad_to' does not pad",
        "set 'tritium.pad_to'",
    ),
    (
        config(tensors=INPUTS + OUTPUTS.replace("3 ] }", "3 ] reshape { shape: [ 3, -1 ] } }")),
        "'tritium.pad_outputs' names output 'Y', which has a 'reshape'",
        "leave it out",
    ),
    (
        config(
            "X:1=4",
            outputs="Y:1=X:1",
            tensors=INPUTS + OUTPUTS + "model_transaction_policy { decoupled: true }\n",
        ).replace("onnxruntime", "python"),
        "'tritium.pad_outputs' is set for a decoupled model, whose responses are sent as they are",
        "leave it out, and cut in the model",
    ),
    (
        config(
            outputs=None,
            head='name: "m"\nplatform: "ensemble"\n',
            tensors=INPUTS + OUTPUTS + "ensemble_scheduling { step { model_name: 'a' model_version: -1"
            " input_map { key: 'X' value: 'X' } input_map { key: 'T' value: 'T' } output_map"
            " { key: 'Y' value: 'Y' } } }\n",
        ),
        "'tritium.pad_to' is set for an ensemble, which has no tensors of its own",
        "set it for its models",
    ),
]


@pytest.mark.parametrize(("text", "message", "hint"), WRONG, ids=[row[1] for row in WRONG])
def test_what_can_not_be_padded_is_told_at_its_parameter(load, text, message, hint):
    loaded = load(text, files={"1/model.onnx": b"", "1/model.py": b""})
    [found] = [error for error in loaded.errors if error.message == message]
    assert hint is None or found.hint == hint
    assert found.line > 0
    assert found.key.startswith(("parameters[", "batch_output["))
    assert not loaded.specs
