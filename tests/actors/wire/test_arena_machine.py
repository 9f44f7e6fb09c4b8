"""A live worker's segments and leases against a counting model: each slot's holder and bytes.

The machine plays the worker at the far end of the connection. It reads frames and maps segments as a worker
does, writes results, asks for room and answers out of order. Responses are released late, also after the
worker's death. Every byte that a client sees is compared with what the worker wrote for it, long after the
slot has had other users.
"""

import gc
import json
import os
import socket
import sys
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.serving.instances.memory import SPARE_SLOTS
from actors.serving.instances.pipe import Pipe
from actors.serving.instances.worker import LiveWorker, WorkerEvents
from actors.values.datatypes import DataType
from actors.values.requests import InferRequest
from actors.values.specs import InputSpec, InstanceSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.arena import INPUT, OUTPUT, ControlPage, Segment
from actors.wire.batch_frames import Execute, Placed, Result
from actors.wire.frames import FrameError
from actors.wire.gathering import COPY_LIMIT
from tests.support.examples import examples
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort
from tests.support.stepped_trio import SteppedTrio

# Columns of one byte: copied out, a generation more, borrowed.
SMALL, LARGE, HUGE = (
    4,
    80 * 1024,
    COPY_LIMIT + 4096,
)


class Held:
    """A response that a client has not read to its end: what it views, and what that must be."""

    def __init__(self, slot, views):
        self.slot = slot
        self.views = views  # pairs of a view and the bytes that were written for it

    def check(self):
        for view, written in self.views:
            assert bytes(view[:64]) == written[:64]
            assert len(view) == len(written)


class Arenas(RuleBasedStateMachine):
    """One worker after the other, each with slots of its own."""

    @initialize(lanes=st.integers(1, 2), prefetch=st.booleans())
    def begin(self, lanes, prefetch):
        self.spec = make_spec(
            max_batch_size=4,
            inputs=(InputSpec(name="INPUT", datatype=DataType.UINT8, dims=(-1,)),),
            outputs=(OutputSpec(name="OUTPUT", datatype=DataType.UINT8, dims=(-1,)),),
            instances=(InstanceSpec(name="model_0_0", lanes=lanes),),
        )
        self.mapped_before = mapped_by_this_process()
        self.trio = SteppedTrio()
        self.prefetch = prefetch
        self.capacity = lanes * (2 if prefetch else 1)
        self.slots = self.capacity + SPARE_SLOTS
        self.worker: Any = None
        self.page: Any = None
        self.held = []  # responses, of this worker and of those before
        self.mark = 0
        self.launch()

    def launch(self):
        ours, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        instance = self.spec.instances[0]
        self.worker = self.trio.do(
            lambda: LiveWorker(
                Pipe(ours), self.spec, instance, cast("WorkerEvents", self), prefetch=self.prefetch
            )
        )
        self.mapped = {}
        self.jobs = {}
        self.batches = {}  # by id, as dispatched
        self.begun = set()  # ids, as the worker knows them
        self.taken_back = {}  # by id: their frames lie in the socket
        self.leases = dict.fromkeys(range(self.slots), 0)
        self.sizes = {}  # of generations
        self.freed = self.expected_freed = 0
        self.outcome: Any = None
        self.trio.do(self.worker.load, "module:Class", {"name": "model"}, {})
        self.read()

    # What the worker tells its owner

    def slot_freed(self):
        self.freed += 1

    def unsent(self, batch, error):
        raise error

    def finished(self, batch, result, answers, *, borrowed):
        self.outcome = answers, borrowed
        if borrowed:
            for _ in answers:
                batch.slot.lease()

    # The far end

    def read(self):
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.sock, frames.MAX_FRAME, 4)
            except BlockingIOError:
                return
            if packet[0] == frames.SEGMENT:
                slot, side, size = frames.decode_segment(packet)
                assert size > self.sizes.get((slot, side), 0), (
                    "a generation that is no larger than the one before"
                )
                assert self.leases[slot] <= 1, "the slot has other users"
                self.sizes[slot, side] = size
                assert os.fstat(descriptors[0]).st_size == size
                self.mapped[slot, side] = segment = Segment(descriptors[0], size)
                segment.close_fd()
            elif packet[0] == frames.EXECUTE:
                job = Execute.decode(packet)
                self.jobs[job.batch_id] = job
            elif packet[0] == frames.LOAD:
                with open(descriptors[1], "rb") as letter:
                    told = json.load(letter)
                control = Segment(descriptors[0], told["control_size"])
                control.close_fd()
                self.page = ControlPage(control, told["lanes"], told["cancellable"])

    # What happens

    @precondition(lambda self: self.worker.has_room)
    @rule(columns=st.sampled_from([SMALL, SMALL, LARGE, HUGE]), members=st.integers(1, 3))
    def dispatch(self, columns, members):
        requests = []
        for _ in range(members):
            self.mark = self.mark % 250 + 1
            request = InferRequest(
                model_name="model",
                inputs=[Tensor.from_numpy("INPUT", np.full((1, columns), self.mark, np.uint8))],
                requested_outputs=self.spec.output_names,
                reply=NoPort(),
                accepted_at=0.0,
            )
            request.rows = 1
            requests.append(request)
        batch = self.trio.do(lambda: self.worker.dispatch(requests, now=0.0))
        handed = self.worker.held.next_handed_nowait()
        if handed is not None:
            self.trio.do(self.worker.sender.forward, handed)
        slot = batch.slot.index
        assert self.leases[slot] == 0, "two users of one slot"
        self.leases[slot] = 1
        self.batches[batch.id] = batch
        self.read()
        job = self.jobs[batch.id]
        assert (job.slot, list(job.rows)) == (slot, [1] * members)
        view = self.mapped[slot, INPUT].view
        [placed] = job.inputs
        sent = b"".join(bytes(request.inputs[0].data) for request in requests)
        assert bytes(view[placed.offset : placed.offset + placed.nbytes]) == sent
        assert not any(self.flags(batch)), "flagged as cancelled by the one before"

    def flags(self, batch):
        return [self.page.cancelled(batch.slot.index, at) for at in range(len(batch.requests))]

    def answer(self, batch, columns, offset):
        total = columns * len(batch.requests)
        return Result(
            batch.id,
            batch.slot.index,
            len(batch.requests),
            (1, 2, 3),
            [Placed("OUTPUT", DataType.UINT8, (len(batch.requests), columns), offset, total)],
        ).encode()

    @precondition(lambda self: self.batches or self.taken_back)
    @rule(data=st.data())
    def begin_next(self, data):
        """The worker comes to a batch, in any order; the server took it back, or it is the worker's."""
        unread = [
            *(each for each in self.batches.values() if each.id not in self.begun),
            *self.taken_back.values(),
        ]
        if not unread:
            return
        batch = data.draw(st.sampled_from(unread))
        slot = batch.slot.index
        if self.page.begin(0, batch.id, slot):
            assert batch.id in self.batches, "two have the same batch"
            self.begun.add(batch.id)
            return
        assert batch.id in self.taken_back, "nobody has the batch"
        del self.taken_back[batch.id]
        self.trio.do(self.worker.on_packet, frames.encode_skipped(slot, batch.id))
        self.leases[slot] -= 1
        self.expected_freed += 1

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def take_back(self, data):
        """The server wants a batch for another instance, at any point of the worker's work."""
        batch = data.draw(st.sampled_from(list(self.batches.values())))
        taken = self.trio.do(self.worker.take_back, batch, 1.0)
        assert taken == (batch.id not in self.begun)
        if taken:
            self.taken_back[batch.id] = self.batches.pop(batch.id)
        assert [request.attempts for request in batch.requests] == [not taken] * len(batch.requests)

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), columns=st.sampled_from([SMALL, LARGE, HUGE]), gap=st.sampled_from([0, 64]))
    def finish(self, data, columns, gap):
        batch = self.batches[data.draw(st.sampled_from(sorted(self.begun)))]
        self.begun.remove(batch.id)
        slot, members = batch.slot.index, len(batch.requests)
        total = columns * members + gap
        if total > self.sizes[slot, OUTPUT]:
            self.trio.do(self.worker.on_packet, frames.encode_room(slot, batch.id, total))
            self.read()
        assert self.sizes[slot, OUTPUT] >= total
        self.mark = self.mark % 250 + 1
        rows = [bytes([(self.mark + at) % 256]) * columns for at in range(members)]
        view = self.mapped[slot, OUTPUT].view
        view[gap : gap + columns * members] = b"".join(rows)
        del self.batches[batch.id]
        self.trio.do(self.worker.on_packet, self.answer(batch, columns, gap))
        answers, borrowed = self.outcome
        assert borrowed == (columns * members > COPY_LIMIT)
        assert [request for request, _, _ in answers] == list(batch.requests)
        views = [(outputs[0].data, row) for (_, outputs, _), row in zip(answers, rows, strict=True)]
        self.leases[slot] += -1 + (members if borrowed else 0)
        self.expected_freed += not self.leases[slot]
        for pair in views:
            self.held.append(Held((self.worker, batch.slot) if borrowed else None, [pair]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        """A client has read its answer; perhaps the worker is long gone."""
        self.let_go(data.draw(st.sampled_from(self.held)))

    def let_go(self, held):
        self.held.remove(held)
        held.check()
        held.views.clear()
        if held.slot is not None:
            worker, slot = held.slot
            self.trio.do(slot.release)
            if worker is self.worker:
                self.leases[slot.index] -= 1
                self.expected_freed += not self.leases[slot.index]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def cancel(self, data):
        batch = data.draw(st.sampled_from(list(self.batches.values())))
        at = data.draw(st.integers(0, len(batch.requests) - 1))
        before = self.flags(batch)
        self.trio.do(self.worker.cancel, batch.requests[at])
        assert self.flags(batch) == [flag or place == at for place, flag in enumerate(before)]

    @precondition(lambda self: self.batches)
    @rule(
        data=st.data(),
        wrong=st.sampled_from(
            [
                "beyond",
                "far beyond",
                "other slot",
                "other batch",
                "too many",
                "no room",
                "twice",
                "passed over",
            ]
        ),
    )
    def say_what_is_not_so(self, data, wrong):
        """A lying worker is detected, and no request gets an answer from it."""
        batch = data.draw(st.sampled_from(list(self.batches.values())))
        slot, members = batch.slot.index, len(batch.requests)
        size = self.sizes[slot, OUTPUT]
        placed = [Placed("OUTPUT", DataType.UINT8, (members, 1), 0, members)]
        said = batch.id, slot, members
        if wrong == "beyond":
            placed = [Placed("OUTPUT", DataType.UINT8, (members, 1), size - members + 1, members)]
        elif wrong == "far beyond":
            placed = [Placed("OUTPUT", DataType.UINT8, (members, size), 0, members * size + 64)]
        elif wrong == "other slot":
            said = batch.id, (slot + 1) % self.slots, members
        elif wrong == "other batch":
            said = max([*self.batches, *self.taken_back]) + 1, slot, members
        elif wrong == "too many":
            said = batch.id, slot, members + 1
        packet = Result(*said, (1, 2, 3), placed).encode()
        if wrong == "no room":
            packet = frames.encode_room(slot, batch.id, 1 << 50)
        elif wrong == "passed over":
            packet = frames.encode_skipped(slot, batch.id)
        elif wrong == "twice":
            packet = frames.encode_room((slot + 1) % self.slots, batch.id, SMALL)
        self.outcome = None
        with pytest.raises(FrameError):
            self.trio.do(self.worker.on_packet, packet)
        assert self.outcome is None

    @precondition(lambda self: self.held or self.batches)
    @rule()
    def trim(self):
        for _ in range(2):
            self.trio.do(lambda: list(self.worker.memory.trimming()))

    @precondition(lambda self: self.held and self.batches)
    @rule(disowned=st.booleans())
    def die(self, disowned):
        if disowned:
            self.trio.do(self.worker.disown)
        self.worker_dies()
        self.launch()

    def worker_dies(self):
        self.trio.do(self.worker.close)
        self.sock.close()
        self.page.close()
        self.mapped.clear()
        self.batches.clear()
        self.begun.clear()
        self.taken_back.clear()
        self.worker = self.page = self.outcome = None

    # What must be

    @invariant()
    def leases_add_up(self):
        assert self.freed == self.expected_freed
        free = sum(not leases for leases in self.leases.values())
        held = len(self.batches) + len(self.taken_back)
        assert self.worker.has_room == (held < self.capacity and free > 0)
        assert self.worker.idle == (not self.batches)
        assert self.worker.outstanding.keys() == self.batches.keys()

    @invariant()
    def nobody_s_answer_changes_under_his_eyes(self):
        for held in self.held:
            held.check()

    def teardown(self):
        if not hasattr(self, "trio"):
            return
        self.worker_dies()
        failing = sys.exc_info()[0] is not None
        while self.held and not failing:
            self.let_go(self.held[-1])
        self.trio.close()
        del self.trio
        if failing:
            return  # and the traceback holds on to what it saw
        gc.collect()  # Python's mappings are closed with their last view
        assert mapped_by_this_process() <= self.mapped_before, "a segment is left open"


def mapped_by_this_process():
    """Return the number of segments of this process: as mappings and as descriptors."""
    descriptors = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of the listing
            descriptors += "memfd:tritium" in os.readlink(f"/proc/self/fd/{name}")
    with open("/proc/self/maps") as maps:
        return descriptors + sum("memfd:tritium" in line for line in maps)


TestArenas = pytest.mark.slow(Arenas.TestCase)
TestArenas.settings = settings(max_examples=examples(10), stateful_step_count=30, deadline=None)
