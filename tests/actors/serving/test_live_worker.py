"""The server's side of one worker: leases balance, and each message is an answer or a FrameError."""

import json
import math
import os
import random
import socket
from typing import Any

import numpy as np
import pytest

from actors.serving.instances.batches import HANDED
from actors.serving.instances.memory import SPARE_SLOTS
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.sending import FILLED_AT_ONCE
from actors.serving.instances.worker import LiveWorker
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment
from actors.wire.batch_frames import Answer, Execute, Placed, Result
from actors.wire.frames import FrameError
from actors.wire.gathering import COPY_LIMIT
from chaos.record.descriptors import left_open, open_descriptors
from tests.support.doubles import Double
from tests.support.model_doubles import make_request, make_spec
from tests.support.shortage import SAID, no_memory

MUTATIONS = int(os.environ.get("TRITIUM_FRAME_MUTATIONS", "3000"))


class Events(Double):
    """What the worker reported to its owner."""

    def __init__(self):
        self.loaded = 0
        self.failures = []
        self.batches = []
        self.logs = []
        self.phases = []
        self.freed = 0
        self.arrived = []
        self.shortages = []
        self.on_finished = lambda batch, borrowed: None

    def ready(self):
        self.loaded += 1

    def load_failed(self, message, traceback):
        self.failures.append((message, traceback))

    def finished(self, batch, result, answers, *, borrowed):
        self.batches.append((batch, result, answers, borrowed))
        self.on_finished(batch, borrowed)

    def part(self, batch, arrived):
        self.arrived.append(arrived)

    def short(self, batch):
        self.shortages.append(batch)

    def entered(self, phase):
        self.phases.append(phase)

    def logged(self, level, message):
        self.logs.append((level, message))

    def unsent(self, batch, error):
        self.failures.append((batch, error))

    def slot_freed(self):
        self.freed += 1


class Connection:
    """A live worker and the far end of its connection, where a test plays the worker."""

    def __init__(self, *, prefetch=True, **changes):
        ours, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        changes.setdefault("inputs", (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(-1,)),))
        changes.setdefault("outputs", (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),))
        self.spec = make_spec(**changes)
        self.events = Events()
        self.worker = LiveWorker(
            Pipe(ours), self.spec, self.spec.instances[0], self.events, prefetch=prefetch
        )
        self.worker.load("module:Class", {"name": "model"}, {})
        self.segments = {}
        self.letter: Any = None
        self.control: Any = None
        self._page: ControlPage | None = None
        self.opening = self.packets()

    def request(self, columns=2, rows=1, **options):
        made = make_request(**options)
        made.inputs = [Tensor.from_numpy("INPUT", np.ones((rows, columns), np.float32))]
        made.rows = rows
        made.requested_outputs = self.spec.output_names
        return made

    def packets(self):
        """What the worker would read now; new segments are mapped as it would."""
        found: list[Any] = []
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.sock, frames.MAX_FRAME, 4)
            except BlockingIOError:
                return found
            if packet[0] == frames.SEGMENT:
                slot, side, size = frames.decode_segment(packet)
                segment = Segment(descriptors[0], size)
                segment.close_fd()
                self.segments[slot, side] = segment
                continue
            if packet[0] == frames.LOAD:
                with open(descriptors[1], "rb") as letter:
                    self.letter = json.load(letter)
                self.control = descriptors[0]
            if packet[0] == frames.SPILLED:
                slot, side, offset, nbytes = frames.decode_spilled(packet)
                packet = bytes(self.segments[slot, side].view[offset : offset + nbytes])
            found.append(packet)

    def dispatch(self, *requests, now=0.0, **options):
        """Dispatch a batch; what was handed over is sent at once, if its inputs are not long."""
        batch = self.worker.dispatch(list(requests), now=now, **options)
        nbytes = sum(tensor.nbytes for request in requests for tensor in request.inputs)
        if batch.state is HANDED and nbytes <= FILLED_AT_ONCE:
            handed = self.worker.held.next_handed_nowait()
            if handed is not None:  # else the task that sends them has it
                self.worker.sender.forward(handed)
        return batch

    def result(self, batch, *, nbytes=8):
        rows = sum(request.rows for request in batch.requests)
        shape = (rows, nbytes // 4 // rows)
        placed = Placed("OUTPUT", DataType.FP32, shape, 0, nbytes)
        return Result(batch.id, batch.slot.index, len(batch.requests), (1, 2, 3), [placed]).encode()

    def page(self):
        """The control page as the worker has it."""
        if self._page is None:
            segment = Segment(self.control, self.letter["control_size"])
            segment.close_fd()
            self._page = ControlPage(segment, self.letter["lanes"], self.letter["cancellable"])
        return self._page

    def close(self):
        if self._page is not None:
            self._page.close()
        elif self.control is not None:
            os.close(self.control)
        self.control = self._page = None
        self.worker.close()
        self.sock.close()
        self.segments.clear()


def executing(connect, **changes):
    """Connect, and dispatch a request; return both."""
    connection = connect(**changes)
    return connection, connection.dispatch(connection.request())


async def test_loading_hands_over_the_letter_and_a_pair_of_segments_for_each_slot(connection):
    assert connection.opening == [bytes((frames.LOAD,))]
    assert connection.letter["backend"] == "module:Class"
    assert connection.letter["slots"] == 2 + SPARE_SLOTS
    assert sorted(connection.segments) == [(slot, side) for slot in range(4) for side in (INPUT, OUTPUT)]


async def test_a_batch_reaches_the_worker_in_its_slot(connection):
    batch = connection.dispatch(connection.request(id="a"), connection.request(rows=2))
    (packet,) = connection.packets()
    job = Execute.decode(packet)
    assert (job.batch_id, job.slot, list(job.rows)) == (batch.id, batch.slot.index, [1, 2])
    assert job.metadata == [{"id": "a"}, {}]
    view = connection.segments[job.slot, INPUT].view
    assert np.frombuffer(view[:24], "<f4").tolist() == [1.0] * 6


async def test_room_is_for_as_many_batches_as_may_execute_and_one_behind_each(connect):
    for prefetch, room in ((True, 2), (False, 1)):
        connection = connect(prefetch=prefetch)
        for _ in range(room):
            assert connection.worker.has_room
            connection.dispatch(connection.request())
        assert not connection.worker.has_room
        assert not connection.worker.idle


async def test_a_copied_result_frees_its_slot_at_once(connection, batch):
    connection.worker.on_packet(connection.result(batch))
    assert connection.worker.idle
    assert connection.events.freed == 1
    assert connection.events.batches[0][3] is False


async def test_a_borrowed_result_keeps_its_slot_until_it_is_released(connection, batch):
    connection.events.on_finished = lambda batch, borrowed: batch.slot.lease()
    connection.worker.on_packet(frames.encode_room(batch.slot.index, batch.id, 2 * COPY_LIMIT))
    connection.packets()
    assert connection.segments[batch.slot.index, OUTPUT].size >= 2 * COPY_LIMIT
    connection.worker.on_packet(connection.result(batch, nbytes=2 * COPY_LIMIT))
    assert connection.events.batches[0][3] is True
    assert connection.worker.idle
    assert connection.events.freed == 0
    batch.slot.release()
    assert connection.events.freed == 1


async def test_slots_held_by_slow_readers_do_not_hold_up_the_next_batches(connection):
    connection.events.on_finished = lambda batch, borrowed: batch.slot.lease()
    for _ in range(SPARE_SLOTS):
        batch = connection.dispatch(connection.request())
        connection.worker.on_packet(connection.result(batch))
    for _ in range(2):
        assert connection.worker.has_room
        connection.dispatch(connection.request())


async def test_a_lease_that_ends_after_the_worker_disturbs_nobody(connection):
    connection.events.on_finished = lambda batch, borrowed: batch.slot.lease()
    batch = connection.dispatch(connection.request())
    connection.worker.on_packet(connection.result(batch))
    connection.worker.close()
    batch.slot.release()
    assert connection.events.freed == 0


async def test_inputs_that_outgrow_a_segment_get_a_new_one(connection):
    batch = connection.dispatch(connection.request(columns=300_000))
    connection.packets()
    view = connection.segments[batch.slot.index, INPUT].view
    assert len(view) >= 1_200_000
    assert np.frombuffer(view[:1_200_000], "<f4").min() == 1.0


async def test_metadata_too_large_for_a_frame_goes_through_the_segment(connection):
    connection.dispatch(connection.request(parameters={"story": "x" * 200_000}))
    (packet,) = connection.packets()
    job = Execute.decode(packet)
    assert job.metadata is not None
    assert job.metadata[0]["parameters"]["story"] == "x" * 200_000
    assert np.frombuffer(connection.segments[job.slot, INPUT].view[:8], "<f4").tolist() == [1.0, 1.0]


async def test_a_result_too_large_for_a_frame_comes_through_the_segment(connection, batch):
    answer = Answer(code=ErrorCode.INTERNAL, message="why " * 50_000)
    packet = Result(batch.id, batch.slot.index, 1, (0, 0, 0), answers=[answer]).encode()
    connection.worker.on_packet(frames.encode_room(batch.slot.index, batch.id, len(packet)))
    connection.packets()
    connection.segments[batch.slot.index, OUTPUT].view[: len(packet)] = packet
    connection.worker.on_packet(frames.encode_spilled(batch.slot.index, OUTPUT, 0, len(packet)))
    assert connection.events.batches[0][2][0][2].message == "why " * 50_000


async def test_a_failed_dispatch_leaves_no_trace(connection):
    request = connection.request(columns=300_000)
    with no_memory():
        for _ in range(10):
            with pytest.raises(OSError, match=SAID):
                connection.dispatch(request)
    assert connection.worker.idle
    assert request.attempts == 0
    assert connection.worker.has_room
    connection.packets()
    batch = connection.dispatch(request)
    assert batch.requests == [request]
    connection.packets()
    assert connection.segments[batch.slot.index, INPUT].size >= 1_200_000


async def test_execution_is_timed_from_when_a_batch_is_the_oldest(connection):
    first = connection.dispatch(connection.request(), now=1.0)
    second = connection.dispatch(connection.request(), now=2.0)
    assert connection.worker.oldest_began_at() == 1.0
    assert connection.worker.overdue(0.5) is None
    assert connection.worker.overdue(1.0) is first
    connection.worker.on_packet(connection.result(first))
    connection.worker.held.advance(5.0)
    assert second.began_at == 5.0
    assert connection.worker.overdue(4.0) is None


async def test_a_batch_that_has_not_begun_is_taken_back_as_if_it_had_never_been_dispatched(connection):
    first, second = connection.request(), connection.request()
    connection.dispatch(first)
    batch = connection.worker.dispatch([second], now=1.0)
    assert connection.worker.take_back(batch, 2.0)
    assert (first.attempts, second.attempts, connection.worker.given) == (1, 0, 1)
    assert [each.requests for each in connection.worker.outstanding.values()] == [[first]]
    assert connection.worker.holding(second) is None


async def test_what_has_begun_is_not_taken_back(connection, batch):
    page = connection.page()
    assert connection.worker.not_begun() == [batch]
    assert page.begin(0, batch.id, batch.slot.index)
    assert connection.worker.not_begun() == []
    assert not connection.worker.take_back(batch, 1.0)
    assert connection.worker.outstanding == {batch.id: batch}
    connection.worker.on_packet(connection.result(batch))
    assert len(connection.events.batches) == 1


async def test_a_worker_passes_over_what_was_taken_back_before_its_slot_has_another_user(connection):
    page = connection.page()
    connection.dispatch(connection.request())
    batch = connection.dispatch(connection.request())
    in_use = connection.worker.memory.in_use
    assert connection.worker.take_back(batch, 1.0)
    assert not page.begin(0, batch.id, batch.slot.index)
    assert not connection.worker.has_room  # its frame still lies in the socket
    assert connection.worker.memory.in_use == in_use
    connection.worker.on_packet(frames.encode_skipped(batch.slot.index, batch.id))
    assert connection.worker.has_room
    assert connection.worker.memory.in_use == in_use - 1
    assert connection.events.freed == 1


async def test_a_batch_may_be_short_of_memory_and_answered_all_the_same(connection, batch):
    connection.worker.on_packet(frames.encode_short(batch.slot.index, batch.id))
    assert connection.events.shortages == [batch]
    connection.worker.on_packet(connection.result(batch))
    assert len(connection.events.batches) == 1


async def test_what_waited_behind_a_batch_that_was_taken_back_is_next(connection):
    first = connection.dispatch(connection.request())
    second = connection.dispatch(connection.request(), now=1.0)
    assert second.began_at == math.inf
    assert connection.worker.take_back(first, 3.0)
    assert second.began_at == 3.0
    assert connection.worker.busy_since == 3.0


async def test_a_worker_is_busy_since_the_last_of_its_lanes_is(connect):
    instances = (InstanceSpec(name="model_0_0", lanes=2),)
    connection = connect(instances=instances)
    assert connection.worker.busy_since == math.inf
    connection.dispatch(connection.request(), now=1.0)
    assert connection.worker.busy_since == math.inf
    connection.dispatch(connection.request(), now=4.0)
    connection.dispatch(connection.request(), now=5.0)
    assert connection.worker.busy_since == 4.0


async def test_the_result_of_a_batch_that_was_taken_back_is_a_broken_worker_s(connection, batch):
    assert connection.worker.take_back(batch, 1.0)
    with pytest.raises(FrameError, match="which was not asked for"):
        connection.worker.on_packet(connection.result(batch))
    assert connection.events.batches == []


def truncated_json(kind):
    return bytes((kind,)) + b'{"message":'


HOSTILE = {
    "an unknown kind": lambda batch: b"\xee" * 20,
    "a frame of the server's own": lambda batch: frames.encode_segment(0, 1, 65536),
    "a result for a batch that is not": lambda batch: Result(99, 0, 0, (0, 0, 0), []).encode(),
    "a result in another slot": lambda batch: Result(
        batch.id, batch.slot.index + 1, 1, (0, 0, 0), []
    ).encode(),
    "a result for more requests": lambda batch: Result(batch.id, batch.slot.index, 9, (0, 0, 0), []).encode(),
    "an output beyond the segment": lambda batch: Result(
        batch.id, batch.slot.index, 1, (0, 0, 0), [Placed("OUTPUT", DataType.FP32, (1, 2), 2**40, 8)]
    ).encode(),
    "a batch passed over that it was to execute": lambda batch: frames.encode_skipped(
        batch.slot.index, batch.id
    ),
    "no memory for a batch that is not": lambda batch: frames.encode_short(batch.slot.index, 99),
    "no memory in another slot": lambda batch: frames.encode_short(batch.slot.index + 1, batch.id),
    "room in another slot": lambda batch: frames.encode_room(batch.slot.index + 1, batch.id, 10),
    "room for no batch": lambda batch: frames.encode_room(batch.slot.index, 99, 10),
    "room without end": lambda batch: frames.encode_room(batch.slot.index, batch.id, 2**63),
    "a spill in a slot that is not": lambda batch: frames.encode_spilled(999, OUTPUT, 0, 10),
    "a spill in the inputs": lambda batch: frames.encode_spilled(batch.slot.index, INPUT, 0, 10),
    "a spill beyond the segment": lambda batch: frames.encode_spilled(batch.slot.index, OUTPUT, 65530, 10),
    "a spill of nothing": lambda batch: frames.encode_spilled(batch.slot.index, OUTPUT, 0, 0),
    "a spill of gigabytes": lambda batch: frames.encode_spilled(batch.slot.index, OUTPUT, 0, 2**34),
    "a spill of a spill": lambda batch: frames.encode_spilled(batch.slot.index, OUTPUT, 0, 20),
    "a log line that is cut": lambda batch: truncated_json(frames.LOG),
    "a log line at a level of its own": lambda batch: frames.encode_json(
        frames.LOG, {"level": "__class__", "message": "x"}
    ),
    "a phase that is no text": lambda batch: frames.encode_json(frames.PHASE, {"phase": 3}),
    "a log line without a level": lambda batch: frames.encode_json(frames.LOG, {"message": "x"}),
    "a log line that is a tree": lambda batch: (
        bytes((frames.LOG,)) + b'{"level":"info","message":' + b"[" * 900 + b"]" * 900 + b"}"
    ),
    "a log line without bottom": lambda batch: bytes((frames.LOG,)) + b"[" * 60_000,
    "a failure that is a number": lambda batch: frames.encode_json(frames.LOAD_FAILED, {"message": 7}),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_frame_is_a_frame_error_and_nothing_else_happens(connection, batch, what):
    with pytest.raises(FrameError):
        connection.worker.on_packet(HOSTILE[what](batch))
    assert list(connection.worker.outstanding.values()) == [batch]
    assert not connection.events.batches
    assert connection.events.freed == 0


async def test_a_result_is_taken_once(connection, batch):
    packet = connection.result(batch)
    connection.worker.on_packet(packet)
    with pytest.raises(FrameError, match="which was not asked for"):
        connection.worker.on_packet(packet)
    assert len(connection.events.batches) == 1


async def test_a_worker_that_asks_for_room_and_never_reads_is_refused(connection, batch):
    before = open_descriptors()

    def ask():
        for size in range(1, 5000):
            connection.worker.on_packet(frames.encode_room(batch.slot.index, batch.id, size * 1024 * 1024))

    with pytest.raises(FrameError, match="again and again"):
        ask()
    assert len(left_open(before)) < 20


async def test_room_that_the_system_does_not_have_is_the_workers_fault(connection, batch):
    with no_memory(), pytest.raises(FrameError, match=SAID):
        connection.worker.on_packet(frames.encode_room(batch.slot.index, batch.id, 2**30))


async def test_texts_of_a_worker_hold_characters_that_can_be_written(connection):
    connection.worker.on_packet(frames.encode_json(frames.LOG, {"level": "info", "message": "a\ud800"}))
    connection.worker.on_packet(frames.encode_json(frames.LOAD_FAILED, {"message": "b\udfff"}))
    assert connection.events.logs == [("info", "a?")]
    assert connection.events.failures == [("b?", "")]


async def test_a_load_tells_of_its_phases_but_not_for_ever(connection):
    for number in range(100):
        connection.worker.on_packet(frames.encode_json(frames.PHASE, {"phase": f"{number}: weights"}))
    assert connection.events.phases == [f"{number}: weights" for number in range(64)]


async def test_spoilt_packets_are_answers_or_frame_errors(connect):
    rng = random.Random(20260102)
    connection = connect()
    for turn in range(MUTATIONS):
        if not connection.worker.has_room or turn % 50 == 0:
            connection.close()
            connection = connect()
        if connection.worker.idle:
            batch = connection.dispatch(connection.request(), connection.request(rows=2))
        kind = rng.randrange(4)
        packet = bytearray(
            [
                connection.result(batch, nbytes=24),
                frames.encode_room(batch.slot.index, batch.id, 70_000),
                frames.encode_spilled(batch.slot.index, OUTPUT, 0, 60),
                frames.encode_json(frames.LOG, {"level": "info", "message": "hello"}),
            ][kind]
        )
        for _ in range(rng.randint(0, 3)):
            packet[rng.randrange(len(packet))] = rng.choice([0, 1, 255, rng.randrange(256)])
        try:
            connection.worker.on_packet(bytes(packet))
        except FrameError:
            continue
