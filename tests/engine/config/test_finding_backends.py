"""What runs a model: a class that is installed, a library, or the `model.py` of its backend."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import ErrorCode
from engine.config.load import load_model_config
from engine.config.rules.finding import SCRIPT, Candidates, Runner, escapes, find, library_of
from engine.processes.backends import discover

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""
ALL = Candidates(installed=True, library=True, script=True)
INSTALLED = Candidates(installed=True)
LIBRARY = Candidates(library=True)
IN_PYTHON = Candidates(script=True)

FOUND = [
    ("what is installed goes first", "", ALL, Runner.INSTALLED),
    ("then a library", "", Candidates(library=True, script=True), Runner.LIBRARY),
    ("then the backend's model.py", "", IN_PYTHON, Runner.SCRIPT),
    ("nothing is there", "", Candidates(), None),
    ("runtime names the model.py", "model.py", ALL, Runner.SCRIPT),
    ("a class that serves that runtime", "model.py", Candidates(installed=True, own_script=True),
     Runner.INSTALLED),
    ("a class that does not", "model.py", INSTALLED, None),
    ("a library is no model.py", "model.py", LIBRARY, None),
    ("runtime names the usual library", "libtriton_b.so", ALL, Runner.LIBRARY),
    ("a class stands for the usual library", "libtriton_b.so", INSTALLED, Runner.INSTALLED),
    ("also under another spelling", "./libtriton_b.so", INSTALLED, Runner.INSTALLED),
    ("the python backend needs no library", "libtriton_b.so",
     Candidates(installed=True, python=True, own_script=True, library=True), Runner.INSTALLED),
    ("runtime names another library", "lib/other.so", ALL, Runner.LIBRARY),
    ("another library that is not there", "lib/other.so", Candidates(installed=True, script=True), None),
    ("another file of Python", "other.py", IN_PYTHON, None),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "there", "runner"), [pytest.param(*row[1:], id=row[0]) for row in FOUND])
def test_a_backends_name_and_the_runtime_decide_what_runs_a_model(runtime, there, runner):
    assert find("b", runtime, there) is runner


def test_the_library_is_called_after_the_backend_unless_the_runtime_says_otherwise():
    assert library_of("b", "") == "libtriton_b.so"
    assert library_of("b", "lib/../mine.so") == "mine.so"
    assert library_of("b", SCRIPT) == library_of("b", "../mine.so") == ""


@pytest.mark.parametrize("runtime", ["/usr/lib/x.so", "..", "../x.so", "a/../../x.so"])
def test_a_runtime_out_of_the_directory_is_known(runtime):
    assert escapes(runtime)
    assert not any(map(escapes, ("", "x.so", "a/../x.so", "model.py", "..x.so")))


@given(st.sampled_from(["", "model.py", "libtriton_b.so", "x.so"]), st.tuples(*[st.booleans()] * 5))
def test_only_what_is_there_is_chosen(runtime, flags):
    there = Candidates(
        **dict(zip(("installed", "own_script", "python", "library", "script"), flags, strict=True))
    )
    runner = find("b", runtime, there)
    assert runner is not Runner.LIBRARY or there.library
    assert runner is not Runner.SCRIPT or there.script
    assert runner is not Runner.INSTALLED or there.installed or there.own_script
    assert runner is not Runner.SCRIPT or runtime in ("", SCRIPT)


@pytest.fixture
def backend_directory(tmp_path):
    """A directory with a backend of our own, and Triton's variant of an installed one."""
    for name in ("mine", "pytorch"):
        (tmp_path / "backends" / name).mkdir(parents=True)
        (tmp_path / "backends" / name / "model.py").write_text(MODEL)
    (tmp_path / "backends" / "compiled").mkdir()
    (tmp_path / "backends" / "compiled" / "libtriton_compiled.so").touch()
    return tmp_path / "backends"


@pytest.fixture
def find_for(write_model, backend_directory):
    """Write a model with a configuration, and load it."""

    def write_and_load(config, *, files=None, **options):
        directory = write_model("m", config, files or {"1/weights": ""})
        return load_model_config(directory, backends=discover(backend_directory), **options)

    return write_and_load


def test_a_backend_in_python_writes_its_runtime_into_the_configuration(find_for, backend_directory):
    found = find_for('backend: "mine"')
    assert found.ok
    [spec] = found.specs
    assert spec.artifact == str(backend_directory / "mine" / "model.py")
    [version] = found.configs
    assert version.completed.config.runtime == "model.py"
    assert not version.completed.config.default_model_filename


def test_its_instances_are_on_the_cpu_unless_they_say_otherwise(find_for):
    [spec] = find_for('backend: "mine"', gpus=1).specs
    assert [instance.kind for instance in spec.instances] == ["CPU"]


@pytest.mark.parametrize("kind", ["CPU", "GPU", "MODEL"])
def test_its_instances_may_have_any_kind(find_for, kind):
    [spec] = find_for(f'backend: "mine" instance_group {{ kind: KIND_{kind} count: 2 }}', gpus=1).specs
    assert [instance.kind for instance in spec.instances] == [kind, kind]


def test_the_runtime_leads_to_the_variant_of_an_installed_backend(find_for, backend_directory):
    tensors = (
        'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
    )
    found = find_for(f'backend: "pytorch" runtime: "model.py" {tensors}')
    [spec] = found.specs
    assert spec.artifact == str(backend_directory / "pytorch" / "model.py")
    [version] = found.configs
    assert version.completed.config.platform == "pytorch_libtorch"
    # Its file would be taken for TorchScript.
    assert not version.completed.config.default_model_filename


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        (
            'backend: "onnxruntime" runtime: "model.py"',
            "runtime",
            "unable to find Python backend based backend library 'model.py' for model 'm', searched:"
            " '<--backend-directory>/onnxruntime'",
        ),
        (
            'backend: "mine" runtime: "libmine.so"',
            "runtime",
            "unable to find backend library 'libmine.so' for model 'm', searched:"
            " {models}/m/1, {models}/m, {backends}/mine",
        ),
        (
            'backend: "mine" runtime: "../onnxruntime/model.py"',
            "runtime",
            "backend library name '../onnxruntime/model.py' escapes backend directory"
            " '/opt/tritonserver/backends/mine', for model 'm', check model config runtime field",
        ),
        (
            'backend: "absent"',
            "backend",
            "unable to find backend library for backend 'absent',"
            " try specifying runtime on the model configuration.",
        ),
    ],
)
def test_a_runtime_that_is_not_there_is_refused(find_for, backend_directory, config, key, message):
    found = find_for(config)
    places = {"models": str(backend_directory.parent / "repository"), "backends": str(backend_directory)}
    [problem] = [problem for problem in found.problems if problem.is_error and problem.key == key]
    assert problem.message == message.format(**places)
    assert problem.code is ErrorCode.INVALID_ARG


def test_the_content_of_a_version_is_that_of_its_backends_code_as_well(find_for, backend_directory):
    def content(**options) -> str:
        shutil.rmtree(backend_directory.parent / "repository", ignore_errors=True)
        [spec] = find_for('backend: "mine"', **options).specs
        return spec.content

    code = backend_directory / "mine" / "model.py"
    before = content(content={1: "files"})
    assert before != "files"
    assert content() == ""  # what is not known is not made up
    os.utime(code)
    (backend_directory / "mine" / "__pycache__").mkdir()
    (backend_directory / "mine" / "__pycache__" / "model.pyc").touch()
    (backend_directory / "mine" / "pb_exec_env_other.tar.gz").touch()
    assert content(content={1: "files"}) == before
    code.write_text(MODEL + "# another\n")
    second = content(content={1: "files"})
    assert second != before
    (backend_directory / "mine" / "beside.py").touch()
    assert content(content={1: "files"}) not in (before, second)


def test_a_backends_folder_that_has_gone_is_no_error_of_its_digest(write_model, backend_directory):
    backends = discover(backend_directory)
    shutil.rmtree(backend_directory / "mine")
    directory = write_model("m", 'backend: "mine"', {"1/weights": ""})
    [spec] = load_model_config(directory, backends=backends, content={1: "files"}).specs
    assert Path(spec.artifact).parent == backend_directory / "mine"


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (
            "dali",
            "put its libtriton_dali.so into <--backend-directory>/dali; or serve 'model.dali' and 'dali.py'",
        ),
        ("square", "docs/decoupled.md"),
        ("identity", "examples/models/identity_fp32"),
        ("implicit_state", "libtriton_implicit_state.so into <--backend-directory>/implicit_state"),
        ("recommended", "examples/c_backend"),
        ("nvtabular", "put its folder into <--backend-directory>/nvtabular"),
        ("caffe2_netdef", "export the model to ONNX"),
        ("custom", "docs/backends/c_libraries.md"),
        ("ensemble", 'write platform: "ensemble"'),
        ("xgboost", "did you mean 'fil'?"),
        ("custom/identity", 'without a folder: write backend: "identity"; it is one of Triton\'s own tests'),
        ("a/libtriton_b.so", 'without its file: write backend: "b"; if it is a backend of your own, put its'),
        ("acme", "put its libtriton_acme.so or its model.py into <--backend-directory>/acme"),
        ("!", "backends here: "),
    ],
)
def test_a_backend_of_tritons_that_is_not_here_is_known_by_name(find_for, backend, said):
    [problem] = [each for each in find_for(f'backend: "{backend}"').problems if each.is_error]
    assert problem.message == (
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model"
        " configuration."
    )
    assert said in problem.hint


@pytest.mark.parametrize("file", ["model.dali", "dali.py"])
def test_the_files_of_a_dali_model_without_a_backend_say_so(find_for, file):
    [problem] = [each for each in find_for("", files={f"1/{file}": ""}).problems if each.is_error]
    assert problem.message.startswith("Invalid model name: Could not determine backend for model 'm'")
    assert problem.hint == 'write backend: "dali"'


def test_a_library_among_a_models_files_says_which_backend_is_meant(find_for):
    files = {"1/libtriton_scale.so": "", "1/weights": ""}
    [problem] = [each for each in find_for("", files=files).problems if each.is_error]
    assert problem.hint == 'write backend: "scale"'


@pytest.mark.parametrize("filename", ["", "net.py"])
def test_pytorchs_own_runtime_in_python_is_not_completed_from_its_file(write_model, filename):
    named = f'default_model_filename: "{filename}"' if filename else ""
    text = f'backend: "pytorch" runtime: "model.py" {named}'
    directory = write_model("m", text, {"1/model.py": "import torch", "1/model.pt": "weights"})
    found = load_model_config(directory, backends=discover(), verify_files=True)
    assert found.ok  # that it has no inputs is for the backend to say
    [spec] = found.specs
    assert spec.target == ""
    [version] = found.configs
    config = version.completed.config
    assert (config.platform, config.default_model_filename) == ("pytorch_libtorch", filename)


def test_a_module_that_is_not_there_is_found_by_a_check(write_model):
    directory = write_model("m", 'backend: "pytorch" runtime: "model.py"', {"1/other.py": ""})
    found = load_model_config(directory, backends=discover(), verify_files=True)
    [problem] = found.errors
    assert problem.message == f"No model found in {directory}/1/['model.py', 'model.pt']"
