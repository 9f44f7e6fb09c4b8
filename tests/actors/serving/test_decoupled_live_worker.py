"""The server's side of a decoupled worker: streams balance; each message is a part or a FrameError."""

import math
from functools import partial

import numpy as np
import pytest
import trio

from actors.serving.instances.memory import SPARE_SLOTS
from actors.serving.instances.streams import OPEN_LIMIT
from actors.values.datatypes import DataType
from actors.wire import frames
from actors.wire.batch_frames import Answer, Part, Placed, Result, join_parts
from actors.wire.frames import WINDOW_BYTES, WINDOW_PARTS, FrameError
from tests.actors.serving.test_live_worker import executing


def part(batch, index=0, *, values=(1.0, 2.0), final=False):
    data = np.array(values, np.float32).tobytes()
    answer = Answer([Placed("OUTPUT", DataType.FP32, (1, len(values)), 0, len(data))])
    return Part(batch.id, index, answer, data, len(data), final=final)


def end(batch, index=0):
    return Part(batch.id, index, None, b"", 0, final=True)


def result(batch, *open_):
    answers = [Answer(open=each) for each in open_ or [True] * len(batch.requests)]
    return Result(batch.id, batch.slot.index, len(batch.requests), (1, 2, 3), answers=answers).encode()


@pytest.fixture
async def connect(connect):
    return partial(connect, decoupled=True)


def say(connection, *parts):
    for each in parts:
        for packet in each.packets():
            connection.worker.on_packet(packet)


async def test_parts_reach_their_requests_with_the_tensors_they_carry(connection):
    batch = connection.dispatch(connection.request(), connection.request())
    say(connection, part(batch, 1), part(batch, 0, values=range(50_000)), end(batch, 1))
    found = [
        (
            arrived.stream.request,
            arrived.first,
            arrived.final,
            [t.as_numpy().tolist() for t in arrived.outputs],
        )
        for arrived in connection.events.arrived
    ]
    one, two = batch.requests
    assert found == [
        (two, True, False, [[[1.0, 2.0]]]),
        (one, True, False, [[[float(n) for n in range(50_000)]]]),
        (two, False, True, []),
    ]


async def test_parts_of_several_requests_come_in_one_frame(connection):
    batch = connection.dispatch(connection.request(), connection.request())
    parts = [part(batch, 1), part(batch, 0), part(batch, 1, values=[3.0, 4.0]), end(batch, 0)]
    connection.worker.on_packet(join_parts([each.packet() for each in parts]))
    found = [
        (batch.requests.index(arrived.stream.request), [t.as_numpy().tolist() for t in arrived.outputs])
        for arrived in connection.events.arrived
    ]
    assert found == [(1, [[[1.0, 2.0]]]), (0, [[[1.0, 2.0]]]), (1, [[[3.0, 4.0]]]), (0, [])]


async def test_parts_in_one_frame_cost_credit_as_those_in_their_own(connection, batch):
    packets = [part(batch).packet() for _ in range(WINDOW_PARTS)]
    connection.worker.on_packet(join_parts(packets))
    with pytest.raises(FrameError, match="without credit"):
        connection.worker.on_packet(join_parts(packets[:1]))


async def test_a_part_in_one_frame_with_others_is_whole(connection, batch):
    beginning = next(part(batch, values=range(50_000)).packets())[:500]
    with pytest.raises(FrameError, match="in one frame with others"):
        connection.worker.on_packet(join_parts([beginning]))


async def test_a_batch_gives_its_slot_back_when_its_execution_is_over_and_stays_open(connection):
    for _ in range(4 * (2 + SPARE_SLOTS)):
        assert connection.worker.has_room
        batch = connection.dispatch(connection.request())
        connection.worker.on_packet(result(batch))
    assert connection.worker.has_room
    assert not connection.worker.idle
    assert len(connection.worker.open) == 4 * (2 + SPARE_SLOTS)
    for open_batch in list(connection.worker.open.values()):
        say(connection, end(open_batch))
    assert connection.worker.idle


async def test_no_more_requests_are_open_than_may_be(connect):
    connection = connect(max_batch_size=OPEN_LIMIT // 2)
    batches = []
    for _ in range(2):
        batches.append(connection.dispatch(*(connection.request() for _ in range(OPEN_LIMIT // 2))))
        connection.worker.on_packet(result(batches[-1]))
    assert not connection.worker.has_room
    freed = connection.events.freed
    say(connection, end(batches[0]))
    assert connection.worker.has_room
    assert connection.events.freed == freed + 1


async def test_what_ended_before_the_execution_was_over_is_not_open(connection):
    batch = connection.dispatch(connection.request(), connection.request())
    say(connection, end(batch, 0), end(batch, 1))
    assert not connection.worker.open
    assert not connection.worker.idle
    connection.worker.on_packet(result(batch))
    assert connection.worker.idle


async def test_a_cancel_is_told_once_for_each_open_request(connection):
    batch = connection.dispatch(connection.request(), connection.request())
    connection.worker.on_packet(result(batch))
    connection.packets()
    say(connection, end(batch, 0))
    for request in batch.requests:
        connection.worker.cancel(request)
    assert [frames.decode_cancel(packet) for packet in connection.packets()] == [(batch.id, 1)]


async def test_credit_is_given_when_half_a_window_has_been_taken(connection, batch):
    connection.packets()
    say(connection, *(part(batch) for _ in range(WINDOW_PARTS)))
    for arrived in connection.events.arrived[: WINDOW_PARTS // 2 - 1]:
        arrived.taken()
    assert connection.packets() == []
    connection.events.arrived[-1].taken()
    (packet,) = connection.packets()
    assert frames.decode_credit(packet) == (batch.id, 0, WINDOW_PARTS // 2, 8 * WINDOW_PARTS // 2)


async def test_a_worker_that_never_reads_its_credit_is_found_out(connection, batch):

    def send_for_ever():
        while True:
            say(connection, *(part(batch) for _ in range(WINDOW_PARTS // 2)))
            for arrived in connection.events.arrived:
                arrived.taken()
            connection.events.arrived.clear()

    with pytest.raises(FrameError, match="never reads its credit"):
        send_for_ever()


async def test_silence_counts_from_the_last_part_and_not_while_a_client_is_waited_for(connection):
    worker = connection.worker
    batch = worker.dispatch([connection.request()], now=10.0)
    worker.on_packet(result(batch))
    assert worker.overdue(9.0) is None
    assert worker.overdue(11.0) is batch
    assert worker.oldest_began_at() == 10.0
    batch.progressed(12.0)
    assert worker.overdue(11.0) is None
    assert batch.started_at == 10.0
    say(connection, *(part(batch) for _ in range(WINDOW_PARTS)))
    assert worker.overdue(13.0) is None
    assert worker.oldest_began_at() == math.inf
    for arrived in connection.events.arrived:
        arrived.taken()
    now = trio.current_time()
    assert worker.overdue(now - 1) is None
    assert worker.overdue(now + 1) is batch


async def test_what_comes_after_the_worker_was_disowned_is_dropped(connection, batch):
    connection.worker.disown()
    say(connection, part(batch), end(batch))
    connection.worker.on_packet(result(batch))
    assert connection.events.arrived == []
    assert connection.worker.idle


async def test_a_part_of_what_is_not_open_is_a_frame_error(connection, batch):
    for each in (part(batch, 1), Part(99, 0, None, b"", 0, final=True)):
        with pytest.raises(FrameError, match="not open"):
            say(connection, each)
    say(connection, end(batch))
    for each in (part(batch), end(batch)):
        with pytest.raises(FrameError, match="not open"):
            say(connection, each)


async def test_a_second_answer_to_what_has_ended_is_a_frame_error(connection, batch):
    say(connection, end(batch))
    with pytest.raises(FrameError, match="a second answer"):
        connection.worker.on_packet(connection.result(batch))


async def test_parts_without_credit_or_without_end_are_frame_errors(connection, batch):
    large = part(batch, values=range(WINDOW_BYTES // 4))
    first, *more = large.packets()
    connection.worker.on_packet(first)
    for packet in more:
        connection.worker.on_packet(packet)
    with pytest.raises(FrameError, match="too many"):
        connection.worker.on_packet(more[-1])
    with pytest.raises(FrameError, match="without credit"):
        say(connection, part(batch))


async def test_a_worker_of_another_model_has_no_parts_to_send(connect):
    connection, batch = executing(connect, decoupled=False)
    with pytest.raises(FrameError, match="which is none of its own"):
        say(connection, part(batch))
    with pytest.raises(FrameError, match="unknown status"):
        connection.worker.on_packet(result(batch))


async def test_malformed_strings_in_a_part_are_a_frame_error(connection, batch):
    answer = Answer([Placed("OUTPUT", DataType.BYTES, (1, 1), 0, 4)])
    with pytest.raises(FrameError, match="malformed output"):
        say(connection, Part(batch.id, 0, answer, b"\xff\xff\xff\xff", 4, final=False))
