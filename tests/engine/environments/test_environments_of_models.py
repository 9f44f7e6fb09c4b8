"""What a model's configuration and files say about its environment, and the errors where it cannot run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.values.specs import Runtime
from engine.config.load import load_model_config
from engine.environments.cache import EnvironmentCache, Standing
from engine.environments.declared import Kind
from engine.environments.layout import EnvironmentFailed
from engine.processes.backends import discover
from tests.engine.environments.sources import make_environment, make_wheel, offline

ROOT = Path(__file__).parents[3]
PLAIN = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
COMPLETING = """
import os, sys
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": os.environ["COLOUR"], "data_type": "TYPE_FP32", "dims": [len(sys.path)]})
        return config
"""


@pytest.fixture
def model(tmp_path):
    """Write a model's files; return a reader of its configuration."""
    directory = tmp_path / "models" / "m"

    def write(config="", files=None, *, backend="python", folder=None, outcomes=None, **options):
        for name, text in {"1/model.py": PLAIN, **(files or {})}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (directory / "config.pbtxt").write_text(f'backend: "{backend}"\n{config}')
        cache = EnvironmentCache(tmp_path / "cache", environ={"PATH": "/bin"})
        return load_model_config(
            directory, backends=discover(folder), environments=Standing(cache, outcomes or {}), **options
        )

    return write


def parameter(name, value):
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def test_a_model_that_asks_for_nothing_runs_on_the_servers_interpreter(model):
    loaded = model()
    assert loaded.unbuilt == ()
    assert loaded.specs[0].runtime == Runtime()


def test_versions_may_ask_for_different_environments(model):
    files = {"1/requirements.txt": "tiny==1", "2/requirements.txt": "tiny==2", "3/model.py": PLAIN}
    files["2/model.py"] = PLAIN
    policy = "version_policy { all {} }"
    waiting = model(policy, files)
    assert (waiting.specs, waiting.problems) == ((), ())
    assert [each.source.parent.name for each in waiting.unbuilt] == ["1", "2"]
    first, second = waiting.unbuilt
    outcomes = {
        first: Runtime(interpreter="/one"),
        second: EnvironmentFailed("no tiny==2", hint="ask elsewhere"),
    }
    loaded = model(policy, files, outcomes=outcomes)
    assert loaded.reasons == {2: "Internal: no tiny==2"}
    assert loaded.errors[0].hint == "ask elsewhere"
    outcomes[second] = Runtime(interpreter="/two")
    loaded = model(policy, files, outcomes=outcomes)
    assert [spec.runtime.interpreter for spec in loaded.specs] == ["/one", "/two", ""]


def test_versions_that_ask_for_the_same_share_one(model):
    files = {"1/model.py": PLAIN, "2/model.py": PLAIN, "requirements.txt": "tiny"}
    (environment,) = model("version_policy { all {} }", files).unbuilt
    assert environment.kind is Kind.REQUIREMENTS


def test_a_models_requirements_can_be_left_alone(model):
    loaded = model(parameter("tritium.requirements", "ignore"), {"requirements.txt": "tiny"})
    assert loaded.ok
    assert loaded.specs[0].runtime == Runtime()


def test_a_packed_environment_goes_before_requirements_with_a_warning(model, tmp_path):
    source = make_environment(tmp_path / "env")
    config = parameter("EXECUTION_ENV_PATH", source)
    files = {"requirements.txt": "tiny"}
    (environment,) = model(config, files).unbuilt
    assert (environment.kind, environment.source) == (Kind.DIRECTORY, source)
    loaded = model(config, files, outcomes={environment: Runtime(interpreter="/x")})
    assert loaded.ok
    assert [problem.message for problem in loaded.warnings] == [
        "'requirements.txt' has no effect: the model has an environment by 'EXECUTION_ENV_PATH'"
    ]


@pytest.fixture
def family(tmp_path):
    """The folder of a backend that is written in Python, called `family`."""
    folder = tmp_path / "backends" / "family"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PLAIN)
    return folder


def test_a_backend_in_python_may_bring_the_environment_of_its_models(model, family, tmp_path):
    archive = family / "pb_exec_env_model.py.tar.gz"
    archive.write_bytes(b"packed")
    (family / "requirements.txt").write_text("not-this\n")
    of_backend = {"backend": "family", "folder": family.parent}
    (environment,) = model(**of_backend).unbuilt
    assert (environment.kind, environment.source) == (Kind.ARCHIVE, archive)
    # A model that names its own has that.
    own = make_environment(tmp_path / "env")
    (environment,) = model(parameter("EXECUTION_ENV_PATH", own), **of_backend).unbuilt
    assert (environment.kind, environment.source) == (Kind.DIRECTORY, own)
    # It is what the backend was packed with, so that a file of the model's is information.
    (environment,) = model(files={"requirements.txt": "tiny"}, **of_backend).unbuilt
    assert environment.source == archive
    loaded = model(outcomes={environment: Runtime(interpreter="/x")}, **of_backend)
    assert [problem.message for problem in loaded.warnings] == [
        f"'requirements.txt' has no effect: the model has the environment of its backend, '{archive}'"
    ]


def test_the_requirements_of_a_backend_are_installed_for_models_without_their_own(model, family):
    (family / "requirements.txt").write_text("tiny\n")
    of_backend = {"backend": "family", "folder": family.parent}
    (environment,) = model(**of_backend).unbuilt
    assert (environment.kind, environment.source) == (Kind.REQUIREMENTS, family / "requirements.txt")
    assert model(parameter("tritium.requirements", "ignore"), **of_backend).unbuilt == ()
    (environment,) = model(files={"requirements.txt": "tiny==2"}, **of_backend).unbuilt
    assert environment.source.parent.name == "m"


def test_what_lies_beside_an_installed_backend_is_no_environment_of_its_models(model, family):
    folder = family.rename(family.parent / "python")
    (folder / "pb_exec_env_model.py.tar.gz").write_bytes(b"packed")
    (folder / "requirements.txt").write_text("tiny\n")
    assert model(folder=folder.parent).unbuilt == ()


def test_no_environment_is_found_for_a_model_on_a_thread_of_the_server(model):
    loaded = model(parameter("tritium.isolation", "thread"), {"requirements.txt": "tiny"})
    (problem,) = loaded.errors
    assert "needs a process of its own, but 'tritium.isolation' is 'thread'" in problem.message
    assert loaded.unbuilt == ()


def test_other_backends_have_no_environments(model):
    config = parameter("EXECUTION_ENV_PATH", "/x") + parameter("tritium.requirements", "ignore")
    loaded = model(config, {"requirements.txt": "tiny"}, backend="onnxruntime")
    assert loaded.unbuilt == ()
    assert any("'EXECUTION_ENV_PATH' has no effect" in problem.message for problem in loaded.warnings)
    assert "'tritium.requirements' is a setting of Python models, not of 'onnxruntime'" in [
        problem.message for problem in loaded.errors
    ]


def test_a_path_that_leads_nowhere_is_the_versions_reason(model):
    loaded = model(parameter("EXECUTION_ENV_PATH", "/gone.tar.gz"))
    assert loaded.reasons == {1: "Internal: Failed to get the canonical path for /gone.tar.gz."}


@pytest.mark.system
@pytest.mark.slow
def test_auto_completion_runs_on_the_models_own_interpreter(model, tmp_path):
    source = make_environment(tmp_path / "env")
    config = parameter("EXECUTION_ENV_PATH", source)
    files = {"1/model.py": COMPLETING}
    (environment,) = model(config, files).unbuilt
    runtime = Runtime(interpreter=str(source / "bin" / "python3"), environ=(("COLOUR", "blue"),))
    loaded = model(config, files, outcomes={environment: runtime})
    assert loaded.ok, loaded.problems
    assert loaded.specs[0].outputs[0].name == "blue"


@pytest.mark.slow
def test_model_code_is_not_run_where_its_environment_could_not_be_had(model):
    files = {"1/model.py": COMPLETING, "requirements.txt": "tiny"}
    (environment,) = model("", files).unbuilt
    loaded = model("", files, outcomes={environment: EnvironmentFailed("no network")})
    assert [problem.message for problem in loaded.errors] == ["no network"]


@pytest.fixture
def check(tmp_path):
    """Run `tritium check`; return its exit status and its whole output, without line breaks."""

    def run(*flags):
        cache = f"--environment-cache={tmp_path / 'cache'}"
        done = subprocess.run(
            [sys.executable, "-m", "engine", "check", tmp_path / "models", cache, *flags],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **offline(tmp_path / "wheels")},
            check=False,
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.system
@pytest.mark.slow
def test_check_builds_nothing_and_says_so(model, check, tmp_path):
    model("", {"1/model.py": COMPLETING, "requirements.txt": "tiny"})
    status, said = check()
    assert status == 0, said
    assert "requirements.txt' is not built yet, so that nothing was run in it" in said
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_check_builds_environments_where_it_is_told_to(model, check, tmp_path):
    make_wheel(tmp_path / "wheels", "tiny", "1.0")
    completing = COMPLETING.replace('os.environ["COLOUR"]', "__import__('tiny').VERSION")
    model("", {"1/model.py": completing, "requirements.txt": "tiny"})
    status, said = check("--build-environments")
    assert status == 0, said
    assert "requirements.txt: making a virtual environment" in said
    assert 'name: "1.0"' in said
    assert check()[0] == 0
    assert "not built yet" not in check()[1]


@pytest.mark.system
@pytest.mark.slow
def test_check_looks_into_an_unpacked_environment(model, check, tmp_path):
    source = make_environment(tmp_path / "env", activate="export COLOUR=blue\n")
    model(parameter("EXECUTION_ENV_PATH", source), {"1/model.py": COMPLETING})
    status, said = check()
    assert status == 0, said
    assert 'name: "blue"' in said
