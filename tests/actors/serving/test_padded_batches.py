"""Batches of a padded model, as its scheduler forms them (`test_grouping` has the choice itself)."""

import pytest
import trio

from actors.values.datatypes import DataType
from actors.values.padding import Buckets, Padded
from actors.values.specs import DynamicBatching, InputSpec
from actors.values.tensors import Tensor
from tests.support.model_doubles import Stage

PADDED = (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,), padded=Padded({1: Buckets((4, 8))})),)


async def submit(model, size):
    request = model.request()
    request.inputs = [Tensor("INPUT", DataType.FP32, (1, size), bytes(4 * size))]
    await model.state.submit(request)
    await model.settled()


async def test_a_busy_padded_model_forms_batches_of_one_bucket(nursery, autojump_clock):
    model = Stage(nursery, inputs=PADDED, scheduling=DynamicBatching(), max_batch_size=4)
    for size in (1, 2, 7, 3, 8, 1, 5, 4):  # the first is alone in its batch
        await submit(model, size)
    for _ in range(3):
        await model.finished()
    assert model.worker.sizes == [1, 4, 3]


async def test_a_padded_batch_that_waits_lets_a_full_one_go(nursery, autojump_clock):
    scheduling = DynamicBatching(max_queue_delay=1.0)
    model = Stage(nursery, inputs=PADDED, scheduling=scheduling, max_batch_size=2, capacity=9)
    for size in (1, 7, 8):
        await submit(model, size)
    assert model.worker.sizes == [2]
    assert model.now == 0
    await trio.sleep(2)
    assert model.worker.sizes == [2, 1]
    assert model.worker.times[1] - model.start == pytest.approx(1)
