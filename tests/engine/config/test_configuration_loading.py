"""`load_model_config`: from a model directory to specifications, never raising for its owner's mistakes."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config.load import load_model_config

ONNX = (
    'backend: "onnxruntime" '
    'input { name: "A" data_type: TYPE_FP32 dims: 4 } output { name: "S" data_type: TYPE_FP32 dims: 4 }'
)


def test_an_unreadable_configuration_is_told_apart(load):
    loaded = load("max_batchsize: 3", files={"3/model.onnx": b"", "4/model.onnx": b""})
    assert not loaded.readable
    assert not loaded.ok
    assert loaded.versions == (4,)
    assert loaded.reason == (
        f"Internal: failed to read text proto from {loaded.path}: 'ModelConfig' has no field 'max_batchsize'"
    )


def test_a_broken_configuration_is_readable(load):
    assert load("max_batch_size: -3").readable


def test_a_backend_is_looked_for_once_the_configuration_keeps_the_rules(load):
    loaded = load('backend: "zzz" max_batch_size: -3')
    assert loaded.reason == "Invalid argument: 'max_batch_size' must be non-negative value for m"
    assert len(loaded.errors) == 2


def test_no_configuration_is_an_empty_one(load):
    loaded = load(None)
    assert loaded.readable
    assert loaded.reason == (  # the file in the model's place is empty, too
        "Invalid argument: autofill failed for model 'm': the ONNX file 'model.onnx' does not tell its inputs and outputs:"
        " it is empty"
    )


def test_no_configuration_is_an_error_where_completion_is_off(load):
    loaded = load(None, auto_complete=False)
    assert not loaded.readable
    assert loaded.reason == f"Internal: failed to read text proto from {loaded.path}: there is no such file"
    assert loaded.errors[0].hint == "auto-completion is off"


@pytest.mark.parametrize(
    ("name", "file", "batch"),
    [
        pytest.param("small", "small.pbtxt", 2, id="another one"),
        pytest.param("large", "config.pbtxt", 8, id="one that is not there"),
        pytest.param("../../../other", "config.pbtxt", 8, id="a way out of the folder"),
        pytest.param("{directory}/other", "config.pbtxt", 8, id="an absolute path"),
    ],
)
def test_a_configuration_is_chosen_by_name_from_its_folder(load, tmp_path, name, file, batch):
    (tmp_path / "other.pbtxt").write_text(ONNX + " max_batch_size: 2")
    files = {"1/model.onnx": b"", "configs/small.pbtxt": ONNX + " max_batch_size: 2"}
    loaded = load(ONNX + " max_batch_size: 8", files=files, config_name=name.format(directory=tmp_path))
    assert (loaded.path.name, loaded.specs[0].max_batch_size) == (file, batch)


def test_warnings_do_not_keep_a_model_from_loading(load):
    loaded = load(ONNX.replace("TYPE_FP32", "TYPE_BYTES"))
    assert loaded.ok
    assert len(loaded.specs) == 1
    assert [problem.message for problem in loaded.warnings] == ["'TYPE_BYTES' is read as TYPE_STRING"] * 2


def test_errors_stand_before_warnings(load):
    loaded = load("input { name: 'A' data_type: TYPE_BYTES }\n" + ONNX.replace("input", "#"))
    assert [problem.is_error for problem in loaded.problems] == [True, True, False]


def test_a_model_without_a_version_is_told(load):
    loaded = load(ONNX, files={"notes.txt": b""})
    assert loaded.versions == ()
    assert loaded.reason == (
        "Invalid argument: at least one version must be available under the version policy of model 'm'"
    )


def test_a_directory_that_is_gone_is_told(tmp_path, backends):
    loaded = load_model_config(tmp_path / "gone", backends=backends)
    assert not loaded.ok
    assert loaded.name == "gone"
    assert loaded.errors[0].message == "model directory can't be listed: No such file or directory"


def test_a_configuration_that_is_a_link_out_of_the_repository_is_refused(write_model, backends, tmp_path):
    (tmp_path / "elsewhere.pbtxt").write_text(ONNX)
    directory = write_model()
    (directory / "config.pbtxt").symlink_to(tmp_path / "elsewhere.pbtxt")
    loaded = load_model_config(directory, backends=backends)
    assert not loaded.readable
    assert loaded.reason.endswith("it is a link out of the model repository")


def test_a_link_inside_the_repository_is_followed(write_model, backends):
    directory = write_model(config=ONNX, files={"1/real.onnx": b""})
    (directory / "1/model.onnx").symlink_to("real.onnx")
    (directory / "2").symlink_to("1")
    assert load_model_config(directory, backends=backends).versions == (2,)
    assert load_model_config(directory, backends=backends).ok


def test_a_model_file_that_is_a_link_out_of_the_repository_is_refused(write_model, backends, tmp_path):
    (tmp_path / "elsewhere.onnx").write_bytes(b"")
    directory = write_model(config=ONNX, files={"1/readme": b""})
    (directory / "1/model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    loaded = load_model_config(directory, backends=backends)
    assert loaded.reason == (
        "Invalid argument: model file 'model.onnx' of model 'm', version 1, is outside the model repository"
    )


def test_a_version_that_is_a_link_out_of_the_repository_is_an_error(write_model, backends, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    directory = write_model(config=ONNX)
    (directory / "2").symlink_to(tmp_path / "elsewhere")
    loaded = load_model_config(directory, backends=backends)
    assert loaded.versions == (1,)
    assert loaded.reason == "Invalid argument: '2' is a link out of the model repository"


def test_a_named_pipe_in_the_file_s_place_does_not_hang(write_model, backends):
    directory = write_model()
    os.mkfifo(directory / "config.pbtxt")
    assert not load_model_config(directory, backends=backends).readable


PIECES = st.sampled_from(
    [
        'name: "m"', 'backend: "onnxruntime"', 'backend: "python"', 'platform: "ensemble"', "max_batch_size: 4",
        "max_batch_size: -1", 'input { name: "A" data_type: TYPE_FP32 dims: [ 4, -1 ] }', "input { }",
        'input { name: "A" data_type: 77 dims: 0 reshape { shape: [ -1, 0 ] } format: FORMAT_NHWC }',
        'output { name: "S" data_type: TYPE_STRING dims: 1 reshape { } label_filename: "x" }', "output { dims: -7 }",
        "dynamic_batching { preferred_batch_size: 3 priority_levels: 1 }", "sequence_batching { }",
        "ensemble_scheduling { }", "instance_group { kind: KIND_GPU gpus: -1 count: -2 }", "instance_group { kind: 9 }",
        "instance_group { }", "version_policy { all { } }", "version_policy { latest { num_versions: 0 } }",
        'model_warmup { batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }',
        'model_warmup { batch_size: 1 inputs { key: "" value { data_type: 99 dims: -3 input_data_file: "" } } }',
        'default_model_filename: ""', 'default_model_filename: "/"', 'default_model_filename: "a\\000b"',
        'parameters { key: "tritium.amp" value { string_value: "bf16" } }', 'parameters { key: "tritium." value { } }',
        "model_metrics { metric_control { } }", "optimization { priority: 9 cuda { graphs: true } }",
        'output { name: "S" data_type: TYPE_FP32 dims: 1 label_filename: "a\\000b" }',
    ]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None)
@given(pieces=st.lists(PIECES, max_size=8, unique=True))
def test_no_configuration_raises(tmp_path, backends, pieces):
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text("\n".join(pieces))
    loaded = load_model_config(directory, backends=backends, gpus=1)
    assert bool(loaded.specs) == loaded.ok
    assert all(problem.path is not None for problem in loaded.problems)
