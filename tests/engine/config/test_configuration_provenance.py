"""Where each value of a completed configuration came from, and the text format that shows it."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from engine.config.provenance import Provenance, Source, leaves, text_lines
from protocols.kserve.proto.model_config_pb2 import ModelConfig

EVERYTHING = r"""
name: "x\n\"é\\"
max_batch_size: 4
input { name: "A" dims: [ 1, -1 ] reshape { } data_type: TYPE_FP32 }
input [ { name: "B" dims: 2, dims: 3 optional: true }, { } ]
parameters { key: "k" value { string_value: "v" } }
parameters { key: "empty" value { } }
metric_tags { key: "a.b[0]" value: "c" }
dynamic_batching { priority_queue_policy { key: 3 value { timeout_action: DELAY max_queue_size: 3 } } }
model_warmup { inputs { key: "Z" value { dims: 3 data_type: TYPE_FP16 zero_data: true } } }
instance_group [ { count: 2 }, { } ]
optimization { graph { level: -1 } cuda { graphs: true } }
model_metrics { metric_control { histogram_options { buckets: 0.1 buckets: inf } } }
version_policy { all { } }
"""


def written(text):
    return text_format.Parse(text, ModelConfig())


def test_the_printed_lines_are_the_configuration():
    config = written(EVERYTHING)
    lines = [line.text for line in text_lines(config)]
    assert written("\n".join(lines)) == config
    assert "optimization {" in lines
    assert "  graph { level: -1 }" in lines  # a single value does not take three lines
    assert "version_policy { all { } }" in lines


def test_every_line_with_a_value_has_an_origin_and_no_origin_is_without_a_line():
    config = written(EVERYTHING)
    origins = Provenance(config, Source(name="config.pbtxt", text=EVERYTHING)).origins()
    assert {line.key for line in text_lines(config)} - {""} == set(origins)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("name", "2:1"),
        ("input[0].dims", "4:19"),
        ("input[0].reshape", "4:35"),
        ("input[1].dims", "5:21"),
        ("input[2]", "5:56"),
        ('parameters["k"].string_value', "6:31"),
        ('parameters["empty"]', "7:1"),
        ('metric_tags["a.b[0]"]', "8:1"),
        ('dynamic_batching.priority_queue_policy["3"].max_queue_size', "9:81"),
        ("instance_group[1]", "11:32"),
        ("model_metrics.metric_control[0].histogram_options.buckets", "13:54"),
    ],
)
def test_what_was_written_has_its_line_and_column(key, place):
    origins = Provenance(written(EVERYTHING), Source(name="configs/x.pbtxt", text=EVERYTHING)).origins()
    assert origins[key] == f"configs/x.pbtxt:{place}"


def test_a_step_has_what_it_added_and_what_it_changed():
    config = written('name: "a" input { name: "x" }')
    provenance = Provenance(config, Source(name="override"))
    config.input[0].dims.append(3)
    config.input.add(name="y")
    provenance.note(config, "first")
    config.input[0].dims[0] = 4
    config.ClearField("name")
    provenance.note(config, "second")
    assert provenance.origins() == {
        "input[0].name": "override",
        "input[0].dims": "second",
        "input[1].name": "first",
    }


def test_a_message_that_gains_content_is_no_leaf_any_more():
    config = written("dynamic_batching { }")
    provenance = Provenance(config, Source(name="override"))
    assert dict(leaves(config)) == {"dynamic_batching": None}
    config.dynamic_batching.preferred_batch_size.append(2)
    provenance.note(config, "default")
    assert provenance.origins() == {"dynamic_batching.preferred_batch_size": "default"}


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_can_be_printed(key, value):
    config = ModelConfig(name=value)
    try:
        config.metric_tags[key] = value
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        return
    assert written("\n".join(line.text for line in text_lines(config))) == config


def test_the_steps_of_a_loaded_model_are_told_apart(load):
    loaded = load(
        "max_batch_size: 4\ndynamic_batching { }\n"
        'input { name: "A" data_type: TYPE_FP32 dims: 4 } output { name: "S" data_type: TYPE_FP32 dims: 4 }',
    )
    assert loaded.origins == {
        "name": "directory name",
        "platform": "file 1/model.onnx",
        "backend": "file 1/model.onnx",
        "default_model_filename": "file 1/model.onnx",
        "version_policy.latest.num_versions": "default",
        "max_batch_size": "config.pbtxt:1:1",
        **{f"{side}[0].{field}": f"config.pbtxt:3:{column}" for side, field, column in [
            ("input", "name", 9), ("input", "data_type", 19), ("input", "dims", 40),
            ("output", "name", 59), ("output", "data_type", 69), ("output", "dims", 90),
        ]},
        "dynamic_batching.preferred_batch_size": "default",
        "optimization.input_pinned_memory.enable": "default",
        "optimization.output_pinned_memory.enable": "default",
        "instance_group[0].name": "default",
        "instance_group[0].kind": "default",
        "instance_group[0].count": "default",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "key", "origin"),
    [
        ('backend: "onnxruntime"', "platform", "follows from 'backend'"),
        ('platform: "onnxruntime_onnx"', "backend", "follows from 'platform'"),
        ('default_model_filename: "model.onnx"', "backend", "follows from 'default_model_filename'"),
        ('platform: "my_platform"', "backend", "follows from 'platform'"),
    ],
)
def test_what_gave_the_backend_away_is_told(load, config, key, origin):
    assert load(config).origins[key] == origin


def test_a_backend_from_the_model_s_name_follows_from_it(load):
    assert load(None, name="add.mine", files={"1/x": b""}).origins["backend"] == "follows from 'name'"
