"""The server's end of the call connection, with a played worker, perhaps hostile, and a played callee."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import socket
import weakref
from array import array
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from actors.calls.account import Account, CallLimits
from actors.calls.call import CallBook
from actors.calls.call_pipe import CallPipe
from actors.calls.calls import CallHost, WorkerCalls
from actors.calls.subjects import CallingWorker, Subjects
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, ErrorCode, NotFound, Unavailable
from actors.values.requests import InferResponse
from actors.values.tensors import Tensor
from actors.wire import frames
from actors.wire.batch_frames import Part, Placed
from actors.wire.call_frames import GIVE_UP, LARGEST_BODY, STOP_SENDING, Letter
from actors.wire.call_segments import map_segment, write_segment
from actors.wire.frames import WINDOW_PARTS, FrameError
from chaos.record.descriptors import left_open, open_descriptors
from tests.support.model_doubles import make_spec
from tests.support.ports import waiting_request

FP32 = DataType.FP32
SEALS = 0x000F

LIMITS = CallLimits()


class PlayedCallee:
    """Takes requests, and answers when the test says so."""

    marks = None

    def __init__(self, **changes):
        self.spec = make_spec(name="callee", **changes)
        self.requests = []
        self.cancelled = []
        self.released = 0

    def submit_nowait(self, request):
        self.requests.append(request)

    def cancel(self, request):
        self.cancelled.append(request)

    def respond(self, request, nbytes=4, *, final=True, error=None):
        if error is not None:
            request.reply.put(error, final=final)
            return
        outputs = [Tensor("OUTPUT", FP32, (nbytes // 4,), bytes(nbytes))] if nbytes else []
        response = InferResponse(model_name="callee", model_version=1, outputs=outputs)
        response.on_release(self._release)
        request.reply.put(response, final=final)

    def _release(self):
        self.released += 1

    def resolve(self, name, version="", *, namespace=""):
        if name != "callee":
            raise NotFound(f"no {name}")
        return self


class PlayedWorker:
    """The worker's end, and what the live worker would hold."""

    def __init__(self, sock):
        self.sock = sock
        sock.setblocking(False)
        self.outstanding = {}
        self.open = {}
        self.steps = 0
        self.condemned = []

    def stop_prefetching(self):
        """It does not prefetch."""

    def call(self, number=1, data=bytes(4), parent=None, **fields):
        placed = [Placed("INPUT", FP32, (len(data) // 4,), 0, len(data))] if data else []
        said = {"model": "callee", "decoupled": True, **fields}
        self.send(Letter(frames.CALL, number, said, placed, data, len(data), parent=parent))

    def ask(self, subject, number=1, data=b"{}", attachments=()):
        fields = {"subject": subject, "attachments": [*attachments]}
        self.send(Letter(frames.ASK, number, fields, (), data, len(data)))

    def send(self, letter):
        for pieces in letter.packets():
            self.sock.sendmsg(pieces)

    def send_descriptor(self, descriptor, packet):
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
        self.sock.sendmsg([packet], [rights])

    def give(self, descriptor, packet):
        """Send a descriptor, and close it here."""
        self.send_descriptor(descriptor, packet)
        os.close(descriptor)

    def parts(self):
        """What has come, whole; the bytes of segments are the data."""
        found: list[Part] = []
        segment = None
        while True:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.sock, frames.MAX_FRAME, 1)
            except BlockingIOError:
                return found
            if packet[0] == frames.SEGMENT:
                segment = map_segment(descriptors[0], frames.decode_segment(packet)[2], writable=True)
            elif packet[0] == frames.MORE:
                found[-1].data = b"".join((found[-1].data, frames.decode_more(packet)[2]))
            else:
                part = Part.decode(packet)
                part.data = part.data if segment is None else segment
                segment = None
                found.append(part)


class Connection:
    """Both ends."""

    def __init__(self, calls, worker, callee, subjects):
        self.calls = calls
        self.worker = worker
        self.callee = callee
        self.subjects = subjects

    async def settle(self):
        await trio.testing.wait_all_tasks_blocked(0.001)

    async def call(self, *args, **kwargs):
        """Have the worker call; return the last request that the callee has got by then, if any."""
        self.worker.call(*args, **kwargs)
        await self.settle()
        return self.callee.requests[-1] if self.callee.requests else None

    def have_questions_wait(self):
        """Answer questions about "wait" when the event is set that this returns."""
        go = trio.Event()

        async def wait(body, attachments, caller):
            await go.wait()
            return {}

        self.subjects.answer("wait", wait)
        return go

    def codes(self):
        """The error codes of the parts that have come; None is none."""
        return [part.answer.code for part in self.worker.parts()]

    async def tell(self, packet):
        """Have the worker send a packet, and the server take it."""
        self.worker.sock.send(packet)
        await self.settle()

    async def condemned(self):
        await self.settle()
        return [str(error) for error in self.worker.condemned]


@asynccontextmanager
async def connected(*, deadlocks=None, limits=LIMITS, **changes):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker, callee, subjects = PlayedWorker(theirs), PlayedCallee(**changes), Subjects()
    caller = CallingWorker(make_spec(name="caller"), "caller_0_0")
    book = CallBook(caller, Account(limits))
    calls = WorkerCalls(CallPipe(ours), worker, CallHost(callee, subjects, deadlocks), book)
    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.run, worker.condemned.append)
            yield Connection(calls, worker, callee, subjects)
            nursery.cancel_scope.cancel()


def connecting(**kwargs):
    """Have the connection of a test made in another way than usual."""
    return pytest.mark.parametrize("connection", [kwargs], indirect=True, ids=[""])


@pytest.fixture
async def connection(request):
    async with connected(**getattr(request, "param", {})) as connection:
        yield connection


async def test_an_answer_is_copied_and_released_at_once(connection):
    request = await connection.call()
    connection.callee.respond(request, 8)
    assert connection.callee.released == 1
    (part,) = connection.worker.parts()
    assert (part.batch_id, part.final, part.nbytes) == (1, True, 8)


async def test_a_large_letter_and_a_large_answer_go_in_sealed_segments(connection):
    data = random.Random(1).randbytes(1_000_000)
    connection.worker.give(
        write_segment([data[:500_000], data[500_000:]]), frames.encode_segment(0, 0, len(data))
    )
    placed = Placed("INPUT", FP32, (250_000,), 0, len(data))
    (first, _) = next(Letter(frames.CALL, 1, {"model": "callee"}, [placed], b"", len(data)).packets())
    await connection.tell(first)
    (request,) = connection.callee.requests
    assert bytes(request.inputs[0].data) == data
    connection.callee.respond(request, 1_000_000)
    (part,) = connection.worker.parts()
    assert len(part.data) == 1_000_000


@connecting(decoupled=True)
async def test_answers_wait_for_credit_and_so_does_their_memory(connection):
    request = await connection.call()
    for _ in range(WINDOW_PARTS + 5):
        connection.callee.respond(request, final=False)
    connection.callee.respond(request, 0)
    assert len(connection.worker.parts()) == WINDOW_PARTS == connection.callee.released
    await connection.tell(frames.encode_credit(1, 0, 3, 12))
    assert len(connection.worker.parts()) == 3
    await connection.tell(frames.encode_credit(1, 0, 10, 40))
    assert [part.final for part in connection.worker.parts()] == [False, False, True]
    assert connection.callee.released == WINDOW_PARTS + 6


@connecting(decoupled=True)
async def test_cancelling_ends_a_call_at_once_and_tells_the_callee(connection):
    request = await connection.call()
    await connection.tell(frames.encode_cancel(1, 0))
    (part,) = connection.worker.parts()
    assert (part.final, part.answer.code) == (True, ErrorCode.CANCELLED)
    assert connection.callee.cancelled == [request]
    connection.callee.respond(request)
    assert connection.callee.released == 1
    assert connection.worker.parts() == []


@connecting(decoupled=True)
async def test_a_callee_that_is_asked_for_an_end_is_heard_out(connection):
    request = await connection.call()
    connection.callee.respond(request, final=False)
    for _ in range(2):
        connection.worker.sock.send(frames.encode_cancel(1, STOP_SENDING))
    await connection.settle()
    assert connection.callee.cancelled == [request]
    connection.callee.respond(request, 8, final=False)
    connection.callee.respond(request, 0)
    parts = connection.worker.parts()
    assert [(part.nbytes, part.final) for part in parts] == [(4, False), (8, False), (0, True)]


@connecting(decoupled=True)
async def test_what_had_not_begun_when_it_was_asked_for_an_end_says_so(connection):
    request = await connection.call()
    await connection.tell(frames.encode_cancel(1, STOP_SENDING))
    connection.callee.respond(request, error=Cancelled(""))
    (part,) = connection.worker.parts()
    assert (part.answer.code, part.answer.message) == (
        ErrorCode.CANCELLED,
        "the caller has cancelled this call",
    )


@connecting(decoupled=True)
async def test_who_reads_no_more_need_not_hear_out_a_callee(connection):
    await connection.call()
    for how in (STOP_SENDING, GIVE_UP):
        connection.worker.sock.send(frames.encode_cancel(1, how))
    await connection.settle()
    assert connection.codes() == [ErrorCode.CANCELLED]
    assert connection.callee.cancelled == connection.callee.requests


async def test_a_call_that_is_cancelled_before_it_waits_for_room_is_not_submitted(connection):
    def full(request):
        raise trio.WouldBlock

    async def wait(request):
        raise AssertionError("it has ended")

    connection.callee.submit_nowait, connection.callee.submit = full, wait
    connection.worker.call()
    await connection.tell(frames.encode_cancel(1, 0))
    assert connection.codes() == [ErrorCode.CANCELLED]


async def test_the_inputs_of_a_call_go_with_its_answer(connection):
    """They must not wait for the collector: each large input is a mapping of its own."""
    await connection.call()
    reference = weakref.ref(connection.callee.requests[0].inputs[0].data)
    gc.disable()
    try:
        connection.callee.respond(connection.callee.requests.pop())
        assert reference() is None
    finally:
        gc.enable()


async def test_the_inputs_of_a_call_that_would_wait_for_itself_go_with_the_refusal():
    class Circles:
        def __init__(self):
            self.data = []

        def check(self, call):
            self.data.append(weakref.ref(call.request.inputs[0].data))
            raise Unavailable("a circle")

    circles = Circles()
    async with connected(deadlocks=circles) as connection:
        connection.worker.outstanding[4] = SimpleNamespace(id=4, requests=[])
        gc.disable()
        try:
            await connection.call(parent=(4, -1), blocking=True)
            assert [reference() for reference in circles.data] == [None]
        finally:
            gc.enable()
        assert connection.codes() == [ErrorCode.UNAVAILABLE]
        assert connection.callee.requests == []


async def test_the_end_of_the_connection_cancels_what_is_under_way(connection):
    gone: list[Any] = []
    connection.subjects.on_end(gone.append)
    await connection.call()
    connection.worker.sock.shutdown(socket.SHUT_RDWR)
    await connection.settle()
    assert connection.callee.cancelled == connection.callee.requests
    assert [caller.instance for caller in gone] == ["caller_0_0"]
    connection.callee.respond(connection.callee.requests[0])
    assert connection.callee.released == 1


async def test_the_parent_of_a_call_gives_it_its_deadline_and_its_cancellation(connection):
    parent = waiting_request(deadline=7.5, tenant="t")
    parent.synthetic, parent.affinity = True, "a"
    batch = SimpleNamespace(id=4, requests=[None, parent])
    connection.worker.outstanding[4] = batch
    request = await connection.call(parent=(4, 1), blocking=True)
    assert (request.deadline, request.synthetic, request.affinity, request.tenant) == (
        7.5,
        True,
        "a",
        "t",
    )
    assert [call.request for call in connection.calls.book.blocking[batch.id]] == [request]
    parent.cancelled = True
    connection.calls.cancelled(parent)
    assert connection.callee.cancelled == [request]
    assert not connection.calls.book.blocking
    await connection.call(2, parent=(4, 1))
    assert connection.codes() == [ErrorCode.CANCELLED] * 2


async def test_a_call_for_a_whole_batch_is_for_those_who_still_wait(connection):
    first, second = waiting_request(), waiting_request()
    connection.worker.outstanding[4] = SimpleNamespace(id=4, requests=[first, second])
    await connection.call(parent=(4, -1))
    first.answered = second.cancelled = True
    connection.calls.cancelled(second)
    assert connection.callee.cancelled == connection.callee.requests
    await connection.call(2, parent=(4, -1))
    assert connection.codes() == [ErrorCode.CANCELLED] * 2


async def test_a_call_after_the_answer_of_all_is_made_for_its_effect(connection):
    parent = waiting_request()
    parent.answered = True
    connection.worker.outstanding[4] = SimpleNamespace(id=4, requests=[parent])
    await connection.call(parent=(4, 0))
    assert len(connection.callee.requests) == 1


@connecting(limits=CallLimits(nbytes=3_000_000))
async def test_a_worker_that_does_not_read_costs_no_more_than_it_may_hold(connection):
    for number in range(1, 6):
        connection.worker.call(number)
    await connection.settle()
    for request in connection.callee.requests:
        connection.callee.respond(request, 1_000_000)
    assert connection.codes() == [None] * 3 + [ErrorCode.UNAVAILABLE] * 2
    connection.worker.sock.send(bytes((frames.TAKEN,)))
    await connection.call(6)
    connection.callee.respond(connection.callee.requests[-1], 1_000_000)
    assert connection.codes() == [None]


@connecting(limits=CallLimits(nbytes=1_000_000), decoupled=True)
async def test_a_caller_that_takes_nothing_of_a_stream_that_nothing_stops_loses_it(connection):
    """Parts that hold no other request's memory delay no other request: those of an ensemble, for example."""
    connection.worker.call()
    await connection.call(2)
    first, second = connection.callee.requests
    sent = 0
    while not connection.callee.cancelled:
        outputs = [Tensor("OUTPUT", FP32, (250,), bytes(1000))]
        first.reply.put(InferResponse(model_name="callee", model_version=1, outputs=outputs), final=False)
        sent += 1
    assert WINDOW_PARTS < sent < 1000
    *parts, last = connection.worker.parts()
    assert len(parts) == WINDOW_PARTS
    assert (last.final, last.answer.code) == (True, ErrorCode.UNAVAILABLE)
    for _ in range(WINDOW_PARTS + 5):
        connection.callee.respond(second, final=False)
    assert len(connection.worker.parts()) == WINDOW_PARTS


async def test_more_calls_than_a_worker_may_have_are_refused(connection):
    for number in range(1, LIMITS.calls + 3):
        connection.worker.call(number)
        if not number % 64:
            await connection.settle()
    await connection.settle()
    assert len(connection.callee.requests) == LIMITS.calls
    assert connection.codes() == [ErrorCode.UNAVAILABLE] * 2


async def test_more_questions_than_a_worker_may_have_are_refused(connection):
    go = connection.have_questions_wait()
    for number in range(1, LIMITS.asks + 2):
        connection.worker.ask("wait", number)
    await connection.settle()
    (part,) = connection.worker.parts()
    assert part.answer.code is ErrorCode.UNAVAILABLE
    go.set()
    await connection.settle()
    assert len(connection.worker.parts()) == LIMITS.asks


# -- hostility -----------------------------------------------------------------------------------------------


def memfd(size, seals):
    descriptor = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, 1033, seals)
    return descriptor


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: memfd(8192, 0), 8192),
        (lambda: memfd(8192, 0x0007), 8192),  # it may still be written to
        (lambda: memfd(4096, SEALS), 8192),
        (lambda: memfd(0, SEALS), 0),
        (lambda: memfd(8192, SEALS), 8192),  # its pages were never written, and may be missing
        (lambda: os.open(__file__, os.O_RDONLY), os.path.getsize(__file__)),
        (lambda: os.open("/dev/zero", os.O_RDONLY), 8192),
        (lambda: os.pipe()[0], 8192),
    ],
)
async def test_what_is_no_sealed_segment_is_not_mapped(make, size, connection):
    connection.worker.give(make(), frames.encode_segment(0, 0, size))
    (verdict,) = await connection.condemned()
    assert "segment" in verdict


async def test_a_descriptor_where_none_belongs_ends_the_connection(connection):
    connection.worker.give(write_segment([bytes(8)]), frames.encode_cancel(0, 0))
    assert await connection.condemned() == ["a worker sent a descriptor with a frame that has none"]


async def test_a_segment_without_a_descriptor_ends_the_connection(connection):
    connection.worker.sock.send(frames.encode_segment(0, 0, 8))
    assert await connection.condemned() == ["a frame that announces a descriptor came without one"]


async def test_a_bad_frame_with_a_descriptor_leaves_none_behind():
    async with connected() as connection:
        before = open_descriptors()
        for _ in range(2):
            connection.worker.give(write_segment([bytes(8)]), frames.encode_segment(0, 0, 8) + b"more")
        assert len(await connection.condemned()) == 1
    assert not left_open(before)


async def test_many_segments_hold_few_descriptors_of_the_server(connection):
    before = open_descriptors()
    placed = Placed("INPUT", FP32, (1024,), 0, 4096)
    for number in range(1, 3 * LIMITS.segments):
        connection.worker.give(write_segment([bytes((number,)) * 4096]), frames.encode_segment(0, 0, 4096))
        letter = Letter(frames.CALL, number, {"model": "callee"}, [placed], b"", 4096)
        connection.worker.sock.send(next(letter.packets())[0])
        if not number % 32:
            await connection.settle()
    await connection.settle()
    requests, connection.callee.requests = connection.callee.requests, []
    assert [request.inputs[0].data[7] for request in requests] == list(range(1, 3 * LIMITS.segments))
    assert len(left_open(before)) <= LIMITS.segments
    while requests:
        connection.callee.respond(requests.pop(0), 200_000)
    assert len(left_open(before)) <= LIMITS.segments


async def test_a_worker_that_reads_no_refusals_is_ended(connection):
    packet = bytearray(b"".join(next(Letter(frames.CALL, 0, {"model": "none"}).packets())))
    number = 0
    while not connection.worker.condemned:
        number += 1
        packet[8:16] = number.to_bytes(8, "little")
        try:
            connection.worker.sock.send(packet)
        except BlockingIOError:
            number -= 1
            await trio.lowlevel.checkpoint()
        except BrokenPipeError:
            break
    assert LIMITS.unread < number < 2 * LIMITS.unread
    assert await connection.condemned() == ["a worker calls again and again and never reads the answers"]


@connecting(limits=CallLimits(nbytes=100_000))
async def test_questions_count_with_what_they_bring(connection):
    go = connection.have_questions_wait()
    data = b"{}" + bytes(40_000)
    for number in range(1, 4):
        connection.worker.ask("wait", number, data, [["a", 40_000]])
    await connection.settle()
    (part,) = connection.worker.parts()
    assert (part.batch_id, part.answer.code) == (3, ErrorCode.UNAVAILABLE)
    go.set()
    await connection.settle()
    assert len(connection.worker.parts()) == 2


async def test_no_more_json_is_parsed_than_holds_nobody_up(connection):
    connection.subjects.hear("x", lambda body, caller: None)
    for size in (LARGEST_BODY, LARGEST_BODY + 1):
        body = b'{"a":"' + b"x" * (size - 8) + b'"}'
        fields = {"subject": "x", "attachments": []}
        for pieces in Letter(frames.TELL, 0, fields, (), body, size).packets():
            connection.worker.sock.sendmsg(pieces)
            await connection.settle()
        assert len(connection.worker.condemned) == (size > LARGEST_BODY)


async def test_a_question_that_no_worker_of_ours_would_ask_ends_the_connection(connection):
    async def refuse(body, attachments, caller):
        raise FrameError("no such thing")

    connection.subjects.answer("odd", refuse)
    connection.worker.ask("odd")
    assert await connection.condemned() == ["no such thing"]


async def test_a_connection_that_has_ended_needs_no_garbage_collector():
    gc.disable()
    try:
        async with connected() as connection:
            reference = weakref.ref(connection.calls)
            await connection.call()
            connection.callee.respond(connection.callee.requests.pop())
            connection.worker.sock.shutdown(socket.SHUT_RDWR)
            await connection.settle()
        del connection
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "packets",
    [
        [frames.encode_credit(1, 0, 1, 0)],
        [bytes((frames.TAKEN,))],
        [b"\0" * 24],
        [bytes((frames.RESULT,)) + bytes(60)],
    ],
)
async def test_a_frame_out_of_place_ends_the_connection(packets, connection):
    for packet in packets:
        connection.worker.sock.send(packet)
    assert len(await connection.condemned()) == 1


@connecting(decoupled=True)
async def test_credit_that_was_not_earned_ends_the_connection(connection):
    await connection.call()
    connection.worker.sock.send(frames.encode_credit(1, 0, 1, 4))
    (verdict,) = await connection.condemned()
    assert "which has fewer" in verdict


async def test_a_letter_within_another_ends_the_connection(connection):
    (head, data), *_ = Letter(frames.CALL, 1, {"model": "callee"}, (), bytes(100_000), 100_000).packets()
    connection.worker.sock.sendmsg((head, data))
    connection.worker.call(2)
    assert await connection.condemned() == [f"a frame of kind {frames.CALL} within another letter"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_mutilated_letters_are_refused_or_end_the_connection_and_nothing_else(seed):
    """A packet ends in an answer, a refusal, or the end of this one worker."""
    chance = random.Random(seed)
    fields = {"model": "callee", "id": "x", "parameters": {"a": 1}, "parent": [1, 0], "outputs": ["OUTPUT"]}
    placed = [Placed("INPUT", FP32, (2,), 0, 8)]
    for _ in range(60):
        async with connected() as connection:
            for number in range(1, 30):
                kind = chance.choice((frames.CALL, frames.CALL, frames.ASK, frames.TELL))
                letter = Letter(kind, number, fields, placed, bytes(8), 8)
                packet = bytearray(b"".join(next(letter.packets())))
                for _ in range(chance.choice((0, 1, 1, 2, 5))):
                    packet[chance.randrange(len(packet))] = chance.randrange(256)
                if chance.random() < 0.2:
                    del packet[chance.randrange(len(packet)) :]
                if packet:
                    try:
                        connection.worker.sock.send(packet)
                    except OSError:
                        break
            await connection.settle()
            for request in connection.callee.requests:
                connection.callee.respond(request)
            assert len(connection.worker.condemned) <= 1


# -- processes that a worker has forked


def asked_for_branch(worker):
    """Have the worker ask for a connection for a child; the socket over which it is answered."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        worker.send_descriptor(theirs.fileno(), bytes((frames.BRANCH,)))
    return ours


async def branch_of(connection):
    """The worker's end of a connection for a child."""
    with asked_for_branch(connection.worker) as answers:
        await connection.settle()
        packet, descriptors, _, _ = socket.recv_fds(answers, 1024, 1)
    assert packet == bytes((frames.BRANCH,))
    return socket.socket(fileno=descriptors[0])


async def calling_child(connection):
    """A child that has called, as its worker has before it."""
    child = PlayedWorker(await branch_of(connection))
    for worker in (connection.worker, child):
        worker.call()
        await connection.settle()
    return child


async def test_a_child_has_numbers_and_answers_of_its_own(connection):
    child = await calling_child(connection)
    for size, request in zip((8, 16), connection.callee.requests, strict=True):
        connection.callee.respond(request, size)
    assert [part.nbytes for part in connection.worker.parts()] == [8]
    assert [part.nbytes for part in child.parts()] == [16]
    child.sock.close()
    assert await connection.condemned() == []


async def test_a_child_may_ask_in_the_middle_of_a_letter(connection):
    (first, more), *_ = list(
        Letter(frames.CALL, 1, {"model": "callee"}, (), bytes(100_000), 100_000).packets()
    )
    connection.worker.sock.send(first + bytes(more))
    with await branch_of(connection):
        assert await connection.condemned() == []


async def test_the_end_of_a_child_cancels_its_calls_and_nobody_elses(connection):
    child = await calling_child(connection)
    ours, theirs = connection.callee.requests
    child.sock.close()
    await connection.settle()
    assert connection.callee.cancelled == [theirs]
    assert ours not in connection.callee.cancelled
    assert connection.calls.book.account.calls == 1


async def test_limits_hold_for_a_worker_and_its_children_together(connection):
    child = PlayedWorker(await branch_of(connection))
    for number in range(1, LIMITS.calls // 2 + 1):
        connection.worker.call(number)
        child.call(number)
        if number % 32 == 0:
            await connection.settle()
    child.call(LIMITS.calls)
    await connection.settle()
    (refusal,) = child.parts()
    assert refusal.answer.message == f"{LIMITS.calls} calls of this worker are under way already"
    child.sock.close()


@connecting(limits=CallLimits(branches=2))
async def test_there_are_so_many_children_with_a_connection(connection):
    children = [await branch_of(connection) for _ in range(2)]
    with asked_for_branch(connection.worker) as answers:
        await connection.settle()
        assert answers.recv(1024)[1:] == b"2 processes forked by this worker make calls already"
    children.pop().close()
    await connection.settle()
    children.append(await branch_of(connection))
    for each in children:
        each.close()


async def test_a_child_can_not_have_children_connected_by_way_of_its_own(connection):
    child = PlayedWorker(await branch_of(connection))
    asked_for_branch(child).close()
    assert "a frame of kind 68" in (await connection.condemned())[0]
    child.sock.close()


async def test_whatever_the_descriptor_is_the_worker_alone_pays(tmp_path, connection):
    with (tmp_path / "file").open("w") as file:
        connection.worker.send_descriptor(file.fileno(), bytes((frames.BRANCH,)))
        assert await connection.condemned() == []
    read, write = os.pipe()
    for each in (read, write):
        connection.worker.give(each, bytes((frames.BRANCH,)))
    asked_for_branch(connection.worker).close()
    assert await connection.condemned() == []
    connection.worker.sock.send(bytes((frames.BRANCH,)))
    assert await connection.condemned() == ["a frame that announces a descriptor came without one"]
