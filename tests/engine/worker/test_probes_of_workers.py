"""Probe inferences through a real queue, scheduler and worker."""

import os
import signal

import pytest
import trio

from actors.serving.probing import probe
from actors.values.specs import Retry
from tests.engine.worker.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.system]


async def test_a_probe_goes_all_the_way_and_leaves_no_trace_in_the_statistics(serve):
    async with serve("doubling") as model:
        outcome = await probe(model.state, within=10.0)
        assert (outcome.answered, outcome.error) == (True, "")
        assert model.state.statistics.success_count == model.state.statistics.execution_count == 0
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]
        assert model.state.statistics.success_count == 1


async def test_a_model_that_hangs_has_no_answer(serve, tmp_path):
    gate = tmp_path / "gate"
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        outcome = await probe(model.state, within=0.2)
        assert (outcome.answered, outcome.error) == (False, "no answer within 0.2 s")
        gate.touch()
        assert (await model.infer(1.0)).tolist() == [[2.0] * 4]


async def test_the_limit_that_ends_a_hang_ends_its_probe(serve, tmp_path):
    parameters = {"gate": str(tmp_path / "gate")}
    async with serve("pausing", parameters=parameters, execution_timeout=0.2) as model:
        outcome = await probe(model.state, within=20.0)
        assert not outcome.answered
        assert "tritium.execution_timeout" in outcome.error


async def test_a_worker_that_dies_under_a_probe_has_not_answered(serve, tmp_path):
    parameters = {"gate": str(tmp_path / "gate")}
    async with serve("pausing", parameters=parameters, retry=Retry.NEVER) as model:
        outcomes = []

        async def ask():
            outcomes.append(await probe(model.state, within=20.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: bool(model.state.in_flight) and not len(model.state.queue))
            os.kill(model.pid(), signal.SIGSEGV)
        (outcome,) = outcomes
        assert not outcome.answered
        assert "died of signal 11" in outcome.error
