"""What a load request, a namespace and a copy of a remote model bring to `load_model_config`."""

import json

from engine.config.load import load_model_config

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
    directory = write_model("3f8a", ONNX)
    loaded = load_model_config(directory, backends=backends, model_name="resnet")
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
