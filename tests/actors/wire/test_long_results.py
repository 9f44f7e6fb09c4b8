"""Long packed outputs are copied and checked in slices, and a worker's death in the middle loses nothing."""

import pytest
import trio

from actors.seams import slices
from actors.seams.steps import at_once
from actors.serving.policy.retries import Signal
from actors.values.datatypes import DataType
from actors.values.specs import OutputSpec
from actors.wire.arena import OUTPUT
from actors.wire.batch_frames import Answer, Part, Placed, Result
from actors.wire.frames import FrameError
from tests.actors.serving.test_instance_in_virtual_time import serving
from tests.actors.serving.test_live_worker import executing

TEXTS = (OutputSpec(name="OUTPUT", datatype=DataType.BYTES, dims=(-1,)),)


def packed(count):
    """Elements of two lengths by turns, which no vectorised look can pass over."""
    return b"\x00\x00\x00\x00\x01\x00\x00\x00a" * (count // 2)


@pytest.fixture
async def connection(connect):
    # Each piece takes a turn of its own, on any machine.
    slices.give(slices.Pace(slice=0.0))
    return connect(outputs=TEXTS)


def answered_with(connection, data, count):
    """A batch and its result, whose output is `data` and is said to have `count` elements."""
    batch = connection.dispatch(connection.request())
    return batch, result_of(batch, data, count)


def result_of(batch, data, count):
    batch.slot.make_room(OUTPUT, len(data))
    batch.slot.segments[OUTPUT].view[: len(data)] = data
    placed = Placed("OUTPUT", DataType.BYTES, (1, count), 0, len(data))
    return Result(batch.id, batch.slot.index, 1, (1, 2, 3), [placed]).encode()


async def test_few_short_strings_are_checked_as_they_come(connection):
    _, result = answered_with(connection, packed(100), 100)
    assert connection.worker.on_packet(result) is None
    assert len(connection.events.batches) == 1


async def test_many_strings_are_checked_in_slices_and_are_their_own_then(connection):
    count = 200_000
    batch, result = answered_with(connection, packed(count), count)
    slow = connection.worker.on_packet(result)
    assert connection.events.batches == []
    assert connection.worker.outstanding == {batch.id: batch}
    assert sum(1 for _ in slow()) >= len(packed(count)) // (64 * 1024)
    ((_, _, ((_, (tensor,), _),), _),) = connection.events.batches
    batch.slot.segments[OUTPUT].view[:100] = bytes(100)
    assert bytes(tensor.data) == packed(count)
    assert connection.worker.idle


@pytest.mark.parametrize(
    ("data", "count"),
    [(packed(200_000), 200_001), (packed(200_000), 199_999), (packed(200_000)[:-1], 200_000)],
    ids=["too few", "too many", "cut short"],
)
async def test_many_strings_that_are_malformed_are_the_workers_fault(connection, data, count):
    _, result = answered_with(connection, data, count)
    slow = connection.worker.on_packet(result)
    assert slow is not None
    with pytest.raises(FrameError, match="malformed output: packed BYTES tensor 'OUTPUT'"):
        at_once(slow())
    assert connection.events.batches == []


async def test_a_result_that_was_given_up_half_way_can_be_finished_anew(connection):
    count = 200_000
    _, result = answered_with(connection, packed(count), count)
    slow = connection.worker.on_packet(result)
    begun = slow()
    for _ in range(10):
        next(begun)
    begun.close()
    at_once(slow())
    ((_, _, ((_, (tensor,), _),), _),) = connection.events.batches
    assert bytes(tensor.data) == packed(count)


async def test_nobody_is_answered_whom_the_worker_was_relieved_of_meanwhile(connection):
    _, result = answered_with(connection, packed(200_000), 200_000)
    steps = connection.worker.on_packet(result)()
    next(steps)
    connection.worker.disown()
    for _ in steps:
        pass
    assert connection.events.batches == []


async def test_a_part_with_many_strings_is_checked_in_slices(connect):
    slices.give(slices.Pace(slice=0.0))
    connection, batch = executing(connect, outputs=TEXTS, decoupled=True)
    data = packed(200_000)
    placed = Placed("OUTPUT", DataType.BYTES, (1, 200_000), 0, len(data))
    part = Part(batch.id, 0, Answer(outputs=[placed]), data, len(data), final=False)
    *others, slow = [connection.worker.on_packet(packet) for packet in part.packets()]
    assert not any(others)
    assert connection.events.arrived == []
    assert slow is not None
    at_once(slow())
    (arrived,) = connection.events.arrived
    assert bytes(arrived.outputs[0].data) == data


async def test_a_worker_that_dies_while_its_result_is_checked_has_answered(nursery, autojump_clock):
    slices.give(slices.Pace(slice=0.0))
    life = await serving(nursery, outputs=TEXTS)
    (request,) = life.queue()
    await life.worker.batch()
    assert life.instance.worker is not None
    (batch,) = life.instance.worker.outstanding.values()
    count = 200_000
    life.worker.far.send(result_of(batch, packed(count), count))
    assert life.worker.control is not None
    life.worker.control.end(0)
    for _ in range(10):
        await trio.lowlevel.checkpoint()
    assert not request.reply.answered
    await life.die(Signal(11))
    assert request.reply.answered
    assert bytes(request.reply.parts[0].outputs[0].data) == packed(count)
