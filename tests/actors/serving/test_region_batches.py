"""Batches with inputs in clients' regions, on the server's side of a worker that the test plays."""

import os
import socket

import numpy as np
import pytest
import trio

from actors.serving.instances import burial
from actors.serving.instances.batches import HANDED, SENT
from actors.serving.instances.sending import FILLED_AT_ONCE, NotRead
from actors.values.confinement import Confinement, Sandbox
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.wire import frames
from actors.wire.arena import INPUT
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Answer, Execute, Placed, Result
from actors.wire.region_spans import DIRECT_FROM, read_spans, write_spans
from tests.actors.serving.test_instance_in_virtual_time import SEGFAULT, serving
from tests.support.model_doubles import make_request
from tests.support.shared_regions import ClientRegion, input_in

STRICT = Confinement(sandbox=Sandbox.STRICT)
VALUES = np.arange(8, dtype=np.float32).reshape(1, 8)


@pytest.fixture
def region():
    made = ClientRegion(4096)
    yield made
    made.close()


@pytest.fixture
async def strict(connect, nursery):
    connection = connect(confinement=STRICT)
    nursery.start_soon(connection.worker.sender.run)
    return connection


def in_region(connection, region, at=0):
    request = connection.request()
    request.inputs = [input_in(region.put(VALUES, at=at), VALUES.shape)]
    return request


def received(connection):
    """The next packet after those of the start, and the descriptors that came with it."""
    while True:
        packet, descriptors, _, _ = socket.recv_fds(connection.sock, frames.MAX_FRAME, 8)
        if packet[0] == frames.EXECUTE:
            return Execute.decode(packet), descriptors
        for each in descriptors:
            os.close(each)


def same_file(one, other):
    return os.path.sameopenfile(one, other)


def view_of(connection, batch):
    return batch.slot.segments[INPUT].view


async def test_a_worker_is_sent_the_region_and_the_server_reads_nothing(connection, region):
    one, two = in_region(connection, region, 64), in_region(connection, region, 128)
    batch = connection.dispatch(one, two)
    assert batch.state is SENT
    assert not any(view_of(connection, batch)[: 2 * VALUES.nbytes])
    job, (descriptor,) = received(connection)
    assert same_file(descriptor, region.fileno)
    os.close(descriptor)
    assert job.metadata is not None
    spans = [read_spans(each)[0] for each in job.metadata]
    assert [(span.number, span.at, span.offset, span.nbytes) for span in spans] == [
        (0, 64, 0, VALUES.nbytes),
        (0, 128, VALUES.nbytes, VALUES.nbytes),
    ]
    assert (region.region.counts.reads, region.region.counts.bytes_read) == (2, 2 * VALUES.nbytes)


async def test_a_worker_is_told_where_outputs_go(connection, region):
    request = connection.request()
    request.output_regions = {"OUTPUT": region.slice(8, DIRECT_FROM + 8)}
    connection.dispatch(request)
    job, (descriptor,) = received(connection)
    os.close(descriptor)
    assert job.metadata is not None
    assert write_spans(job.metadata[0])["OUTPUT"].nbytes == DIRECT_FROM + 8


async def test_in_place_of_a_region_that_was_closed_the_worker_gets_a_file_of_no_bytes(connection, region):
    other = ClientRegion(64)
    requests = in_region(connection, region), in_region(connection, other)
    fileno, other.region.fileno = other.region.fileno, -1
    connection.dispatch(*requests)
    _, (first, second) = received(connection)
    assert same_file(first, region.fileno)
    assert os.read(second, 1) == b""
    for each in (first, second, fileno):
        os.close(each)


async def test_a_strict_worker_is_sent_no_region_and_finds_the_bytes_in_its_slot(
    strict, region, autojump_clock
):
    batch = strict.worker.dispatch([strict.request(8), in_region(strict, region)], now=0.0)
    assert batch.state is HANDED  # to be read in slices, however short
    await until_sent(batch)
    job, descriptors = received(strict)
    assert not descriptors
    assert job.metadata is None
    data = view_of(strict, batch)[VALUES.nbytes : 2 * VALUES.nbytes]
    assert np.array_equal(np.frombuffer(data, np.float32), VALUES[0])
    assert region.region.counts.reads == 1


async def test_a_request_that_could_not_be_read_gets_its_error_and_its_batchmate_the_answer(
    strict, region, autojump_clock
):
    lost = in_region(strict, region, at=64)
    region.shrink(64)
    batch = strict.worker.dispatch([strict.request(8), lost], now=0.0)
    await until_sent(batch)
    assert strict.page().cancelled(batch.slot.index, 1)
    assert not strict.page().cancelled(batch.slot.index, 0)
    placed = Placed("OUTPUT", DataType.FP32, (2, 8), 0, 2 * VALUES.nbytes)
    strict.worker.on_packet(Result(batch.id, batch.slot.index, 2, (1, 2, 3), [placed]).encode())
    ((_, _, ((_, outputs, answer), (_, nothing, error)), _),) = strict.events.batches
    assert answer is None
    assert tuple(outputs[0].shape) == (1, 8)
    assert not nothing
    assert error.code is ErrorCode.INVALID_ARG
    assert "its object has 64 bytes, and input 'INPUT' ends at byte 96" in error.message
    assert region.region.counts.reads_failed == 1


async def test_a_batch_of_which_nothing_could_be_read_is_not_sent(strict, region, autojump_clock):
    lost = in_region(strict, region)
    region.shrink(0)
    batch = strict.worker.dispatch([lost], now=0.0)
    await trio.sleep(1.0)
    ((unsent, error),) = strict.events.failures
    assert unsent is batch
    assert isinstance(error, NotRead)
    assert batch.unread is not None
    assert list(batch.unread) == [0]
    assert strict.worker.idle
    assert not batch.slot.leased
    assert lost.attempts == 0


@pytest.mark.parametrize(
    ("trouble", "counts"),
    [(0, (0, 0)), (READ_FAILED, (1, 0)), (WRITE_FAILED, (0, 1))],
    ids=["the model's", "read", "write"],
)
async def test_what_a_worker_could_not_read_or_write_is_counted(connection, region, trouble, counts):
    request = in_region(connection, region)
    request.output_regions = {"OUTPUT": region.slice(0, 64)}
    batch = connection.dispatch(request)
    answer = Answer(code=ErrorCode.INTERNAL, message="no", trouble=trouble)
    connection.worker.on_packet(Result(batch.id, batch.slot.index, 1, (1, 2, 3), answers=[answer]).encode())
    assert (region.region.counts.reads_failed, region.region.counts.writes_failed) == counts


async def test_a_long_batch_whose_regions_find_no_descriptor_is_not_sent(
    connect, region, nursery, monkeypatch, autojump_clock
):
    connection = connect()
    nursery.start_soon(connection.worker.sender.run)
    long = connection.request(columns=FILLED_AT_ONCE // 4 + 1)
    long.output_regions = {"OUTPUT": region.slice(0, DIRECT_FROM + 8)}

    def send_nowait(packet, descriptors=()):
        raise OSError(24, "Too many open files")

    batch = connection.worker.dispatch([long], now=0.0)
    monkeypatch.setattr(connection.worker.pipe, "send_nowait", send_nowait)
    await trio.sleep(1.0)
    ((unsent, error),) = connection.events.failures
    assert unsent is batch
    assert error.errno == 24
    assert connection.worker.idle
    assert not batch.slot.leased


async def test_regions_stay_open_while_a_thread_reads_what_killed_a_worker(nursery, region, monkeypatch):
    """Where a client leaves and ends its region, no other file is read in its place."""
    life = await serving(nursery)
    request = make_request()
    request.inputs = [input_in(region.put(np.ones((1, 2), np.float32)), (1, 2))]
    request.nbytes = 8
    request.requested_outputs = life.state.spec.output_names
    life.state.in_flight[request] = None
    life.state.dispatcher.dispatch(life.instance, [request])
    await life.worker.batch()
    users = []

    def fingerprint_of(request):
        users.append(region.region.users)
        return original(request)

    original = burial.fingerprint_of
    monkeypatch.setattr(burial, "fingerprint_of", fingerprint_of)
    monkeypatch.setattr(burial, "HASHED_AT_ONCE", 0)
    await life.die(SEGFAULT)
    assert users == [1]
    assert region.region.users == 0


async def until_sent(batch):
    await trio.sleep(1.0)  # of virtual time, in which all slices are done
    assert batch.state is SENT
