"""What an operator reads about a faulty model or repository: the fault and its remedy, once."""

import os
import subprocess
import sys

import pytest

from engine.settings.extras import how_to_install
from tests.support.operators import DOUBLE_CONFIG, ROOT, clean_environ, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
FAILING = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
"""
NEEDY = "import nosuchmodule\n" + FAILING
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def said_by(folder, *flags, environ=None, status=1):
    """Run a server that ends by itself, and return its whole output."""
    with serving(folder, *flags, environ=environ) as server:
        assert server.wait() == status, server.said
        return server.said


def check(path, *flags, environ=None):
    return subprocess.run(
        [sys.executable, "-m", "engine", "check", str(path), *flags],
        cwd=ROOT,
        env=environ or clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_file(repository, name, file, content, config=""):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / file).write_bytes(content)
    if config:
        (repository / name / "config.pbtxt").write_text(config)


@pytest.mark.parametrize(("code", "reason"), [(FAILING, "no weights here"), (NEEDY, "nosuchmodule")])
def test_why_a_model_fails_is_logged_once_and_without_the_frames_of_imports(tmp_path, code, reason):
    write_model(tmp_path / "models", code=code)
    said = said_by(tmp_path, str(tmp_path / "models"))
    lines = [line for line in said.splitlines() if "Error: " in line and reason in line]
    logged = [line for line in lines if "] " in line]
    assert len(logged) == 1, said  # and once more in the table
    assert len(lines) == 2, said
    assert "model.py" in logged[0]
    assert "importlib" not in said
    assert "Traceback" not in said
    verbose = said_by(tmp_path, str(tmp_path / "models"), "--log-verbose=1")
    assert ("importlib" in verbose) is (code is NEEDY)


@pytest.mark.parametrize("config", ["", 'backend: "onnxruntime"\n' + TENSORS])
@pytest.mark.parametrize("file", ["model.onnx", "model.pt2"])
def test_a_git_lfs_pointer_is_called_one(tmp_path, file, config):
    backend = "onnxruntime" if file == "model.onnx" else "pytorch"
    write_file(tmp_path / "models", "m", file, POINTER.encode(), config.replace("onnxruntime", backend))
    said = said_by(tmp_path, str(tmp_path / "models"))
    assert "is a Git LFS pointer" in said
    assert "git lfs pull" in said
    assert "git lfs pull" in check(tmp_path / "models").stdout


def test_a_python_model_whose_weights_are_a_git_lfs_pointer_is_told_so(tmp_path):
    write_model(tmp_path / "models", code=FAILING)
    (tmp_path / "models" / "double" / "1" / "weights.bin").write_text(POINTER)
    said = said_by(tmp_path, str(tmp_path / "models"))
    assert "weights.bin' is a Git LFS pointer" in said
    assert "no weights here" in said


@pytest.mark.parametrize("config", ["", 'backend: "onnxruntime"\n' + TENSORS])
@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02 nonsense" * 50])
def test_a_damaged_onnx_file_is_told_with_what_to_do(tmp_path, content, config):
    write_file(tmp_path / "models", "m", "model.onnx", content, config)
    said = said_by(tmp_path, str(tmp_path / "models"))
    assert "it is damaged, cut short, or no ONNX model" in said
    assert "compare its checksum" in said


def test_a_models_own_folder_is_no_repository(tmp_path):
    write_model(tmp_path / "models")
    said = said_by(tmp_path, str(tmp_path / "models" / "double"))
    (line,) = said.splitlines()
    assert line == (
        f"error: creating server: Invalid argument - '{tmp_path}/models/double' is the directory of one model, 'double', and"
        f" not a repository of models: give the directory that it is in, '{tmp_path}/models'"
    )


def test_an_empty_repository_is_told_and_served(tmp_path):
    (tmp_path / "models").mkdir()
    with serving(tmp_path, str(tmp_path / "models")) as server:
        server.wait_ready()
        assert f"the model repository '{tmp_path}/models' has no models" in server.said
        assert f"{tmp_path}/models/resnet/1/model.onnx" in server.said
    assert "has no models" in check(tmp_path / "models").stderr


@pytest.mark.parametrize(
    ("file", "package", "extra"),
    [("model.onnx", "onnxruntime", "onnx"), ("model.pt", "torch", "torch")],
)
def test_a_missing_package_is_one_sentence_with_the_cure(tmp_path, file, package, extra):
    backend = "onnxruntime" if package == "onnxruntime" else "pytorch"
    write_file(tmp_path / "models", "m", file, b"x", f'backend: "{backend}"\n{TENSORS}')
    # A finder that does not know the package stands in for an installation without it.
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    environ = clean_environ(PYTHONPATH=str(tmp_path / "without"))
    told = f"model 'm' can't run with backend '{backend}' here, the package '{package}' is not installed: "
    said = said_by(tmp_path, str(tmp_path / "models"), environ=environ)
    [logged] = [line for line in said.splitlines() if told in line and "] " in line]
    assert how_to_install(extra) in logged
    assert "importlib" not in said
    checked = check(tmp_path / "models", environ=environ)
    assert told + how_to_install(extra) in checked.stdout
    assert checked.returncode == 1


def test_check_can_be_one_line_a_model(tmp_path):
    write_model(tmp_path / "models", "good")
    write_model(tmp_path / "models", "odd", config=DOUBLE_CONFIG + "\nmax_batch_sise: 3\n")
    quiet = check(tmp_path / "models", "--quiet")
    good, odd = quiet.stdout.splitlines()
    assert good == "good: ok"
    assert odd.startswith("odd: ")
    assert "max_batch_sise" in odd
    assert quiet.returncode == 1
    assert os.path.isdir(tmp_path / "models")
