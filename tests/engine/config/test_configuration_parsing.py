"""Text that protobuf refuses: all errors against the schema are reported at once, each at its place."""

import json
import re
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import ErrorCode
from engine.config.jsonform import config_json
from engine.config.outline import outline
from engine.config.parse import LARGEST_FILE, parse, read
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelInput

PATH = Path("models/m/config.pbtxt")
PREFIX = f"failed to read text proto from {PATH}: "

# Each: an id, the text, and every error: its place, key, message and hint.
REFUSED = [
    ('an unknown field', 'max_batchsize: 3',
     [((1, 1), 'max_batchsize', "'ModelConfig' has no field 'max_batchsize'", "did you mean 'max_batch_size'?")]),
    ('a field as JSON has it', '\n  maxBatchSize: 3',
     [((2, 3), 'maxBatchSize', "'ModelConfig' has no field 'maxBatchSize'", "did you mean 'max_batch_size'?")]),
    ('an unknown field of a message', 'input { nam: "x" }',
     [((1, 9), 'input[0].nam', "'ModelInput' has no field 'nam'", "did you mean 'name'?")]),
    ("an unknown field of a list's second message", 'input [ { }, { dim: 1 } ]',
     [((1, 16), 'input[1].dim', "'ModelInput' has no field 'dim'", "did you mean 'dims'?")]),
    ('a field of another message', 'preferred_batch_size: 4',
     [((1, 1), 'preferred_batch_size', "'ModelConfig' has no field 'preferred_batch_size'", "it belongs inside 'dynamic_batching'")]),
    ('a field like no other', 'zzz: 4',
     [((1, 1), 'zzz', "'ModelConfig' has no field 'zzz'", '')]),
    ('an unknown message', 'sequences { idle: 3 } name: 3',
     [((1, 1), 'sequences', "'ModelConfig' has no field 'sequences'", "did you mean 'sequence_batching'?"), ((1, 29), 'name', "'name' takes a string, not 3", 'write "3"')]),
    ('a datatype as the protocol calls it', 'input { data_type: FP32 }',
     [((1, 20), 'input[0].data_type', "'FP32' is no DataType", "did you mean 'TYPE_FP32'?")]),
    ('a datatype as others call it', 'input { data_type: TYPE_FLOAT }',
     [((1, 20), 'input[0].data_type', "'TYPE_FLOAT' is no DataType", "did you mean 'TYPE_FP32'?")]),
    ('a datatype that is none', 'input { data_type: TYPE_FP33 }',
     [((1, 20), 'input[0].data_type', "'TYPE_FP33' is no DataType", "did you mean 'TYPE_FP32'?")]),
    ('a kind without its prefix', 'instance_group { kind: GPU }',
     [((1, 24), 'instance_group[0].kind', "'GPU' is no Kind", "did you mean 'KIND_GPU'?")]),
    ('a kind that is none', 'instance_group { kind: x }',
     [((1, 24), 'instance_group[0].kind', "'x' is no Kind", 'one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL')]),
    ('an enum value in quotes', 'input { data_type: "TYPE_FP32" }',
     [((1, 20), 'input[0].data_type', '\'data_type\' takes a DataType, not "TYPE_FP32"', 'write TYPE_FP32')]),
    ('another enum value in quotes', "instance_group { kind: 'cpu' }",
     [((1, 24), 'instance_group[0].kind', "'kind' takes a Kind, not 'cpu'", "did you mean 'KIND_CPU'?")]),
    ('a number for an enum that no int32 holds', 'input { data_type: 99999999999 }',
     [((1, 20), 'input[0].data_type', "'data_type' takes a DataType, not 99999999999", 'one of TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16')]),
    ('a number in quotes', 'max_batch_size: "8"',
     [((1, 17), 'max_batch_size', '\'max_batch_size\' takes a whole number, not "8"', 'write 8')]),
    ('words in quotes for a number', 'max_batch_size: "eight"',
     [((1, 17), 'max_batch_size', '\'max_batch_size\' takes a whole number, not "eight"', '')]),
    ('a fraction for a whole number', 'max_batch_size: 8.5',
     [((1, 17), 'max_batch_size', "'max_batch_size' takes a whole number, not 8.5", '')]),
    ('a number with a unit', 'dynamic_batching { max_queue_delay_microseconds: 5ms }',
     [((1, 50), 'dynamic_batching.max_queue_delay_microseconds', "'max_queue_delay_microseconds' takes a whole number, not 5ms", '')]),
    ('a number that no int32 holds', 'max_batch_size: 99999999999',
     [((1, 17), 'max_batch_size', "'max_batch_size' takes a whole number, not 99999999999", 'from -2147483648 to 2147483647')]),
    ('a negative number where none is allowed', 'dynamic_batching { max_queue_delay_microseconds: -1 }',
     [((1, 50), 'dynamic_batching.max_queue_delay_microseconds', "'max_queue_delay_microseconds' takes a whole number, not -1", 'from 0 to 18446744073709551615')]),
    ('a number that no uint32 holds', 'model_warmup { batch_size: 4294967296 }',
     [((1, 28), 'model_warmup[0].batch_size', "'batch_size' takes a whole number, not 4294967296", 'from 0 to 4294967295')]),
    ('a number that no int64 holds', 'input { dims: 9223372036854775808 }',
     [((1, 15), 'input[0].dims', "'dims' takes a whole number, not 9223372036854775808", 'from -9223372036854775808 to 9223372036854775807')]),
    ('a word for a float', 'sequence_batching { direct { minimum_slot_utilization: half } }',
     [((1, 56), 'sequence_batching.direct.minimum_slot_utilization', "'minimum_slot_utilization' takes a number, not half", '')]),
    ('a float in quotes', 'model_metrics { metric_control { histogram_options { buckets: "1.5" } } }',
     [((1, 63), 'model_metrics.metric_control[0].histogram_options.buckets', '\'buckets\' takes a number, not "1.5"', 'write 1.5')]),
    ('yes', 'response_cache { enable: yes }',
     [((1, 26), 'response_cache.enable', "'enable' takes true or false, not yes", 'write true')]),
    ('false in quotes', 'response_cache { enable: "FALSE" }',
     [((1, 26), 'response_cache.enable', '\'enable\' takes true or false, not "FALSE"', 'write false')]),
    ('a two for a bool', 'response_cache { enable: 2 }',
     [((1, 26), 'response_cache.enable', "'enable' takes true or false, not 2", '')]),
    ('a bare word', 'name: resnet',
     [((1, 7), 'name', "'name' takes a string, not resnet", 'write "resnet"')]),
    ('a bare file name', 'default_model_filename: model.onnx max_batch_size: 4',
     [((1, 25), 'default_model_filename', "'default_model_filename' takes a string, not model.onnx", 'write "model.onnx"')]),
    ('a number for a string', 'metric_tags { key: "a" value: 3 }',
     [((1, 31), 'metric_tags["a"]', "'value' takes a string, not 3", 'write "3"')]),
    ('a string that never ends', 'name: "m',
     [((1, 7), 'name', "'name' has no closing quote", 'add "')]),
    ('a string that never ends inside a message', 'input { name: "A dims: [ 4 ] }',
     [((1, 15), 'input[0].name', "'name' has no closing quote", 'add "')]),
    ('a string that is no UTF-8', 'name: "\\377"',
     [((1, 7), 'name', "'name' is no text: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte", '')]),
    ('a message for a string', 'name { value: "m" }',
     [((1, 6), 'name', "'name' takes a string, not { … }", 'write name: "…"')]),
    ('a list for a string', 'name: [ "m" ]',
     [((1, 7), 'name', "'name' takes one value, not a list", 'write name: "…"')]),
    ('a string for a message', 'model_transaction_policy: "decoupled"',
     [((1, 27), 'model_transaction_policy', '\'model_transaction_policy\' takes { … }, not "decoupled"', 'write model_transaction_policy { decoupled: … }')]),
    ('a bool for a message', 'dynamic_batching: true',
     [((1, 19), 'dynamic_batching', "'dynamic_batching' takes { … }, not true", 'write dynamic_batching { }')]),
    ('a name for a message', 'version_policy: latest',
     [((1, 17), 'version_policy', "'version_policy' takes { … }, not latest", 'its fields are latest, all, specific')]),
    ('a number for a message with one field', 'optimization { graph: 1 }',
     [((1, 23), 'optimization.graph', "'graph' takes { … }, not 1", 'write graph { level: 1 }')]),
    ('a list for a message with one field', 'input { reshape: [ 1, 2 ] }',
     [((1, 18), 'input[0].reshape', "'reshape' takes one value, not a list", 'write reshape { shape: [ … ] }')]),
    ('a scalar in a list of messages', 'input [ "A" ]',
     [((1, 9), 'input[0]', '\'input\' takes { … }, not "A"', 'its fields are name, data_type, format, dims, reshape, is_shape_tensor, allow_ragged_batch, optional, is_non_linear_format_io')]),
    ('a message in a list of scalars', 'input { dims: [ { } ] }',
     [((1, 17), 'input[0].dims', "'dims' takes a whole number, not { … }", 'write dims: …')]),
    ('a list in a list', 'input { dims: [ [ 1 ] ] }',
     [((1, 17), 'input[0].dims', "'dims' takes a whole number, not a list", 'write dims: …')]),
    ('no value', 'name: \nbackend: "python"',
     [((2, 1), 'name', "'name' has no value", 'it takes a string')]),
    ('no value before a bracket', 'input { name: }',
     [((1, 15), 'input[0].name', "'name' has no value", 'it takes a string')]),
    ('no value of a message', 'dynamic_batching: ;',
     [((1, 19), 'dynamic_batching', "'dynamic_batching' has no value", 'write dynamic_batching { }')]),
    ('no colon', 'name "m"',
     [((1, 6), 'name', "':' is missing after 'name'", 'write name: "m"')]),
    ('no colon before a list', 'input { dims [ 1 ] }',
     [((1, 14), 'input[0].dims', "':' is missing after 'dims'", 'write dims: [ … ]')]),
    ('a name twice', 'name: "a"\nname: "b"',
     [((2, 1), 'name', "'name' takes one value, and has one on line 1", 'keep one of them')]),
    ('a message twice', 'dynamic_batching { }\ndynamic_batching { }',
     [((2, 1), 'dynamic_batching', "'dynamic_batching' takes one value, and has one on line 1", 'keep one of them')]),
    ('two schedulers', 'dynamic_batching { } sequence_batching { }',
     [((1, 22), 'sequence_batching', "'sequence_batching' excludes 'dynamic_batching', which is given on line 1", 'keep one of them')]),
    ('two policies', 'version_policy {\n  latest { }\n  all { }\n}',
     [((3, 3), 'version_policy.all', "'all' excludes 'latest', which is given on line 2", 'keep one of them')]),
    ('two kinds of data', 'model_warmup { inputs { key: "A" value { zero_data: false random_data: true } } }',
     [((1, 59), 'model_warmup[0].inputs["A"].random_data', "'random_data' excludes 'zero_data', which is given on line 1", 'keep one of them')]),
    ('a parameter without string_value', 'parameters { key: "a.b" value: "3" }',
     [((1, 32), 'parameters["a.b"]', '\'value\' takes { … }, not "3"', 'write value { string_value: "3" }')]),
    ("a parameter's value as a number", 'parameters { key: "a.b" value { string_value: 3 } }',
     [((1, 47), 'parameters["a.b"].string_value', "'string_value' takes a string, not 3", 'write "3"')]),
    ('a parameter as JSON has it', 'parameters: { "a": "b" }',
     [((1, 15), 'parameters[0]', 'a field\'s name is expected, not "a"', 'an entry is { key: "a" value { string_value: "…" } }')]),
    ('a parameter by its name', 'parameters { a: "b" }',
     [((1, 14), 'parameters[0].a', "an entry of 'parameters' has no field 'a'", 'an entry is { key: "a" value { string_value: "…" } }')]),
    ('a tag with string_value', 'metric_tags { key: "a" value { string_value: "b" } }',
     [((1, 30), 'metric_tags["a"]', "'value' takes a string, not { … }", 'write value: "…"')]),
    ('a map of levels by name', 'dynamic_batching { priority_queue_policy { high { max_queue_size: 4 } } }',
     [((1, 44), 'dynamic_batching.priority_queue_policy[0].high', "an entry of 'priority_queue_policy' has no field 'high'", 'an entry is { key: 1 value { … } }')]),
    ('a key of another type', 'dynamic_batching { priority_queue_policy { key: "1" value { } } }',
     [((1, 49), 'dynamic_batching.priority_queue_policy["1"].key', '\'key\' takes a whole number, not "1"', 'write 1')]),
    ('a missing comma', 'input { dims: [ 1 2 ] }',
     [((1, 19), 'input[0].dims', "',' is missing before 2", 'separate the elements of a list')]),
    ('a comma too many', 'input { dims: [ 1, ] }',
     [((1, 20), 'input[0].dims', "',' is followed by no element", 'remove it')]),
    ('a comma without a field', 'input { , }',
     [((1, 9), 'input[0]', "',' follows nothing", 'remove it')]),
    ('a value too many', 'max_batch_size: 4 8',
     [((1, 19), '', "a field's name is expected, not 8", 'a field is written name: value')]),
    ('a bracket too many', 'input { } }',
     [((1, 11), '', "'}' closes nothing", 'remove it')]),
    ('a bracket of another kind', 'input < name: "A" }',
     [((1, 19), 'input[0]', "'}' does not close what is open here", "'>' does")]),
    ('a brace that is never closed', 'input {\n  name: "A"\n',
     [((1, 7), 'input[0]', "'{' is never closed", "add '}'")]),
    ('a list that is never closed', 'input [ { name: "A" }',
     [((1, 7), 'input[0]', "'[' is never closed", "add ']'")]),
    ('a list closed by a brace', 'input { dims: [ 1, 2 }',
     [((1, 15), 'input[0].dims', "'[' is never closed", "add ']'")]),
    ('an unknown message that is never closed', 'zzz { a: [ 1 }',
     [((1, 1), 'zzz', "'ModelConfig' has no field 'zzz'", ''), ((1, 14), '', "'}' does not close what is open here", "']' does")]),
    ('a message at the top', '{ name: "m" }',
     [((1, 1), '', "a field's name is expected, not {", 'a field is written name: value')]),
    ('an extension', '[foo.bar]: 3',
     [((1, 1), '', "a field's name is expected, not [", 'a field is written name: value')]),

]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_a_text_is_refused_at_its_place_with_what_would_have_worked(text, errors):
    parsed = parse(text, PATH)
    assert parsed.config is None
    assert told(parsed) == errors
    assert {problem.code for problem in parsed.problems} == {ErrorCode.INTERNAL}


def told(parsed):
    """Return the errors: place, key, message without its beginning, hint."""
    return [
        ((problem.line, problem.column), problem.key, problem.message.removeprefix(PREFIX), problem.hint)
        for problem in parsed.problems
    ]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file():
    parsed = parse(
        'max_batchsize: 3\ninput [ { data_type: FLOAT dims: [ one ] foo { bar: 3 } } ]\nname: "a"\nname: "b"\n'
        "output { optional: yes reshape: 4 label_filename: labels.txt dims: [ 1 2 ] }\nzzz\n",
        PATH,
    )
    assert [(problem.line, problem.column, problem.key) for problem in parsed.problems] == [
        (1, 1, "max_batchsize"),
        (2, 22, "input[0].data_type"),
        (2, 36, "input[0].dims"),
        (2, 42, "input[0].foo"),
        (4, 1, "name"),
        (5, 10, "output[0].optional"),
        (5, 33, "output[0].reshape"),
        (5, 51, "output[0].label_filename"),
        (5, 72, "output[0].dims"),
        (6, 1, "zzz"),
    ]


def test_where_brackets_do_not_match_the_mistakes_before_are_told_and_no_guesses_follow():
    parsed = parse('input { optional: yes dims: [ 1, 2 }\nnames: "x"\n', PATH)
    assert [(problem.line, problem.column) for problem in parsed.problems] == [(1, 19), (1, 29)]
    assert parsed.partial is None


def test_after_a_hundred_mistakes_nobody_reads_on():
    parsed = parse("zzz: 1\n" * 1000, PATH)
    assert len(parsed.problems) == 101
    assert parsed.problems[-1].hint == "mend those above first"


def test_what_can_be_read_beside_mistakes_is_kept():
    parsed = parse('name: "m" max_batch_size: many\ninput { nam: "A" dims: [ 1, 2 ] }\noutput: 3\n', PATH)
    assert parsed.config is None
    assert parsed.partial == ModelConfig(name="m", input=[ModelInput(dims=[1, 2])])
    assert parsed.spoilt == {"max_batch_size", "input[0].nam", "input[0].name", "output[0]"}
    assert [len(line) for line in parsed.blanked.split("\n")] == [30, 33, 9, 0]


def test_a_place_of_a_template_that_is_in_quotes_means_not_set_with_a_warning():
    named = ("a", "b", "c", "d", "e", "f")
    places = "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "${{{name}}}" }} }}' for name in named
    )
    parsed = parse('name: "m" backend: "${triton_backend}"' + places, PATH)
    assert parsed.config is not None
    assert parsed.config.backend == ""
    assert parsed.config.parameters["a"].string_value == "${a}"  # which its reader, the model, knows
    assert [(problem.is_error, problem.message, problem.key) for problem in parsed.problems] == [
        (False, "'backend' is ${triton_backend}, and counts as not set", "backend"),
        (
            False,
            "parameters that a template left open count as not set: a, b, c, d, e and 1 more",
            'parameters["a"]',
        ),
    ]


UNQUOTED = [
    ("max_batch_size: ${size}", (1, 17), "the value of 'max_batch_size' is ${size}"),
    ("model_transaction_policy { decoupled: ${mode} }", (1, 39), "the value of 'decoupled' is ${mode}"),
    (
        "dynamic_batching { preferred_batch_size: [ ${p} ] }",
        (1, 44),
        "the value of 'preferred_batch_size' is ${p}",
    ),
    ("output [ { data_type: ${logits} } ]", (1, 23), "the value of 'data_type' is ${logits}"),
    ("instance_group: ${groups}", (1, 17), "the value of 'instance_group' is ${groups}"),
    ("${more}", (1, 1), "a field is ${more}"),
    ("max_batch_size: ${}", (1, 17), "the value of 'max_batch_size' is ${}"),
]


@pytest.mark.parametrize(("text", "place", "said"), UNQUOTED)
def test_a_place_of_a_template_without_quotes_is_one_mistake_with_words_of_its_own(text, place, said):
    parsed = parse(text, PATH)
    assert parsed.config is None
    (problem,) = parsed.problems
    assert (problem.line, problem.column) == place
    assert problem.brief.endswith(f"{said}, a place of a template that was not filled in")
    assert problem.hint == "fill the template in: write a value in its place, or leave the field out"


def test_what_else_is_wrong_beside_places_of_a_template_is_told_as_well():
    parsed = parse('max_batch_size: ${size}\nbackend: "${backend}"\nnam: "m"\n', PATH)
    assert [(problem.line, problem.is_error) for problem in parsed.problems] == [
        (1, True),
        (3, True),
        (0, False),
    ]


def test_a_map_key_that_comes_again_is_a_warning():
    text = 'metric_tags { key: "a" value: "1" }\nmetric_tags [ { value: "2" key: "a" } ]\n'
    parsed = parse(text, PATH)
    assert parsed.config is not None
    assert dict(parsed.config.metric_tags) == {"a": "2"}
    (warning,) = parsed.problems
    assert warning.message == "'metric_tags[\"a\"]' is given more than once, and the last one counts"
    assert (warning.is_error, warning.line, warning.column) == (False, 2, 1)


def test_a_problem_reads_as_compilers_write_them():
    (problem,) = parse("max_batchsize: 3", PATH).problems
    assert str(problem) == (
        "models/m/config.pbtxt:1:1: error: failed to read text proto:"
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


CORPUS = [path.read_text() for path in sorted((Path(__file__).parent / "corpus" / "valid").glob("*.pbtxt"))]
PIECES = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#.*|[A-Za-z_][\w+-]*|[-+.\d][\w.+-]*|\s+|.""")
REPLACEMENT = st.sampled_from(
    ["", "input", "zzz", ":", "{", "}", "[", "]", "<", ">", ",", ";", "1", "-1", "1.5", "08", "99999999999999999999",
     '"x"', "'y'", '"', "#", "\n", "é", "-", "true", "model.onnx", "key", "value", "TYPE_FP32", "dynamic_batching"]
)  # fmt: skip


@st.composite
def broken_texts(draw):
    """A valid text with a few of its tokens replaced, removed or repeated."""
    pieces = PIECES.findall(draw(st.sampled_from(CORPUS)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(pieces) - 1))
        pieces[at] = draw(st.one_of(REPLACEMENT, st.just(f"{pieces[at]} {pieces[at]}")))
    return "".join(pieces)


@pytest.mark.slow
@given(broken_texts())
def test_the_walk_finds_a_fault_where_protobuf_does_and_nowhere_else(text):
    found = outline(text)
    try:
        text_format.Parse(text, ModelConfig())
        refused = False
    except (text_format.ParseError, ValueError):
        refused = True
    assert bool(found.faults) == refused
    if refused and not found.lost:
        assert parse(text, PATH).partial is not None


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


@pytest.mark.parametrize("text", ['{"name": "m"}', '\n  {\n  "name": "m" }', "{}"])
def test_json_is_said_to_be_json(text):
    (problem,) = parse(text, PATH).problems
    assert problem.message.endswith(": it is JSON, and text format is wanted")
    before = text[: text.index("{")].split("\n")
    assert (problem.line, problem.column) == (len(before), len(before[-1]) + 1)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("utf-8-sig", "it begins with a byte order mark (BOM)"), ("utf-16", "it is UTF-16")],
)
def test_an_encoding_that_only_some_editors_write_is_named(tmp_path, encoding, said):
    path = tmp_path / "config.pbtxt"
    path.write_bytes('name: "m"'.encode(encoding))
    (problem,) = read(path).problems
    assert problem.message == f"failed to read text proto from {path}: {said}"
    assert problem.hint == "save it as UTF-8 without BOM"


# -- the JSON form of a configuration (contract, http.md section 3.2)


def rendered(text):
    return json.loads(config_json(text_format.Parse(text, ModelConfig())))


def test_scalars_lists_and_maps_are_there_at_their_defaults_and_unset_messages_are_not():
    assert rendered("") == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


TENSOR = 'input { name: "A" data_type: TYPE_FP32 dims: [ -1, 9007199254740993 ] reshape { shape: 2 } }'


def test_delays_timeouts_levels_and_versions_are_numbers_and_map_keys_are_strings():
    config = rendered(
        "version_policy { specific { versions: [ 1, 3 ] } }"
        "dynamic_batching { max_queue_delay_microseconds: 500 priority_levels: 18446744073709551615"
        " priority_queue_policy { key: 2 value { default_timeout_microseconds: 7 } } }"
    )
    assert config["version_policy"] == {"specific": {"versions": [1, 3]}}
    batching = config["dynamic_batching"]
    assert (batching["max_queue_delay_microseconds"], batching["priority_levels"]) == (
        500,
        18446744073709551615,
    )
    assert batching["priority_queue_policy"] == {
        "2": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 7,
            "allow_timeout_override": False,
            "max_queue_size": 0,
        }
    }


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        (
            "sequence_batching { state { initial_state { dims: 3 zero_data: true } } }",
            # Triton leaves these 64-bit numbers as strings.
            ("sequence_batching", "state", 0, "initial_state", 0, "dims"),
            ["3"],
        ),
        (
            "instance_group { secondary_devices { device_id: 4 } }",
            ("instance_group", 0, "secondary_devices", 0, "device_id"),
            "4",
        ),
        (
            'optimization { cuda { graph_spec { input { key: "A" value { dim: [ 5 ] } } } } }',
            ("optimization", "cuda", "graph_spec", 0, "input", "A", "dim"),
            ["5"],
        ),
        (TENSOR, ("input", 0, "data_type"), "TYPE_FP32"),
        (TENSOR, ("input", 0, "dims"), [-1, 9007199254740993]),
        (TENSOR, ("input", 0, "reshape"), {"shape": [2]}),
        (TENSOR, ("input", 0, "format"), "FORMAT_NONE"),
        (TENSOR, ("input", 0, "optional"), False),
        ("input { data_type: 99 }", ("input", 0, "data_type"), 99),  # it has no name
        (
            'parameters { key: "k" value { string_value: "v" } }',
            ("parameters",),
            {"k": {"string_value": "v"}},
        ),
        (
            "model_metrics { metric_control { histogram_options { buckets: [ 0.1, inf, -inf, nan ] } } }",
            ("model_metrics", "metric_control", 0, "histogram_options", "buckets"),
            [0.1, "Infinity", "-Infinity", "NaN"],
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 0.1 } }",  # a 32-bit float
            ("sequence_batching", "direct", "minimum_slot_utilization"),
            0.1,
        ),
    ],
)
def test_values_have_triton_s_form(text, path, value):
    found = rendered(text)
    for step in path:
        found = found[step]
    assert found == value


def test_what_is_rendered_reads_back_as_the_same_configuration():
    config = text_format.Parse(
        'name: "é" max_batch_size: 4 input { name: "A" data_type: TYPE_STRING dims: -1 reshape { } }'
        "dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: DELAY } } }"
        'instance_group { kind: KIND_GPU gpus: [ 0, 1 ] rate_limiter { resources { name: "R" global: true } } }'
        'model_warmup { inputs { key: "A" value { data_type: TYPE_STRING zero_data: true } } }'
        "sequence_batching { state { initial_state { dims: 3 data_file: 'x' } } }".replace("sequence", "#"),
        ModelConfig(),
    )
    # protobuf's parser for JSON finds our messages without the default pool
    assert json_format.Parse(config_json(config), ModelConfig()) == config
