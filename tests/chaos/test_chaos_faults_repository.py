"""A repository that changes under a real server, well and badly, under a small load."""

import hashlib
import random

import pytest

from chaos.faults import control, repository
from chaos.faults.base import NoTarget
from chaos.faults.shelves import Shelf, serving_alone
from chaos.workload.repository import write_repository
from tests.chaos.faults_bench import bare_stage, bench

# -- against a server


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "flags"),
    [
        pytest.param([*repository.FAULTS, *control.REFUSED], repository.POLLED, id="it polls"),
        pytest.param(control.FAULTS, control.EXPLICIT, id="it is told"),
    ],
)
async def test_no_change_of_a_repository_fails_a_request_and_the_log_tells_of_each(tmp_path, faults, flags):
    async with bench(tmp_path, *flags) as made:
        for fault in faults:
            assert (fault.name, await made.trouble(fault)) == (fault.name, "")
            await made.until_logged(made.injections[-1])
    assert {each.message for each in made.failed()} <= {"batching"}  # whose directory was deleted
    assert [each.models for each in made.injections if each.excuses] == [["batching"]] * (
        flags == repository.POLLED
    )


# -- what they do to the files


@pytest.fixture
def shelf(tmp_path):
    write_repository(tmp_path / "models", run=tmp_path, models=["echo"])
    return Shelf(bare_stage(tmp_path), "echo")


def test_what_is_taken_can_be_given_back(shelf):
    taken = shelf.take()
    assert not shelf.path.exists()
    shelf.give_back(taken)
    assert shelf.versions == [1]


def test_a_version_is_made_beside_the_repository_and_removed_from_it(shelf):
    shelf.copy_of(1).rename(shelf.path / "2")
    assert shelf.versions == [1, 2]
    assert (shelf.path / "2" / "model.py").read_bytes() == (shelf.path / "1" / "model.py").read_bytes()
    shelf.remove("2")
    shelf.remove("2")
    assert shelf.versions == [1]
    assert [each.name for each in shelf.path.parent.iterdir()] == ["echo"]


def test_a_model_that_another_fault_is_changing_is_no_target(shelf, tmp_path):
    stage = bare_stage(tmp_path)
    assert repository.choose(stage, random.Random(1), ["echo"]).model == "echo"
    (shelf.path / "2").mkdir()
    with pytest.raises(NoTarget, match="'echo' is being changed already"):
        repository.choose(stage, random.Random(1), ["echo"])
    shelf.take()
    with pytest.raises(NoTarget):
        repository.choose(stage, random.Random(1), ["echo"])


def test_the_manifest_names_what_is_there_and_what_is_to_come(shelf):
    whole = shelf.copy_of(1)
    lines = repository.manifest(shelf, whole).decode().splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert listed["config.pbtxt"] == hashlib.sha256((shelf.path / "config.pbtxt").read_bytes()).hexdigest()
    assert listed["2/model.py"] == listed["1/model.py"]


def test_one_version_alone_serves_if_the_others_are_not_ready():
    assert serving_alone(1)({1: "READY", 2: "UNAVAILABLE"})
    assert not serving_alone(1)({1: "READY", 2: "READY"})
    assert not serving_alone(1)({})
