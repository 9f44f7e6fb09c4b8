"""Faults of the server's own actors: none costs a request more than it says, and most cost nothing."""

import random
from pathlib import Path

import pytest
import trio

from chaos.faults import actors
from chaos.faults.actors import FAULTS, OFTEN, ROOT, Crash, Raise
from chaos.faults.base import NoTarget, Stage
from chaos.faults.budgets import Budget
from chaos.faults.repository import POLLED
from chaos.flags import catalogue
from tests.chaos.faults_bench import bench

BY_NAME = catalogue(FAULTS)
PATHS = [
    *("telemetry", "telemetry/loop-lag", "services", "services/spares", "models", "models/echo/1"),
    *("models/echo/1/instances", "models/echo/1/instances/0", "models/echo/1/scheduler"),
    *("models/pipeline/1@2", "models/pipeline/1@2/scheduler", "models/echo-guest/1/scheduler"),
    *("repository", "repository/catalog", "repository/lanes/echo", "repository/watcher", "frontends"),
    *("frontends/http", "frontends/http/listener", "frontends/http/connections/connection-7"),
]


class Saboteur:
    """Sabotage that is written down."""

    def __init__(self, paths=PATHS):
        self.paths = paths
        self.done = []

    async def list(self):
        return self.paths

    async def crash(self, path):
        self.done.append(("crash", path))

    async def fail(self, point, *, times=1, within=""):
        self.done.append(("raise", point))

    async def disarm(self, point):
        self.done.append(("disarm", point))
        return True


class Server:
    def __init__(self, pid):
        self.pid = pid


pids = iter(range(-1, -1000, -1))  # of servers that there are not


def stage(saboteur):
    return Stage(
        server=Server(next(pids)),
        sabotage=saboteur,
        repository=Path(),
        control=None,
        clients=None,
        folder=Path(),
    )


def test_every_fault_says_in_a_sentence_what_will_be_seen():
    for fault in FAULTS:
        assert fault.expected.endswith("."), fault.name
        assert fault.weight > 0


def test_a_budget_is_that_of_one_supervisor_of_one_server_and_grows_again():
    budget = Budget(most=2, period=10.0)
    for supervisor in ("models", "frontends"):
        budget.spend(1, supervisor, 100.0)
        budget.spend(1, supervisor, 101.0)
    budget.spend(2, "models", 101.0)
    with pytest.raises(NoTarget, match="'models' had 2 restarts in 10 s"):
        budget.spend(1, "models", 102.0)
    budget.spend(1, "models", 111.5)


def test_budgets_stay_below_what_the_tree_allows():
    assert (ROOT.most, ROOT.period) == (2, 60.0)  # engine.server.tree.ROOT_INTENSITY is 3 in 60 s
    assert (OFTEN.most, OFTEN.period) == (2, 5.0)  # actors.supervision.spec.DEFAULT_INTENSITY is 3 in 5 s


@pytest.mark.parametrize("fault", [each for each in FAULTS if isinstance(each, Crash)], ids=lambda f: f.name)
async def test_a_crash_hits_a_path_of_its_own_kind_and_expects_the_log_to_name_it(fault):
    saboteur = Saboteur()
    try:
        injection = await fault.inject(stage(saboteur), random.Random(1))
    except NoTarget:
        assert fault.name == "grpc_connection_crash"  # of which these paths have none
        return
    [(_, path)] = saboteur.done
    assert path != "models/echo-guest/1/scheduler"
    assert path in injection.detail
    assert {each.keys.get("target", each.keys.get("actor")) for each in injection.expects} == {path}


async def test_what_belongs_to_a_model_is_felt_by_it_and_measured_on_it():
    saboteur = Saboteur(["models/echo/1/scheduler"])
    injection = await BY_NAME["scheduler_crash"].inject(stage(saboteur), random.Random(1))
    assert (injection.model, injection.measures) == ("echo", "actor")
    assert injection.models == ("echo", "pipeline")
    assert not injection.excuses


async def test_the_root_is_never_made_to_give_up():
    saboteur = Saboteur()
    same = stage(saboteur)
    for name in ("telemetry_supervisor_crash", "services_supervisor_crash"):
        await BY_NAME[name].inject(same, random.Random(1))
    with pytest.raises(NoTarget, match="'root' had 2 restarts"):
        await BY_NAME["models_supervisor_crash"].inject(same, random.Random(1))
    assert len(saboteur.done) == 2


async def test_a_fault_point_is_disarmed_at_the_end():
    saboteur = Saboteur()
    injection = await BY_NAME["watcher_raises"].inject(stage(saboteur), random.Random(1))
    await injection.heal()
    assert saboteur.done == [("raise", "watcher.look"), ("disarm", "watcher.look")]


async def test_where_there_is_no_such_actor_nothing_is_armed():
    saboteur = Saboteur([])
    with pytest.raises(NoTarget, match="no repository/watcher"):
        await BY_NAME["watcher_raises"].inject(stage(saboteur), random.Random(1))
    assert saboteur.done == []


# -- against a real server


def named(*names):
    return [BY_NAME[name] for name in names]


async def strike_all(made, faults, seeds=(1,)):
    for fault in faults:
        for seed in seeds:
            try:
                injection = await made.strike(fault, seed)
            except NoTarget:  # as many crashes as that supervisor allows
                await trio.sleep(fault.budget.period)
                injection = await made.strike(fault, seed)
            await made.until_logged(injection)
            await trio.sleep(0.3)


@pytest.mark.long
async def test_no_request_fails_when_an_actor_that_owns_no_worker_crashes(tmp_path):
    costless = [
        fault
        for fault in FAULTS
        if isinstance(fault, Crash)
        and not fault.excuses("echo")
        and fault.budget is OFTEN
        and fault.name != "instance_actor_crash"
    ]
    assert len(costless) >= 4
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, costless, seeds=(1, 2))


@pytest.mark.long
@pytest.mark.parametrize(
    "names",
    [
        ("instance_actor_crash", "instances_supervisor_crash", "version_supervisor_crash"),
        ("repository_supervisor_crash", "models_supervisor_crash"),
        ("telemetry_supervisor_crash", "services_supervisor_crash", "service_crash"),
        ("http_connection_crash", "grpc_connection_crash", "frontends_supervisor_crash"),
    ],
    ids=["one model", "all models", "telemetry and services", "frontends"],
)
async def test_the_crash_of_what_has_something_below_costs_no_more_than_it_says(tmp_path, names):
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, named(*names))


@pytest.mark.long
async def test_an_exception_out_of_an_actors_own_code_is_contained(tmp_path):
    async with bench(tmp_path, *POLLED) as made:
        await strike_all(made, [each for each in actors.FAULTS if isinstance(each, Raise)], seeds=(1, 2))
