"""The command `hypercorn`, started as an operator would who forgot something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.support.operators import clean_environ

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.system, pytest.mark.slow]


def started(words, folder, *, before=(), flags=(), **environ):
    """Run a command to its end, and return it with what it said."""
    path = f"{ROOT}:{ROOT / 'engine/worker/authoring/public'}"
    return subprocess.run(
        [*before, sys.executable, *flags, "-m", *words],
        cwd=folder,
        env=clean_environ() | {"PYTHONPATH": path, "TRITIUM_ALLOW_GRPC": "false"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def foreign(tmp_path):
    """Return a folder in which `engine` is not Tritium's."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["engine.asgi"], -10),
        (["tritium.asgi", "-k", "trio"], -10),
        (["tritium.asgi", "--workers", "0"], 1),
    ],
)
def test_a_forgotten_repository_is_told_in_a_line_and_by_the_status(tmp_path, words, status):
    ended = started(["hypercorn", "-b", "127.0.0.1:0", *words], tmp_path)
    (said,) = [line for line in ended.stderr.splitlines() if "Running on" not in line]
    assert said.startswith("error: --model-repository must be specified")
    assert "TRITIUM_MODEL_REPOSITORY=DIR" in said
    assert ended.returncode == status


def _unshares() -> bool:
    command = ["unshare", "-pf", "--mount-proc", "true"]
    return (
        which("unshare") is not None
        and not subprocess.run(command, check=False, capture_output=True).returncode
    )


@pytest.mark.skipif(not _unshares(), reason="no process ids of one's own: that needs root")
@pytest.mark.parametrize("words", [[], ["-k", "trio"]])
def test_as_process_1_hypercorn_is_made_to_fail_too(tmp_path, words):
    command = ["hypercorn", "-b", "127.0.0.1:0", "tritium.asgi", *words]
    ended = started(command, tmp_path, before=["unshare", "-pf", "--mount-proc"], flags=["-O"])
    said = [line for line in ended.stderr.splitlines() if "Running on" not in line]
    assert said[0].startswith("error: --model-repository must be specified")
    assert "So that it ends with 1" in said[1]
    assert said[-1] == "OSError: [Errno 24] Too many open files"
    assert "resource_tracker" not in ended.stderr
    assert ended.returncode == 1


@pytest.mark.skipif(not _unshares(), reason="no process ids of one's own: that needs root")
def test_process_1_without_workers_needs_no_help(tmp_path):
    command = ["hypercorn", "-b", "127.0.0.1:0", "tritium.asgi", "--workers", "0"]
    ended = started(command, tmp_path, before=["unshare", "-pf", "--mount-proc"])
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 1


def test_a_server_that_fails_after_its_start_ends_hypercorn_with_a_status(tmp_path):
    ended = started(
        ["hypercorn", "-b", "127.0.0.1:0", "tritium.asgi"],
        tmp_path,
        TRITIUM_MODEL_REPOSITORY=str(tmp_path),
        TRITIUM_MODEL_CONTROL_MODE="explicit",
        TRITIUM_LOAD_MODEL="missing",
        TRITIUM_ALLOW_METRICS="false",
    )
    assert "failed to load all models" in ended.stdout
    assert "resource_tracker" not in ended.stderr
    assert ended.returncode == -10


@pytest.mark.parametrize(
    ("words", "status"), [(["hypercorn", "tritium.asgi"], -10), (["tritium", "--version"], 1)]
)
def test_another_package_named_engine_is_told_apart(foreign, words, status):
    ended = started(words, foreign)
    (said,) = ended.stderr.splitlines()
    assert f"another package 'engine', {foreign / 'engine'}," in said
    assert ended.returncode == status


def test_the_core_is_chosen_before_anything_that_it_chooses(tmp_path):
    code = "import tritium, sys; names = [*sys.modules]; first = names.index; "
    code += "print(first('engine.core.chosen') < min(first(name) for name in names if name[:7] == 'actors.'))"
    path = f"{ROOT}:{ROOT / 'engine/worker/authoring/public'}"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=clean_environ() | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "True\n"


def test_the_command_is_there_as_a_module(tmp_path):
    assert started(["tritium", "--version"], tmp_path).stdout.startswith("tritium")
