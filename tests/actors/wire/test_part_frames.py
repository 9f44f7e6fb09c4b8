"""Parts of decoupled models' answers on the wire: what was packed is read, and nothing else ever is."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from actors.values.tensors import element_count
from actors.wire import batch_frames, frames
from actors.wire.batch_frames import (
    LARGEST_TOGETHER,
    MOST_TOGETHER,
    Answer,
    Part,
    Placed,
    Result,
    join_parts,
    split_parts,
)
from actors.wire.frames import MAX_FRAME, FrameError

MUTATIONS = int(os.environ.get("TRITIUM_FRAME_MUTATIONS", "3000"))

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
dims = st.lists(st.integers(0, 5), max_size=3).map(tuple)
parameters = st.none() | st.dictionaries(names, st.booleans() | names, min_size=1, max_size=3)


@st.composite
def responses(draw):
    placed, at = [], 0
    for _ in range(draw(st.integers(0, 3))):
        datatype = draw(st.sampled_from(DataType))
        shape = draw(dims)
        nbytes = element_count(shape) * datatype.size or draw(st.integers(0, 99)) * (not datatype.size)
        placed.append(Placed(draw(names), datatype, shape, at, nbytes))
        at += nbytes
    return Answer(placed, draw(parameters)), bytes(at)


errors = st.builds(Answer, code=st.sampled_from(ErrorCode), message=names).map(lambda answer: (answer, b""))


@st.composite
def parts(draw):
    answer, data = draw(responses() | errors | st.just((None, b"")))
    return Part(
        draw(u64), draw(u32), answer, data, len(data), final=True if answer is None else draw(st.booleans())
    )


def described(answer):
    if answer is None:
        return None
    outputs = [(o.name, o.datatype, tuple(o.shape), o.offset, o.nbytes) for o in answer.outputs]
    return outputs, answer.parameters, answer.code, answer.message, answer.open


def read(packets):
    """The part, its data put together as the frames bring them."""
    first, *others = packets
    part = Part.decode(first)
    data = bytes(part.data)
    for packet in others:
        batch_id, index, more = frames.decode_more(packet)
        assert (batch_id, index) == (part.batch_id, part.index)
        data += more
    return part, data


@given(parts())
def test_a_part_is_read_as_it_was_packed(part):
    packets = list(part.packets())
    assert all(0 < len(packet) <= MAX_FRAME for packet in packets)
    found, data = read(packets)
    assert (found.batch_id, found.index, found.final) == (part.batch_id, part.index, part.final)
    assert described(found.answer) == described(part.answer)
    assert data == bytes(part.data)


@pytest.mark.parametrize(
    "nbytes", [0, 1, MAX_FRAME - 100, MAX_FRAME, MAX_FRAME + 1, 3 * MAX_FRAME, 1_000_000]
)
def test_large_tensors_come_in_as_many_frames_as_they_take(nbytes):
    data = random.Random(nbytes).randbytes(nbytes)
    answer = Answer([Placed("Y", DataType.UINT8, (nbytes,), 0, nbytes)])
    packets = list(Part(1, 2, answer, data, nbytes, final=False).packets())
    assert len(packets) <= nbytes // (MAX_FRAME - 100) + 1
    found, read_data = read(packets)
    assert read_data == data
    assert found.nbytes == nbytes


def test_an_answer_whose_text_fills_a_frame_is_refused_where_it_is_made():
    part = Part(1, 0, Answer([], {"story": "x" * MAX_FRAME}), b"", 0, final=True)
    with pytest.raises(ValueError, match="take 65580 bytes, more than 65536"):
        list(part.packets())


@given(u64, u32, u32, u64)
def test_credit_and_cancel_are_read_as_they_were_packed(batch_id, index, parts, nbytes):
    credit = frames.encode_credit(batch_id, index, parts, nbytes)
    assert frames.decode_credit(credit) == (batch_id, index, parts, nbytes)
    assert frames.decode_cancel(frames.encode_cancel(batch_id, index)) == (batch_id, index)


def output(offset, nbytes):
    return Placed("Y", DataType.UINT8, (nbytes,), offset, nbytes)


@pytest.mark.parametrize(
    "part",
    [
        Part(1, 0, Answer([output(0, 9)]), b"12345678", 8, final=False),
        Part(1, 0, Answer([output(2**63, 8)]), b"12345678", 8, final=False),
        Part(1, 0, None, b"", 0, final=False),
        Part(1, 0, None, b"x", 1, final=True),
        Part(1, 0, Answer(code=ErrorCode.INTERNAL), b"x", 1, final=True),
        Part(1, 0, Answer(open=True), b"", 0, final=True),
    ],
    ids=[
        "beyond its bytes",
        "far beyond",
        "neither response nor end",
        "bytes of no response",
        "of an error",
        "open",
    ],
)
def test_a_part_that_contradicts_itself_is_rejected(part):
    with pytest.raises(FrameError):
        Part.decode(b"".join(part.packets()))


def test_more_bytes_than_were_announced_are_rejected():
    packet = next(Part(1, 0, Answer([output(0, 8)]), b"12345678", 8, final=False).packets())
    with pytest.raises(FrameError, match="up to byte 8 and 9 bytes"):
        Part.decode(packet + b"9")
    with pytest.raises(FrameError, match="brings nothing more"):
        frames.decode_more(b"\x18" + bytes(15))


def test_only_a_decoupled_models_result_may_leave_answers_open():
    packet = Result(1, 0, 2, (1, 2, 3), answers=[Answer(open=True), Answer()]).encode()
    answers = Result.decode(packet, decoupled=True).answers or ()
    assert [answer.open for answer in answers] == [True, False]
    with pytest.raises(FrameError, match="unknown status 255"):
        Result.decode(packet)


@settings(max_examples=20)
@given(parts(), st.randoms(use_true_random=False))
def test_mutated_parts_are_parts_or_frame_errors(part, chance):
    packet = bytearray(next(part.packets()))
    for _ in range(MUTATIONS // 20):
        mutant = bytearray(packet)
        for _ in range(chance.randrange(1, 4)):
            mutant[chance.randrange(len(mutant))] = chance.randrange(256)
        if chance.random() < 0.3:
            del mutant[chance.randrange(1, len(mutant) + 1) :]
        try:
            found = Part.decode(bytes(mutant))
        except FrameError:
            continue
        assert len(found.data) <= found.nbytes
        assert all(
            o.offset + o.nbytes <= found.nbytes for o in (found.answer.outputs if found.answer else ())
        )


def short_part(index, token=7):
    answer = Answer([Placed("token_ids", DataType.INT32, (1,), 0, 4)])
    return Part(3, index, answer, token.to_bytes(4, "little"), 4, final=False)


def test_what_is_read_of_a_part_does_not_depend_on_the_parts_before():
    same = Answer([Placed("token_ids", DataType.INT32, (1,), 0, 4)])
    for index, token in ((0, 1), (1, 2), (0, 3)):
        found = Part.decode(short_part(index, token).packet())
        assert (found.batch_id, found.index, bytes(found.data)) == (3, index, bytes([token, 0, 0, 0]))
        assert described(found.answer) == described(same)
    with pytest.raises(FrameError, match="up to byte 4"):  # the same answer, and a byte too few
        Part.decode(Part(3, 0, same, b"123", 3, final=False).packet() or b"")


@given(st.lists(parts().map(lambda part: next(part.packets())), min_size=1, max_size=MOST_TOGETHER))
def test_parts_that_travel_together_are_split_as_they_were_joined(packets):
    short = [packet for packet in packets if len(packet) <= LARGEST_TOGETHER]
    if short:
        assert split_parts(join_parts(short)) == short


def test_a_frame_of_parts_has_no_more_than_can_be_handled_at_once():
    packet = short_part(0).packet()
    assert len(split_parts(join_parts([packet] * MOST_TOGETHER))) == MOST_TOGETHER
    with pytest.raises(FrameError, match="65 parts in one frame"):
        split_parts(join_parts([packet] * (MOST_TOGETHER + 1)))
    with pytest.raises(FrameError, match="0 parts in one frame"):
        split_parts(join_parts([]))
    with pytest.raises(FrameError, match="part 1 of several, of 513 bytes"):
        split_parts(join_parts([packet, packet.ljust(LARGEST_TOGETHER + 1)]))


@pytest.mark.parametrize(
    "broken",
    [
        join_parts([short_part(0).packet()])[:-1],
        join_parts([short_part(0).packet()]) + b"\1",
        join_parts([b""]),
        join_parts([bytes((frames.STOP,))]),
    ],
    ids=["cut short", "a byte too many", "of nothing", "of another kind"],
)
def test_broken_frames_of_parts_are_rejected(broken):
    with pytest.raises(FrameError, match="is none"):
        split_parts(broken)


def test_what_is_remembered_of_parts_is_bounded(monkeypatch):
    monkeypatch.setattr(batch_frames, "_MOST_KNOWN", 2)
    for name in "abcab":
        answer = Answer([Placed(name, DataType.INT32, (1,), 0, 4)])
        found = Part.decode(Part(3, 1, answer, b"1234", 4, final=False).packet() or b"")
        assert described(found.answer) == described(answer)
