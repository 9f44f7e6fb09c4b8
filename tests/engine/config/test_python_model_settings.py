"""Settings that only Python models have: how many batches at once, and backends written in Python."""

import pytest

from engine.config.load import load_model_config
from engine.processes.backends import discover
from engine.settings.forms import SettingsError
from engine.settings.settings import Settings

MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [2]})
        return config
"""


def concurrency(value):
    return f'parameters {{ key: "tritium.concurrency" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    ("group", "workers"), [("", 1), ("instance_group [ { count: 3 kind: KIND_CPU } ]", 3)]
)
def test_every_instance_may_have_so_many_batches_under_way(load, group, workers):
    found = load(f'backend: "python" {group} {concurrency(8)}', files={"1/model.py": MODEL})
    assert [instance.lanes for instance in found.specs[0].instances] == [8] * workers


def test_without_the_setting_it_is_one(load):
    found = load('backend: "python"', files={"1/model.py": MODEL})
    assert [instance.lanes for instance in found.specs[0].instances] == [1]


@pytest.mark.parametrize("value", ["0", "65", "-1", "many", "1.5", ""])
def test_a_wrong_number_is_told_what_is_right(load, value):
    found = load(f'backend: "python" {concurrency(value)}', files={"1/model.py": MODEL})
    [problem] = [problem for problem in found.problems if problem.is_error]
    assert problem.message == f"'tritium.concurrency' is '{value}', which is no valid value"
    assert problem.hint == "use a whole number from 1 to 64"


def test_it_is_a_setting_of_python_models(load):
    found = load(f'backend: "mine" {concurrency(2)}', files={"1/model.mine": ""})
    [problem] = [problem for problem in found.problems if problem.is_error]
    assert problem.message == "'tritium.concurrency' is a setting of Python models, not of 'mine'"


@pytest.fixture
def backend_directory(tmp_path):
    """A directory with a backend called `mine_in_python`, and something that is no backend."""
    for name in ("mine_in_python", "onnxruntime"):
        (tmp_path / "backends" / name).mkdir(parents=True)
        (tmp_path / "backends" / name / "model.py").write_text(MODEL)
    (tmp_path / "backends" / "compiled").mkdir()
    (tmp_path / "backends" / "compiled" / "libtriton_compiled.so").write_bytes(b"")
    return tmp_path / "backends"


def test_a_folder_with_a_model_file_is_a_backend(backend_directory):
    found = discover(backend_directory)
    traits = found["mine_in_python"]
    assert traits.implementation == str(backend_directory / "mine_in_python" / "model.py")
    assert (traits.target, traits.runs_python, traits.completes) == (found["python"].target, True, True)
    assert "compiled" not in found
    assert found["onnxruntime"] == discover()["onnxruntime"]  # those that are installed go first


@pytest.mark.system
def test_its_models_need_no_file_and_are_completed_by_it(write_model, backend_directory):
    directory = write_model("m", 'backend: "mine_in_python"', {"1/weights": "1"})
    found = load_model_config(directory, backends=discover(backend_directory))
    assert found.ok
    [spec] = found.specs
    assert spec.artifact == str(backend_directory / "mine_in_python" / "model.py")
    assert [tensor.name for tensor in spec.inputs] == ["A"]


def test_a_backend_directory_that_can_not_be_listed_ends_the_start(tmp_path):
    words = ["--model-repository=/models", f"--backend-directory={tmp_path / 'absent'}"]
    with pytest.raises(SettingsError, match="can't be listed: No such file or directory"):
        Settings.from_argv(words)
    assert Settings.from_argv(words[:1]).backend_directory is None
    assert Settings.from_argv([words[0], f"--backend-directory={tmp_path}"]).backend_directory == tmp_path
