"""The letters that a worker writes are read as they were written, and others are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.datatypes import DataType
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Placed
from actors.wire.call_fields import read_call
from actors.wire.call_frames import LARGEST_LETTER, WHOLE_BATCH, Letter, laid_out, text_of
from actors.wire.frames import CALL, MAX_FRAME, FrameError
from tests.support.examples import examples

FIELDS = {"model": "add", "id": "7"}
INPUT = Placed("INPUT", DataType.FP32, (2,), 0, 8)


def first_packet(letter):
    return b"".join(next(letter.packets()))


def test_a_letter_that_fits_into_a_frame_is_complete_with_it():
    read = Letter.decode(first_packet(Letter(CALL, 3, FIELDS, [INPUT], bytes(8), 8)))
    assert (read.kind, read.number, read.fields, bytes(read.data)) == (CALL, 3, FIELDS, bytes(8))
    assert [(each.name, each.offset, each.nbytes) for each in read.inputs] == [("INPUT", 0, 8)]
    assert read.complete


@pytest.mark.parametrize("parent", [None, (0, 0), (2**64 - 1, 7), (5, WHOLE_BATCH)])
def test_a_call_says_on_whose_behalf_it_is_made(parent):
    read = Letter.decode(first_packet(Letter(CALL, 3, FIELDS, [INPUT], bytes(8), 8, parent=parent)))
    assert (read.parent, read.fields, bytes(read.data)) == (parent, FIELDS, bytes(8))


@pytest.mark.parametrize(
    ("flag", "place", "why"),
    [(1, WHOLE_BATCH - 1, "flag 1 on behalf of request -2 of batch 4"), (2, 0, "flag 2 on behalf")],
)
def test_a_call_on_behalf_of_something_that_is_no_request_is_refused(flag, place, why):
    packet = bytearray(first_packet(Letter(CALL, 3, FIELDS, parent=(4, 0))))
    packet[1] = flag
    packet[32:36] = place.to_bytes(4, "little", signed=True)
    with pytest.raises(FrameError, match=why):
        Letter.decode(packet)


def test_a_call_on_behalf_of_something_that_is_cut_off_is_refused():
    with pytest.raises(FrameError, match=f"a bad frame of kind {CALL}"):
        Letter.decode(first_packet(Letter(CALL, 3, FIELDS, parent=(4, 0)))[:30])


@pytest.mark.parametrize("length", [10, 2000], ids=["remembered", "too long for that"])
def test_letters_with_the_same_text_say_the_same(length):
    fields = {"model": "m" * length}
    packets = [first_packet(Letter(CALL, number, fields)) for number in (1, 2)]
    first, second = map(Letter.decode, packets)
    assert (first.number, second.number) == (1, 2)
    assert first.fields == second.fields == fields
    assert read_call(first) == read_call(second)


def test_a_letter_is_written_with_the_text_that_it_was_given():
    read = Letter.decode(first_packet(Letter(CALL, 3, {}, text=text_of(FIELDS))))
    assert read.fields == FIELDS


def test_a_letter_that_does_not_fit_goes_on_in_further_frames():
    letter = Letter(CALL, 3, FIELDS, (), bytes(range(256)) * 1000, 256_000)
    first, *others = (b"".join(packet) for packet in letter.packets())
    assert max(map(len, (first, *others))) == MAX_FRAME
    read = Letter.decode(first)
    assert not read.complete
    assert bytes(read.data) + b"".join(each[16:] for each in others) == letter.data


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (Letter(CALL, 1, FIELDS, nbytes=LARGEST_LETTER + 1), f"at most {LARGEST_LETTER} fit"),
        (Letter(CALL, 1, {"id": "x" * MAX_FRAME}), f"more than {MAX_FRAME}"),
    ],
    ids=["its bytes", "its names"],
)
def test_a_letter_that_is_too_large_is_not_written(letter, why):
    with pytest.raises(ValueError, match=why):
        letter.packets()


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (Letter(CALL, 1, FIELDS, [INPUT], bytes(4), 4), "for 4 bytes, with 4 of them and inputs up to 8"),
        (Letter(CALL, 1, []), "for 0 bytes, with 0 of them and inputs up to 0"),  # type: ignore[arg-type]
    ],
    ids=["an input beyond its bytes", "fields that are a list"],
)
def test_a_letter_that_contradicts_itself_is_refused(letter, why):
    with pytest.raises(FrameError, match=f"a frame of kind {CALL} {why}"):
        Letter.decode(first_packet(letter))


@pytest.mark.parametrize(
    ("nbytes", "more"), [(LARGEST_LETTER + 1, b""), (0, b"x")], ids=["too many", "more than said"]
)
def test_a_letter_of_more_bytes_than_it_may_have_is_refused(nbytes, more):
    packet = bytearray(first_packet(Letter(CALL, 1, FIELDS)) + more)
    packet[16:24] = nbytes.to_bytes(8, "little")
    with pytest.raises(FrameError, match=f"for {nbytes} bytes, with {len(more)} of them"):
        Letter.decode(packet)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_tensors_are_laid_out_one_after_the_other_on_cache_lines(contents):
    placed, pieces, nbytes = laid_out(
        [Tensor(f"T{at}", DataType.UINT8, (len(data),), data) for at, data in enumerate(contents)]
    )
    joined = b"".join(pieces)
    assert len(joined) == nbytes
    assert [each.offset % 64 for each in placed] == [0] * len(contents)
    assert [joined[each.offset : each.offset + each.nbytes] for each in placed] == contents


def test_the_second_of_two_tensors_begins_on_the_next_cache_line():
    tensor = Tensor("T", DataType.UINT8, (3,), b"abc")
    placed, pieces, nbytes = laid_out([tensor, tensor])
    assert ([each.offset for each in placed], nbytes) == ([0, 64], 67)
    assert b"".join(pieces) == b"abc" + bytes(61) + b"abc"


@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_a_letter_or_a_frame_error(packet):
    try:
        letter = Letter.decode(packet)
    except FrameError:
        return
    assert len(letter.data) <= letter.nbytes
