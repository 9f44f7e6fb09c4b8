"""A worker whose inputs and outputs lie on a GPU, with a stand-in for the driver."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from actors.values.errors import ErrorCode
from actors.values.tensors import DevicePlace
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Placed
from engine.worker.devices.exports import GRANULE
from tests.support.device_worker import Asked, worker
from tests.support.fake_gpu import built, client, lose

pytestmark = pytest.mark.system

ROW = np.arange(4, dtype="<f4").reshape(1, 4)
GONE = b"\0memory.999.7".ljust(64, b"\0")


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    return built(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def program(environ):
    with client(environ) as program:
        yield program


@pytest.fixture(scope="module")
def started(environ):
    """Return the worker of such parameters: one for all tests."""
    with ExitStack() as stack:
        known = {}

        def get(**options):
            key = tuple(sorted(options.items()))
            if key not in known:
                known[key] = stack.enter_context(worker(environ, **options))
            return known[key]

        yield get


@pytest.fixture
def put(program):
    """Put an array into device memory; return its place."""

    def put(array, *, at=0, device=0):
        handle = program.allocate(array.nbytes + at + 1, device)
        program.write(handle, array.tobytes(), at)
        return DevicePlace(handle, device, at, array.nbytes)

    return put


@pytest.fixture
def left(program):
    """Read what a worker has left in a buffer."""
    opened = set()

    def left(worker, placed, *, start=0, rows=None):
        assert isinstance(placed, Placed)
        assert placed.on_device
        device, nbytes, handle = worker.buffers[placed.offset]
        assert placed.nbytes <= nbytes
        if handle not in opened:
            program.open(handle, device)
            opened.add(handle)
        found = np.frombuffer(program.read(handle, placed.nbytes), "<f4").reshape(placed.shape)
        return found if rows is None else found[start : start + rows]

    return left


def on_device(array, place, **options):
    return Asked(shape=array.shape, place=place, **options)


WAYS = pytest.mark.parametrize("way", [{}, {"stacked": "1"}], ids=["each", "stacked"])


@WAYS
def test_an_input_is_read_where_it_lies(started, put, way):
    worker = started(**way)
    arrays = [ROW, ROW + 10, np.concatenate([ROW, ROW + 20])]
    answers = worker.run(*(on_device(array, put(array, at=32 * at)) for at, array in enumerate(arrays)))
    for array, answer in zip(arrays, answers, strict=True):
        assert np.array_equal(answer["OUTPUT"], 2 * array)
        assert (answer["WHERE"] == 1).all()
        assert len(answer["WHERE"]) == len(array)


@WAYS
def test_an_output_that_is_wanted_there_stays_on_the_gpu(started, left, way):
    worker = started(**way)
    (answer,) = worker.run(Asked(ROW, wanted=["OUTPUT", "WHERE"]))
    assert np.array_equal(left(worker, answer["OUTPUT"]), 2 * ROW)
    assert (answer["WHERE"] == 0).all()  # the model has it in host memory
    worker.release(answer["OUTPUT"].offset)


@WAYS
def test_nothing_stays_on_the_gpu_that_is_not_wanted_there(started, put, way):
    worker = started(**way)
    told = worker.told
    for request in (Asked(ROW), on_device(ROW, put(ROW)), Asked(ROW, wanted=["WHERE"])):
        (answer,) = worker.run(request)
        assert np.array_equal(answer["OUTPUT"], 2 * ROW)
    assert worker.told == told


def test_a_buffer_is_used_again_once_it_is_released_and_not_before(environ, left):
    with worker(environ) as own:
        first, second = [own.run(Asked(ROW + n, wanted=["OUTPUT"]))[0]["OUTPUT"] for n in (1, 2)]
        assert first.offset != second.offset
        assert np.array_equal(left(own, first), 2 * (ROW + 1))
        own.release(first.offset)
        third = own.run(Asked(ROW + 3, wanted=["OUTPUT"]))[0]["OUTPUT"]
        assert third.offset == first.offset
        assert np.array_equal(left(own, third), 2 * (ROW + 3))
        assert np.array_equal(left(own, second), 2 * (ROW + 2))
        assert own.told == 2


def test_releases_of_what_is_not_lent_are_ignored(environ, left):
    with worker(environ) as own:
        first = own.run(Asked(ROW, wanted=["OUTPUT"]))[0]["OUTPUT"]
        for number in (first.offset, first.offset, 77):
            own.release(number)
        second, third = [own.run(Asked(ROW + n, wanted=["OUTPUT"]))[0]["OUTPUT"] for n in (2, 3)]
        assert second.offset != third.offset
        assert np.array_equal(left(own, second), 2 * (ROW + 2))


def test_requests_of_one_batch_share_a_buffer_where_the_model_answers_them_together(started, left):
    worker = started(stacked="1")
    told = worker.told
    answers = worker.run(*(Asked(ROW + n, wanted=["OUTPUT"]) for n in range(3)))
    assert len({answer["OUTPUT"].offset for answer in answers}) == 1
    for n, answer in enumerate(answers):
        assert np.array_equal(left(worker, answer["OUTPUT"], start=n, rows=1), 2 * (ROW + n))
    worker.release(answers[0]["OUTPUT"].offset)
    assert worker.told <= told + 1


@WAYS
def test_requests_of_one_batch_have_outputs_where_each_wants_them(started, put, left, program, way):
    worker = started(**way)
    target = put(np.zeros((1, 8), "<f4"))
    asked = [
        Asked(ROW + 1, wanted=["OUTPUT"]),
        Asked(ROW + 2),
        Asked(ROW + 3, target=(DevicePlace(target.handle, 0, 8, 24), "region")),
        Asked(ROW + 4, wanted=["OUTPUT"], names=["OUTPUT"]),
    ]
    there, here, written, again = worker.run(*asked)
    assert np.array_equal(left(worker, there["OUTPUT"]), 2 * (ROW + 1))
    assert np.array_equal(here["OUTPUT"], 2 * (ROW + 2))
    assert written["OUTPUT"].written
    assert program.read(target.handle, 16, at=8) == (2 * (ROW + 3)).tobytes()
    assert program.read(target.handle, 8) == program.read(target.handle, 8, at=24) == bytes(8)
    assert np.array_equal(left(worker, again["OUTPUT"]), 2 * (ROW + 4))
    assert set(again) == {"OUTPUT"}
    for answer in (there, again):
        worker.release(answer["OUTPUT"].offset)


def test_a_request_that_was_answered_by_itself_does_not_move_the_others(environ, left):
    with worker(environ, stacked="1", twice="1") as own:
        for _ in range(3):
            first, second = own.run(*(Asked(ROW + n, wanted=["OUTPUT"]) for n in (1, 2)))
            assert not left(own, first["OUTPUT"]).any()
            # The buffer of both can't be told to the second alone.
            assert np.array_equal(second["OUTPUT"], 2 * (ROW + 2))
            own.release(first["OUTPUT"].offset)
        assert own.told == 2  # it was free again after each batch


def test_one_model_reads_what_another_has_left(started, environ, left):
    producer = started(stacked="1")
    with worker(environ) as consumer:
        for n in range(2):  # the second time, everything is open
            answers = producer.run(*(Asked(ROW + each, wanted=["OUTPUT"]) for each in (n, n + 1)))
            placed = answers[0]["OUTPUT"]
            device, _, handle = producer.buffers[placed.offset]
            places = [DevicePlace(handle, device, at, ROW.nbytes) for at in (0, ROW.nbytes)]
            one, other = consumer.run(*(on_device(ROW, place) for place in places))
            assert np.array_equal(one["OUTPUT"], 4 * (ROW + n))
            assert np.array_equal(other["OUTPUT"], 4 * (ROW + n + 1))
            assert one["WHERE"] == other["WHERE"] == 1
            producer.release(placed.offset)


def test_a_model_reads_what_it_has_left_itself(started, left):
    worker = started()
    placed = worker.run(Asked(ROW, wanted=["OUTPUT"]))[0]["OUTPUT"]
    device, _, handle = worker.buffers[placed.offset]
    asked = on_device(ROW, DevicePlace(handle, device, 0, ROW.nbytes), wanted=["OUTPUT"])
    again = worker.run(asked)[0]["OUTPUT"]
    assert again.offset != placed.offset
    assert np.array_equal(left(worker, again), 4 * ROW)
    for each in (placed, again):
        worker.release(each.offset)


@WAYS
@pytest.mark.parametrize("region", [None, "mine"])
def test_what_can_no_longer_be_opened_fails_its_request_alone(started, put, way, region):
    worker = started(**way)
    bad = on_device(ROW, DevicePlace(GONE, 0, 0, ROW.nbytes), region=region)
    one, error, other = worker.run(on_device(ROW + 1, put(ROW + 1)), bad, on_device(ROW + 2, put(ROW + 2)))
    assert np.array_equal(one["OUTPUT"], 2 * (ROW + 1))
    assert np.array_equal(other["OUTPUT"], 2 * (ROW + 2))
    why = "the CUDA driver answers CUDA_ERROR_MAP_FAILED to cuIpcOpenMemHandle_v2"
    if region is None:
        assert (error.code, error.trouble) == (ErrorCode.UNAVAILABLE, 0)
        assert error.message == (
            f"input 'INPUT' can't be read from the GPU, where another model has left it: {why}"
        )
    else:
        assert (error.code, error.trouble) == (ErrorCode.INTERNAL, READ_FAILED)
        assert error.message == f"input 'INPUT' can't be read from CUDA shared memory region 'mine': {why}"


@pytest.mark.parametrize(
    ("at", "nbytes", "why"),
    [
        (8, 16, "it would end at byte 24, and its allocation has 17 bytes"),
        (0, 12, "takes 16 bytes, and there are 12"),
    ],
)
def test_a_place_that_does_not_hold_the_input_is_an_error(started, put, at, nbytes, why):
    place = put(ROW)
    place.at, place.nbytes = at, nbytes
    worker = started()
    batches = len(worker.logs)
    (error,) = worker.run(on_device(ROW, place))
    assert error.code is ErrorCode.UNAVAILABLE
    assert why in error.message
    assert len(worker.logs) == batches  # the model had nothing to do


@WAYS
@pytest.mark.parametrize("host", [{}, {"host": "1"}], ids=["gpu", "host"])
def test_an_output_goes_straight_to_a_region_from_wherever_it_is(started, put, program, way, host):
    worker = started(**way, **host)
    target = put(np.zeros_like(ROW))
    (answer,) = worker.run(Asked(ROW, target=(target, "region")))
    assert answer["OUTPUT"].written
    assert answer["OUTPUT"].nbytes == ROW.nbytes
    assert program.read(target.handle, ROW.nbytes) == (2 * ROW).tobytes()


def test_an_output_too_large_for_its_region_is_an_error_with_the_sizes(started, put, program):
    target = put(np.zeros_like(ROW))
    target.nbytes -= 4
    error, other = started().run(Asked(ROW, target=(target, "region")), Asked(ROW))
    assert (error.code, error.trouble) == (ErrorCode.INTERNAL, WRITE_FAILED)
    assert error.message == (
        "shared memory size specified with the request for output 'OUTPUT' (12 bytes) should be at least"
        " 16 bytes to hold the results"
    )
    assert not any(program.read(target.handle, 16))
    assert np.array_equal(other["OUTPUT"], 2 * ROW)


def test_a_region_that_the_worker_cannot_open_is_left_to_the_server(started):
    target = DevicePlace(GONE, 0, 0, ROW.nbytes)
    (answer,) = started().run(Asked(ROW, target=(target, "region")))
    assert np.array_equal(answer["OUTPUT"], 2 * ROW)


def test_a_region_on_another_gpu_is_written_by_way_of_the_host(started, put, program):
    target = put(np.zeros_like(ROW), device=1)
    (answer,) = started().run(Asked(ROW, target=(target, "region")))
    assert answer["OUTPUT"].written
    assert program.read(target.handle, ROW.nbytes) == (2 * ROW).tobytes()


def test_the_region_of_a_client_that_has_left_is_not_touched(started, put, program):
    targets = [put(np.zeros_like(ROW)) for _ in range(2)]
    asked = [Asked(ROW, target=(target, "region")) for target in targets]
    error, answer = started().run(*asked, cancel=[0])
    assert error.code is ErrorCode.CANCELLED
    assert answer["OUTPUT"].written
    assert not any(program.read(targets[0].handle, ROW.nbytes))


@WAYS
def test_outputs_go_by_the_host_where_the_pool_has_no_more(environ, left, way):
    with worker(environ, **way, **{"tritium.gpu_tensor_pool_bytes": str(2 * GRANULE)}) as own:
        kept = [own.run(Asked(ROW + n, wanted=["OUTPUT"]))[0]["OUTPUT"] for n in range(2)]
        assert np.array_equal(own.run(Asked(ROW + 5, wanted=["OUTPUT"]))[0]["OUTPUT"], 2 * (ROW + 5))
        own.release(kept[1].offset)
        again = own.run(Asked(ROW + 6, wanted=["OUTPUT"]))[0]["OUTPUT"]
        assert np.array_equal(left(own, again), 2 * (ROW + 6))
        assert np.array_equal(left(own, kept[0]), 2 * ROW)


@WAYS
def test_what_the_model_puts_on_another_gpu_goes_by_the_host(started, put, program, way):
    worker = started(device="1", **way)
    target = put(np.zeros_like(ROW))
    answer, written = worker.run(Asked(ROW, wanted=["OUTPUT"]), Asked(ROW + 1, target=(target, "region")))
    assert np.array_equal(answer["OUTPUT"], 2 * ROW)
    assert written["OUTPUT"].written
    assert program.read(target.handle, ROW.nbytes) == (2 * (ROW + 1)).tobytes()
    assert not worker.told


def test_a_model_is_told_which_outputs_to_leave_on_the_gpu(started, put):
    worker = started(stacked="1")
    asked = Asked(ROW, wanted=["WHERE"], target=(put(ROW), "region"))
    other = Asked(ROW, wanted=["WHERE"])
    for requests, names in (([asked], ["OUTPUT", "WHERE"]), ([asked, other], ["WHERE"])):
        worker.run(*requests)
        assert json.loads(worker.logs[-1]) == [[], names]
    worker.run(Asked(ROW))
    assert json.loads(worker.logs[-1]) == [[], []]


def test_a_pool_of_no_number_is_refused(environ):
    words = "parameter 'tritium.gpu_tensor_pool_bytes' is a number of bytes, like 268435456, not 'much'"
    with pytest.raises(RuntimeError, match=words):
        with worker(environ, **{"tritium.gpu_tensor_pool_bytes": "much"}):
            pass


def test_an_empty_tensor_needs_no_gpu(started, put):
    empty = np.zeros((1, 0), "<f4")
    (answer,) = started().run(on_device(empty, put(empty), wanted=["OUTPUT"]))
    assert answer["OUTPUT"].shape == (1, 0)


def test_ragged_inputs_go_by_the_host(environ, put):
    arrays = [ROW, np.arange(6, dtype="<f4").reshape(1, 6)]
    with worker(environ, ragged=True) as own:
        one, other = own.run(*(on_device(array, put(array)) for array in arrays))
        assert np.array_equal(one["OUTPUT"], 2 * arrays[0])
        assert np.array_equal(other["OUTPUT"], 2 * arrays[1])
        assert one["WHERE"] == other["WHERE"] == 0


def test_a_backend_that_leaves_everything_to_feeds_gets_copies(environ, put):
    with worker(environ, "Reading") as own:
        answers = own.run(*(on_device(ROW + n, put(ROW + n)) for n in range(3)))
        for n, answer in enumerate(answers):
            assert np.array_equal(answer["OUTPUT"], 2 * (ROW + n))


def test_an_input_is_not_read_after_its_batch(environ, put):
    with worker(environ, "Lazy") as own:
        own.run(on_device(ROW, put(ROW)))
        own.run(Asked(ROW))
        why = "input 'INPUT' was on a GPU while its batch was executed, and that is over"
        assert own.logs == [f"late: {why}"]


def test_a_gpu_that_is_lost_is_an_error_and_not_the_workers_end(started, put, environ):
    worker, asked = started(host="1"), on_device(ROW, put(ROW))
    found = lose(environ)
    try:
        (error,) = worker.run(asked)
    finally:
        found()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in error.message
    (answer,) = worker.run(asked)
    assert np.array_equal(answer["OUTPUT"], 2 * ROW)


def test_a_gpu_that_is_lost_while_the_model_computes_is_an_error_of_what_is_on_it(environ, put, program):
    target = put(ROW)
    with worker(environ, "Losing") as own:
        for _ in range(3):
            own.run(on_device(ROW, put(ROW)), on_device(ROW, put(ROW)))
            for answer in own.result.answers:
                assert answer.code is ErrorCode.UNAVAILABLE
                assert "ILLEGAL_ADDRESS to cuCtxSynchronize" in answer.message
    with worker(environ, "Losing", late="1") as own:
        for _ in range(3):
            (error,) = own.run(Asked(ROW, wanted=["OUTPUT"]))
            assert error.code is ErrorCode.INTERNAL
            assert "ILLEGAL_ADDRESS to cuCtxSynchronize" in error.message
            (error,) = own.run(on_device(ROW, target, target=(target, "mine")))
            assert (error.code, error.trouble) == (ErrorCode.INTERNAL, WRITE_FAILED)
            assert error.message == (
                "output 'OUTPUT' can't be written to CUDA shared memory region 'mine':"
                " the CUDA driver answers CUDA_ERROR_ILLEGAL_ADDRESS to cuCtxSynchronize"
            )
    assert program.read(target.handle, ROW.nbytes) == ROW.tobytes()


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_worker_that_ends_frees_its_buffers(environ, lanes, left):
    with worker(environ, lanes=lanes) as own:
        kept = own.run(Asked(ROW, wanted=["OUTPUT"]))[0]["OUTPUT"]
        assert np.array_equal(left(own, kept), 2 * ROW)
        files = f"memory.{own.process.pid}.*"
        assert list(Path(environ["FAKE_CUDA"]).glob(files))
        assert own.stop() == 0
        assert not list(Path(environ["FAKE_CUDA"]).glob(files))


def test_models_of_one_request_at_a_time_have_all_this_too(environ, put, left):
    with worker(environ, max_batch_size=0, stacked="1") as own:
        (answer,) = own.run(on_device(ROW, put(ROW), wanted=["OUTPUT"]))
        assert np.array_equal(left(own, answer["OUTPUT"]), 2 * ROW)
        assert (answer["WHERE"] == 1).all()
