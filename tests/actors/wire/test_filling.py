"""Long inputs reach a worker's slot piece by piece; in between, others run and the batch can be given up."""

import math
from typing import Any, cast

import numpy as np
import pytest
import trio

from actors.seams import slices
from actors.serving.instances.batches import SENT
from actors.serving.instances.sending import FILLED_AT_ONCE
from actors.serving.policy.retries import Signal
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled
from actors.values.specs import InputSpec
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import INPUT
from actors.wire.batch_frames import Execute, Placed, Result
from actors.wire.frames import FrameError
from tests.actors.serving.test_instance_in_virtual_time import serving
from tests.support.model_doubles import make_request

# A piece is an eighth of a MiB.
PIECES = 2 * FILLED_AT_ONCE // (128 * 1024)
COLUMNS = 2 * FILLED_AT_ONCE // 4
ANY_WIDTH = (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),)


@pytest.fixture
async def connection(connect, nursery):
    # Each piece takes a turn of its own, on any machine.
    slices.give(slices.Pace(slice=0.0))
    made = connect()
    nursery.start_soon(made.worker.sender.run)
    return made


def long_request(value=1.0):
    request = make_request()
    request.inputs = [Tensor.from_numpy("INPUT", np.full((1, COLUMNS), value, np.float32))]
    return request


async def some_turns(count=10):
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def turns_until(done):
    turns = 0
    while not done():
        await trio.lowlevel.checkpoint()
        turns += 1
    return turns


async def test_long_inputs_are_copied_between_turns_of_other_tasks_and_sent_after_that(connection):
    request = long_request()
    values = np.arange(COLUMNS, dtype=np.float32)
    request.inputs = [Tensor.from_numpy("INPUT", values.reshape(1, COLUMNS))]
    batch = connection.dispatch(request)
    assert connection.packets() == []
    assert await turns_until(lambda: batch.state is SENT) >= PIECES
    (packet,) = connection.packets()
    job = Execute.decode(packet)
    assert job.batch_id == batch.id
    sent = connection.segments[job.slot, INPUT].view[: values.nbytes]
    assert np.array_equal(np.frombuffer(sent, np.float32), values)


async def test_inputs_that_are_not_long_are_sent_in_the_turn_that_dispatches_them(connection):
    connection.dispatch(connection.request(columns=FILLED_AT_ONCE // 4))
    (packet,) = connection.packets()
    assert packet[0] == frames.EXECUTE


async def test_nothing_overtakes_a_batch_that_is_being_filled(connection):
    connection.dispatch(long_request())
    assert not connection.worker.has_room
    freed = connection.events.freed
    await turns_until(lambda: connection.worker.has_room)
    assert connection.events.freed == freed + 1
    second = connection.dispatch(connection.request())
    await turns_until(lambda: second.state is SENT)
    numbers = [Execute.decode(packet).batch_id for packet in connection.packets()]
    assert numbers == [1, 2]


async def test_a_batch_begins_to_execute_when_it_has_been_sent(connection):
    worker = connection.worker
    batch = connection.dispatch(long_request())
    worker.held.advance(5.0)
    assert worker.oldest_began_at() == math.inf
    assert worker.overdue(1e9) is None
    assert list(worker.held.having_lanes()) == []
    await turns_until(lambda: worker.has_room)
    assert worker.oldest_began_at() <= trio.current_time()
    assert list(worker.held.having_lanes()) == [batch]


@pytest.mark.parametrize("turns", [0, 1, 10])
async def test_what_is_taken_back_while_it_is_filled_is_copied_no_further(connection, turns):
    request = long_request(7.0)
    batch = connection.dispatch(request)
    await some_turns(turns)
    assert connection.worker.take_back(batch, now=0.0)
    assert request.attempts == 0
    assert connection.worker.idle
    assert connection.worker.memory.in_use == 0
    # The same slot is used again at once, and nothing of the first batch arrives after that.
    second = connection.dispatch(long_request(3.0))
    assert second.slot is batch.slot
    await turns_until(lambda: second.state is SENT)
    jobs = [Execute.decode(packet) for packet in connection.packets()]
    assert [job.batch_id for job in jobs] == [second.id]
    sent = connection.segments[second.slot.index, INPUT].view[: 4 * COLUMNS]
    assert (np.frombuffer(sent, np.float32) == 3.0).all()


async def test_a_long_frame_lies_behind_long_inputs(connection):
    request = long_request(2.0)
    request.parameters = {"story": "x" * 200_000}
    connection.dispatch(request)
    await turns_until(lambda: connection.worker.has_room)
    job = Execute.decode(connection.packets()[-1])
    assert job.metadata is not None
    assert len(job.metadata[0]["parameters"]["story"]) == 200_000
    sent = connection.segments[job.slot, INPUT].view[: 4 * COLUMNS]
    assert (np.frombuffer(sent, np.float32) == 2.0).all()


async def test_a_worker_that_answers_what_it_was_not_sent_yet_is_broken(connection):
    batch = connection.dispatch(long_request())
    placed = Placed("OUTPUT", DataType.FP32, (1, 2), 0, 8)
    with pytest.raises(FrameError, match="was not asked for"):
        connection.worker.on_packet(Result(batch.id, batch.slot.index, 1, (0, 0, 0), [placed]).encode())
    with pytest.raises(FrameError, match="asks for 100 bytes"):
        connection.worker.on_packet(frames.encode_room(batch.slot.index, batch.id, 100))


def dispatched(life, request):
    request.requested_outputs = life.state.spec.output_names
    life.state.in_flight[request] = None
    assert life.state.dispatcher.dispatch(life.instance, [request])
    return request


async def test_a_request_that_was_being_copied_as_its_worker_died_waits_at_the_head_as_not_begun(
    nursery, autojump_clock
):
    life = await serving(nursery, inputs=ANY_WIDTH)
    request = dispatched(life, long_request())
    await some_turns()
    assert life.instance.worker is not None
    assert not life.instance.worker.has_room
    await life.die(Signal(11))
    assert not request.reply.answered
    assert request.attempts == 0
    assert cast("Any", life.state.queue).take(1) == [request]


async def test_a_client_that_leaves_while_its_inputs_are_copied_is_answered_and_never_executed(
    nursery, autojump_clock
):
    life = await serving(nursery, inputs=ANY_WIDTH)
    request = dispatched(life, long_request())
    await some_turns()
    life.state.cancel(request)
    assert isinstance(request.reply.error, Cancelled)
    small = make_request()
    dispatched(life, small)
    life.worker.answer(await life.worker.batch())
    await trio.testing.wait_all_tasks_blocked()
    assert small.reply.answered
    life.worker.exit(Signal(11))


async def test_a_worker_that_is_to_stop_answers_what_is_being_copied(nursery, autojump_clock):
    slices.give(slices.Pace(slice=0.0))
    life = await serving(nursery, inputs=ANY_WIDTH)
    request = dispatched(life, long_request())
    await some_turns()
    life.ctx.stopping.set()
    life.worker.answer(await life.worker.batch())
    await life.ended()
    assert request.reply.answered
