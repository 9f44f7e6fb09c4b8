"""Long work is done in slices, such as the walk of packed BYTES tensors: others have turns in between."""

import pytest
import trio

from actors.seams.slices import in_slices
from actors.seams.steps import at_once
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled
from actors.values.requests import InferRequest
from actors.values.specs import InputSpec
from actors.values.strings import Strings, walk
from actors.values.tensors import Tensor, pack_bytes
from tests.support.model_doubles import make_spec
from tests.support.ports import Port

# They look like lengths, so that they are read one by one.
ZEROS = [b"\0" * 3, b"\0" * 5]


async def test_a_task_gets_its_turns_beside_long_work():
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    data = pack_bytes(ZEROS * 100_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        found = await in_slices(walk(data, 200_000))
        nursery.cancel_scope.cancel()
    assert found == Strings(200_000, len(data), len(data), 0)
    assert turns >= 10


async def test_long_work_of_many_clients_takes_one_slice_a_turn_together():
    """Ten works of twenty steps, each step a slice by itself. The tasks of a turn run in any order."""
    slices = [0]

    def work():
        for _ in range(20):
            slices[-1] += 1
            yield lambda: None  # a slice ends where something is wanted of a thread

    async def count():
        while True:
            await trio.lowlevel.checkpoint()
            slices.append(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as works:
            for _ in range(10):
                works.start_soon(in_slices, work())
        nursery.cancel_scope.cancel()
    assert sum(slices) == 200
    assert max(slices) <= 2


async def test_a_function_that_work_yields_runs_in_a_thread_and_its_result_comes_back():
    def work():
        mine = trio.lowlevel.current_task()
        theirs = yield trio.lowlevel.in_trio_run
        return mine is not None, theirs

    assert await in_slices(work()) == (True, False)
    assert at_once(work())[0]


STRINGS = make_spec(inputs=(InputSpec(name="INPUT", datatype=DataType.BYTES, dims=(-1,)),))


def strings_request(elements, count):
    data = pack_bytes(elements)
    return InferRequest(
        model_name="model",
        inputs=[Tensor("INPUT", DataType.BYTES, (1, count), data)],
        reply=Port(),
        accepted_at=0.0,
    )


@pytest.fixture
async def ready_model():
    state = ModelState(STRINGS, statistics=ModelStatistics(), on_status=lambda _: None, wall_clock=lambda: 0)
    state.standing.become(Status.READY)
    return state


async def test_a_request_of_many_strings_does_not_hold_the_loop_while_it_is_checked(ready_model):
    """A caller that cannot wait is told so, and `submit` lets other tasks run."""
    request = strings_request(ZEROS * 50_000, 100_000)
    with pytest.raises(trio.WouldBlock):
        ready_model.submit_nowait(request)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ready_model.submit(request)
        nursery.cancel_scope.cancel()
    assert turns >= 5
    assert request in ready_model.in_flight


async def test_a_request_whose_client_leaves_while_it_is_checked_is_not_queued(ready_model):
    request = strings_request(ZEROS * 50_000, 100_000)
    refused = []

    async def submit():
        with pytest.raises(Cancelled):
            await ready_model.submit(request)
        refused.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(submit)
        await trio.lowlevel.checkpoint()
        ready_model.cancel(request)
    assert refused
    assert request not in ready_model.in_flight
