"""Many requests into one slot and back: the model sees their concatenation, each caller its own rows."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.sequences.policy.controls import PaddingRow
from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.padding import Buckets, Padded
from actors.values.requests import InferRequest
from actors.values.shapes import reshaped
from actors.values.specs import InputSpec, OutputSpec, SequenceBatching, StateSpec
from actors.values.tensors import Tensor, pack_bytes
from actors.wire.arena import Segment, align, segment_size
from actors.wire.batch_frames import Answer, Part, Placed, Result
from actors.wire.frames import FrameError
from actors.wire.gathering import COPY_LIMIT, Gather, Scatter, default_metadata, outputs_of
from tests.support.model_doubles import make_spec
from tests.support.ports import NoPort

FIXED = [each for each in DataType if each not in (DataType.BYTES, DataType.BOOL)]


def request(spec, *tensors, rows=1, **options):
    made = InferRequest(
        model_name="model",
        inputs=list(tensors),
        requested_outputs=spec.output_names,
        reply=NoPort(),
        accepted_at=0.0,
        **options,
    )
    made.rows = rows
    return made


def gathered(requests, spec):
    gather = Gather(requests, spec)
    segment = Segment.create(segment_size(gather.nbytes))
    segment.close_fd()
    gather.copy_into(segment.view)
    return gather, segment


def seen(placed, datatype, segment):
    """The input as a backend sees it."""
    return Tensor(
        "x", datatype, placed.shape, segment.view[placed.offset : placed.offset + placed.nbytes]
    ).as_numpy()


@given(st.data())
def test_a_worker_sees_the_concatenation_of_its_requests(data):
    declared = data.draw(st.lists(st.sampled_from(FIXED), min_size=1, max_size=3))
    tails = [tuple(data.draw(st.lists(st.integers(0, 4), max_size=2))) for _ in declared]
    spec = make_spec(
        inputs=tuple(
            InputSpec(name=f"I{n}", datatype=datatype, dims=tail)
            for n, (datatype, tail) in enumerate(zip(declared, tails, strict=True))
        )
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    requests: list[InferRequest] = []
    parts: list[list[bytes]] = [[] for _ in declared]
    for _ in range(data.draw(st.integers(1, 5))):
        rows = data.draw(st.integers(0, 3))
        tensors = []
        for n, (datatype, tail) in enumerate(zip(declared, tails, strict=True)):
            shape = (rows, *tail)
            raw = rng.bytes(int(np.prod(shape)) * datatype.size)
            parts[n].append(raw)
            tensors.append(Tensor(f"I{n}", datatype, shape, raw))
        if data.draw(st.booleans()):
            tensors.reverse()
        requests.append(request(spec, *tensors, rows=rows))
    gather, segment = gathered(requests, spec)
    rows = sum(each.rows for each in requests)
    assert [placed.index for placed in gather.inputs] == list(range(len(declared)))
    for placed, datatype, tail, wanted in zip(gather.inputs, declared, tails, parts, strict=True):
        assert tuple(placed.shape) == (rows, *tail)
        assert placed.offset == align(placed.offset)
        array = seen(placed, datatype, segment)
        assert array.tobytes() == b"".join(wanted)


@given(st.data())
def test_each_request_gets_its_rows_back(data):
    datatype = data.draw(st.sampled_from(FIXED))
    tail = tuple(data.draw(st.lists(st.integers(1, 4), max_size=2)))
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=datatype, dims=(-1,) * len(tail)),))
    counts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    requests = [request(spec, rows=rows) for rows in counts]
    total = sum(counts)
    offset = 64 * data.draw(st.integers(0, 3))
    size = total * int(np.prod(tail, dtype=int)) * datatype.size
    raw = np.random.default_rng(7).bytes(size)
    view = memoryview(bytes(offset) + raw)
    result = Result(1, 0, len(counts), (0, 0, 0), [Placed("OUTPUT", datatype, (total, *tail), offset, size)])
    scatter = Scatter(result, view, spec)
    assert not scatter.borrowed
    at = 0
    for (whose, (tensor,), answer), wanted in zip(scatter.answers(requests), requests, strict=True):
        assert whose is wanted
        assert answer is None
        assert tuple(tensor.shape) == (wanted.rows, *tail)
        assert bytes(tensor.data) == raw[at : at + len(tensor.data)]
        assert len(tensor.data) == wanted.rows * (size // total if total else 0)
        at += len(tensor.data)
    assert at == size


@given(st.lists(st.lists(st.binary(max_size=9), max_size=3), min_size=1, max_size=5))
def test_strings_are_cut_where_their_requests_part(groups):
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=DataType.BYTES, dims=()),))
    packed = [pack_bytes(group) for group in groups]
    whole = b"".join(packed)
    rows = sum(map(len, groups))
    placed = Placed("OUTPUT", DataType.BYTES, (rows,), 0, len(whole), tuple(map(len, packed)))
    requests = [request(spec, rows=len(group)) for group in groups]
    result = Result(1, 0, len(groups), (0, 0, 0), [placed])
    answers = Scatter(result, memoryview(whole), spec).answers(requests)
    assert [tensors[0].as_numpy().tolist() for _, tensors, _ in answers] == groups


def test_ragged_inputs_keep_a_shape_for_each_request():
    spec = make_spec(inputs=(InputSpec(name="INPUT", datatype=DataType.INT32, dims=(-1,), ragged=True),))
    arrays = [np.arange(n, dtype=np.int32).reshape(1, n) for n in (2, 5, 0)]
    gather, segment = gathered([request(spec, Tensor.from_numpy("INPUT", array)) for array in arrays], spec)
    (placed,) = gather.inputs
    assert placed.shape is None
    assert [(tuple(shape), nbytes) for shape, nbytes in placed.parts] == [
        ((1, 2), 8),
        ((1, 5), 20),
        ((1, 0), 0),
    ]
    assert bytes(segment.view[placed.offset : placed.offset + 28]) == b"".join(a.tobytes() for a in arrays)


def test_padded_inputs_keep_a_shape_for_each_request_too():
    padded = Padded({1: Buckets((4,))})
    spec = make_spec(inputs=(InputSpec(name="INPUT", datatype=DataType.INT32, dims=(-1,), padded=padded),))
    arrays = [np.zeros((1, n), np.int32) for n in (2, 3)]
    gather, _ = gathered([request(spec, Tensor.from_numpy("INPUT", array)) for array in arrays], spec)
    (placed,) = gather.inputs
    assert placed.parts == [((1, 2), 8), ((1, 3), 12)]


def test_ragged_inputs_that_happen_to_agree_are_one_array():
    spec = make_spec(inputs=(InputSpec(name="INPUT", datatype=DataType.INT32, dims=(-1,), ragged=True),))
    tensors = [Tensor.from_numpy("INPUT", np.ones((2, 3), np.int32)) for _ in range(2)]
    gather, _ = gathered([request(spec, tensor, rows=2) for tensor in tensors], spec)
    assert gather.inputs[0].shape == (4, 3)
    assert gather.inputs[0].parts is None


def test_an_optional_input_that_nobody_sent_is_left_out_and_the_others_keep_their_places():
    spec = make_spec(
        inputs=(
            InputSpec(name="A", datatype=DataType.INT32, dims=(1,), optional=True),
            InputSpec(name="B", datatype=DataType.INT32, dims=(1,)),
        )
    )
    tensor = Tensor.from_numpy("B", np.array([[5]], np.int32))
    gather, segment = gathered([request(spec, tensor), request(spec, tensor)], spec)
    (placed,) = gather.inputs
    assert placed.index == 1
    assert seen(placed, DataType.INT32, segment).tolist() == [[5], [5]]


def test_a_backend_sees_the_configured_reshape_and_clients_never_do():
    spec = make_spec(
        inputs=(InputSpec(name="INPUT", datatype=DataType.INT32, dims=(-1, 1), reshape=(-1,)),),
        outputs=(OutputSpec(name="OUTPUT", datatype=DataType.INT32, dims=(1, 4), reshape=(2, 2)),),
    )
    tensor = Tensor.from_numpy("INPUT", np.ones((2, 3, 1), np.int32))
    gather, _ = gathered([request(spec, tensor, rows=2)] * 2, spec)
    assert gather.inputs[0].shape == (4, 3)
    placed = Placed("OUTPUT", DataType.INT32, (4, 2, 2), 0, 64)
    cuts = Scatter(Result(1, 0, 2, (0, 0, 0), [placed]), memoryview(bytes(64)), spec).answers(
        [request(spec, rows=1), request(spec, rows=3)]
    )
    assert [tuple(tensors[0].shape) for _, tensors, _ in cuts] == [(1, 1, 4), (3, 1, 4)]


def test_outputs_may_lie_in_any_order():
    names = ("LAST", "FIRST", "MIDDLE")
    spec = make_spec(outputs=[OutputSpec(name=name, datatype=DataType.UINT8, dims=(2,)) for name in names])
    placed = [Placed(name, DataType.UINT8, (1, 2), at, 2) for name, at in zip(names, (12, 4, 8), strict=True)]
    memory = memoryview(bytes(range(16)))
    ((_, tensors, _),) = Scatter(Result(1, 0, 1, (0, 0, 0), placed), memory, spec).answers([request(spec)])
    assert [bytes(tensor.data) for tensor in tensors] == [b"\x0c\x0d", b"\4\5", b"\x08\x09"]


@pytest.mark.parametrize("shape", [(1, 3, 3), (1, 9)])
def test_an_output_of_another_shape_than_configured_shows_what_it_is(shape):
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=DataType.INT32, dims=(4,), reshape=(2, 2)),))
    placed = Placed("OUTPUT", DataType.INT32, shape, 0, 36)
    ((_, (tensor,), _),) = Scatter(Result(1, 0, 1, (0, 0, 0), [placed]), memoryview(bytes(36)), spec).answers(
        [request(spec)]
    )
    assert tuple(tensor.shape) == shape
    assert tensor.as_numpy().shape == shape


def test_variable_dimensions_are_taken_over_in_order():
    assert reshaped((7, 2, 3, 4), (-1, 3, -1), (1, -1, -1), batches=True) == (7, 1, 2, 4)
    assert reshaped((2, 3), (-1, 3), (3, -1), batches=False) == (3, 2)


def stacked_result(nbytes, *, offset=0, requests=1, rows=None):
    elements = nbytes // 4
    rows = rows or requests
    placed = Placed("OUTPUT", DataType.FP32, (rows, elements // rows), offset, nbytes)
    return Result(1, 0, requests, (0, 0, 0), [placed])


@pytest.mark.parametrize(("nbytes", "borrowed"), [(COPY_LIMIT, False), (COPY_LIMIT + 4, True)])
def test_small_results_are_copied_at_once_and_large_ones_borrowed(nbytes, borrowed):
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(-1,)),))
    memory = bytearray(64 + nbytes)
    scatter = Scatter(stacked_result(nbytes, offset=64), memoryview(memory), spec)
    assert scatter.borrowed is borrowed
    ((_, (tensor,), _),) = scatter.answers([request(spec)])
    memory[64] = 0xFF
    assert (tensor.data[0] == 0xFF) is borrowed


def test_strings_are_private_even_where_the_rest_is_borrowed():
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=DataType.BYTES, dims=(1,)),))
    packed = pack_bytes([b"x" * (COPY_LIMIT + 8)])
    memory = bytearray(packed)
    placed = Placed("OUTPUT", DataType.BYTES, (1, 1), 0, len(packed))
    scatter = Scatter(Result(1, 0, 1, (0, 0, 0), [placed]), memoryview(memory), spec)
    ((_, (tensor,), _),) = scatter.answers([request(spec)])
    memory[:] = b"\xff" * len(memory)
    assert bytes(tensor.data) == packed


def test_a_request_gets_the_outputs_it_asked_for():
    spec = make_spec(
        outputs=tuple(OutputSpec(name=name, datatype=DataType.FP32, dims=(1,)) for name in ("A", "B")),
    )
    placed = [Placed(name, DataType.FP32, (2, 1), at, 8) for name, at in (("A", 0), ("B", 64))]
    one, both = request(spec), request(spec)
    one.requested_outputs = ["B"]
    cuts = Scatter(Result(1, 0, 2, (0, 0, 0), placed), memoryview(bytes(128)), spec).answers([one, both])
    assert [[tensor.name for tensor in tensors] for _, tensors, _ in cuts] == [["B"], ["A", "B"]]
    alone = Result(
        1,
        0,
        1,
        (0, 0, 0),
        [Placed("A", DataType.FP32, (1, 1), 0, 4), Placed("B", DataType.FP32, (1, 1), 64, 4)],
    )
    ((_, tensors, _),) = Scatter(alone, memoryview(bytes(128)), spec).answers([one])
    assert [tensor.name for tensor in tensors] == ["B"]


def test_answers_given_one_by_one_stay_apart():
    spec = make_spec()
    error = Answer(code=ErrorCode.INVALID_ARG, message="no")
    good = Answer([Placed("OUTPUT", DataType.FP32, (1, 2), 0, 8)], {"k": 1})
    cuts = Scatter(
        Result(1, 0, 2, (0, 0, 0), answers=[good, error]), memoryview(struct.pack("<2f", 1, 2)), spec
    ).answers([request(spec), request(spec)])
    assert cuts[0][1][0].as_numpy().tolist() == [[1.0, 2.0]]
    assert [answer for _, _, answer in cuts] == [good, error]


@pytest.mark.parametrize(
    "placed",
    [
        Placed("OUTPUT", DataType.FP32, (2, 2), 56, 16),
        Placed("OUTPUT", DataType.FP32, (2, 2), 2**64 - 8, 16),
        Placed("OUTPUT", DataType.FP32, (3, 2), 0, 24),
        Placed("OUTPUT", DataType.FP32, (), 0, 4),
        Placed("OUTPUT", DataType.FP32, (3, 2), 0, 24, (8, 16)),
        Placed("OUTPUT", DataType.BYTES, (2,), 0, 8),
        Placed("OUTPUT", DataType.BYTES, (2,), 0, 9, (4, 5)),
        Placed("OUTPUT", DataType.BYTES, (2,), 0, 8, (8, 0)),
    ],
    ids=[
        "past the end",
        "far past the end",
        "too many rows",
        "no rows",
        "sizes for what is not strings",
        "strings without sizes",
        "malformed strings",
        "strings cut between elements of two requests",
    ],
)
def test_a_result_that_does_not_fit_is_refused_before_anybody_is_answered(placed):
    spec = make_spec(outputs=(OutputSpec(name="OUTPUT", datatype=placed.datatype, dims=(-1,)),))
    with pytest.raises(FrameError):
        Scatter(Result(1, 0, 2, (0, 0, 0), [placed]), memoryview(bytes(64)), spec).answers(
            [request(spec), request(spec)]
        )


def test_a_worker_is_told_only_what_differs_from_the_default():
    spec = make_spec()
    assert default_metadata(request(spec), spec) == {}
    told = request(spec, id="7", parameters={"a": 1}, correlation_id="s", flags=1, timeout=0.25, priority=2)
    told.requested_outputs = ["OUTPUT"]
    assert default_metadata(told, spec) == {
        "id": "7",
        "parameters": {"a": 1},
        "outputs": ["OUTPUT"],
        "correlation_id": "s",
        "flags": 1,
        "timeout": 250_000,
        "priority": 2,
    }


SUM = StateSpec(
    input_name="SUM_IN",
    output_name="SUM_OUT",
    datatype=DataType.FP32,
    dims=(1,),
    initial=Tensor("SUM_IN", DataType.FP32, (1,), bytes(4)),
)


def test_a_worker_of_a_model_with_states_is_always_asked_for_them():
    spec = make_spec(scheduling=SequenceBatching(states=(SUM,)))
    told = request(spec)
    told.requested_outputs = ["OUTPUT"]
    assert default_metadata(told, spec) == {"outputs": ["OUTPUT", "SUM_OUT"]}


def test_states_of_a_sequence_lie_behind_what_the_client_sent():
    spec = make_spec(scheduling=SequenceBatching(states=(SUM,)))
    requests = [request(spec, Tensor.from_numpy("INPUT", np.full((1, 2), n, np.float32))) for n in range(2)]
    for n, each in enumerate(requests):
        each.extra = (Tensor.from_numpy("SUM_IN", np.full((1, 1), 10 + n, np.float32)),)
    gather, segment = gathered(requests, spec)
    assert [placed.index for placed in gather.inputs] == [0, 1]
    assert seen(gather.inputs[1], DataType.FP32, segment).tolist() == [[10.0], [11.0]]


def test_a_warmup_brings_the_states_itself():
    spec = make_spec(scheduling=SequenceBatching(states=(SUM,)))
    tensors = [Tensor.from_numpy(name, np.ones((1, 1), np.float32)) for name in ("INPUT", "SUM_IN")]
    gather, _ = gathered([request(spec, *tensors)], spec)
    assert [placed.index for placed in gather.inputs] == [0, 1]


@pytest.mark.parametrize("answer", [None, Answer(), Answer(code=ErrorCode.INTERNAL, message="no")])
def test_a_part_without_outputs_has_no_tensors(answer):
    spec = make_spec()
    assert outputs_of(Part(1, 0, answer, b"", 0, final=True), request(spec), spec) == ([], None)


@pytest.mark.parametrize("reshape", [None, (1, 2)])
def test_a_part_s_only_output_views_its_data(reshape):
    """Whether it is the plain case or not, the tensor is the same."""
    spec = make_spec(
        max_batch_size=0, outputs=(OutputSpec(name="O", datatype=DataType.INT32, dims=(2,), reshape=reshape),)
    )
    data = np.array([7, 8], np.int32).tobytes()
    answer = Answer([Placed("O", DataType.INT32, reshape or (2,), 0, 8)])
    tensors, checking = outputs_of(Part(1, 0, answer, data, 8, final=False), request(spec), spec)
    assert [(tensor.shape, tensor.as_numpy().tolist()) for tensor in tensors] == [((2,), [7, 8])]
    assert checking is None


def test_a_part_may_have_several_outputs_and_texts():
    outputs = [OutputSpec(name=name, datatype=DataType.INT32, dims=(1,)) for name in "AB"]
    spec = make_spec(max_batch_size=0, outputs=outputs)
    answer = Answer([Placed(name, DataType.INT32, (1,), 4 * at, 4) for at, name in enumerate("AB")])
    data = np.array([1, 2], np.int32).tobytes()
    tensors, _ = outputs_of(Part(1, 0, answer, data, 8, final=False), request(spec), spec)
    assert [(tensor.name, tensor.as_numpy().tolist()) for tensor in tensors] == [("A", [1]), ("B", [2])]
    spec = make_spec(max_batch_size=0, outputs=[OutputSpec(name="T", datatype=DataType.BYTES, dims=(1,))])
    text = pack_bytes((b"text",))
    answer = Answer([Placed("T", DataType.BYTES, (1,), 0, len(text))])
    tensors, _ = outputs_of(Part(1, 0, answer, text, len(text), final=False), request(spec), spec)
    assert tensors[0].as_numpy().tolist() == [b"text"]


def test_padding_gets_nothing_and_the_rows_after_it_stay_in_their_places():
    spec = make_spec(outputs=(OutputSpec(name="O", datatype=DataType.FP32, dims=(1,)),))
    requests = [PaddingRow(spec), request(spec, rows=1), PaddingRow(spec), request(spec, rows=1)]
    segment = np.arange(4, dtype=np.float32).tobytes()
    result = Result(1, 0, 4, (0, 0, 0), stacked=[Placed("O", DataType.FP32, (4, 1), 0, 16)])
    answers = Scatter(result, memoryview(segment), spec).answers(requests)
    assert [each for each, _, _ in answers] == requests
    assert [[t.as_numpy().tolist() for t in outputs] for _, outputs, _ in answers] == [
        [],
        [[[1.0]]],
        [],
        [[[3.0]]],
    ]
