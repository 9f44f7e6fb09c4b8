"""What an operator reads about a faulty model or repository: the fault and its remedy, once."""

import os
import re
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


FAULTY = {
    "bare_failing": ("model.py", FAILING.encode(), DOUBLE_CONFIG),
    "bare_needy": ("model.py", NEEDY.encode(), DOUBLE_CONFIG),
    "pointer_onnx": ("model.onnx", POINTER.encode(), ""),
    "pointer_onnx_told": ("model.onnx", POINTER.encode(), 'backend: "onnxruntime"\n' + TENSORS),
    "pointer_pt2": ("model.pt2", POINTER.encode(), ""),
    "pointer_pt2_told": ("model.pt2", POINTER.encode(), 'backend: "pytorch"\n' + TENSORS),
    "pointer_weights": ("model.py", FAILING.encode(), DOUBLE_CONFIG),
    "empty_onnx": ("model.onnx", b"", ""),
    "empty_onnx_told": ("model.onnx", b"", 'backend: "onnxruntime"\n' + TENSORS),
    "damaged_onnx": ("model.onnx", b"\x00\x01\x02 nonsense" * 50, ""),
    "damaged_onnx_told": ("model.onnx", b"\x00\x01\x02 nonsense" * 50, 'backend: "onnxruntime"\n' + TENSORS),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A repository of faulty models: what a server says of each on a line, and what a check does."""
    folder = tmp_path_factory.mktemp("faulty")
    for name, (file, content, config) in FAULTY.items():
        write_file(folder / "models", name, file, content, config)
    (folder / "models" / "pointer_weights" / "1" / "weights.bin").write_text(POINTER)
    said = said_by(folder, str(folder / "models"))
    checked = check(folder / "models").stdout

    def lines(name, text=said):
        return [line for line in text.splitlines() if re.search(rf"\b{name}\b", line)]

    return said, checked, lines


@pytest.mark.parametrize(
    ("name", "reason"), [("bare_failing", "no weights here"), ("bare_needy", "nosuchmodule")]
)
def test_why_a_model_fails_is_logged_once_and_without_the_frames_of_imports(faulty, name, reason):
    said, _, lines = faulty
    told = [line for line in lines(name) if "Error: " in line and reason in line]
    logged = [line for line in told if "] " in line]
    assert len(logged) == 1, said  # and once more in the table
    assert len(told) == 2, said
    assert "model.py" in logged[0]
    assert "importlib" not in said
    assert "Traceback" not in said


@pytest.mark.long
def test_the_frames_of_imports_are_told_where_more_is_asked_for(tmp_path):
    write_model(tmp_path / "models", code=NEEDY)
    assert "importlib" in said_by(tmp_path, str(tmp_path / "models"), "--log-verbose=1")


@pytest.mark.parametrize("name", [name for name in FAULTY if name.startswith("pointer")])
def test_a_git_lfs_pointer_is_called_one(faulty, name):
    _, checked, lines = faulty
    told = "\n".join(lines(name))
    assert "is a Git LFS pointer" in told
    if name == "pointer_weights":
        assert "weights.bin' is a Git LFS pointer" in told
        assert "no weights here" in told
    else:
        assert "git lfs pull" in told
        assert "git lfs pull" in checked


@pytest.mark.parametrize("name", [name for name in FAULTY if name.startswith(("empty", "damaged"))])
def test_a_damaged_onnx_file_is_told_with_what_to_do(faulty, name):
    told = "\n".join(faulty[2](name))
    assert "it is damaged, cut short, or no ONNX model" in told
    assert "compare its checksum" in told


def test_a_models_own_folder_is_no_repository(tmp_path):
    write_model(tmp_path / "models")
    # Of KServe's puller.
    (tmp_path / "models/double/SUCCESS.0123").touch()
    (line,) = said_by(tmp_path, str(tmp_path / "models" / "double")).splitlines()
    assert line == (
        f"error: creating server: Invalid argument - '{tmp_path}/models/double' is the directory of one model, 'double', and"
        " not a repository of models: it holds '1', 'config.pbtxt'. Give the directory that it is in,"
        f" '{tmp_path}/models', or move all of it into a folder with the model's name, such as"
        f" '{tmp_path}/models/double/my_model'"
    )


def test_an_empty_repository_is_told_and_served(tmp_path):
    (tmp_path / "models").mkdir()
    with serving(tmp_path, str(tmp_path / "models")) as server:
        server.wait_ready()
        assert f"the model repository '{tmp_path}/models' has no models" in server.said
        assert f"{tmp_path}/models/resnet/1/model.onnx" in server.said
    assert "has no models" in check(tmp_path / "models").stderr


def test_a_missing_package_is_one_sentence_with_the_cure(tmp_path):
    packages = {
        "onnxruntime": ("onnxruntime", "model.onnx", "onnx"),
        "pytorch": ("torch", "model.pt", "torch"),
    }
    for backend, (_, file, _) in packages.items():
        write_file(tmp_path / "models", backend, file, b"x", f'backend: "{backend}"\n{TENSORS}')
    # A finder that does not know the packages stands in for an installation without them.
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('onnxruntime', 'torch'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    environ = clean_environ(PYTHONPATH=str(tmp_path / "without"))
    said = said_by(tmp_path, str(tmp_path / "models"), environ=environ)
    checked = check(tmp_path / "models", environ=environ)
    assert checked.returncode == 1
    assert "importlib" not in said
    for backend, (package, _, extra) in packages.items():
        missing = f"the package '{package}' is not installed: "
        told = f"model '{backend}' can't run with backend '{backend}' here, {missing}"
        [logged] = [line for line in said.splitlines() if told in line and "] " in line]
        assert how_to_install(extra) in logged
        assert told + how_to_install(extra) in checked.stdout


def test_a_collector_without_the_package_is_one_sentence_with_the_cure(tmp_path):
    """The server does not start: it would serve without the traces that its operator counts on."""
    write_model(tmp_path / "models")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('opentelemetry'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    environ = clean_environ(PYTHONPATH=str(tmp_path / "without"))
    mode = "--trace-config=mode=opentelemetry"
    (line,) = said_by(tmp_path, str(tmp_path / "models"), mode, environ=environ).splitlines()
    assert line == (
        f"error: {mode} needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http:"
        f" {how_to_install('otel')}"
    )


def test_settings_of_a_collector_that_make_no_sense_are_told(tmp_path):
    write_model(tmp_path / "models")
    config = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,bsp_max_queue_size=7"]
    (line,) = said_by(tmp_path, str(tmp_path / "models"), *config).splitlines()
    assert line == (
        "error: --trace-config: opentelemetry,bsp_max_export_batch_size=512:"
        " at most bsp_max_queue_size, which is 7"
    )


def test_a_server_without_a_collector_imports_nothing_for_one():
    """Whatever is installed."""
    code = (
        "import engine.asgi, engine.server.tree, sys; print([n for n in sys.modules if 'opentelemetry' in n])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"


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
