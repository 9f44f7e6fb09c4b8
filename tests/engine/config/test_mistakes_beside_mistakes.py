"""If some fields of a file are unreadable, the same pass checks the rest.

It reports only errors that are certain.
"""

import pytest

HEAD = 'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
INPUT = 'input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
OUTPUT = 'output [ { name: "S" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'


def test_unknown_fields_wrong_types_and_broken_rules_are_told_in_one_pass(load):
    text = (
        'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
        'input [ { name: "A" data_type: FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "S" data_type: TYPE_FP32 dims: [ 0 ] } ]\n'
        "instance_group { kind: KIND_GPU }\n"
        "dynamic_batch { }\n"
        'parameters { key: "tritium.probe" value { string_value: "no" } }\n'
        'model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 4 input_data_file: "absent" } } }\n'
        "sequence_batching { control_input { } }\n"
    )
    loaded = load(text)
    assert not loaded.readable
    assert [(error.line, error.column, error.key) for error in loaded.errors] == [
        (4, 32, "input[0].data_type"),
        (7, 1, "dynamic_batch"),
        (10, 21, "sequence_batching.control_input[0]"),
        (5, 43, "output[0].dims"),
        (6, 18, "instance_group[0].kind"),
        (9, 40, 'model_warmup[0].inputs["A"]'),
        (8, 1, 'parameters["tritium.probe"]'),
    ]
    assert all(error.path == loaded.path for error in loaded.errors)
    assert loaded.errors[0].message.startswith("failed to read text proto from ")
    assert loaded.errors[2].message == "sequence batching control tensor must have a name for m"


def test_places_are_those_of_the_file_where_fields_before_them_were_left_out(load):
    loaded = load(HEAD + "zzz { a: 1 }  zzz: [ 1, 2\n] instance_group { kind: KIND_GPU }" + INPUT + OUTPUT)
    assert [(error.line, error.column, error.key) for error in loaded.errors] == [
        (4, 1, "zzz"),
        (4, 15, "zzz"),
        (5, 20, "instance_group[0].kind"),
    ]


# Each: an id, and a text with one mistake. If the wrong text were taken at its word, another mistake would
# follow.
ALONE = [
    ("a misspelt backend", 'bakend: "python"\n'),
    ("a backend without quotes", "backend: onnxruntime\n" + INPUT + OUTPUT),
    ("a misspelt name", 'nmae: "n"\nbackend: "onnxruntime"\n' + INPUT + OUTPUT),
    ("misspelt dims", HEAD + 'input [ { name: "A" data_type: TYPE_FP32 dim: [ 4 ] } ]\n' + OUTPUT),
    ("a datatype that is none", HEAD + INPUT.replace("TYPE_FP32", "FP33") + OUTPUT),
    ("a batch size in quotes", HEAD.replace("8", '"8"') + INPUT + OUTPUT + "dynamic_batching { preferred_batch_size: 4 }\n"),
    ("an input that is no message", HEAD + 'input: "A"\n' + OUTPUT
     + 'batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "A" }\n'),
    ("one of two inputs", HEAD + 'input [ "A", { name: "B" data_type: TYPE_FP32 dims: 0 } ]\n' + OUTPUT),
    ("misspelt inputs", HEAD + INPUT.replace("input", "inputs") + OUTPUT),
    ("a parameter without string_value", HEAD + INPUT + OUTPUT + 'parameters { key: "tritium.probe" value: "off" }\n'),
    ("a misspelt step of an ensemble", 'platform: "ensemble"\nensemble_scheduling { steps { } }\n'),
    ("a misspelt schedule", 'platform: "ensemble"\nensemble_schedulin { }\n'),
    ("two schedulers", HEAD + INPUT + OUTPUT + "dynamic_batching { } sequence_batching { }\n"),
]  # fmt: skip


@pytest.mark.parametrize("text", [pytest.param(row[1], id=row[0]) for row in ALONE])
def test_what_follows_from_a_mistake_only_is_not_told(load, text):
    loaded = load(text)
    assert len(loaded.errors) == 1
    assert loaded.errors[0].message.startswith("failed to read text proto from ")


def test_an_override_is_checked_in_the_same_way(load):
    document = '{"backend": "onnxruntime", "max_batchsize": 4, "instance_group": [{"kind": "KIND_GPU"}]}'
    loaded = load(HEAD + INPUT + OUTPUT, override=document)
    assert [error.key for error in loaded.errors] == ["max_batchsize", "instance_group[0].kind"]
    assert loaded.errors[0].message.startswith("Invalid config override: ")
