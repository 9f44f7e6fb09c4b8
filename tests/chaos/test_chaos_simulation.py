"""The simulation: a whole server in virtual time, the same for the same seed. It finds bugs put in."""

import os
import re
import subprocess
import sys
from functools import partial
from random import Random
from types import ModuleType

import pytest
import trio

from actors.seams.threads import in_thread
from chaos.mutations.operators import mutants_of
from chaos.mutations.workbench import ROOT, Detector, notices, workbench
from chaos.simulation.languages import POINTS
from chaos.simulation.outcomes import Outcome
from chaos.simulation.plan import Request
from chaos.simulation.scenario import CRASHES, OF_ORDERS, scenario
from chaos.simulation.simulate import simulate
from chaos.simulation.world import virtual
from chaos.simulation.world.disk import Disk, folder_of

FOUND_WITHIN = 25  # seeds


def command(*arguments, hash_seed="random"):
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PADDING": "x" * Random(hash_seed).randrange(5000)}
    return subprocess.run(
        [sys.executable, "-m", "chaos.simulation", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def after(word, text):
    [told] = re.findall(rf"^{word}: (.*)$", text, re.MULTILINE)
    return told.split(", ")


@pytest.fixture(scope="module")
def a_hundred_seeds():
    return command("--seeds", "100")


@pytest.mark.long
def test_a_hundred_seeds_pass_and_have_crashed_every_actor_at_every_point(a_hundred_seeds):
    assert a_hundred_seeds.returncode == 0, a_hundred_seeds.stdout
    crashed = after("crashed", a_hundred_seeds.stderr)
    assert set(crashed) == {*CRASHES, *POINTS}


@pytest.mark.long
def test_a_hundred_seeds_come_by_what_operators_observers_recycling_streams_and_tales_bring_about(
    a_hundred_seeds,
):
    told = after("met", a_hundred_seeds.stderr)
    met = {each.partition(" ")[2] for each in told}
    expected = {f"load {end}" for end in ("done", "superseded", "failed")} | {"unload done"}
    expected |= {"refused as unloaded", "answered across an unload", "metrics by http"}
    expected |= {
        f"{what} by {wire}"
        for what in ("live", "ready", "statistics", "index", "model")
        for wire in ("http", "grpc")
    }
    expected |= {"recycled for requests", "recycled for seconds"}
    expected |= {f"{what} by stream answered" for what in ("request", "sequence", "decoupled")}
    expected |= {f"{point} among orders" for point in OF_ORDERS}
    expected |= {f"language {what}" for what in ("whole through a death", "ended by its deadline")}
    expected |= {"language ended by POISONED before any", "language ended by GONE behind some text"}
    assert expected <= met


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(10, marks=pytest.mark.long)])
def test_a_seed_gives_the_same_trace_in_every_process(processes):
    traces = {
        command("--seed", "102", "--trace", hash_seed=str(number)).stdout for number in range(processes)
    }
    [trace] = traces
    assert "crash at" in trace


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
def test_a_seed_gives_the_same_trace_alone_and_after_others():
    alone = command("--seed", "13", "--digest").stdout
    after = command("--seeds", "3", "--first", "11", "--digest").stdout
    assert alone == after.splitlines(keepends=True)[-1]


@pytest.mark.long
@pytest.mark.slow
def test_another_seed_gives_another_trace(tmp_path):
    first, second = (simulate(scenario(seed), tmp_path) for seed in (1, 2))
    assert first.passed
    assert second.passed
    assert first.trace.text() != second.trace.text()


def test_a_scenario_is_drawn_whole_before_anything_runs():
    assert scenario(5) == scenario(5)
    assert scenario(5) != scenario(6)


# -- bugs that were put in


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "operator", "place"),
    [
        ("Slot.release", "drop", 0),
        ("Scatter._column", "swap", 0),
        ("RequestQueue.take", "drop", 0),
        ("ModelStatistics.succeeded", "swap", 0),
        ("Deployment.unload", "drop", 0),
        ("onward", "swap", 0),
    ],
)
def test_a_bug_that_was_put_in_is_found_and_told_with_the_command_that_repeats_it(
    function, operator, place, tmp_path
):
    mutants = mutants_of(ROOT, function)
    [mutant] = [each for each in mutants if (each.operator, each.place) == (operator, place)]
    detector = Detector(
        "simulation",
        ("-m", "chaos.simulation", "--seeds", str(FOUND_WITHIN)),
        300.0,
        r"reproduce: python -m chaos.simulation (--seed \d+)",
    )
    with workbench(tmp_path / "copy", mutant) as root:
        assert notices(detector, root)


# -- what it stands on


async def order_of_five():
    order = []

    async def run(name):
        for _ in range(5):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(run, name)
    return "".join(order)


def test_the_order_of_tasks_follows_from_the_seed():
    orders = [virtual.run(order_of_five, seed=seed) for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_a_trio_that_orders_its_tasks_otherwise_is_refused_with_advice():
    """If `Scheduler()` fails for real, it has to learn how this trio orders the tasks of a turn.

    The error's message says where to look.
    """
    virtual.Scheduler()
    with pytest.raises(
        virtual.SchedulerChanged,
        match=r"_ALLOW_DETERMINISTIC_SCHEDULING.*where `runner.runq` becomes a batch",
    ):
        virtual.Scheduler(ModuleType("_run"))


def test_threads_are_none_and_take_virtual_time():
    async def main():
        began = trio.current_time()
        answer = await in_thread(partial(int, "7"))
        return answer, trio.current_time() - began

    answer, took = virtual.run(main, seed=1)
    assert answer == 7
    assert 0 < took <= 2 * virtual.LONGEST_WORK


@pytest.mark.long  # as above
def test_a_run_in_which_everybody_waits_for_somebody_ends_and_tells_who():
    async def main():
        with trio.CancelScope(shield=True):
            await trio.Event().wait()

    with pytest.raises(trio.TrioInternalError) as raised:
        virtual.run(main, seed=1)
    assert "every task waits for another" in str(raised.value.__cause__)
    assert "main:" in str(raised.value.__cause__)


def test_an_outcome_says_what_was_asked_and_what_came_of_it():
    request = Request(id="r1", at=0.0, model="echo", values=(4,), wire="http")
    outcome = Outcome(request, began=1000.0, code="UNAVAILABLE", message="nobody is there")
    assert str(outcome) == "r1 to echo by http: UNAVAILABLE: nobody is there"


def test_two_models_may_hold_the_same(tmp_path):
    disk = Disk(tmp_path)
    for name in ("echo", "once"):
        disk.put(name, folder_of("echo"))
    fetched = [
        disk.fetch(name, progress=lambda _: None, cancelled=lambda: False).path for name in ("echo", "once")
    ]
    assert [each.name for each in fetched] == ["echo", "once"]
    assert all((each / "config.pbtxt").is_file() for each in fetched)
