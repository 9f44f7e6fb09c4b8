"""Faults of the server's own actors: none costs a request more than it says, and most cost nothing."""

import random
from types import SimpleNamespace

import pytest
import trio

from chaos.faults.actors import FAULTS, OFTEN, Budget, Crash
from chaos.faults.base import NoTarget
from chaos.faults.repository import POLLED
from chaos.flags import catalogue
from tests.chaos.faults_bench import bare_stage, bench

BY_NAME = catalogue(FAULTS)
PATHS = [
    *("telemetry", "telemetry/loop-lag", "services", "services/spares", "models", "models/echo/1"),
    *("models/echo/1/instances", "models/echo/1/instances/0", "models/echo/1/scheduler"),
    *("models/pipeline/1@2", "models/pipeline/1@2/scheduler", "models/echo-guest/1/scheduler"),
    *("repository", "repository/catalog", "repository/lanes/echo", "repository/watcher", "frontends"),
    *("frontends/http", "frontends/http/listener", "frontends/http/connections/connection-7"),
]


pids = iter(range(-1, -1000, -1))  # of servers that there are not


def stage(saboteur):
    return bare_stage(server=SimpleNamespace(pid=next(pids)), sabotage=saboteur)


class Saboteur:
    """Sabotage that is written down."""

    def __init__(self, paths=PATHS):
        self.paths = paths
        self.done = []

    async def list(self):
        return self.paths

    async def crash(self, path):
        self.done.append(("crash", path))


def test_a_budget_is_that_of_one_supervisor_of_one_server_and_grows_again():
    budget = Budget(most=2, period=10.0)
    for supervisor in ("models", "frontends"):
        budget.spend(1, supervisor, 100.0)
        budget.spend(1, supervisor, 101.0)
    budget.spend(2, "models", 101.0)
    with pytest.raises(NoTarget, match="'models' had 2 restarts in 10 s"):
        budget.spend(1, "models", 102.0)
    budget.spend(1, "models", 111.5)


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


# -- against a real server


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
        await strike_all(made, [BY_NAME[name] for name in names])
