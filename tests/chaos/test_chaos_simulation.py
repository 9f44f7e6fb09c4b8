"""The simulation: a whole server in virtual time, the same for the same seed. It finds bugs put in."""

import gc
import os
import re
import subprocess
import sys
from functools import partial
from random import Random

import pytest
import trio

from actors.seams.threads import in_thread
from actors.serving.model import ModelState
from actors.supervision.branch import Branch
from actors.wire.gathering import Scatter
from actors.wire.slots import Slot
from chaos.simulation.outcomes import Outcome
from chaos.simulation.plan import Request
from chaos.simulation.scenario import CRASHES, OF_ORDERS, scenario
from chaos.simulation.simulate import simulate
from chaos.simulation.world import virtual
from chaos.simulation.world.disk import Disk, folder_of

FOUND_WITHIN = 25  # seeds

# A run without an end is dropped with all that it holds.
drops_what_it_holds = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def command(*arguments, hash_seed="random"):
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PADDING": "x" * Random(hash_seed).randrange(5000)}
    return subprocess.run(
        [sys.executable, "-m", "chaos.simulation", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def a_hundred_seeds():
    return command("--seeds", "100")


@pytest.mark.soak
def test_a_hundred_seeds_pass_and_have_crashed_every_actor_at_every_point(a_hundred_seeds):
    assert a_hundred_seeds.returncode == 0, a_hundred_seeds.stdout
    crashed = re.search(r"^crashed: (.*)$", a_hundred_seeds.stderr, re.MULTILINE)[1].split(", ")
    assert set(crashed) == set(CRASHES)


@pytest.mark.soak
def test_a_hundred_seeds_come_by_what_operators_observers_recycling_and_streams_bring_about(a_hundred_seeds):
    told = re.search(r"^met: (.*)$", a_hundred_seeds.stderr, re.MULTILINE)[1].split(", ")
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
    assert expected <= met


@pytest.mark.slow
@pytest.mark.parametrize("processes", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_a_seed_gives_the_same_trace_in_every_process(processes):
    traces = {
        command("--seed", "102", "--trace", hash_seed=str(number)).stdout for number in range(processes)
    }
    [trace] = traces
    assert "crash at" in trace


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_alone_and_after_others():
    alone = command("--seed", "13", "--digest").stdout
    after = command("--seeds", "3", "--first", "11", "--digest").stdout
    assert alone == after.splitlines(keepends=True)[-1]


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


def lost_reply(monkeypatch):
    respond = ModelState.respond
    count = iter(range(10**9))

    def forgets(self, request, part, *, final=True):
        if request.synthetic or next(count) % 40 != 30:
            respond(self, request, part, final=final)

    monkeypatch.setattr(ModelState, "respond", forgets)


def double_reply(monkeypatch):
    respond = ModelState.respond

    def repeats(self, request, part, *, final=True):
        respond(self, request, part, final=final)
        if not request.synthetic and final:
            respond(self, request, part, final=final)

    monkeypatch.setattr(ModelState, "respond", repeats)


def wrong_row(monkeypatch):
    column = Scatter._column

    def shifted(self, placed, requests, spans, total):
        turned = [(rows, end if rows == total else (end % total or total)) for rows, end in spans]
        alike = len({rows for rows, _ in spans}) == 1
        return column(self, placed, requests, turned[::-1] if alike else turned, total)

    monkeypatch.setattr(Scatter, "_column", shifted)


def leaked_slot(monkeypatch):
    release = Slot.release
    count = iter(range(10**9))
    monkeypatch.setattr(Slot, "release", lambda self: release(self) if next(count) % 25 else None)


def missed_restart(monkeypatch):
    restart = Branch._restart
    count = iter(range(10**9))

    async def forgets(self, child):
        if next(count) % 3 or "instances" not in child.path:
            await restart(self, child)

    monkeypatch.setattr(Branch, "_restart", forgets)


@pytest.mark.soak  # a run without an end leaves tasks behind, which a later test would meet
@drops_what_it_holds
@pytest.mark.parametrize("bug", [lost_reply, double_reply, wrong_row, leaked_slot, missed_restart])
def test_a_bug_that_was_put_in_is_found(bug, monkeypatch, tmp_path):
    bug(monkeypatch)
    assert any(not simulate(scenario(seed), tmp_path).passed for seed in range(FOUND_WITHIN))
    # Free what a run without an end has left here, and not in a later test.
    gc.collect()


@pytest.mark.soak  # a run without an end leaves tasks behind, which a later test would meet
@drops_what_it_holds
def test_a_failing_seed_is_told_with_the_command_that_repeats_it(monkeypatch, tmp_path, capsys):
    from chaos.simulation.__main__ import main

    lost_reply(monkeypatch)
    assert main(["--seeds", "4"]) == 1
    told = capsys.readouterr().out
    assert "complaint: " in told
    assert "reproduce: python -m chaos.simulation --seed " in told
    gc.collect()  # as above


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


def test_a_trio_that_orders_its_tasks_otherwise_is_refused_with_advice(monkeypatch):
    """If this fails for real, `Scheduler` has to learn how this trio orders the tasks of a turn.

    The error's message says where to look.
    """
    virtual.Scheduler()
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(
        virtual.SchedulerChanged,
        match=r"_ALLOW_DETERMINISTIC_SCHEDULING.*where `runner.runq` becomes a batch",
    ):
        virtual.Scheduler()


def test_threads_are_none_and_take_virtual_time():
    async def main():
        began = trio.current_time()
        answer = await in_thread(partial(int, "7"))
        return answer, trio.current_time() - began

    answer, took = virtual.run(main, seed=1)
    assert answer == 7
    assert 0 < took <= 2 * virtual.LONGEST_WORK


@pytest.mark.soak  # as above
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
