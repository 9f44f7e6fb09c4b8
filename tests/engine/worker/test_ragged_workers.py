"""Batches of different shapes on real workers: right answers whatever the lengths, and through deaths."""

import json
import os
import signal
from random import Random

import numpy as np
import pytest
import trio

from actors.padding.observing import counts_of
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.padding import Buckets, CutBack, Padded
from actors.values.specs import InputSpec, OutputSpec
from tests.engine.worker.conftest import until
from tests.support.worker_backends import POISON

pytestmark = [pytest.mark.slow, pytest.mark.system]

SCATTERED = {
    "batch_output": [
        {"target_name": ["OUTPUT"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["INPUT"]}
    ]
}
RAGGED = {
    "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,), ragged=True),),
    "config_json": json.dumps(SCATTERED).encode(),
}
PADDED = {
    "inputs": (
        InputSpec(
            name="INPUT", datatype=DataType.FP32, dims=(-1,), padded=Padded({1: Buckets((4, 16, 64))}, -1)
        ),
    ),
    "outputs": (
        OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,), cuts=(CutBack(1, "INPUT", 1),)),
    ),
}
BOTH = pytest.mark.parametrize("shapes", [RAGGED, PADDED], ids=["ragged", "padded"])


def arrays_of(seed, count):
    random = Random(seed)
    return [
        np.full((random.randint(1, 3), random.randint(0, 64)), at % 500, np.float32) for at in range(count)
    ]


async def sent(model, arrays):
    """Submit all of `arrays`, one behind the other; return their requests."""
    requests = [model.request(x) for x in arrays]
    for request in requests:
        await model.state.submit(request)
    return requests


async def assert_doubled(model, requests, arrays):
    for request, x in zip(requests, arrays, strict=True):
        answer = await model.answer(request)
        assert not isinstance(answer, TritiumError), answer
        output = answer.outputs[0].as_numpy()
        assert output.shape == x.shape
        assert (output == 2 * x).all()
        answer.release()


@BOTH
@pytest.mark.parametrize("backend", ["joining", "joining_in_thread"])
async def test_every_request_gets_its_own_elements_back(serve, shapes, backend):
    async with serve(backend, isolation="thread" if "thread" in backend else "process", **shapes) as model:
        arrays = arrays_of(1, 300)
        await assert_doubled(model, await sent(model, arrays), arrays)
        statistics = model.state.statistics
        assert statistics.execution_count < statistics.inference_count
        counts = counts_of(model.state.dispatcher.observers.told)
        assert (counts is not None) == (shapes is PADDED)
        if counts is not None:
            own = sum(x.nbytes for x in arrays)
            padded = sum(
                4 * len(x) * next(each for each in (4, 16, 64) if each >= x.shape[1]) for x in arrays
            )
            assert (counts.own, counts.added) == (own, padded - own)


@BOTH
async def test_answers_are_right_through_the_deaths_of_workers(serve, shapes):
    async with serve("joining", **shapes) as model:
        arrays = arrays_of(2, 400)
        async with trio.open_nursery() as nursery:

            async def send(some):
                await assert_doubled(model, await sent(model, some), some)

            for start in range(0, 400, 100):
                nursery.start_soon(send, arrays[start : start + 100])
            for death in range(3):
                await until(lambda: model.state.instances[0].worker is not None)
                os.kill(model.pid(), signal.SIGKILL)
                await until(lambda deaths=death + 1: model.state.statistics.restarts >= deaths)
        assert sum(model.state.statistics.deaths.values()) == 3


@BOTH
async def test_a_request_that_kills_is_found_among_others_of_other_lengths(serve, shapes):
    async with serve("joining", **shapes) as model:
        arrays = [np.full((1, size), size, np.float32) for size in range(1, 9)]
        arrays[3][0, -1] = POISON
        requests = await sent(model, arrays)
        poisoned = await model.answer(requests.pop(3))
        arrays.pop(3)
        assert isinstance(poisoned, TritiumError)
        assert poisoned.code is ErrorCode.POISONED
        await assert_doubled(model, requests, arrays)


async def test_long_inputs_are_padded_in_the_worker(serve):
    size = 300_000
    padded = Padded({1: Buckets((size,))})
    changes = {
        **PADDED,
        "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,), padded=padded),),
    }
    async with serve("joining", **changes) as model:
        arrays = [np.full((3, size - less), less, np.float32) for less in range(4)]
        await assert_doubled(model, await sent(model, arrays), arrays)
