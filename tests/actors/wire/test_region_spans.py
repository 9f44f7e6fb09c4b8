"""Clients' regions: which side reads them, what the worker is told, and what is believed of its answer."""

import os

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.regions import RegionTensor, WrittenTensor
from actors.values.specs import InputSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.wire.arena import Segment, segment_size
from actors.wire.batch_frames import READ_FAILED, WRITE_FAILED, Answer, Placed, Result
from actors.wire.frames import FrameError
from actors.wire.gathering import Gather, Scatter
from actors.wire.region_spans import DIRECT_FROM, MOST_REGIONS, read_spans, tell_spans, write_spans
from tests.actors.wire.test_gathering_and_scattering import request
from tests.support.model_doubles import make_spec
from tests.support.shared_regions import ClientRegion, input_in

SPEC = make_spec(
    inputs=(
        InputSpec(name="A", datatype=DataType.FP32, dims=(-1,)),
        InputSpec(name="B", datatype=DataType.FP32, dims=(2,)),
    ),
    outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(6,), reshape=(2, 3)),),
)
PIECE = 128 * 1024


@pytest.fixture
def region():
    made = ClientRegion(1024 * 1024)
    yield made
    made.close()


def wired(name, rows, columns=2):
    return Tensor.from_numpy(name, np.full((rows, columns), 5, np.float32))


def gathered(requests, *, unread=None):
    """Copy and read all; return the plan, and the inputs as arrays."""
    gather = Gather(requests, SPEC)
    segment = Segment.create(segment_size(gather.nbytes))
    segment.close_fd()
    segment.view[:] = b"\xff" * segment.size  # what was there before
    for _ in (*gather.copying(segment.view), *gather.reading(segment.view)):
        pass
    arrays = [
        np.frombuffer(segment.view[each.offset : each.offset + each.nbytes], np.float32).reshape(each.shape)
        for each in gather.inputs
    ]
    return gather, arrays


def test_inputs_in_regions_are_read_to_their_places_beside_the_others(region):
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    requests = [
        request(SPEC, wired("A", 1), wired("B", 1)),
        request(SPEC, wired("B", 2), input_in(region.put(values[:2], at=64), (2, 2), name="A"), rows=2),
        request(SPEC, input_in(region.put(values[2:], at=128), (2, 2), name="A"), wired("B", 2), rows=2),
    ]
    gather, (first, second) = gathered(requests)
    assert np.array_equal(first, np.concatenate([np.full((1, 2), 5), values]))
    assert (second == 5).all()
    assert gather.unread is None
    assert [read.index for read in gather.reads] == [1, 2]
    assert gather.nbytes - gather.copied == values.nbytes


def test_inputs_of_a_large_batch_find_their_requests(region):
    """By place: to look for each among all would hold the loop for tens of milliseconds."""
    looked = []

    class Inputs(list):
        def __contains__(self, tensor):
            looked.append(tensor)
            return super().__contains__(tensor)

    requests = [
        request(
            SPEC,
            input_in(region.slice(0, 8), (1, 2), name="A"),
            input_in(region.slice(8, 8), (1, 2), name="B"),
        )
        for _ in range(64)
    ]
    for each in requests:
        each.inputs = Inputs(each.inputs)
    gather = Gather(requests, SPEC)
    assert [read.index for read in gather.reads] == [*range(64), *range(64)]
    assert len(looked) <= len(gather.reads)


def test_copying_at_once_leaves_the_places_of_regions_alone(region):
    place = region.put(np.ones((1, 2), np.float32))
    gather = Gather(
        [
            request(SPEC, input_in(place, (1, 2), name="A"), wired("B", 1)),
            request(SPEC, wired("A", 1), wired("B", 1)),
        ],
        SPEC,
    )
    view = memoryview(bytearray(gather.nbytes))
    gather.copy_into(view)
    assert np.frombuffer(view[:16], np.float32).tolist() == [0, 0, 5, 5]


def test_a_long_input_is_read_piece_by_piece(region):
    columns = PIECE // 2
    values = np.arange(columns, dtype=np.float32).reshape(1, -1)
    gather = Gather(
        [request(SPEC, input_in(region.put(values), values.shape, name="A"), wired("B", 1))], SPEC
    )
    view = memoryview(bytearray(gather.nbytes))
    assert sum(1 for _ in gather.reading(view)) == 2
    assert view[: values.nbytes] == values.tobytes()


@pytest.mark.parametrize("left", [0, 3, 2 * PIECE - 4, 2 * PIECE + 8])
def test_what_a_region_no_longer_has_is_zeros_and_its_request_is_told(region, left):
    columns = PIECE
    values = np.full((1, columns), 7, np.float32)
    requests = [
        request(SPEC, wired("A", 1, columns), wired("B", 1)),
        request(SPEC, input_in(region.put(values), values.shape, name="A"), wired("B", 1)),
    ]
    region.shrink(left)
    gather, (first, _) = gathered(requests)
    assert gather.unread is not None
    ((place, error),) = gather.unread.items()
    assert place == 1
    assert error.code is ErrorCode.INVALID_ARG
    assert f"its object has {left} bytes, and input 'A' ends at byte {values.nbytes}" in error.message
    assert (first[0] == 5).all()
    whole = left // 4
    assert (first[1][:whole] == 7).all()
    assert not first[1][whole + 1 :].any()


def test_a_region_that_has_been_closed_is_as_one_without_bytes(region):
    tensor = input_in(region.put(np.ones((1, 2), np.float32)), (1, 2), name="A")
    os.close(region.fileno)
    region.region.fileno = -1
    gather, _ = gathered([request(SPEC, tensor, wired("B", 1))])
    region.fileno = os.open(os.devnull, os.O_RDONLY)
    assert list(gather.unread or ()) == [0]
    assert tensor.read(0, 8) == b""


def test_an_empty_input_in_a_region_is_nothing_to_read(region):
    empty = RegionTensor("A", DataType.FP32, (1, 0), region.slice(0, 0))
    gather, (first, _) = gathered([request(SPEC, empty, wired("B", 1))])
    assert first.shape == (1, 0)
    assert gather.unread is None


def test_a_worker_is_told_what_to_read_and_which_long_outputs_to_write(region):
    other = ClientRegion(4096)
    one = request(SPEC, input_in(region.slice(64, 8), (1, 2), name="A"), wired("B", 1))
    two = request(SPEC, wired("A", 1), input_in(other.slice(0, 8), (1, 2), name="B"))
    two.output_regions = {
        "OUTPUT": region.slice(512, DIRECT_FROM + 1),
        "short": region.slice(0, DIRECT_FROM),
    }
    gather = Gather([one, two], SPEC)
    told: list[dict[str, object]] = [{}, {"id": "x"}]
    assert tell_spans(gather.reads, [one, two], told) == [region.region, other.region]
    (span,) = read_spans(told[0])
    assert (span.number, span.at, span.offset, span.nbytes, span.name, span.region) == (
        *(0, 64, gather.inputs[0].offset, 8),
        *("A", region.region.name),
    )
    (span,) = read_spans(told[1])
    assert (span.number, span.offset) == (1, gather.inputs[1].offset + 8)
    assert not write_spans(told[0])
    ((name, place),) = write_spans(told[1]).items()
    assert (name, place.number, place.at, place.nbytes) == ("OUTPUT", 0, 512, DIRECT_FROM + 1)
    other.close()


def test_a_worker_is_told_of_no_region_where_there_are_too_many(region):
    regions = [ClientRegion(8) for _ in range(MOST_REGIONS + 1)]
    requests = [
        request(SPEC, input_in(each.slice(0, 8), (1, 2), name="A"), wired("B", 1)) for each in regions
    ]
    told: list[dict[str, object]] = [{} for _ in requests]
    gather = Gather(requests, SPEC)
    assert tell_spans(gather.reads, requests, told) == []
    assert not any(told)
    assert len(tell_spans(gather.reads[1:], requests, told)) == MOST_REGIONS
    for each in regions:
        each.close()


def written(nbytes=24, name="OUTPUT"):
    return Placed(name, DataType.FP32, (1, 2, nbytes // 8), 0, nbytes, written=True)


def test_a_written_output_has_a_shape_and_no_bytes(region):
    asked = request(SPEC)
    asked.output_regions = {"OUTPUT": region.slice(0, 24)}
    result = Result(1, 0, 1, (0, 0, 0), answers=[Answer([written()])])
    scatter = Scatter(result, memoryview(b""), SPEC)
    ((_, (tensor,), _),) = scatter.answers([asked])
    assert isinstance(tensor, WrittenTensor)
    assert (tensor.name, tensor.nbytes, tuple(tensor.shape), tensor.data) == ("OUTPUT", 24, (1, 6), b"")
    assert not scatter.borrowed


@pytest.mark.parametrize(
    ("room", "said"),
    [(None, written()), (16, written()), (24, written(name="other"))],
    ids=["no region", "too little room", "another output"],
)
def test_a_worker_can_t_have_written_where_there_is_no_room(region, room, said):
    asked = request(SPEC)
    if room is not None:
        asked.output_regions = {"OUTPUT": region.slice(0, room)}
    scatter = Scatter(Result(1, 0, 1, (0, 0, 0), answers=[Answer([said])]), memoryview(b""), SPEC)
    with pytest.raises(FrameError, match="says that it wrote 24 bytes of output"):
        scatter.answers([asked])


@pytest.mark.parametrize(("trouble", "counted"), [(READ_FAILED, (1, 0)), (WRITE_FAILED, (0, 1)), (0, (0, 0))])
def test_a_request_that_a_region_has_failed_is_counted(region, trouble, counted):
    asked = request(SPEC)
    place = region.slice(0, 24)
    asked.inputs = [Tensor("PLAIN", DataType.FP32, (1,), bytes(4)), input_in(region.slice(0, 24), (1, 6))]
    asked.output_regions = {"OUTPUT": place}
    answer = Answer(code=ErrorCode.INVALID_ARG, message="cut off", trouble=trouble)
    scatter = Scatter(Result(1, 0, 1, (0, 0, 0), answers=[answer]), memoryview(b""), SPEC)
    scatter.answers([asked])
    counts = place.region.counts
    assert (counts.reads_failed, counts.writes_failed) == counted


@pytest.mark.parametrize("trouble", [READ_FAILED, WRITE_FAILED])
def test_a_worker_that_tells_of_regions_where_there_are_none_counts_nothing(trouble):
    asked = request(SPEC)
    answer = Answer(code=ErrorCode.INVALID_ARG, message="cut off", trouble=trouble)
    scatter = Scatter(Result(1, 0, 1, (0, 0, 0), answers=[answer]), memoryview(b""), SPEC)
    assert [cut[1] for cut in scatter.answers([asked])] == [[]]


def test_a_worker_that_read_no_region_and_says_so_counts_nothing(region):
    asked = request(SPEC)
    asked.output_regions = {"OUTPUT": region.slice(0, 24)}
    answer = Answer(code=ErrorCode.INVALID_ARG, message="cut off", trouble=READ_FAILED)
    Scatter(Result(1, 0, 1, (0, 0, 0), answers=[answer]), memoryview(b""), SPEC).answers([asked])
    counts = asked.output_regions["OUTPUT"].region.counts
    assert (counts.reads_failed, counts.writes_failed) == (0, 0)
