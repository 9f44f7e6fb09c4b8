"""The buffers on a GPU of a worker that the test plays: what it tells of, what is read, what it gets back."""

import numpy as np
import pytest
import trio
import trio.testing

from actors.serving.instances.device_buffers import MOST_BUFFERS
from actors.serving.instances.life import READ_WITHIN
from actors.serving.policy.retries import Exit
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.regions import Region, RegionSlice
from actors.values.specs import InputSpec, InstanceSpec
from actors.values.tensors import DevicePlace, DeviceTensor, Tensor
from actors.wire import frames
from actors.wire.batch_frames import Answer, Execute, Placed, Result
from actors.wire.device_spans import DeviceSpans
from actors.wire.frames import FrameError
from tests.actors.serving.test_instance_in_virtual_time import serving
from tests.support.model_doubles import make_request
from tests.support.shared_regions import input_in

GPU = (InstanceSpec(name="i", kind="GPU", device_id=1),)
HANDLE = b"h" * 64
INPUTS = tuple(InputSpec(name=name, datatype=DataType.FP32, dims=(2,)) for name in ("INPUT", "OTHER"))


@pytest.fixture
def on_gpu(connect):
    connection = connect(instances=GPU, device_tensors=True)
    connection.packets()
    return connection


def export(connection, number=0, *, device=1, nbytes=1024, handle=HANDLE):
    connection.worker.on_packet(frames.encode_exported(number, device, nbytes, handle))


def asking(connection, *, rows=1):
    request = connection.request(rows=rows)
    request.device_outputs = frozenset(("OUTPUT",))
    return request


def left(number=0, rows=1, **options):
    return Placed("OUTPUT", DataType.FP32, (rows, 2), number, 8 * rows, on_device=True, **options)


def told(job):
    """What of each request of a batch lies on a GPU."""
    return [DeviceSpans(each) for each in job.metadata or ()]


def result(batch, *placed, answers=None):
    requests = len(batch.requests)
    stacked = None if answers else list(placed)
    return Result(batch.id, batch.slot.index, requests, (1, 2, 3), stacked, answers).encode()


def outputs_of(connection):
    _, _, answers, _ = connection.events.batches.pop()
    return [outputs for _, outputs, _ in answers]


def released(connection):
    return [frames.decode_released(each) for each in connection.packets() if each[0] == frames.RELEASED]


async def test_an_output_in_a_buffer_is_a_tensor_there_until_nothing_refers_to_it(on_gpu):
    export(on_gpu, 3)
    batch = on_gpu.dispatch(asking(on_gpu))
    (job,) = [Execute.decode(each) for each in on_gpu.packets()]
    assert told(job)[0].outputs == {"OUTPUT"}
    on_gpu.worker.on_packet(result(batch, left(3)))
    [(output,)] = outputs_of(on_gpu)
    assert isinstance(output, DeviceTensor)
    assert (output.place.handle, output.place.device, output.place.at, output.nbytes) == (HANDLE, 1, 0, 8)
    assert on_gpu.worker.buffers.told == {"buffers": 1, "in_use": 1, "bytes": 1024}
    other = output.renamed("INPUT", (2,))
    del output
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == []
    del other
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == [3]
    assert on_gpu.worker.buffers.told["in_use"] == 0


async def test_requests_of_one_batch_share_a_buffer_and_have_their_rows(on_gpu):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu, rows=1), asking(on_gpu, rows=2))
    on_gpu.worker.on_packet(result(batch, left(rows=3)))
    (one,), (other,) = outputs_of(on_gpu)
    assert [(each.place.at, each.nbytes, tuple(each.shape)) for each in (one, other)] == [
        (0, 8, (1, 2)),
        (8, 16, (2, 2)),
    ]
    del one
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == []
    del other
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == [0]


async def test_requests_that_were_answered_one_by_one_have_buffers_of_their_own(on_gpu):
    export(on_gpu, 0)
    export(on_gpu, 1, handle=b"o" * 64)
    batch = on_gpu.dispatch(asking(on_gpu), asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, answers=[Answer([left(1)]), Answer([left(0)])]))
    (one,), (other,) = outputs_of(on_gpu)
    del one
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == [1]
    assert other.nbytes == 8


async def test_a_lease_may_end_on_another_thread(on_gpu):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, left()))
    held = outputs_of(on_gpu)
    await trio.to_thread.run_sync(held.clear)
    await trio.testing.wait_all_tasks_blocked()
    assert released(on_gpu) == [0]


async def test_the_leases_of_a_dead_worker_are_lost_and_end_in_nothing(on_gpu):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, left()))
    [(output,)] = outputs_of(on_gpu)
    assert not output.place.keeper.lost
    on_gpu.worker.close()
    assert output.place.keeper.lost
    del output
    await trio.testing.wait_all_tasks_blocked()
    assert on_gpu.worker.buffers.told == {"buffers": 0, "in_use": 0, "bytes": 0}


async def test_leases_that_end_around_their_worker_s_death_end_in_nothing(on_gpu):
    export(on_gpu, 0)
    export(on_gpu, 1, handle=b"o" * 64)
    batch = on_gpu.dispatch(asking(on_gpu), asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, answers=[Answer([left(0)]), Answer([left(1)])]))
    before, after = outputs_of(on_gpu)
    before.clear()  # the loop hears of it in its next turn
    on_gpu.worker.close()
    after.clear()
    await trio.testing.wait_all_tasks_blocked()
    assert on_gpu.worker.buffers.told == {"buffers": 0, "in_use": 0, "bytes": 0}


async def test_a_handle_that_comes_again_is_the_end_of_the_buffer_that_had_it(on_gpu):
    ended: list[bytes] = []
    export(on_gpu, 5)
    batch = on_gpu.dispatch(asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, left(5)))
    held = outputs_of(on_gpu)
    held[0][0].place.keeper.on_end["a reader"] = ended.append
    with pytest.raises(FrameError, match="buffer 6 by the handle of buffer 5, which is being read"):
        export(on_gpu, 6)
    held.clear()
    await trio.testing.wait_all_tasks_blocked()
    # The worker has freed 5, and has been given its address once more: a reader must open it anew.
    export(on_gpu, 6)
    assert ended == [HANDLE]
    assert on_gpu.worker.buffers.told == {"buffers": 1, "in_use": 0, "bytes": 1024}


async def test_a_buffer_that_is_free_may_be_replaced_by_another_one(on_gpu):
    export(on_gpu, nbytes=4)
    export(on_gpu, nbytes=8, handle=b"n" * 64)
    assert on_gpu.worker.buffers.told == {"buffers": 1, "in_use": 0, "bytes": 8}
    batch = on_gpu.dispatch(asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, left()))
    assert outputs_of(on_gpu)[0][0].place.handle == b"n" * 64


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"device": 0}, "on GPU 1 exports buffer 0: 1024 bytes of GPU 0"),
        ({"nbytes": 0}, "0 bytes of GPU 1"),
        ({"nbytes": 2**41}, "bytes of GPU 1"),
        ({"handle": bytes(64)}, "1024 bytes of GPU 1"),
    ],
)
async def test_a_buffer_that_can_t_be_is_a_broken_worker(on_gpu, options, complaint):
    with pytest.raises(FrameError, match=complaint):
        export(on_gpu, **options)


async def test_there_are_no_more_buffers_than_a_bound(on_gpu):
    for number in range(MOST_BUFFERS):
        export(on_gpu, number, handle=b"%64d" % number)
    with pytest.raises(FrameError, match=f"more than {MOST_BUFFERS} buffers"):
        export(on_gpu, MOST_BUFFERS)


async def test_a_buffer_that_is_read_can_be_neither_replaced_nor_used_again(on_gpu):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu))
    on_gpu.worker.on_packet(result(batch, left()))
    held = outputs_of(on_gpu)
    with pytest.raises(FrameError, match="exports buffer 0 again, which is being read"):
        export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu))
    with pytest.raises(FrameError, match="which has 1024 bytes and is being read"):
        on_gpu.worker.on_packet(result(batch, left()))
    assert held


@pytest.mark.parametrize(
    ("placed", "complaint"),
    [
        (left(5), "8 bytes into buffer 5, which is unknown"),
        (left(rows=200), "1600 bytes into buffer 0, which has 1024 bytes"),
        (
            Placed("SECRET", DataType.FP32, (1, 2), 0, 8, on_device=True),
            "left output 'SECRET' on its GPU, unasked",
        ),
        (Placed("OUTPUT", DataType.BYTES, (1, 2), 0, 8, on_device=True), "unasked"),
    ],
)
async def test_an_output_that_can_t_be_where_it_is_said_to_be_is_a_broken_worker(on_gpu, placed, complaint):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu))
    with pytest.raises(FrameError, match=complaint):
        on_gpu.worker.on_packet(result(batch, placed))
    assert on_gpu.events.batches == []


async def test_an_output_that_one_of_two_did_not_ask_for_is_a_broken_worker(on_gpu):
    export(on_gpu)
    batch = on_gpu.dispatch(asking(on_gpu), on_gpu.request())
    with pytest.raises(FrameError, match="unasked"):
        on_gpu.worker.on_packet(result(batch, left(rows=2)))


async def test_a_worker_without_a_gpu_exports_nothing(connection):
    with pytest.raises(FrameError, match="none of its own"):
        export(connection)
    batch = connection.dispatch(asking(connection))
    with pytest.raises(FrameError, match="unasked"):
        connection.worker.on_packet(result(batch, left()))


# -- inputs


@pytest.fixture
def reading(connect):
    connection = connect(instances=GPU, device_tensors=True, inputs=INPUTS)
    connection.packets()
    return connection


class Kept:
    """Keeps a place, as a lease of another worker's does."""

    def __init__(self):
        self.lost = False
        self.on_end = {}


def request_for(reading, *, keeper=None, at=0, rows=1):
    request = make_request(rows)
    request.inputs = [
        DeviceTensor("INPUT", DataType.FP32, (rows, 2), DevicePlace(HANDLE, 1, at, 8 * rows, keeper)),
        Tensor.from_numpy("OTHER", np.full((rows, 2), 7, np.float32)),
    ]
    request.rows = rows
    request.requested_outputs = reading.spec.output_names
    return request


def job_of(connection):
    (packet,) = [each for each in connection.packets() if each[0] == frames.EXECUTE]
    return Execute.decode(packet)


async def test_inputs_on_a_gpu_take_no_room_and_are_told_by_their_handles(reading):
    keeper = Kept()
    batch = reading.dispatch(
        request_for(reading, keeper=keeper), request_for(reading, keeper=keeper, at=64, rows=2)
    )
    job = job_of(reading)
    there, here = job.inputs
    assert (there.on_device, tuple(there.shape), there.nbytes) == (True, (3, 2), 24)
    assert (here.on_device, tuple(here.shape), here.offset, here.nbytes) == (False, (3, 2), 0, 24)
    assert np.frombuffer(batch.slot.segments[0].view[:24], np.float32).tolist() == [7.0] * 6
    places = [each.inputs["INPUT"] for each in told(job)]
    assert [(each.handle, each.device, each.at, each.nbytes) for each in places] == [
        (HANDLE, 1, 0, 8),
        (HANDLE, 1, 64, 16),
    ]


async def test_requests_that_were_given_the_same_tensor_are_each_told_of_it(reading):
    # Two steps of an ensemble that run the same model read one output of another.
    one, other = request_for(reading), request_for(reading)
    other.inputs[0] = one.inputs[0]
    reading.dispatch(one, other)
    assert [list(each.inputs) for each in told(job_of(reading))] == [["INPUT"], ["INPUT"]]


async def test_a_worker_that_has_opened_a_buffer_hears_of_its_end_once(reading):
    keeper = Kept()
    for _ in range(2):
        batch = reading.dispatch(request_for(reading, keeper=keeper))
        reading.worker.on_packet(reading.result(batch))
    reading.packets()
    (tell,) = keeper.on_end.values()
    tell(HANDLE)
    (packet,) = reading.packets()
    assert frames.decode_unshared(packet) == HANDLE


async def test_a_worker_that_ends_is_told_of_nothing_more(reading):
    keeper = Kept()
    reading.dispatch(request_for(reading, keeper=keeper))
    reading.worker.close()
    assert keeper.on_end == {}


async def test_an_answer_is_withheld_if_the_maker_of_an_input_has_died_meanwhile(reading):
    keeper = Kept()
    batch = reading.dispatch(request_for(reading, keeper=keeper), request_for(reading, keeper=Kept()))
    keeper.lost = True
    reading.worker.on_packet(reading.result(batch, nbytes=16))
    _, _, answers, _ = reading.events.batches.pop()
    (_, outputs, answer), (_, good, none) = answers
    assert (outputs, answer.code) == ([], ErrorCode.UNAVAILABLE)
    assert "is lost" in answer.message
    assert (len(good), none) == (1, None)


async def test_a_batch_that_mixes_memories_is_a_bug_that_is_told(reading):
    mixed = request_for(reading)
    mixed.inputs = [Tensor.from_numpy("INPUT", np.zeros((1, 2), np.float32)), mixed.inputs[1]]
    for batch in ((request_for(reading), mixed), (mixed, request_for(reading))):
        with pytest.raises(ValueError, match="differ in what lies on a GPU"):
            reading.dispatch(*batch)


async def test_a_worker_that_never_reads_is_broken_off_when_too_much_is_to_be_told(reading):
    keeper = Kept()
    reading.dispatch(request_for(reading, keeper=keeper))
    (tell,) = keeper.on_end.values()
    while reading.worker.pipe.receive_nowait() is None:
        tell(HANDLE)
    assert reading.worker.pipe.backlog == 0


# -- clients' regions


def gpu_region(device=1, handle=b"c" * 64):
    region = Region("R", "", 0, 4096, -1)
    region.handle, region.device_id = handle, device
    return region


async def test_regions_on_the_gpu_are_told_by_their_handles_both_ways(reading):
    region = gpu_region()
    request = request_for(reading)
    request.inputs[0] = input_in(RegionSlice(region, 16, 8), (1, 2))
    request.output_regions = {"OUTPUT": RegionSlice(region, 256, 64)}
    batch = reading.dispatch(request)
    (spans,) = told(job_of(reading))
    assert (spans.inputs["INPUT"].at, spans.regions) == (16, {"INPUT": "R"})
    place, name = spans.targets["OUTPUT"]
    assert (place.handle, place.at, place.nbytes, name) == (region.handle, 256, 64, "R")
    assert (region.counts.reads, region.counts.bytes_read) == (1, 8)
    written = Placed("OUTPUT", DataType.FP32, (1, 2), 0, 8, written=True)
    reading.worker.on_packet(result(batch, answers=[Answer([written])]))
    [(output,)] = outputs_of(reading)
    assert (len(output.data), output.nbytes) == (0, 8)
    assert (region.counts.writes, region.counts.bytes_written) == (1, 8)
    for tell in list(region.on_end.values()):
        tell(region.handle)
    assert [frames.decode_unshared(each) for each in reading.packets()] == [region.handle]


async def test_two_regions_may_be_of_one_allocation(reading):
    first, second = gpu_region(), gpu_region()
    for region in (first, second):
        request = request_for(reading)
        request.inputs[0] = input_in(RegionSlice(region, 16, 8), (1, 2))
        reading.worker.on_packet(reading.result(reading.dispatch(request)))
    reading.packets()
    for tell in list(first.on_end.values()):
        tell(first.handle)
    assert [frames.decode_unshared(each) for each in reading.packets()] == [first.handle]
    assert second.on_end == {}  # it is not open any more
    reading.dispatch(request)
    assert len(second.on_end) == 1
    reading.worker.close()
    assert second.on_end == {}


async def test_a_worker_that_was_beside_others_reads_its_gpu_once_they_have_gone(connect):
    # An instance that stays keeps its worker when the version's other instances go.
    reading = connect(
        instances=(*GPU, InstanceSpec(name="cpu", kind="CPU")), device_tensors=True, inputs=INPUTS
    )
    reading.packets()
    request = request_for(reading)
    request.output_regions = {"OUTPUT": RegionSlice(gpu_region(), 256, 64)}
    reading.dispatch(request)
    (spans,) = told(job_of(reading))
    assert spans.inputs["INPUT"].handle == HANDLE
    assert list(spans.targets) == ["OUTPUT"]


async def test_a_region_on_another_gpu_is_not_told(reading):
    request = request_for(reading)
    request.inputs[0] = Tensor.from_numpy("INPUT", np.zeros((1, 2), np.float32))
    request.output_regions = {"OUTPUT": RegionSlice(gpu_region(0), 0, 2**20)}
    reading.dispatch(request)
    job = job_of(reading)
    assert job.metadata is None


# -- one life of an instance


async def left_there(life):
    """Have the model leave an output on the GPU; return the answer."""
    request = make_request()
    request.requested_outputs = life.state.spec.output_names
    request.device_outputs = frozenset(("OUTPUT",))
    life.state.in_flight[request] = None
    life.state.dispatcher.dispatch(life.instance, [request])
    job = await life.worker.batch()
    life.worker.far.send(frames.encode_exported(0, 1, 64, HANDLE))
    life.worker.far.send(Result(job.batch_id, job.slot, 1, (0, 0, 0), [left()]).encode())
    life.worker.control.end(0)
    await trio.testing.wait_all_tasks_blocked()
    return request.reply.parts


async def test_a_worker_that_is_stopped_waits_until_its_buffers_are_read(nursery, autojump_clock):
    life = await serving(nursery, instances=GPU, device_tensors=True)
    answer = await left_there(life)
    assert life.ctx.info["gpu_tensors"] == {"buffers": 1, "in_use": 1, "bytes": 64}
    assert life.state.statistics.gpu_tensors == 1
    life.ctx.stopping.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert life.ctx.info["phase"] == "serving"
    answer.clear()
    life.worker.obedient = True
    assert frames.decode_released(await life.worker.receive()) == 0
    assert (await life.worker.receive())[0] == frames.STOP
    life.worker.exit(Exit(0))
    await life.ended()


async def test_it_does_not_wait_for_ever(nursery, autojump_clock):
    life = await serving(nursery, instances=GPU, device_tensors=True)
    answer = await left_there(life)
    began = trio.current_time()
    life.ctx.stopping.set()
    assert (await life.worker.receive())[0] == frames.STOP
    assert trio.current_time() - began >= READ_WITHIN
    life.worker.exit(Exit(0))
    await life.ended()
    (tensor,) = answer[0].outputs
    assert tensor.place.keeper.lost
