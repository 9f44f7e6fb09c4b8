"""Backend inference, normalisation and instance groups (contract, model_config.md sections 1, 5 and 7)."""

from operator import attrgetter

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from engine.config.complete import complete, normalise
from engine.config.provenance import Provenance, Source, leaves, text_lines
from protocols.kserve.proto.model_config_pb2 import ModelConfig, ModelInstanceGroup


def written(text):
    return text_format.Parse(text, ModelConfig())


@pytest.fixture
def completed(write_model, backends):
    def run(text, *, entries=(), name="m", **options):
        directory = write_model(name, files={f"1/{entry}": b"" for entry in entries})
        return complete(written(text), directory, backends=backends, **options)

    return run


# (configuration, entries of the version directory, backend, platform, default_model_filename)
INFERENCE = [
    ("", ["model.savedmodel"], "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    ("", ["model.graphdef"], "tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ('default_model_filename: "model.graphdef"', [], "tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ("", ["model.plan"], "tensorrt", "tensorrt_plan", "model.plan"),
    ('platform: "tensorrt_plan"', [], "tensorrt", "tensorrt_plan", "model.plan"),
    ("", ["model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ('platform: "onnxruntime_onnx"', [], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ('default_model_filename: "model.onnx"', [], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ('platform: "onnxruntime_onnx" default_model_filename: "a.onnx"', [], "onnxruntime", "onnxruntime_onnx", "a.onnx"),
    ("", ["model.xml"], "openvino", "", "model.xml"),
    ("", ["model.pt"], "pytorch", "pytorch_libtorch", ""),
    ('platform: "pytorch_libtorch"', [], "pytorch", "pytorch_libtorch", ""),
    ('platform: "libtorch"', [], "pytorch", "pytorch_libtorch", ""),
    ('default_model_filename: "model.pt"', [], "pytorch", "pytorch_libtorch", "model.pt"),
    ("", ["model.pt2"], "pytorch", "torch_aoti", "model.pt2"),
    ('platform: "torch_aoti"', [], "pytorch", "torch_aoti", "model.pt2"),
    ("", ["model.py"], "python", "", "model.py"),
    ("", ["model.py", "model.onnx"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ('platform: "my_platform"', [], "mine", "my_platform", ""),
    ('platform: "caffe"', ["model.onnx"], "", "caffe", ""),
    ('default_model_filename: "odd.bin"', ["model.onnx"], "", "", "odd.bin"),
    ('backend: "onnxruntime"', [], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ('backend: "onnxruntime" default_model_filename: "a.onnx"', [], "onnxruntime", "onnxruntime_onnx", "a.onnx"),
    ('backend: "pytorch"', [], "pytorch", "pytorch_libtorch", "model.pt"),
    ('backend: "pytorch" platform: "pytorch_libtorch"', [], "pytorch", "pytorch_libtorch", ""),
    ('backend: "pytorch" platform: "libtorch"', [], "pytorch", "libtorch", ""),
    ('backend: "pytorch" default_model_filename: "model.pt2"', [], "pytorch", "torch_aoti", "model.pt2"),
    ('backend: "python"', [], "python", "", "model.py"),
    ('backend: "tensorflow"', [], "tensorflow", "", ""),
    ('backend: "mine"', ["model.onnx"], "mine", "", ""),
    ('platform: "ensemble"', ["model.onnx"], "", "ensemble", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "entries", "backend", "platform", "filename"), INFERENCE)
def test_a_backend_is_inferred(completed, text, entries, backend, platform, filename):
    config = completed(text, entries=entries).config
    assert (config.backend, config.platform, config.default_model_filename) == (backend, platform, filename)


def test_the_last_resort_is_the_model_s_name(completed):
    config = completed("", name="add.my.own").config
    assert (config.backend, config.default_model_filename) == ("my.own", "model.my.own")


def test_a_name_without_a_dot_gives_no_backend_away(completed):
    (problem,) = completed("", name="add").problems
    assert problem.message.startswith("Invalid model name: Could not determine backend for model 'add'")


def test_only_the_first_subdirectory_is_looked_into(write_model, backends):
    directory = write_model(files={"1/readme": b"", "2/model.onnx": b""})
    assert complete(ModelConfig(), directory, backends=backends).config.backend == ""


def test_nothing_is_inferred_where_completion_is_off(completed):
    config = completed("", entries=["model.onnx"], auto_complete=False).config
    assert (config.name, config.backend) == ("", "")
    assert config.version_policy.latest.num_versions == 1


@pytest.mark.parametrize(
    ("platform", "backend"),
    [
        ("onnxruntime_onnx", "onnxruntime"),
        ("pytorch_libtorch", "pytorch"),
        ("torch_aoti", "pytorch"),
        ("tensorrt_plan", "tensorrt"),
        ("tensorflow_savedmodel", "tensorflow"),
        ("tensorflow_graphdef", "tensorflow"),
        ("my_platform", "mine"),
        ("libtorch", ""),  # which completion alone takes for another
        ("ensemble", ""),
    ],
)
def test_a_platform_gives_the_backend_where_completion_is_off(completed, platform, backend):
    draft = completed(f'name: "m" platform: "{platform}"', auto_complete=False)
    assert (draft.config.backend, draft.config.platform) == (backend, platform)
    assert draft.config.default_model_filename == ""
    if backend:
        assert draft.provenance.origins()["backend"] == "follows from 'platform'"


def test_an_empty_name_is_the_directory_s(completed):
    assert completed("", entries=["model.py"]).config.name == "m"


def test_what_was_written_is_left_alone(write_model, backends):
    config = written('name: "m" version_policy { all { } }')
    before = config.SerializeToString()
    result = complete(config, write_model(), backends=backends).config
    assert config.SerializeToString() == before
    assert result.version_policy.WhichOneof("policy_choice") == "all"


# (configuration, field of the normalised one, its value)
NORMALISED = [
    ("max_batch_size: 8 dynamic_batching { }", "dynamic_batching.preferred_batch_size", [8]),
    ("dynamic_batching { }", "dynamic_batching.preferred_batch_size", []),  # without batching none is made up
    ("max_batch_size: 8", "optimization.input_pinned_memory.enable", True),
    ("max_batch_size: 8", "optimization.output_pinned_memory.enable", True),
    ("optimization { input_pinned_memory { } }", "optimization.input_pinned_memory.enable", False),
    ("optimization { input_pinned_memory { } }", "optimization.output_pinned_memory.enable", True),
    ("max_batch_size: 4 sequence_batching { oldest { } }",
     "sequence_batching.oldest.preferred_batch_size", [4]),
    ("sequence_batching { oldest { } }", "sequence_batching.max_sequence_idle_microseconds", 1_000_000),
    ('platform: "ensemble"', "instance_group", []),
    ('platform: "ensemble"', "optimization", ModelConfig().optimization),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "value"), NORMALISED)
def test_unwritten_values_are_normalised(text, field, value):
    config = written(text)
    normalise(config)
    assert attrgetter(field)(config) == value


# (backend, groups, GPUs, (name, kind, count, gpus) of each group)
GROUPS = [
    ("onnxruntime", "", 0, [("m", "KIND_CPU", 2, [])]),
    ("tensorflow", "", 0, [("m", "KIND_CPU", 2, [])]),
    ("pytorch", "", 0, [("m", "KIND_CPU", 1, [])]),
    ("python", "", 0, [("m", "KIND_CPU", 1, [])]),
    ("python", "", 2, [("m", "KIND_CPU", 1, [])]),
    ("onnxruntime", "", 2, [("m", "KIND_GPU", 1, [0, 1])]),
    ("openvino", "", 2, [("m", "KIND_CPU", 1, [])]),
    ("openvino", "instance_group { count: 2 } instance_group { kind: KIND_GPU }", 2,
     [("m_0", "KIND_CPU", 2, []), ("m_1", "KIND_GPU", 1, [0, 1])]),
    ("onnxruntime", "instance_group { count: 1 }", 0, [("m_0", "KIND_CPU", 1, [])]),
    ("onnxruntime", "instance_group { count: -3 }", 0, [("m_0", "KIND_CPU", 2, [])]),
    ("pytorch", "instance_group { name: 'a' } instance_group { count: 3 }", 0,
     [("a", "KIND_CPU", 1, []), ("m_1", "KIND_CPU", 3, [])]),
    ("pytorch", "instance_group { kind: KIND_MODEL }", 2, [("m_0", "KIND_MODEL", 1, [])]),
    ("pytorch", "instance_group { kind: KIND_CPU }", 2, [("m_0", "KIND_CPU", 1, [])]),
    ("pytorch", "instance_group { gpus: 1 }", 2, [("m_0", "KIND_GPU", 1, [1])]),
    ("pytorch", "instance_group { gpus: 7 }", 2, [("m_0", "KIND_CPU", 1, [7])]),
    ("pytorch", "instance_group { kind: KIND_GPU }", 0, [("m_0", "KIND_GPU", 1, [])]),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "text", "gpus", "expected"), GROUPS)
def test_instance_groups_are_resolved(backend, text, gpus, expected):
    config = written(f'name: "m" backend: "{backend}" {text}')
    normalise(config, gpus=gpus, on_cpu=backend == "python")
    found = [
        (group.name, ModelInstanceGroup.Kind.Name(group.kind), group.count, list(group.gpus))
        for group in config.instance_group
    ]
    assert found == expected


@pytest.mark.parametrize("text", ["instance_group { } instance_group { count: 2 }", ""])
def test_groups_without_a_written_count_are_remembered(completed, text):
    assert completed(text, entries=["model.onnx"]).uncounted == {0}


# -- where each value of a completed configuration came from, and the text format that shows it


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
        (None, "backend", "follows from 'name'"),
    ],
)
def test_what_gave_the_backend_away_is_told(load, config, key, origin):
    files = {"1/x": b""} if config is None else None
    assert load(config, name="add.mine", files=files).origins[key] == origin
