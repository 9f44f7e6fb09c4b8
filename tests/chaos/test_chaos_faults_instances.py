"""Faults of instances, each against a real server: exactly the effects it announces are seen."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from chaos.faults.base import NoTarget, Trouble
from chaos.faults.repository import POLLED
from chaos.faults.targets import PURE, PYTHON, felt_by, lost_with_all_workers, lost_with_workers
from chaos.faults.workers import deeds, signals, starts
from chaos.flags import catalogue
from chaos.record.records import Fail, Ok
from chaos.workload.control import Control
from tests.chaos.faults_bench import bare_stage, bench

FAULTS = catalogue(signals.FAULTS, deeds.FAULTS, starts.FAULTS)


def stage(*nodes, end=None, folder=Path()):
    """A stage with a server of this tree, whose every request ends in the same way."""

    async def tree():
        return {"path": "", "state": "running", "info": {}, "children": list(nodes)}

    async def send(model, **_):
        return end

    server = SimpleNamespace(pid=1, tree=tree)
    return bare_stage(folder, server=server, control=Control(folder), send=send)


async def test_an_order_that_nobody_takes_is_withdrawn_and_no_fault(autojump_clock, monkeypatch, tmp_path):
    monkeypatch.setattr("chaos.faults.workers.deeds.now", trio.current_time)
    by_order = random.Random(next(n for n in range(100) if _third(n) < 0.5))
    with pytest.raises(NoTarget, match="executed anything"):
        await FAULTS["worker_segv"].inject(stage(folder=tmp_path), by_order)
    assert not [*tmp_path.glob("control/*/*")]


def instance(model, number, *, phase="serving", pid=1):
    return {
        "path": f"models/{model}/1/instances/{number}",
        "state": "running",
        "info": {"phase": phase, "pid": pid},
        "children": [],
    }


def _third(seed):
    draw = random.Random(seed)
    draw.choice(range(5))
    draw.choice(range(2))
    return draw.random()


def test_the_death_of_a_pure_models_worker_excuses_nothing_and_that_of_another_at_most_its_batch():
    assert lost_with_workers("add_sub") == ()
    assert [excuse.most for excuse in lost_with_workers("echo")] == [1]
    assert [excuse.most for excuse in lost_with_workers("batching", 2)] == [16]
    assert all(excuse.most is not None for model in PYTHON for excuse in lost_with_all_workers(model))


def test_what_hits_a_step_of_the_pipeline_may_be_felt_by_the_pipeline():
    assert {model for model in (*PYTHON, *PURE) if "pipeline" in felt_by(model)} == {"echo", "add_sub"}


@pytest.mark.parametrize("name", [fault.name for fault in signals.FAULTS])
async def test_where_no_worker_serves_a_signal_has_no_target(name):
    nobody = instance("echo", 0, phase="loading")
    with pytest.raises(NoTarget, match="serves just now"):
        await FAULTS[name].inject(stage(nobody), random.Random(1))


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("model_raise", Ok(t=0.0, n=1, values=[1], first=0.0)),
        ("worker_segv", Fail(t=0.0, n=1, code="INTERNAL", message="")),
        ("stdout_flood", Fail(t=0.0, n=1, code="UNAVAILABLE", message="")),
        ("poison_request", Fail(t=0.0, n=1, code="UNAVAILABLE", message="")),
    ],
)
async def test_a_poison_request_that_ends_in_another_way_than_it_should_is_trouble(name, end):
    # The order of the draws is the fault's own affair.
    by_request = random.Random(next(n for n in range(100) if _third(n) >= 0.5))
    injection = await FAULTS[name].inject(stage(instance("add_sub", 0), end=end), by_request)
    with pytest.raises(Trouble, match="due"):
        await injection.undo()


# -- against a real server


async def strike_all(made, faults, seed):
    for fault in faults:
        injection = await made.strike(fault, seed)
        await made.until_logged(injection)
        await trio.sleep(0.5)  # so that one model is not hit again before it has got over it


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_signals_do_to_workers_is_no_more_than_they_excuse(tmp_path, seed):
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, signals.FAULTS, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_models_do_to_themselves_is_no_more_than_they_excuse(tmp_path, seed):
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, deeds.FAULTS, seed)


@pytest.mark.long
async def test_an_instance_that_can_not_start_is_tried_again_and_the_other_answers(tmp_path):
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, starts.FAULTS, 1)
        assert not (made.stage.repository / "echo-doomed").exists()
