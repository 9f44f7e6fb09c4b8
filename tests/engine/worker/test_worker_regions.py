"""A worker reads and writes tensors in clients' regions, and trouble stays with the request that has it."""

import os
import signal
from contextlib import ExitStack

import numpy as np
import pytest

from actors.values.confinement import Confinement, Sandbox
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, TritiumError
from actors.values.regions import WrittenTensor
from actors.values.specs import InputSpec, OutputSpec
from actors.values.tensors import Tensor, pack_bytes
from actors.wire.region_spans import DIRECT_FROM, MOST_REGIONS
from tests.engine.worker.conftest import until
from tests.support.shared_regions import ClientRegion, input_in
from tests.support.worker_backends import POISON

pytestmark = pytest.mark.system

COLUMNS = DIRECT_FROM // 2  # of floats: twice as much as is needed to be written by the worker
SHAPE = (1, COLUMNS)
NBYTES = 4 * COLUMNS

STRICT = Confinement(sandbox=Sandbox.STRICT)
WAYS = [
    pytest.param({"backend": "doubling"}, id="process"),
    pytest.param({"backend": "in_thread", "isolation": "thread"}, id="thread"),
    pytest.param({"backend": "doubling", "confinement": STRICT}, id="strict"),
]


@pytest.fixture
def regions():
    """Make regions of some bytes."""
    with ExitStack() as made:

        def make(nbytes=4 * NBYTES):
            region = ClientRegion(nbytes)
            made.callback(region.close)
            return region

        yield make


def row(value, columns=COLUMNS):
    """One row whose first element is a cue for the model."""
    values = np.arange(columns, dtype=np.float32)
    values[0] = value
    return values.reshape(1, -1)


def of_region(model, place, shape=SHAPE, *, output=None):
    request = model.request([1.0])
    request.inputs = [input_in(place, shape)]
    if output is not None:
        request.output_regions = {"OUTPUT": output}
    return request


async def outcome(model, request):
    await model.state.submit(request)
    answer = await model.answer(request)
    if isinstance(answer, TritiumError):
        return answer
    tensor = answer.outputs[0]
    values = None if isinstance(tensor, WrittenTensor) else tensor.as_numpy().copy()
    answer.release()
    return tensor, values


@pytest.mark.parametrize("way", WAYS)
async def test_an_input_in_a_region_is_what_the_model_sees(serve, regions, way):
    client = regions()
    async with serve(**way) as model:
        for value in (1.0, 2.0):  # the second time, the slot has been used
            sent = row(value)
            request = of_region(model, client.put(sent, at=64))
            _, values = await outcome(model, request)
            assert np.array_equal(values, 2 * sent)
            assert request.nbytes == NBYTES


async def test_an_output_is_written_straight_to_its_region(serve, regions):
    source, target = regions(), regions()
    async with serve("doubling") as model:
        sent = row(3.0)
        place = target.slice(128, NBYTES + 4)
        tensor, values = await outcome(model, of_region(model, source.put(sent), output=place))
        assert values is None
        assert (tensor.name, tensor.datatype, tuple(tensor.shape)) == ("OUTPUT", DataType.FP32, SHAPE)
        assert tensor.nbytes == NBYTES
        assert np.array_equal(target.array(SHAPE, at=128), 2 * sent)
        assert target.array((32,)).any() == target.array((1,), at=128 + NBYTES).any() == False  # noqa: E712


async def test_an_input_may_come_over_the_wire_while_its_output_goes_to_a_region(serve, regions):
    target = regions()
    async with serve("doubling") as model:
        request = model.request(row(4.0))
        request.output_regions = {"OUTPUT": target.slice(0, NBYTES)}
        tensor, _ = await outcome(model, request)
        assert isinstance(tensor, WrittenTensor)
        assert np.array_equal(target.array(SHAPE), 2 * row(4.0))


async def test_a_short_output_comes_in_the_answer_however_much_room_it_has(serve, regions):
    target = regions()
    async with serve("doubling") as model:
        request = model.request([5.0])
        request.output_regions = {"OUTPUT": target.slice(0, NBYTES)}
        tensor, values = await outcome(model, request)
        assert (values == 10).all()
        assert tensor.nbytes == 16
        assert not target.array((4,)).any()


@pytest.mark.parametrize("sandbox", [Sandbox.OFF, Sandbox.STRICT])
async def test_a_region_that_was_shrunk_fails_its_request_alone(serve, regions, sandbox, tmp_path):
    good, bad = regions(), regions()
    gate = tmp_path / "gate"
    confinement = Confinement(sandbox=sandbox, read=(str(tmp_path),))
    async with serve("pausing", parameters={"gate": str(gate)}, confinement=confinement) as model:
        first = await model.send(1.0)  # holds the worker up, so that the others share a batch
        await until(lambda: model.begun_with(first))
        requests = [
            of_region(model, good.put(row(7.0))),
            of_region(model, bad.put(row(8.0))),
            of_region(model, good.put(row(9.0), at=NBYTES)),
        ]
        for request in requests:
            model.state.intake.submit_nowait(request, in_company=True)
        bad.shrink(NBYTES - 4)
        gate.touch()
        one, error, other = [await model.answer(request) for request in requests]
        assert np.array_equal(one.outputs[0].as_numpy(), 2 * row(7.0))
        assert np.array_equal(other.outputs[0].as_numpy(), 2 * row(9.0))
        one.release()
        other.release()
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message == (
            f"shared memory region '{bad.region.name}' has been shrunk since it was registered:"
            f" its object has {NBYTES - 4} bytes, and input 'INPUT' ends at byte {NBYTES}"
        )
        assert model.state.statistics.execution_count == 2
        assert not model.state.statistics.deaths


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_executed_for_a_request_whose_region_is_gone(serve, regions, way):
    client = regions()
    async with serve(**way) as model:
        place = client.put(row(669.0))  # the model would raise an error of its own
        client.shrink(0)
        error = await outcome(model, of_region(model, place))
        assert "its object has 0 bytes" in error.message
        assert (await model.infer(2.0) == 4).all()
        assert not model.state.statistics.deaths


async def test_an_output_too_large_for_its_place_is_an_error_with_the_sizes(serve, regions):
    source, target = regions(), regions()
    async with serve("doubling") as model:
        place = target.slice(0, NBYTES - 4)
        error = await outcome(model, of_region(model, source.put(row(1.0)), output=place))
        assert error.code is ErrorCode.INTERNAL
        assert error.message == (
            f"shared memory size specified with the request for output 'OUTPUT' ({NBYTES - 4} bytes)"
            f" should be at least {NBYTES} bytes to hold the results"
        )
        assert not target.array(SHAPE).any()


async def test_a_shrunk_region_is_never_made_longer_by_an_output(serve, regions):
    source, target = regions(), regions()
    async with serve("doubling") as model:
        request = of_region(model, source.put(row(1.0)), output=target.slice(NBYTES, NBYTES))
        target.shrink(2 * NBYTES - 1)
        error = await outcome(model, request)
        assert error.code is ErrorCode.INVALID_ARG
        assert f"its object has {2 * NBYTES - 1} bytes, and output 'OUTPUT' ends at byte" in error.message
        assert target.size == 2 * NBYTES - 1


async def test_requests_of_one_batch_have_their_outputs_where_each_wants_it(serve, regions, tmp_path):
    gate = tmp_path / "gate"
    source, target, short = regions(), regions(), regions()
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        first = await model.send(1.0)
        await until(lambda: model.begun_with(first))
        two_rows = np.concatenate([row(7.0), row(8.0)])
        requests = [
            of_region(model, source.put(two_rows), two_rows.shape, output=target.slice(NBYTES, 2 * NBYTES)),
            model.request(row(9.0)),
            of_region(model, source.put(row(10.0), at=2 * NBYTES), output=short.slice(0, NBYTES - 1)),
            of_region(model, source.put(row(11.0), at=3 * NBYTES), output=target.slice(0, NBYTES)),
        ]
        for request in requests:
            model.state.intake.submit_nowait(request, in_company=True)
        gate.touch()
        two, wired, error, one = [await model.answer(request) for request in requests]
        assert model.state.statistics.execution_count == 2
        assert isinstance(two.outputs[0], WrittenTensor)
        assert tuple(two.outputs[0].shape) == (2, COLUMNS)
        assert np.array_equal(target.array((2, COLUMNS), at=NBYTES), 2 * two_rows)
        assert np.array_equal(wired.outputs[0].as_numpy(), 2 * row(9.0))
        wired.release()
        assert "should be at least" in error.message
        assert isinstance(one.outputs[0], WrittenTensor)
        assert np.array_equal(target.array(SHAPE), 2 * row(11.0))


async def test_strings_are_written_as_they_travel(serve, regions):
    target = regions()
    strings = {
        "inputs": (InputSpec(name="INPUT", datatype=DataType.BYTES, dims=(-1,)),),
        "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.BYTES, dims=(-1,)),),
    }
    words = [b"w%d" % number * 8 for number in range(4000)]
    async with serve("strings", **strings) as model:
        request = model.request([1.0])
        request.inputs = [Tensor("INPUT", DataType.BYTES, (1, len(words)), pack_bytes(words))]
        request.output_regions = {"OUTPUT": target.slice(0, 4 * NBYTES)}
        tensor, _ = await outcome(model, request)
        packed = pack_bytes([word[::-1] for word in words])
        assert tensor.nbytes == len(packed)
        assert os.pread(target.fileno, len(packed), 0) == packed


async def test_a_worker_keeps_no_descriptor_of_a_region(serve, regions):
    source, target = regions(), regions()
    async with serve("doubling") as model:
        folder = f"/proc/{model.pid()}/fd"

        def held():
            names = (source.region.name, target.region.name)
            return [
                each
                for each in os.listdir(folder)
                if os.readlink(f"{folder}/{each}").split("memfd:")[-1] in names
            ]

        for _ in range(3):
            request = of_region(model, source.put(row(1.0)), output=target.slice(0, NBYTES))
            await outcome(model, request)
        await until(lambda: not held())


async def test_a_batch_of_more_regions_than_a_frame_can_bring_is_served_all_the_same(
    serve, regions, tmp_path
):
    gate = tmp_path / "gate"
    async with serve("pausing", parameters={"gate": str(gate)}, max_batch_size=128) as model:
        first = await model.send(1.0)
        await until(lambda: model.begun_with(first))
        clients = [regions(64) for _ in range(MOST_REGIONS + 1)]
        requests = [
            of_region(model, client.put(row(float(number), 4)), (1, 4))
            for number, client in enumerate(clients)
        ]
        for request in requests:
            model.state.intake.submit_nowait(request, in_company=True)
        gate.touch()
        for number, request in enumerate(requests):
            answer = await model.answer(request)
            assert answer.outputs[0].as_numpy()[0, 0] == 2 * number
        assert model.state.statistics.execution_count == 2


async def test_a_request_in_a_region_that_kills_its_worker_is_found_and_refused(serve, regions, tmp_path):
    gate = tmp_path / "gate"
    source, target = regions(), regions()
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        first = await model.send(1.0)
        await until(lambda: model.begun_with(first))
        good = of_region(model, source.put(row(5.0)), output=target.slice(0, NBYTES))
        poison = of_region(model, source.put(row(POISON), at=NBYTES))
        for request in (good, poison):
            model.state.intake.submit_nowait(request, in_company=True)
        gate.touch()
        assert isinstance((await model.answer(good)).outputs[0], WrittenTensor)
        assert np.array_equal(target.array(SHAPE), 2 * row(5.0))
        assert isinstance(await model.answer(poison), TritiumError)
        # Its like is refused, and other contents of the same bytes are not.
        with pytest.raises(TritiumError, match="quarantined"):
            await outcome(model, of_region(model, source.slice(NBYTES, NBYTES), SHAPE))
        _, values = await outcome(model, of_region(model, source.put(row(6.0), at=NBYTES)))
        assert np.array_equal(values, 2 * row(6.0))


async def test_what_a_killed_worker_held_is_read_anew_by_the_next_one(serve, regions, tmp_path):
    gate = tmp_path / "gate"
    source, target = regions(), regions()
    async with serve("pausing", parameters={"gate": str(gate)}) as model:
        request = of_region(model, source.put(row(5.0)), output=target.slice(0, NBYTES))
        await model.state.submit(request)
        await until(lambda: model.begun_with(request))
        os.kill(model.pid(), signal.SIGKILL)
        gate.touch()
        assert isinstance((await model.answer(request)).outputs[0], WrittenTensor)
        assert np.array_equal(target.array(SHAPE), 2 * row(5.0))
        assert request.attempts == 2
