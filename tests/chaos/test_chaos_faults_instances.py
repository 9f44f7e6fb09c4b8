"""Faults of instances, each against a real server: exactly the effects it announces are seen."""

import random
from pathlib import Path

import pytest
import trio

from chaos.faults.base import NoTarget, Stage, Trouble
from chaos.faults.repository import POLLED
from chaos.faults.targets import PURE, PYTHON, felt_by, lost_with_all_workers, lost_with_workers, state_of
from chaos.faults.workers import deeds, signals, starts
from chaos.flags import catalogue
from chaos.record.records import Fail, Ok
from tests.chaos.faults_bench import bench

FAULTS = catalogue(signals.FAULTS, deeds.FAULTS, starts.FAULTS)


def instance(model, number, *, phase="serving", pid=1):
    return {
        "path": f"models/{model}/1/instances/{number}",
        "state": "running",
        "info": {"phase": phase, "pid": pid},
        "children": [],
    }


def tree_of(*nodes):
    return {"path": "", "state": "running", "info": {}, "children": list(nodes)}


class Asked:
    """Clients whose every request ends in the same way."""

    def __init__(self, end):
        self.end = end

    async def send(self, model, *, poison="", protocol="http", priority=0, tenant=""):
        return self.end


class Silent:
    """A server with a tree, whose orders no model takes."""

    pid = 1

    def __init__(self, *nodes):
        self._nodes = nodes

    async def tree(self):
        return tree_of(*self._nodes)


class Ignored:
    """Orders that stand until they are withdrawn."""

    def __init__(self):
        self.stands = True

    def withdraw(self):
        was, self.stands = self.stands, False
        return was


class Orders:
    def __init__(self):
        self.given = []

    def once(self, model, action):
        self.given.append((model, action, Ignored()))
        return self.given[-1][2]

    hold = once


def stage(server=None, *, end=None, control=None):
    return Stage(
        server=server or Silent(),
        sabotage=None,
        repository=Path(),
        control=control or Orders(),
        clients=Asked(end),
        folder=Path(),
    )


def told_by_request(fault):
    """A seed by which a deed is asked for by a request; the order of the draws is the fault's own affair."""
    return random.Random(next(n for n in range(100) if _third(n) >= 0.5))


def _third(seed):
    draw = random.Random(seed)
    draw.choice(range(5))
    draw.choice(range(2))
    return draw.random()


def test_every_fault_says_in_a_sentence_what_will_be_seen():
    for fault in FAULTS.values():
        assert fault.expected.endswith("."), fault.name
        assert fault.weight > 0


def test_the_death_of_a_pure_models_worker_excuses_nothing_and_that_of_another_at_most_its_batch():
    assert lost_with_workers("add_sub") == ()
    assert [excuse.most for excuse in lost_with_workers("echo")] == [1]
    assert [excuse.most for excuse in lost_with_workers("batching", 2)] == [16]
    assert all(excuse.most is not None for model in PYTHON for excuse in lost_with_all_workers(model))


def test_what_hits_a_step_of_the_pipeline_may_be_felt_by_the_pipeline():
    assert {model for model in (*PYTHON, *PURE) if "pipeline" in felt_by(model)} == {"echo", "add_sub"}


def test_the_state_of_an_actor_is_found_by_its_path():
    tree = tree_of(instance("echo", 0), instance("echo", 1))
    assert state_of(tree, "models/echo/1/instances/1") == "running"
    assert state_of(tree, "models/slow/1/instances/1") == ""


@pytest.mark.parametrize("name", [fault.name for fault in signals.FAULTS])
async def test_where_no_worker_serves_a_signal_has_no_target(name):
    nobody = Silent(instance("echo", 0, phase="loading"))
    with pytest.raises(NoTarget, match="serves just now"):
        await FAULTS[name].inject(stage(nobody), random.Random(1))


async def test_an_order_that_nobody_takes_is_withdrawn_and_no_fault(autojump_clock):
    orders = Orders()
    by_order = random.Random(next(n for n in range(100) if _third(n) < 0.5))
    with pytest.raises(NoTarget, match="executed anything"):
        await FAULTS["worker_segv"].inject(stage(control=orders), by_order)
    assert [(action, order.stands) for _, action, order in orders.given] == [("segv", False)]


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
    fault = FAULTS[name]
    injection = await fault.inject(stage(end=end), told_by_request(fault))
    with pytest.raises(Trouble, match="due"):
        await injection.heal()


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
