"""What server and worker say to each other: what was packed is read, and nothing else ever is."""

import json
import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.tensors import element_count
from actors.wire import frames
from actors.wire.batch_frames import Answer, Execute, GatheredInput, Part, Placed, Result
from actors.wire.frames import FrameError

MUTATIONS = int(os.environ.get("TRITIUM_FRAME_MUTATIONS", "3000"))

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
dims = st.lists(st.integers(0, 5), max_size=4).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.booleans() | i64 | st.floats(allow_nan=False) | names
parameters = st.none() | st.dictionaries(names, scalars, min_size=1, max_size=3)


@st.composite
def executes(draw):
    requests = draw(st.integers(0, 4))
    inputs = []
    for _ in range(draw(st.integers(0, 3))):
        parts = None
        shape = draw(st.lists(i64, max_size=5).map(tuple))
        if draw(st.booleans()):
            shape, parts = None, [(draw(dims), draw(u64)) for _ in range(requests)]
        inputs.append(GatheredInput(draw(u16), shape, draw(u64), draw(u64), parts))
    metadata = draw(st.none() | st.just([{"id": "x", "parameters": {"k": 1}}] * requests)) or None
    return Execute(draw(u64), draw(u16), [draw(u32) for _ in range(requests)], inputs, metadata)


@st.composite
def placeds(draw, requests=0):
    datatype = draw(st.sampled_from(DataType))
    shape = draw(dims)
    nbytes = element_count(shape) * datatype.size or draw(st.integers(0, 999)) * (not datatype.size)
    sizes = None
    if requests and draw(st.booleans()):
        cuts = sorted(draw(st.integers(0, nbytes)) for _ in range(requests - 1))
        sizes = tuple(end - start for start, end in zip([0, *cuts], [*cuts, nbytes], strict=True))
    return Placed(draw(names), datatype, shape, draw(u64), nbytes, sizes)


@st.composite
def delivered(draw):
    """An output of one request, which may have been written to its region."""
    placed = draw(placeds())
    placed.written = draw(st.booleans())
    return placed


answers = st.builds(Answer, st.lists(delivered(), max_size=2), parameters) | st.builds(
    Answer, code=st.sampled_from(ErrorCode), message=names
)


@st.composite
def results(draw):
    requests = draw(st.integers(0, 4))
    times = (draw(u64), draw(u64), draw(u64))
    if draw(st.booleans()):
        stacked = draw(st.lists(placeds(requests), max_size=3))
        return Result(draw(u64), draw(u16), requests, times, stacked=stacked)
    each = [draw(answers) for _ in range(requests)]
    return Result(draw(u64), draw(u16), requests, times, answers=each)


def fields(value):
    """A frame as plain values, to compare."""
    if isinstance(value, (list, tuple)):
        return [fields(each) for each in value]
    if isinstance(value, dict):
        return {key: fields(each) for key, each in value.items()}
    if hasattr(value, "__slots__"):
        return {name: fields(getattr(value, name)) for name in value.__slots__}
    return value


@given(executes())
def test_an_execute_frame_is_read_as_it_was_packed(job):
    assert fields(Execute.decode(job.encode())) == fields(job)


@given(results())
def test_a_result_frame_is_read_as_it_was_packed(result):
    assert fields(Result.decode(result.encode())) == fields(result)
    assert fields(Result.decode(memoryview(result.encode()))) == fields(result)


@pytest.mark.parametrize("nbytes", [4, 8])
def test_only_the_answer_to_one_request_can_lie_in_a_region(nbytes):
    written = Placed("o", DataType.FP32, (nbytes // 4,), 0, nbytes, written=True)
    answered = Result(1, 2, 1, (0, 0, 0), answers=[Answer([written])])
    (answer,) = Result.decode(answered.encode()).answers or ()
    assert answer.outputs[0].written
    for decoupled, result in (
        (True, answered),
        (False, Result(1, 2, 1, (0, 0, 0), stacked=[written])),
    ):
        with pytest.raises(FrameError, match="has datatype 139"):
            Result.decode(result.encode(), decoupled=decoupled)
    part = Part(1, 0, Answer([written]), b"", 0, final=True)
    with pytest.raises(FrameError, match="has datatype 139"):
        Part.decode(next(part.packets()))


def test_an_answer_may_say_that_its_request_is_to_run_again():
    result = Result(1, 2, 2, (0, 0, 0), answers=[Answer(rescheduled=True), Answer((), {"k": 1})])
    assert fields(Result.decode(result.encode())) == fields(result)


@pytest.mark.parametrize(
    ("frame", "decode", "told"),
    [
        (frames.encode_segment(3, 1, 65536), frames.decode_segment, (3, 1, 65536)),
        (frames.encode_room(3, 7, 4096), frames.decode_room, (3, 7, 4096)),
        (frames.encode_spilled(3, 1, 64, 80), frames.decode_spilled, (3, 1, 64, 80)),
        (frames.encode_skipped(3, 7), frames.decode_skipped, (3, 7)),
        (frames.encode_short(3, 7), frames.decode_short, (3, 7)),
        (frames.encode_credit(7, 2, 5, 100), frames.decode_credit, (7, 2, 5, 100)),
        (frames.encode_cancel(7, 2), frames.decode_cancel, (7, 2)),
        (frames.encode_probed(ready=True), frames.decode_probed, True),
        (frames.encode_probed(ready=False), frames.decode_probed, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_frame_of_fixed_size_is_read_as_it_was_packed_and_in_no_other_size(frame, decode, told):
    assert decode(frame) == told
    for wrong in (frame[:-1], frame + b"\0"):
        with pytest.raises(FrameError):
            decode(wrong)


def test_a_model_is_ready_or_it_is_not():
    with pytest.raises(FrameError, match="a readiness answer of 2 bytes"):
        frames.decode_probed(bytes((frames.PROBED, 2)))


def test_a_batch_may_have_more_inputs_than_a_byte_can_count():
    inputs = [GatheredInput(index, (1, 1), 64 * index, 4) for index in range(700)]
    decoded = Execute.decode(Execute(1, 0, [1], inputs, None).encode())
    assert [each.index for each in decoded.inputs] == list(range(700))


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_travels(code):
    decoded = Result.decode(
        Result(1, 2, 1, (0, 0, 0), answers=[Answer(code=code, message="why \ud800")]).encode()
    )
    (answer,) = decoded.answers or ()
    assert (answer.code, answer.message) == (code, "why ?")


DECODERS: list[Callable[[bytes], object]] = [
    Execute.decode,
    Result.decode,
    frames.decode_json,
    frames.decode_segment,
    frames.decode_room,
    frames.decode_spilled,
    frames.decode_skipped,
    frames.decode_probed,
]


def seeds():
    """Well-formed frames of every kind, to be spoilt."""
    placed = Placed("OUTPUT", DataType.FP32, (2, 2), 0, 16)
    words = Placed("WORDS", DataType.BYTES, (2,), 64, 10, (4, 6))
    parts = [((1, 2), 8), ((1, 3), 12)]
    return [
        Execute(7, 1, [1, 1], [GatheredInput(0, (2, 2), 0, 16)], [{"id": "a"}, {}]).encode(),
        Execute(7, 1, [1, 1], [GatheredInput(0, None, 0, 20, parts)], None).encode(),
        Result(7, 1, 2, (1, 2, 3), stacked=[placed, words]).encode(),
        Result(
            7, 1, 2, (1, 2, 3), answers=[Answer([placed], {"a": 1.5}), Answer(code=ErrorCode.INTERNAL)]
        ).encode(),
        frames.encode_json(frames.LOG, {"level": "info", "message": "hello"}),
        frames.encode_segment(1, 1, 65536),
        frames.encode_room(1, 7, 4096),
        frames.encode_spilled(1, 1, 0, 80),
        frames.encode_skipped(1, 7),
        frames.encode_short(1, 7),
        frames.encode_probed(ready=True),
    ]


def spoilt(rng):
    """A frame with some bytes changed, cut, doubled or inserted."""
    frame = bytearray(rng.choice(seeds()))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(5):
            case 0:
                frame[at : at + 1] = rng.randbytes(1)
            case 1:
                del frame[at:]
            case 2:
                frame[at:at] = rng.randbytes(rng.randint(1, 12))
            case 3:
                frame[at : at + 8] = rng.choice(
                    [b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, bytes(7) + b"\x80"]
                )
            case _:
                frame = bytearray(rng.randbytes(rng.randint(1, 200)))
        if not frame:
            return b"\x00"
    return bytes(frame)


def test_spoilt_frames_raise_nothing_but_frame_error():
    rng = random.Random(20260101)
    refused = 0
    for _ in range(MUTATIONS):
        frame = spoilt(rng)
        for decode in DECODERS:
            try:
                decode(frame)
            except FrameError:
                refused += 1
    assert refused > MUTATIONS  # spoiling does spoil


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=300))
def test_random_bytes_raise_nothing_but_frame_error(frame):
    for decode in DECODERS:
        try:
            decode(frame)
        except FrameError:
            continue


DEEP = b"[" * 60_000


@pytest.mark.parametrize(
    "body",
    [DEEP, b'{"a":' * 10_000, b"\xff\xfe", b"", b"[]", b"1" * 5000, b'"text"', b"nul"],
    ids=["deep lists", "deep objects", "not UTF-8", "nothing", "a list", "a long number", "a string", "cut"],
)
def test_a_cold_frame_that_is_no_object_is_refused(body):
    with pytest.raises(FrameError):
        frames.decode_json(bytes((frames.LOG,)) + body)


def result_with_parameters(text):
    good = Result(1, 0, 1, (0, 0, 0), answers=[Answer((), {"k": "0123456789"})]).encode()
    stock = b'{"k":"0123456789"}'
    assert good.endswith(stock)
    head = bytearray(good[: -len(stock)])
    head[-4:] = len(text).to_bytes(4, "little")
    return bytes(head) + text


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        b"[1]",
        b'{"k":null}',
        b'{"k":[1]}',
        b'{"k":{"a":1}}',
        b'{"k":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"k":9223372036854775808}',
        b'{"k":-9223372036854775809}',
    ],
    ids=[
        "deep",
        "list",
        "null",
        "nested list",
        "nested object",
        "surrogate",
        "surrogate key",
        "too big",
        "too small",
    ],
)
def test_response_parameters_that_no_frontend_can_write_are_refused(text):
    with pytest.raises(FrameError):
        Result.decode(result_with_parameters(text))


def test_response_parameters_that_can_be_written_pass():
    text = json.dumps({"a": True, "b": 2**63 - 1, "c": 1.5, "d": "é"}).encode()
    (answer,) = Result.decode(result_with_parameters(text)).answers or ()
    assert answer.parameters == {"a": True, "b": 2**63 - 1, "c": 1.5, "d": "é"}


@pytest.mark.parametrize(
    "shape",
    [(-1, -1), (0, 2**62, 2**62), (2**62, 2**62, 0), (2**63 - 1,)],
    ids=["negative", "huge behind a zero", "huge before a zero", "more than memory"],
)
@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BYTES], ids=str)
def test_a_shape_that_no_array_can_have_is_refused(shape, datatype):
    nbytes = max(0, element_count(shape)) * datatype.size % 2**64
    frame = Result(1, 0, 1, (0, 0, 0), stacked=[Placed("O", datatype, shape, 0, nbytes)]).encode()
    with pytest.raises(FrameError):
        Result.decode(frame)


@pytest.mark.parametrize(
    ("requests", "stacked", "behind", "why"),
    [
        (1, [Placed("O", DataType.FP32, (2,), 0, 12)], b"", r"FP32\[2\] takes 8 bytes, not 12"),
        (2, [Placed("O", DataType.BYTES, (2,), 0, 12, (4, 9))], b"", "have 13 bytes, the whole 12"),
        (0, [], b"\0", "says it has"),
    ],
    ids=["a size that is not its shape's", "parts that do not add up", "bytes behind it"],
)
def test_a_result_that_contradicts_itself_is_refused(requests, stacked, behind, why):
    frame = Result(1, 0, requests, (0, 0, 0), stacked=stacked).encode()
    with pytest.raises(FrameError, match=why):
        Result.decode(frame + behind)


def seen(result):
    return [(each.name, each.datatype, each.shape, each.offset, each.nbytes) for each in result.stacked or ()]


def only(result):
    [placed] = list(result.stacked or ())
    return placed


def test_a_layout_that_comes_again_is_read_as_the_first_time_with_ids_and_times_of_its_own():
    outputs = [Placed("OUT", DataType.FP32, (2, 3), 64, 24)]
    first = Result(7, 1, 2, (1, 2, 3), stacked=outputs).encode()
    again = Result(8, 0, 2, (4, 5, 6), stacked=outputs).encode()
    one, two = Result.decode(first), Result.decode(again)
    assert seen(one) == seen(two) == [("OUT", DataType.FP32, (2, 3), 64, 24)]
    assert (two.batch_id, two.slot, two.requests) == (8, 0, 2)
    assert (two.input_ns, two.infer_ns, two.output_ns) == (4, 5, 6)
    job = Execute(9, 1, [2], [GatheredInput(0, (2, 3), 0, 24)], None).encode()
    other = Execute(10, 0, [2], [GatheredInput(0, (2, 3), 0, 24)], None).encode()
    for frame, batch_id, slot in ((job, 9, 1), (other, 10, 0)):
        read = Execute.decode(frame)
        assert (read.batch_id, read.slot, tuple(read.rows), read.metadata) == (batch_id, slot, (2,), None)
        assert [(each.index, each.shape, each.offset, each.nbytes) for each in read.inputs] == [
            (0, (2, 3), 0, 24)
        ]


def test_layouts_are_told_apart_by_how_many_requests_share_them():
    sized = Placed("OUT", DataType.BYTES, (2,), 0, 10, (4, 6))
    frame = bytearray(Result(1, 0, 2, (0, 0, 0), stacked=[sized]).encode())
    assert only(Result.decode(bytes(frame))).sizes == (4, 6)
    frame[4] = 1  # the number of requests
    with pytest.raises(FrameError):
        Result.decode(bytes(frame))


def test_layouts_by_the_thousand_and_long_ones_are_read_as_well():
    for offset in range(3000):
        result = Result(1, 0, 1, (0, 0, 0), stacked=[Placed("OUT", DataType.INT8, (1,), offset, 1)])
        assert only(Result.decode(result.encode())).offset == offset
        job = Execute(1, 0, [1], [GatheredInput(0, (1,), offset, 1)], None)
        assert Execute.decode(job.encode()).inputs[0].offset == offset
    for _ in range(2):
        long = Placed("O" * 600, DataType.INT8, (1,), 0, 1)
        assert only(Result.decode(Result(1, 0, 1, (0, 0, 0), stacked=[long]).encode())).name == "O" * 600
        job = Execute(1, 0, [1] * 200, [GatheredInput(0, (200,), 0, 200)], None)
        assert list(Execute.decode(job.encode()).rows) == [1] * 200
