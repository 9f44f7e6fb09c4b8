"""The JSON form of a configuration (contract, http.md section 3.2)."""

import json

import pytest
from google.protobuf import json_format, text_format

from engine.config.jsonform import config_json
from protocols.kserve.proto.model_config_pb2 import ModelConfig


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


def test_enums_are_names_and_dims_are_numbers():
    (tensor,) = rendered(
        'input { name: "A" data_type: TYPE_FP32 dims: [ -1, 9007199254740993 ] reshape { shape: 2 } }'
    )["input"]
    assert tensor["data_type"] == "TYPE_FP32"
    assert tensor["dims"] == [-1, 9007199254740993]
    assert tensor["reshape"] == {"shape": [2]}
    assert tensor["format"] == "FORMAT_NONE"
    assert tensor["optional"] is False


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
    ],
)
def test_the_64_bit_numbers_that_triton_leaves_as_strings_are_strings(text, path, value):
    found = rendered(text)
    for step in path:
        found = found[step]
    assert found == value


def test_parameters_have_the_python_backend_s_form():
    assert rendered('parameters { key: "k" value { string_value: "v" } }')["parameters"] == {
        "k": {"string_value": "v"}
    }


def test_an_enum_number_without_a_name_stays_a_number():
    assert rendered("input { data_type: 99 }")["input"][0]["data_type"] == 99


def test_what_json_has_no_number_for_is_spelt():
    options = rendered(
        "model_metrics { metric_control { histogram_options { buckets: [ 0.1, inf, -inf, nan ] } } }"
    )
    control = options["model_metrics"]["metric_control"][0]
    assert control["histogram_options"]["buckets"] == [0.1, "Infinity", "-Infinity", "NaN"]


def test_a_32_bit_float_is_as_short_as_it_was_written():
    config = rendered("sequence_batching { direct { minimum_slot_utilization: 0.1 } }")
    assert config["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1


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
