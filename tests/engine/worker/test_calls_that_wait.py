"""Calls that would wait for themselves are refused; those that only look like it are not."""

from __future__ import annotations

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.specs import Ensemble, EnsembleStep, OutputSpec
from tests.engine.worker.conftest import until
from tests.support.many_models import calling, model, open_models

pytestmark = [pytest.mark.slow, pytest.mark.system]


def recursive(name="caller", callee="caller", **changes):
    """Calls `callee` with its input less one, until that is 0; OUTPUT is how deep it went."""
    return calling(name, "recursive", callee=callee, **changes)


async def refused(models, name, value):
    with pytest.raises(TritiumError) as caught:
        await models.infer(name, value)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "this call would wait for itself for ever" in caught.value.message
    return caught.value.message


async def test_a_model_that_calls_its_only_instance_is_refused():
    async with open_models(recursive()) as models:
        message = await refused(models, "caller", 1.0)
        assert "Instance 'caller_0_0' waits for" in message
        assert "more instances" in message
        assert (await models.infer("caller", 0.0)).tolist() == [[0] * 4]


async def test_a_model_may_call_itself_as_deep_as_it_has_instances():
    async with open_models(recursive(instances=3)) as models:
        assert (await models.infer("caller", 2.0)).tolist() == [[2] * 4]
        await refused(models, "caller", 3.0)
        assert (await models.infer("caller", 2.0)).tolist() == [[2] * 4]


async def test_two_models_that_call_each_other_are_refused_where_the_circle_closes():
    async with open_models(recursive("first", "second"), recursive("second", "first")) as models:
        assert (await models.infer("first", 1.0)).tolist() == [[1] * 4]
        message = await refused(models, "first", 2.0)
        assert "'first_0_0'" in message
        assert "'second_0_0'" in message


async def test_callers_that_hold_all_instances_and_wait_for_each_other_are_refused(tmp_path):
    """Neither execution waits for itself alone: each needs the other's instance."""
    gated = recursive(instances=2, parameters={"directory": str(tmp_path), "meet": "2"})
    async with open_models(gated) as models:
        requests = [await models.send("caller", 1.0) for _ in range(2)]
        outcomes = [await models.outcome(request) for request in requests]
        (error,) = [each for each in outcomes if isinstance(each, TritiumError)]
        (output,) = [each for each in outcomes if not isinstance(each, TritiumError)]
        assert "wait for itself" in error.message
        assert output.tolist() == [[1] * 4]


async def test_a_call_that_nothing_waits_for_is_no_deadlock():
    async with open_models(calling(mode="detached_to_itself", callee="caller")) as models:
        await models.infer("caller", 1.0)
        await until(lambda: not models.states["caller"].in_flight)
        assert models.states["caller"].statistics.as_model_stats("caller", 1)["inference_count"] == 2


def ensemble(*steps, name="whole", **changes):
    return model(name, "", platform="ensemble", scheduling=Ensemble(steps=steps), instances=0, **changes)


def step(name, output="OUTPUT"):
    return EnsembleStep(model_name=name, input_map={"INPUT": "INPUT"}, output_map={"OUTPUT": output})


async def test_an_ensemble_that_the_caller_is_a_step_of_is_refused():
    async with open_models(recursive(callee="whole"), ensemble(step("caller"))) as models:
        assert (await models.infer("whole", 0.0)).tolist() == [[0] * 4]
        await refused(models, "caller", 1.0)
        await refused(models, "whole", 1.0)


async def test_a_circle_through_an_ensemble_that_runs_is_refused():
    """The caller waits for the ensemble, whose step waits for the caller; nested ensembles do likewise."""
    first, second = recursive("first", "outer"), recursive("second", "first")
    outer = ensemble(step("whole"), name="outer")
    async with open_models(first, second, ensemble(step("second")), outer) as models:
        assert (await models.infer("first", 1.0)).tolist() == [[1] * 4]
        message = await refused(models, "first", 2.0)
        assert "a step that model 'second' runs" in message
        assert (await models.infer("first", 1.0)).tolist() == [[1] * 4]


async def test_so_it_is_where_the_step_is_still_in_a_queue(tmp_path):
    """The step's only instance serves another client, and calls the very model that waits for the step."""
    first = recursive("first", "whole")
    second = calling("second", "recursive_told", callee="first", parameters={"directory": str(tmp_path)})
    async with open_models(first, second, ensemble(step("second"))) as models:
        (tmp_path / "go").touch()
        await models.infer("second", 1.0)  # a worker that has waited for a call has nothing prefetched
        for each in ("go", "waiting"):
            (tmp_path / each).unlink()
        holding = await models.send("second", 1.0)
        await until((tmp_path / "waiting").exists)
        waiting = await models.send("first", 1.0)
        await until(lambda: len(models.states["second"].queue) == 1)
        (tmp_path / "go").touch()
        outcomes = [await models.outcome(request) for request in (holding, waiting)]
        assert isinstance(outcomes[0], TritiumError)
        assert "wait for itself" in outcomes[0].message
        assert outcomes[1].tolist() == [[1] * 4]


async def test_steps_that_the_wanted_outputs_do_not_need_are_not_waited_for():
    outputs = [OutputSpec(name=name, datatype=DataType.FP32, dims=(-1,)) for name in ("OUTPUT", "OTHER")]
    whole = ensemble(step("callee"), step("caller", "OTHER"), outputs=tuple(outputs))
    caller = calling(mode="wanting", callee="whole")
    async with open_models(caller, model("callee", "doubling"), whole) as models:
        assert (await models.infer("caller", 1.0)).tolist() == [[3] * 4]


async def test_nothing_waits_in_a_worker_behind_what_waits_for_a_call(tmp_path):
    """Otherwise a call could go to the very instance that makes it, while another one is free."""
    async with open_models(recursive(instances=2)) as models:
        outputs = [await models.infer("caller", 1.0) for _ in range(20)]
        assert np.array_equal(outputs, np.ones((20, 1, 4)))
