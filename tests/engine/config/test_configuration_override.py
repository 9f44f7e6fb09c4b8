"""The JSON configuration of a load request: its form, and every mistake by its place in the document."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import ErrorCode
from engine.config.load import load_model_config
from engine.config.override import parse_override
from engine.config.parse import parse
from protocols.kserve.proto.model_config_pb2 import DataType, ModelConfig, ModelInput

DIRECTORY = Path("models/m")
THREE = {f"{version}/model.onnx": b"" for version in (1, 2, 3)}
PREFIX = "Invalid config override: "

# Each: an id, the document, and every error: its key, message and hint.
REFUSED = [
    ('nothing', '',
     [('', 'it is no JSON: Expecting value at line 1, column 1', '')]),
    ('no JSON', '{"name": }',
     [('', 'it is no JSON: Expecting value at line 1, column 10', '')]),
    ('a constant that JSON has not', '{"max_batch_size": NaN}',
     [('', 'it is no JSON: NaN is no JSON number', '')]),
    ('brackets without end', '[' * 20000,
     [('', 'it is nested too deeply', '')]),
    ('a list', '[]',
     [('', 'it is no JSON object', 'it is a configuration, such as {"max_batch_size": 8}')]),
    ('a string', '"onnxruntime"',
     [('', 'it is no JSON object', 'it is a configuration, such as {"max_batch_size": 8}')]),
    ('an unknown field', '{"max_batchsize": 4}',
     [('max_batchsize', "'ModelConfig' has no field 'max_batchsize'", "did you mean 'max_batch_size'?")]),
    ('an unknown field of a message', '{"input": [{"name": "A"}, {"dim": [1]}]}',
     [('input[1].dim', "'ModelInput' has no field 'input[1].dim'", "did you mean 'dims'?")]),
    ('a field of another message', '{"preferredBatchSize": [4]}',
     [('preferredBatchSize', "'ModelConfig' has no field 'preferredBatchSize'", "it belongs inside 'dynamic_batching'")]),
    ('a field in both spellings', '{"max_batch_size": 4, "maxBatchSize": 8}',
     [('max_batch_size', "'max_batch_size' is given as 'max_batch_size' too", 'keep one of them')]),
    ('a name twice', '{"name": "a", "name": "b"}',
     [('name', "'name' is given more than once", 'keep one of them')]),
    ('a string for a number', '{"max_batch_size": "many"}',
     [('max_batch_size', '\'max_batch_size\' takes a whole number, not "many"', '')]),
    ('a fraction', '{"max_batch_size": 4.5}',
     [('max_batch_size', "'max_batch_size' takes a whole number, not 4.5", '')]),
    ('a bool for a number', '{"max_batch_size": true}',
     [('max_batch_size', "'max_batch_size' takes a whole number, not true", '')]),
    ('a number too large', '{"max_batch_size": 3000000000}',
     [('max_batch_size', "'max_batch_size' takes a whole number, not 3000000000", 'from -2147483648 to 2147483647')]),
    ('a negative number as a string', '{"dynamic_batching": {"max_queue_delay_microseconds": "-1"}}',
     [('dynamic_batching.max_queue_delay_microseconds', '\'dynamic_batching.max_queue_delay_microseconds\' takes a whole number, not "-1"', 'from 0 to 18446744073709551615')]),
    ('a number in a list', '{"input": [{"dims": [1, "x"]}]}',
     [('input[0].dims[1]', '\'input[0].dims[1]\' takes a whole number, not "x"', '')]),
    ('no list', '{"input": {"name": "A"}}',
     [('input', '\'input\' takes a list, not {"name": "A"}', 'write [ {"name": "A"} ]')]),
    ('no list of numbers', '{"input": [{"dims": 3}]}',
     [('input[0].dims', "'input[0].dims' takes a list, not 3", 'write [ 3 ]')]),
    ('no object in a list', '{"input": ["A"]}',
     [('input[0]', '\'input[0]\' takes an object, not "A"', 'its fields are name, data_type, format, dims, reshape, is_shape_tensor, allow_ragged_batch, optional, is_non_linear_format_io')]),
    ('null in a list', '{"input": [null]}',
     [('input[0]', "'input[0]' takes an object, not null", 'its fields are name, data_type, format, dims, reshape, is_shape_tensor, allow_ragged_batch, optional, is_non_linear_format_io')]),
    ('no object', '{"dynamic_batching": true}',
     [('dynamic_batching', "'dynamic_batching' takes an object, not true", 'its fields are preferred_batch_size, max_queue_delay_microseconds, preserve_ordering, priority_levels, default_priority_level, default_queue_policy, priority_queue_policy')]),
    ('a number for a string', '{"name": 3}',
     [('name', "'name' takes a string, not 3", 'write "3"')]),
    ('an object for a string', '{"name": {"a": 1}}',
     [('name', '\'name\' takes a string, not {"a": 1}', '')]),
    ('half a character', '{"name": "\\ud800"}',
     [('name', "'name' is no text: it has half of a surrogate pair", '')]),
    ('a string for a bool', '{"response_cache": {"enable": "yes"}}',
     [('response_cache.enable', '\'response_cache.enable\' takes true or false, not "yes"', 'write true')]),
    ('a number for a bool', '{"response_cache": {"enable": 1}}',
     [('response_cache.enable', "'response_cache.enable' takes true or false, not 1", '')]),
    ('an enum value that is none', '{"input": [{"data_type": "float32"}]}',
     [('input[0].data_type', "'input[0].data_type' is 'float32', which is no DataType", "did you mean 'TYPE_FP32'?")]),
    ('an enum of another type', '{"input": [{"data_type": 1.5}]}',
     [('input[0].data_type', "'input[0].data_type' takes a DataType, not 1.5", 'one of TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16')]),
    ('a bool for a float', '{"model_metrics": {"metric_control": [{"histogram_options": {"buckets": [true]}}]}}',
     [('model_metrics.metric_control[0].histogram_options.buckets[0]', "'model_metrics.metric_control[0].histogram_options.buckets[0]' takes a number, not true", '')]),
    ('a word for a float', '{"model_metrics": {"metric_control": [{"histogram_options": {"buckets": ["1_0"]}}]}}',
     [('model_metrics.metric_control[0].histogram_options.buckets[0]', '\'model_metrics.metric_control[0].histogram_options.buckets[0]\' takes a number, not "1_0"', '')]),
    ("a float that 32 bits don't hold", '{"sequence_batching": {"direct": {"minimum_slot_utilization": 1e39}}}',
     [('sequence_batching.direct.minimum_slot_utilization', "'sequence_batching.direct.minimum_slot_utilization' takes a number, not 1e+39", 'up to 3.40282e+38')]),
    ('a float beyond any', '{"model_metrics": {"metric_control": [{"histogram_options": {"buckets": [1' + "0" * 400 + "]}}]}}",
     [('model_metrics.metric_control[0].histogram_options.buckets[0]', "'model_metrics.metric_control[0].histogram_options.buckets[0]' takes a number, not 100000000000000000000000000000000000000…", '')]),
    ('a parameter without string_value', '{"parameters": {"a": "b"}}',
     [('parameters["a"]', '\'parameters["a"]\' takes an object, not "b"', 'write {"string_value": "b"}')]),
    ("a parameter's number", '{"parameters": {"a": {"string_value": 4}}}',
     [('parameters["a"].string_value', '\'parameters["a"].string_value\' takes a string, not 4', 'write "4"')]),
    ('an object without fields', '{"version_policy": {"all": false}}',
     [('version_policy.all', "'version_policy.all' takes an object, not false", 'write {}')]),
    ('parameters in a list', '{"parameters": [{"key": "a"}]}',
     [('parameters', '\'parameters\' takes an object, not [{"key": "a"}]', 'write { "<key>": … }')]),
    ('a parameter twice', '{"metric_tags": {"a": "1", "a": "2"}}',
     [('metric_tags["a"]', '\'metric_tags["a"]\' is given more than once', 'keep one of them')]),
    ('half of a surrogate pair as a field', '{"\\ud800": 1}',
     [('\\ud800', "'ModelConfig' has no field '\\ud800'", '')]),
    ('half of a surrogate pair as a value', '{"input": [{"data_type": "\\ud800"}]}',
     [('input[0].data_type', "'input[0].data_type' is '\\ud800', which is no DataType", 'one of ' + ', '.join(DataType.keys()))]),
    ('half of a surrogate pair as a key', '{"metric_tags": {"\\ud800": "1"}}',
     [('metric_tags["\\ud800"]', '\'metric_tags["\\ud800"]\' is no text: it has half of a surrogate pair', '')]),
    ('a level that is no number', '{"dynamic_batching": {"priority_queue_policy": {"high": {}}}}',
     [('dynamic_batching.priority_queue_policy["high"]', '\'dynamic_batching.priority_queue_policy["high"]\' takes a whole number, not "high"', '')]),
    ('two schedulers', '{"dynamic_batching": {}, "sequence_batching": {}}',
     [('sequence_batching', "'sequence_batching' excludes 'dynamic_batching'", 'keep one of them')]),
    ('two policies', '{"versionPolicy": {"latest": {}, "specific": {"versions": [1]}}}',
     [('version_policy.specific', "'version_policy.specific' excludes 'version_policy.latest'", 'keep one of them')]),
    ('several at once', '{"max_batch_size": "x", "input": [{"dims": [1, {}], "optional": "no"}], "zzz": 1}',
     [('max_batch_size', '\'max_batch_size\' takes a whole number, not "x"', ''), ('input[0].dims[1]', "'input[0].dims[1]' takes a whole number, not {}", ''), ('input[0].optional', '\'input[0].optional\' takes true or false, not "no"', 'write false'), ('zzz', "'ModelConfig' has no field 'zzz'", '')]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "errors"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_a_document_is_refused_by_the_path_of_each_mistake(text, errors):
    parsed = parse_override(text, DIRECTORY)
    assert parsed.config is None
    assert [
        (problem.key, problem.message.removeprefix(PREFIX), problem.hint) for problem in parsed.problems
    ] == errors
    assert all(problem.message.startswith(PREFIX) for problem in parsed.problems)
    assert {problem.code for problem in parsed.problems} == {ErrorCode.INVALID_ARG}
    assert (parsed.partial is None) == (errors[0][0] == "")


# Each: a document, and the same in text format.
READ = [
    ("{}", ""),
    ('{"max_batch_size": 4}', "max_batch_size: 4"),
    ('{"maxBatchSize": "4"}', "max_batch_size: 4"),
    ('{"maxBatchSize": 4.0}', "max_batch_size: 4"),
    ('{"input": [{"dataType": "type_fp32", "dims": ["-1", 3]}]}', "input { data_type: TYPE_FP32 dims: [ -1, 3 ] }"),
    ('{"input": [{"data_type": 11}, {}]}', "input { data_type: TYPE_FP32 } input { }"),
    ('{"instanceGroup": [{"kind": "Kind_Cpu", "count": 2}]}', "instance_group { kind: KIND_CPU count: 2 }"),
    ('{"dynamicBatching": {}}', "dynamic_batching { }"),
    ('{"dynamic_batching": null, "sequence_batching": {}}', "sequence_batching { }"),
    ('{"name": null, "input": null, "parameters": null}', ""),
    ('{"dynamic_batching": {"priority_queue_policy": {"3": {"maxQueueSize": 7}}}}',
     "dynamic_batching { priority_queue_policy { key: 3 value { max_queue_size: 7 } } }"),
    ('{"parameters": {"a b": {"string_value": "é"}}}', 'parameters { key: "a b" value { string_value: "é" } }'),
    ('{"metric_tags": {"a": "b"}}', 'metric_tags { key: "a" value: "b" }'),
    ('{"model_metrics": {"metric_control": [{"histogramOptions": {"buckets": [1, "2.5", "Infinity", "-Infinity"]}}]}}',
     "model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5, inf, -inf ] } } }"),
    ('{"version_policy": {"specific": {"versions": ["1", 9007199254740993]}}}',
     "version_policy { specific { versions: [ 1, 9007199254740993 ] } }"),
    ('{"model_warmup": [{"inputs": {"A": {"zero_data": false}}}]}',
     'model_warmup { inputs { key: "A" value { zero_data: false } } }'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "text"), READ)
def test_a_document_means_what_the_text_means(document, text):
    parsed = parse_override(document, DIRECTORY)
    assert (parsed.problems, parsed.config) == ((), parse(text, DIRECTORY).config)


def test_what_is_accepted_with_a_warning_in_the_file_is_so_here():
    parsed = parse_override('{"backend": "${backend}", "input": [{"data_type": "type_bytes"}]}', DIRECTORY)
    assert parsed.config == parse("input { data_type: TYPE_STRING }", DIRECTORY).config
    assert [(problem.is_error, problem.key) for problem in parsed.problems] == [
        (False, "input[0].data_type"),
        (False, "backend"),
    ]


def test_what_can_be_read_beside_mistakes_is_kept():
    parsed = parse_override('{"input": [{"name": "A", "dims": [1, "x"]}], "max_batchsize": 4}', DIRECTORY)
    assert parsed.partial == ModelConfig(input=[ModelInput(name="A", dims=[1])])
    assert parsed.spoilt == {"input[0].dims", "max_batchsize", "max_batch_size"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["TYPE_FP32", "kind_cpu", "3", "NaN"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "input", "dims", "dataType", "parameters", "string_value", "instance_group", "kind",
                 "dynamic_batching", "priorityQueuePolicy", "version_policy", "latest", "all", "model_warmup", "inputs"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@pytest.mark.slow
@given(VALUES)
def test_any_document_gives_a_configuration_or_errors(document):
    parsed = parse_override(json.dumps(document), DIRECTORY)
    assert (parsed.config is None) == any(problem.is_error for problem in parsed.problems)


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text):
    parsed = parse_override(text, DIRECTORY)
    assert (parsed.config is None) == any(problem.is_error for problem in parsed.problems)


def test_names_given_twice_among_very_many_are_told_at_once():
    entries = ", ".join(f'"k{number}": "v"' for number in range(50_000))
    parsed = parse_override(f'{{"metric_tags": {{{entries}, "k7": "v"}}}}', DIRECTORY)
    assert [problem.key for problem in parsed.problems] == ['metric_tags["k7"]']


# -- what a load request, a namespace and a copy of a remote model bring to `load_model_config`


ONNX = (
    'backend: "onnxruntime" '
    'input { name: "A" data_type: TYPE_FP32 dims: 4 } output { name: "S" data_type: TYPE_FP32 dims: 4 }'
)
OVERRIDE = json.dumps(
    {
        "backend": "onnxruntime",
        "maxBatchSize": 3,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["7"]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [7]}],
    }
)


def test_an_override_stands_in_the_file_s_place(load):
    loaded = load(ONNX + " max_batch_size: 8", override=OVERRIDE)
    assert loaded.ok, loaded.problems
    (spec,) = loaded.specs
    assert (spec.max_batch_size, spec.inputs[0].name, spec.artifact) == (3, "X", "model.onnx")
    assert loaded.origins["max_batch_size"] == "override"
    assert loaded.origins["name"] == "directory name"


@pytest.mark.parametrize("policy", ["", "latest { num_versions: 1 }", "all { }", "specific { versions: 2 }"])
def test_a_load_may_name_its_versions_whatever_the_policy_says(load, policy):
    policy = f" version_policy {{ {policy} }}" if policy else ""
    loaded = load(ONNX + policy, files=THREE, only=(1, 3))
    assert [spec.version for spec in loaded.specs] == [1, 3]


def test_versions_that_are_not_there_are_named(load):
    loaded = load(ONNX, files=THREE, only=(2, 4))
    assert not loaded.specs
    assert "the load asks for version 4, which the repository lacks: it has versions 1, 2, 3" in loaded.reason


def test_an_override_saves_a_file_that_can_not_be_read(load):
    assert load("max_batchsize: 3", override=OVERRIDE).ok


def test_an_override_is_completed_even_where_there_is_no_file(load):
    assert load(None, override=OVERRIDE).origins["instance_group[0].count"] == "default"


def test_a_mistake_in_an_override_is_told_without_a_place_in_the_file(load):
    loaded = load(ONNX, override=OVERRIDE.replace('": 3', '": -3'))
    assert loaded.readable
    (error,) = loaded.errors
    assert error.message == "'max_batch_size' must be non-negative value for m"
    assert str(error).startswith("override: error: ")


def test_an_override_that_is_no_json_is_unreadable(load):
    loaded = load(ONNX, override="{")
    assert not loaded.readable
    assert not loaded.ok


def test_namespace_and_content_are_passed_on(load):
    files = {"1/model.onnx": b"", "2/model.onnx": b""}
    loaded = load(
        ONNX + "version_policy { all { } }",
        files=files,
        namespace="/models",
        content={1: "a", 2: "b", 3: "c"},
    )
    assert [(spec.version, spec.namespace, spec.content) for spec in loaded.specs] == [
        (1, "/models", "a"),
        (2, "/models", "b"),
    ]


def test_without_them_both_are_empty(load):
    (spec,) = load(ONNX).specs
    assert (spec.namespace, spec.content) == ("", "")


def test_a_model_may_be_called_otherwise_than_its_directory(write_model, backends):
    loaded = load_model_config(write_model("3f8a", ONNX), backends=backends, model_name="resnet")
    assert loaded.ok, loaded.problems
    assert (loaded.name, loaded.specs[0].name, loaded.specs[0].model_directory.name) == (
        "resnet",
        "resnet",
        "3f8a",
    )


def test_a_written_name_is_held_against_the_model_s_own(write_model, backends):
    directory = write_model("3f8a", 'name: "resnet" ' + ONNX)
    assert load_model_config(directory, backends=backends, model_name="resnet").ok
    loaded = load_model_config(directory, backends=backends, model_name="bert")
    assert loaded.reason == (
        "Invalid argument: unexpected directory name 'bert' for model 'resnet', directory name must equal model name"
    )


def test_a_name_from_the_model_gives_its_backend_away(write_model, backends):
    directory = write_model("3f8a", None, {"1/x": b""})
    loaded = load_model_config(directory, backends=backends, model_name="add.mine")
    assert loaded.specs[0].backend == "mine"
