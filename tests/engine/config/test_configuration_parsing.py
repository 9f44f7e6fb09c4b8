"""Text that protobuf refuses: everything the schema does not know is told at once, at its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.messages.errors import ErrorCode
from engine.config.outline import outline
from engine.config.parse import LARGEST_FILE, parse, read
from protocols.kserve.proto.model_config_pb2 import DataType

PATH = Path("models/m/config.pbtxt")
PREFIX = f"failed to read text proto from {PATH}: "

# Each: the text, its line and column, its key, protobuf's or our detail, the hint.
REFUSED = [
    ("max_batchsize: 3", (1, 1), "max_batchsize", "'ModelConfig' has no field 'max_batchsize'", "did you mean 'max_batch_size'?"),
    ("\n  maxBatchSize: 3", (2, 3), "maxBatchSize", "'ModelConfig' has no field 'maxBatchSize'", "did you mean 'max_batch_size'?"),
    ("input { nam: 'x' }", (1, 9), "input[0].nam", "'ModelInput' has no field 'nam'", "did you mean 'name'?"),
    ("input [ { }, { dim: 1 } ]", (1, 16), "input[1].dim", "'ModelInput' has no field 'dim'", "did you mean 'dims'?"),
    ("preferred_batch_size: 4", (1, 1), "preferred_batch_size", "'ModelConfig' has no field 'preferred_batch_size'",
     "it belongs inside 'dynamic_batching'"),
    ("zzz: 4", (1, 1), "zzz", "'ModelConfig' has no field 'zzz'", ""),
    ("input { data_type: FP32 }", (1, 20), "input[0].data_type", "'FP32' is no DataType", "did you mean 'TYPE_FP32'?"),
    ("input { data_type: TYPE_FLOAT }", (1, 20), "input[0].data_type", "'TYPE_FLOAT' is no DataType", "did you mean 'TYPE_FP32'?"),
    ("input { data_type: TYPE_FP33 }", (1, 20), "input[0].data_type", "'TYPE_FP33' is no DataType", "did you mean 'TYPE_FP32'?"),
    ("instance_group { kind: GPU }", (1, 24), "instance_group[0].kind", "'GPU' is no Kind", "did you mean 'KIND_GPU'?"),
    ("instance_group { kind: x }", (1, 24), "instance_group[0].kind", "'x' is no Kind",
     "one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"),
    ('name: "m', (1, 7), "name", "String missing ending quote: '\"m'", ""),
    ('max_batch_size: "8"', (1, 17), "max_batch_size", "Couldn't parse integer: \"8\"", ""),
    ("max_batch_size: 99999999999", (1, 17), "max_batch_size", "Value out of range: 99999999999", ""),
    ('name: "a"\nname: "b"', (2, 7), "name",
     'Message type "inference.ModelConfig" should not have multiple "name" fields.', ""),
    ("dynamic_batching { } sequence_batching { }", (1, 22), "sequence_batching",
     'Field "sequence_batching" is specified along with field "dynamic_batching", another member of oneof'
     ' "scheduling_choice" for message type "inference.ModelConfig".', ""),
    ('parameters { key: "a.b" value { string_value: 3 } }', (1, 47), 'parameters["a.b"].string_value',
     "Expected string but found: '3'", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "key", "detail", "hint"), REFUSED, ids=[row[3][:40] for row in REFUSED]
)
def test_a_text_is_refused_at_its_place_with_what_would_have_worked(text, place, key, detail, hint):
    parsed = parse(text, PATH)
    assert parsed.config is None
    (problem,) = parsed.problems
    assert (problem.message, (problem.line, problem.column), problem.key) == (PREFIX + detail, place, key)
    assert problem.hint == hint
    assert problem.code is ErrorCode.INTERNAL


def test_all_unknown_names_are_told_at_once_and_protobuf_s_own_complaint_too():
    parsed = parse(
        'max_batchsize: 3\ninput [ { data_type: FLOAT dims: [ 1 ] foo { bar: 3 } } ]\nname: "a"\nname: "b"\n',
        PATH,
    )
    assert [(problem.line, problem.key) for problem in parsed.problems] == [
        (1, "max_batchsize"),
        (2, "input[0].data_type"),
        (2, "input[0].foo"),
        (4, "name"),
    ]


def test_a_problem_reads_as_compilers_write_them():
    (problem,) = parse("max_batchsize: 3", PATH).problems
    assert str(problem) == (
        "models/m/config.pbtxt:1:1: error: failed to read text proto from models/m/config.pbtxt:"
        " 'ModelConfig' has no field 'max_batchsize' (did you mean 'max_batch_size'?)"
    )


def test_type_bytes_is_read_as_type_string_with_a_warning():
    parsed = parse('input [ { name: "TYPE_BYTES" data_type: TYPE_BYTES dims: 1 } ]', PATH)
    assert parsed.config is not None
    assert parsed.config.input[0].data_type == DataType.TYPE_STRING
    assert parsed.config.input[0].name == "TYPE_BYTES"
    (warning,) = parsed.problems
    assert not warning.is_error
    assert (warning.line, warning.column, warning.key) == (1, 41, "input[0].data_type")


def test_type_bytes_moves_no_position_behind_it():
    parsed = parse("input { data_type: TYPE_BYTES nam: 3 }", PATH)
    assert [(problem.column, problem.is_error) for problem in parsed.problems] == [(31, True), (20, False)]


@pytest.mark.parametrize(
    ("content", "detail"),
    [(b"name: \"\xff\"", "it is not UTF-8 at byte 7"), (b"#" * (LARGEST_FILE + 1), f"it is larger than {LARGEST_FILE} bytes")],
)  # fmt: skip
def test_a_file_that_is_no_text_is_refused(tmp_path, content, detail):
    path = tmp_path / "config.pbtxt"
    path.write_bytes(content)
    parsed = read(path)
    assert parsed.config is None
    assert parsed.problems[0].message == f"failed to read text proto from {path}: {detail}"


def test_a_directory_in_the_file_s_place_is_refused(tmp_path):
    assert (
        read(tmp_path).problems[0].message
        == f"failed to read text proto from {tmp_path}: it is no regular file"
    )


def test_text_nested_beyond_reason_is_refused():
    assert parse("a { " * 5000, PATH).config is None
    assert parse("input " * 5000, PATH).config is None


TOKENS = st.sampled_from(
    ["input", "name", "data_type", "TYPE_FP32", "TYPE_BYTES", "dims", "parameters", "key", "value", "string_value",
     "dynamic_batching", "zzz", ":", "{", "}", "[", "]", "<", ">", ",", ";", "1", "-1", '"x"', "'y'", '"', "#", "\n", "é"]
)  # fmt: skip


@given(st.lists(TOKENS, max_size=40).map(" ".join))
def test_any_text_gives_a_configuration_or_errors_inside_it(text):
    parsed = parse(text, PATH)
    errors = [problem for problem in parsed.problems if problem.is_error]
    assert (parsed.config is None) == bool(errors)
    lines = text.split("\n")
    assert all(0 <= problem.line <= len(lines) + 1 for problem in errors)


@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(text):
    parsed = parse(text, PATH)
    assert (parsed.config is None) == any(problem.is_error for problem in parsed.problems)


def test_the_outline_knows_where_fields_stand():
    found = outline(
        'name: "m"\n'
        "input [\n"
        '  { name: "A" dims: [ 1, 2 ] },\n'
        "  < reshape: { shape: 3 } >\n"
        "]\n"
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 5 } } }\n"
        'parameters [ { key: "a.b" value: { string_value: "x" "y" } } ]  # input { }\n'
    )
    places = {
        "name": (1, 1),
        "input": (2, 1),
        "input[0].dims": (3, 15),
        "input[1].reshape.shape": (4, 16),
        "input[1].absent": (4, 3),
        'dynamic_batching.priority_queue_policy["2"].max_queue_size': (6, 59),
        'parameters["a.b"].string_value': (7, 36),
        'parameters["absent"]': (7, 1),
    }
    assert {key: found.find(key) for key in places} == places
    assert found.find("output[0]") is None
    assert found.faults == []
