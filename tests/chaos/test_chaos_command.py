"""What people meet at the command line: examples that work, and errors that say what to do."""

import re
import subprocess
import sys

import psutil
import pytest

from chaos.__main__ import EXAMPLES, _without_places, main
from chaos.faults.workers import backends
from chaos.flags import EVERY_FAULT
from chaos.subject.processes import alive
from tests.support.environments import TENSORFLOW


def test_the_faults_in_the_examples_are_there():
    [named] = re.findall(r"--only ([a-z_ ]+)", EXAMPLES)
    assert set(named.split()) <= EVERY_FAULT.keys()


def test_a_folder_without_a_record_can_not_be_checked(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path)])
    assert ended.value.code == 2
    assert f"no manifest.json in {tmp_path}" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "precious").write_text("")
    assert main(["--minutes", "0.1", "--folder", str(tmp_path)]) == 2
    assert "name a folder that is empty, or not there" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["precious"]


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_a_run_that_is_told_to_end_leaves_no_server_behind(tmp_path):
    command = [sys.executable, "-m", "chaos", "--minutes", "5", "--folder", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        told: list[str] = []
        assert run.stderr is not None
        while not any(" calm, " in line for line in told):
            told.append(run.stderr.readline())
            assert told[-1], told
        server = psutil.Process(run.pid).children(recursive=True)
        assert len(server) > 10  # it and its workers
        run.terminate()
        told += run.stderr
    assert run.returncode == 2
    assert "error: ended by SIGTERM\n" in told
    assert not [each for each in server if alive(each)]


@pytest.mark.parametrize(
    "words", [["--folder", "/here", "--seed", "3"], ["--seed", "3", "--folder=/here", "--report=x"]]
)
def test_a_report_does_not_name_the_places_of_this_machine(words):
    assert _without_places(words) == ["--seed", "3"]


@pytest.mark.long
@pytest.mark.system
def test_one_model_of_each_backend_answers_right_under_kills_and_poison(tmp_path):
    of_backends = [name for name, fault in EVERY_FAULT.items() if fault in backends.FAULTS]
    arguments = ["--backends", "--minutes", "1", "--rate", "40", "--no-endings", "--judge", "answers"]
    if TENSORFLOW.named:
        arguments += ["--tensorflow", TENSORFLOW.named]
    command = [sys.executable, "-m", "chaos", *arguments, "--only", *of_backends]
    done = subprocess.run([*command, "--folder", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_of_backends_needs_their_models(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "backend_sigkill"])
    assert "no such fault of a server in poll mode: backend_sigkill" in capsys.readouterr().err
