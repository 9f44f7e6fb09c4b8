"""Spare workers as processes: what restarts gain by them, and that none is left behind."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from actors.values.specs import InstanceSpec
from engine.processes.launch import WORKER
from tests.engine.worker.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.system]


def all_workers():
    """The workers of this process; it may have other children."""
    return {child.pid for child in psutil.Process().children() if str(WORKER) in child.cmdline()}


@pytest.fixture(name="workers")
def new_workers():
    """Return a function that lists the workers started since."""
    before = all_workers()
    return lambda: all_workers() - before


@pytest.fixture
def spare_of(workers):
    """Return a function that finds the one worker that is no instance's."""

    def find(model):
        (pid,) = workers() - {model.pid(n) for n in range(len(model.state.instances))}
        return psutil.Process(pid)

    return find


async def waiting(model):
    await until(lambda: model.spares.statistics().waiting == 1)


async def test_an_instance_that_died_goes_on_in_the_spare(serve, spare_of):
    async with serve("doubling", spare_workers=1) as model:
        await waiting(model)
        spare, worker = spare_of(model).pid, model.pid()
        os.kill(worker, signal.SIGKILL)
        await until(lambda: model.info().get("pid") == spare)
        assert (await model.infer(3.0)).tolist() == [[6.0] * 4]
        await waiting(model)  # and it has been replaced
        assert model.spares.statistics().used == 1


async def test_a_spare_has_imported_its_backend_before_there_is_a_model(serve, spare_of):
    async with serve("doubling", spare_workers=1) as model:
        await waiting(model)
        spare = spare_of(model)
        assert spare.cmdline()[-1] == "worker_backends:Doubling"
        assert spare.status() in {psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING}


@pytest.mark.long
async def test_a_stopped_spare_is_passed_over(serve, spare_of):
    async with serve("doubling", spare_workers=1) as model:
        await waiting(model)
        spare, worker = spare_of(model), model.pid()
        spare.suspend()
        await until(lambda: spare.status() == psutil.STATUS_STOPPED)
        os.kill(worker, signal.SIGKILL)
        await until(lambda: model.info().get("pid") not in {None, worker})
        assert model.pid() != spare.pid
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        await until(lambda: not spare.is_running())


@pytest.mark.long
async def test_none_is_left_when_the_tree_ends(serve, workers):
    async with serve("doubling", spare_workers=2) as model:
        await waiting(model)
    assert workers() == set()


@pytest.mark.long
async def test_the_descriptors_of_spares_are_given_back(serve):
    me = psutil.Process()
    before = me.num_fds()
    async with serve("doubling", spare_workers=1) as model:
        for _ in range(3):
            await waiting(model)
            worker = model.pid()
            os.kill(worker, signal.SIGKILL)
            await until(lambda worker=worker: model.info().get("pid") not in {None, worker})
            await model.infer(1.0)
    assert me.num_fds() <= before + 2  # trio's own


@pytest.mark.long
async def test_instances_on_different_cores_share_no_spare(serve, spare_of):
    core = min(os.sched_getaffinity(0))
    async with serve(
        "doubling", spare_workers=1, instances=(InstanceSpec(name="a", cores=(core,)),)
    ) as model:
        await waiting(model)
        assert spare_of(model).cpu_affinity() == [core]


async def test_cores_that_the_server_may_not_use_are_the_reason_of_a_failed_load(serve):
    async with serve("doubling", instances=(InstanceSpec(name="a", cores=(4095,)),)) as model:
        assert (
            "it is bound to the cores 4095, which this server may not use; it may use" in model.state.reason
        )
