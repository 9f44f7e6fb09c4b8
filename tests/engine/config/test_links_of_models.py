"""Links in a model: with `Links.ANYWHERE` they are followed out of it, and names are not."""

import os

import pytest

from engine.config.load import load_model_config
from engine.models.links import Links
from engine.processes.backends import BackendTraits
from tests.engine.config.test_configuration_loading import ONNX

PYTHON = (
    'backend: "python" '
    'input { name: "A" data_type: TYPE_FP32 dims: 2 } output { name: "S" data_type: TYPE_FP32 dims: 2 }'
)
STATE = (
    "sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_UINT8 dims: 2"
    " initial_state { name: 'i' data_type: TYPE_UINT8 dims: 2 data_file: 'data' } } }"
)
WARMUP = (
    "model_warmup { name: 'w' batch_size: 1"
    " inputs { key: 'A' value { data_type: TYPE_UINT8 dims: 2 input_data_file: 'data' } } }"
)


@pytest.fixture
def elsewhere(tmp_path):
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    return directory


@pytest.fixture
def loading(write_model, backends):
    """Load the model in a directory, following links anywhere."""

    def load(directory, **options):
        return load_model_config(directory, backends=backends, links=Links.ANYWHERE, **options)

    return load


def test_a_version_elsewhere_is_served_from_there(write_model, loading, elsewhere):
    directory = write_model(config=ONNX, files={})
    (elsewhere / "model.onnx").write_bytes(b"")
    (directory / "1").symlink_to(elsewhere)
    loaded = loading(directory)
    assert [(spec.version, spec.version_directory) for spec in loaded.specs] == [(1, elsewhere)]


def test_configuration_model_file_and_labels_may_lie_elsewhere(write_model, loading, elsewhere):
    (elsewhere / "config").write_text(ONNX.replace("dims: 4 }", "dims: 4 label_filename: 'labels.txt' }"))
    text = (elsewhere / "config").read_text()
    (elsewhere / "config").write_text(text.replace(" label_filename: 'labels.txt'", "", 1))
    (elsewhere / "labels").write_text("cat\ndog\n")
    (elsewhere / "model").write_bytes(b"")
    directory = write_model(files={"1/readme": b""})
    (directory / "config.pbtxt").symlink_to(elsewhere / "config")
    (directory / "labels.txt").symlink_to(elsewhere / "labels")
    (directory / "1/model.onnx").symlink_to(elsewhere / "model")
    (spec,) = loading(directory).specs
    assert spec.outputs[0].labels == ("cat", "dog")


@pytest.mark.parametrize(
    ("folder", "more"), [("initial_state", STATE), ("warmup", WARMUP)], ids=["state", "warmup"]
)
def test_data_may_lie_elsewhere_as_a_file_or_its_whole_folder(write_model, loading, elsewhere, folder, more):
    text = ONNX.replace("TYPE_FP32 dims: 4", "TYPE_UINT8 dims: 2") + more
    (elsewhere / "data").write_bytes(b"ab")
    whole, single = write_model("whole", config=text), write_model("single", config=text)
    (whole / folder).symlink_to(elsewhere)
    (single / folder).mkdir()
    (single / folder / "data").symlink_to(elsewhere / "data")
    for directory in (whole, single):
        loaded = loading(directory)
        assert loaded.ok, loaded.errors


@pytest.mark.parametrize("name", ["../outside.txt", "{elsewhere}/outside.txt", "deep/../../outside.txt"])
def test_a_name_that_leads_out_is_refused_all_the_same(write_model, loading, elsewhere, name):
    (elsewhere / "outside.txt").write_text("cat\n")
    text = ONNX.removesuffix("}") + f"label_filename: '{name.format(elsewhere=elsewhere)}' }}"
    directory = write_model(config=text)
    (directory.parent / "outside.txt").write_text("cat\n")
    assert "is outside model directory" in loading(directory).reason


def test_a_model_file_that_is_named_out_is_refused_all_the_same(write_model, loading, elsewhere):
    (elsewhere / "model.onnx").write_bytes(b"")
    directory = write_model(config=ONNX + f"default_model_filename: '{elsewhere}/model.onnx'")
    assert loading(directory).reason.endswith("is outside the model repository")


@pytest.mark.parametrize(
    ("links", "ok"), [(Links.ANYWHERE, True), (Links.INSIDE, False)], ids=lambda value: str(value)
)
def test_operator_libraries_are_no_exception(write_model, backends, elsewhere, links, ok):
    (elsewhere / "ops.so").write_bytes(b"")
    directory = write_model(config=ONNX + "model_operations { op_library_filename: 'ops.so' }")
    (directory / "ops.so").symlink_to(elsewhere / "ops.so")
    loaded = load_model_config(directory, backends=backends, links=links)
    assert loaded.ok is ok
    assert ok or loaded.reason == (
        "Invalid argument: model 'm': no operator library 'ops.so' in the model directory"
    )


@pytest.mark.parametrize("target", ["nothing", "1"], ids=["nothing", "a loop"])
def test_a_version_that_is_a_link_to_nothing_is_told(write_model, loading, target):
    directory = write_model(config=ONNX, files={})
    (directory / "1").symlink_to(target)
    loaded = loading(directory)
    assert loaded.reason.startswith("Invalid argument: at least one version must be available")
    assert [problem.message for problem in loaded.warnings] == [
        f"version directory '1' is ignored: it is a link to '{target}', and there is nothing"
    ]


@pytest.mark.parametrize("target", ["nothing", "config.pbtxt"], ids=["nothing", "a loop"])
def test_a_configuration_that_is_a_link_to_nothing_is_an_error(write_model, loading, target):
    directory = write_model()
    (directory / "config.pbtxt").symlink_to(target)
    loaded = loading(directory)
    assert not loaded.readable
    assert "failed to read text proto" in loaded.reason


class TestStrictSandbox:
    """A worker that is shut in must be told what else is its model's."""

    STRICT = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }'

    @pytest.fixture
    def model(self, write_model):
        directory = write_model(config=PYTHON, files={"1/readme": b""})
        other = directory.parent / "other"
        other.mkdir()
        (other / "model.py").write_text("")
        (directory / "1/model.py").symlink_to(other / "model.py")
        return directory

    def linked(self, model, backends, links, more=""):
        (model / "config.pbtxt").write_text(PYTHON + more)
        return load_model_config(model, backends=backends, links=links).specs[0].linked

    def test_it_may_read_what_lies_elsewhere_and_is_the_model_s(self, model, backends):
        target = model.parent / "other/model.py"
        assert self.linked(model, backends, Links.ANYWHERE, self.STRICT) == (target,)

    def test_without_it_nobody_asks(self, model, backends):
        assert self.linked(model, backends, Links.ANYWHERE) == ()

    def test_inside_it_may_read_its_own_folder(self, model, backends):
        assert self.linked(model, backends, Links.INSIDE, self.STRICT) == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_the_server_may_not_read_is_told(write_model, loading, elsewhere):
    (elsewhere / "labels").write_text("cat\n")
    (elsewhere / "labels").chmod(0)
    directory = write_model(config=ONNX.removesuffix("}") + "label_filename: 'labels.txt' }")
    (directory / "labels.txt").symlink_to(elsewhere / "labels")
    assert "Permission denied" in loading(directory).reason


def test_a_plan_for_one_kind_of_gpu_may_not_lie_elsewhere(write_model, elsewhere):
    (elsewhere / "plan").touch()
    config = (
        'platform: "tensorrt_plan" max_batch_size: 1 instance_group { kind: KIND_CPU }'
        ' cc_model_filenames { key: "8.6" value: "ampere.plan" }'
    )
    directory = write_model(config=config, files={"1/model.plan": b""})
    (directory / "1/ampere.plan").symlink_to(elsewhere / "plan")
    traits = {"tensorrt": BackendTraits(name="tensorrt", default_artifact="model.plan")}
    (error,) = load_model_config(directory, backends=traits).errors
    assert (error.key, error.message) == (
        'cc_model_filenames["8.6"]',
        "model file 'ampere.plan' of model 'm', version 1, is outside the model repository",
    )
    assert load_model_config(directory, backends=traits, links=Links.ANYWHERE).ok
