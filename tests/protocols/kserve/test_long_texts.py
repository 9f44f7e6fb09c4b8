"""Long JSON texts are read in slices, and say what short ones say."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument, TritiumError
from actors.values.tensors import pack_bytes, unpack_bytes
from protocols.kserve.documents import TooLong, parse, read_short
from protocols.kserve.elements import Packing, pack
from protocols.kserve.long_texts import MAX_STRING, MAX_VALUES, LongArray, LongString, LongText
from tests.protocols.kserve.test_json_documents import FAULTS

MIB = 1024 * 1024


class Keep:
    """Takes elements and keeps them."""

    packs_strings = True

    def __init__(self):
        self.seen = 0
        self.kept = []

    def take(self, elements, kinds):
        assert set(map(type, elements)) <= kinds | {int}
        self.seen += len(elements)
        self.kept += elements

    def take_string(self, pieces):
        self.seen += 1
        self.kept.append(b"".join(pieces).decode())
        yield

    def take_packed(self, packed, count):
        self.seen += count
        elements = unpack_bytes(packed, "", count)
        self.kept += [element.decode("utf-8", "surrogateescape") for element in elements]
        return True

    def too_deep(self):
        return InvalidArgument("too deep")


def flat(value):
    return [leaf for element in value for leaf in (flat(element) if isinstance(element, list) else [element])]


def read(text):
    """Return the value of `text`, its `LongArray`s as the lists of their elements."""
    document = at_once(LongText(text, lambda *_: Keep()).document())

    def plain(value):
        if isinstance(value, LongArray):
            # This array is an element of another one, and no taker takes it.
            return value.taker.kept if isinstance(value.taker, Keep) else []
        if isinstance(value, dict):
            return {key: plain(member) for key, member in value.items()}
        if isinstance(value, list):
            return list(map(plain, value))
        return value

    return plain(document)


@pytest.mark.parametrize(("document", "complaint", "offset"), FAULTS)
def test_a_fault_is_told_in_the_parser_s_words_with_its_offset(document, complaint, offset):
    with pytest.raises(Internal) as caught:
        read(document)
    assert caught.value.message == f"failed to parse the request JSON buffer: {complaint} at {offset}"


@pytest.mark.parametrize(
    ("front", "item", "fault", "complaint"),
    [
        (b'{"data":[', b"1,", b"x]}", "Invalid value."),
        (b'{"data":[', b"[1,2],", b"x]}", "Invalid value."),
        (b'{"data":[', b'"a,]b",', b"x]}", "Invalid value."),
        (b'{"data":[', b"NaN,", b"Nan]}", "Invalid value."),
        (b'{"data":[', b"1,", b",]}", "Invalid value."),
        (b'{"data":[', b"1,", b"1 2]}", "Missing a comma or ']' after an array element."),
        (b'{"data":[', b"1,", b"1}", "Missing a comma or ']' after an array element."),
        (b'{"data":[', b"1,", b'1] "b"}', "Missing a comma or '}' after an object member."),
        (b'{"data":[', b"1,", b"1]} 3", "The document root must not be followed by other values."),
        (b'{"data":[', b"1,", b"1e999]}", "Number too big to be stored in double."),
        (b'{"data":[', b'"\\n\\"",', b'"\\q"]}', "Invalid escape character in string."),
        (b'{"data":[', b'"a",', b'"\\ud800"]}', "The surrogate pair in string is invalid."),
        (b'{"data":[', b'"a",', b'"a\nb"]}', "Invalid encoding in string."),
        (b'{"data":["', b"a", b"\n", "Invalid encoding in string."),
        (b'{"data":["', b"a", b"", "Missing a closing quotation mark in string."),
        (b'{"data":["', b"\\u00e9", b"\\u00g9", "Incorrect hex digit after \\u escape in string."),
    ],
)
@pytest.mark.parametrize("count", [0, 7, 5000, 100_000])
def test_a_fault_far_behind_the_start_has_its_offset_too(front, item, fault, complaint, count):
    text = front + item * count + fault
    with pytest.raises(Internal) as caught:
        read(text)
    said, offset = caught.value.message.removeprefix("failed to parse the request JSON buffer: ").rsplit(
        " at ", 1
    )
    assert said == complaint
    assert len(front + item * count) <= int(offset) <= len(text)


json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(codec="utf-8"))
)
json_values = st.recursive(
    json_scalars,
    lambda children: st.lists(children) | st.dictionaries(st.text(max_size=5), children),
    max_leaves=20,
)
arrays: st.SearchStrategy[Any] = st.recursive(json_scalars | st.just({}), st.lists, max_leaves=40)


def agree(value, got):
    """Whether `read` gave `got` for `value`. Arrays of plain values are another test's."""
    if isinstance(value, dict):
        return value.keys() == got.keys() and all(agree(member, got[key]) for key, member in value.items())
    if isinstance(value, list):
        first = value
        while isinstance(first, list) and first:
            first = first[0]
        if isinstance(first, dict):
            return len(value) == len(got) and all(map(agree, value, got))
        return isinstance(got, list)
    return value == got and type(value) is type(got)


@given(json_values)
def test_what_stands_around_arrays_of_plain_values_is_read_as_it_is(value):
    document = {"value": value}
    assert agree(document, read(json.dumps(document).encode()))


@given(
    st.lists(st.one_of(json_scalars, st.lists(json_scalars, max_size=3), st.just([[]])), max_size=30),
    st.integers(0, 3),
)
def test_the_elements_of_an_array_come_in_their_order(value, spaces):
    text = json.dumps({"data": value}, indent=spaces or None).encode()
    given_back = read(text)["data"]
    assert given_back == flat(value)
    assert list(map(type, given_back)) == list(map(type, flat(value)))


@pytest.mark.parametrize("pad", range(0, 40, 3))
@pytest.mark.parametrize(
    "item",
    [
        '"a\\\\",',
        '"\\"],[",',
        '"\\u00e9\\ud83d\\ude00",',
        '[["x"],[]],',
        "  1.5 ,",
        "[NaN,-Infinity],",
        '"é",',
    ],
)
def test_where_an_array_is_cut_makes_no_difference(item, pad):
    """The pad moves the cuts, made every 16 KiB, through each byte of an item."""
    text = ('{"data":[' + " " * pad + item * 6000 + "1]}").encode()
    expected = flat(parse(text)["data"])
    assert repr(read(text)["data"]) == repr(expected)  # NaN equals nothing


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\u0dDeE+-.tfnNI 19', max_size=40).map(str.encode))
def test_a_text_is_taken_or_refused_as_a_short_one_is(document):
    expected, refusal = outcome(parse, document)
    got, got_refusal = outcome(read, document)
    assert got_refusal == refusal
    assert type(got) is type(expected)


def outcome(reader, document):
    try:
        return reader(document), None
    except TritiumError as refused:
        return None, refused.message


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [
        (DataType.FP32, [0.5, 1, -2.25e300, math.inf]),
        (DataType.FP64, [0.1, 2**64 - 1]),
        (DataType.INT8, [1, -1, 300]),
        (DataType.UINT64, [0, 2**64 - 1]),
        (DataType.INT64, [-(2**63), 7]),
        (DataType.BOOL, [True, False]),
        (DataType.BYTES, ["", "é", "a\nb"]),
    ],
)
def test_a_long_array_becomes_the_tensor_that_a_short_one_becomes(datatype, elements):
    many = elements * 5000
    text = json.dumps({"data": many}).encode()
    document = at_once(
        LongText(text, lambda *_: Packing("A", datatype, len(many), 2**40, len(text))).document()
    )
    packed = pack(document["data"], "A", datatype, len(many), 2**40)
    assert bytes(packed) == bytes(pack(many, "A", datatype, len(many), 2**40))


@pytest.mark.parametrize(
    ("datatype", "elements", "count"),
    [
        (DataType.INT32, [1] * 5000 + [1.5], 5001),
        (DataType.INT32, [1] * 5000 + ["x"], 5000),
        (DataType.INT32, [1] * 5000, 5001),
        (DataType.INT32, [1] * 5002, 5001),
        (DataType.BOOL, [True] * 5000 + [1], 5001),
        (DataType.FP32, [1] * 5000 + [None], 5001),
        (DataType.BYTES, ["a"] * 5000 + [1], 5001),
        (DataType.BYTES, ["a"] * 5000, 4000),
        (DataType.UINT8, [1] * 5000 + [-1], 5001),
    ],
)
def test_what_is_wrong_with_a_long_array_is_told_as_of_a_short_one(datatype, elements, count):
    text = json.dumps({"data": elements}).encode()
    with pytest.raises(TritiumError) as short:
        pack(elements, "A", datatype, count, 2**40)
    document = at_once(LongText(text, lambda *_: Packing("A", datatype, count, 2**40, len(text))).document())
    with pytest.raises(type(short.value)) as long:
        pack(document["data"], "A", datatype, count, 2**40)
    assert long.value.message == short.value.message


def test_strings_that_nothing_takes_are_counted():
    text = json.dumps({"data": [str(number) for number in range(5000)]}).encode()
    assert at_once(LongText(text).document())["data"].taker.seen == 5000


def test_an_array_can_be_given_to_another_taker():
    text = json.dumps({"data": list(range(5000))}).encode()
    data = at_once(LongText(text).document())["data"]
    assert data.taker.seen == 5000
    at_once(data.give(Packing("A", DataType.INT32, 5000, 2**40, len(text))))
    assert bytes(data.taker.finish(5000)) == struct.pack("<5000i", *range(5000))


def test_one_long_string_becomes_a_tensor_without_ever_being_a_string():
    text = b'{"text":"' + b"\\u00e9\\n" * 100_000 + b'"}'
    document = at_once(
        LongText(text, lambda *_: Packing("A", DataType.BYTES, None, 2**40, len(text))).document()
    )
    assert bytes(document["text"].taker.finish(1)) == pack_bytes(["é\n" * 100_000])


def test_a_long_string_outside_of_tensors_is_refused_or_left_where_it_is():
    text = b'{"id":"' + b"\\/" * MAX_STRING + b'"}'
    with pytest.raises(InvalidArgument, match="a string of the request's JSON has 524288 bytes"):
        at_once(LongText(text).document())
    left = at_once(LongText(text, long_strings=True).document())["id"]
    assert isinstance(left, LongString)
    assert b"".join(left.pieces()) == b"/" * MAX_STRING


def test_an_array_is_counted_with_the_long_strings_that_it_holds():
    text = b'{"a":["' + b"x" * 50_000 + b'",1,["' + b"y" * 50_000 + b'"]]}'
    array = at_once(LongText(text).document())["a"]
    assert array.taker.seen == 3
    taker = Keep()
    at_once(array.give(taker))
    assert taker.kept == ["x" * 50_000, 1, "y" * 50_000]


def test_a_long_string_can_be_given_to_another_taker():
    text = b'{"a":"' + b"x" * MAX_STRING + b'\\n"}'
    document = at_once(LongText(text, lambda *_: Keep()).document())
    assert isinstance(document["a"], LongArray)
    packing = Packing("A", DataType.BYTES, None, 2**40, len(text))
    at_once(document["a"].give(packing))
    assert bytes(packing.finish(1)) == pack_bytes(["x" * MAX_STRING + "\n"])


@pytest.mark.parametrize("space", [20_000, 70_000, 200_000])
def test_space_is_passed_over_however_long_it_is(space):
    blank = b" " * space
    assert read(b'{"a":[' + blank + b"]}") == {"a": []}
    assert read(blank + b'{"a":[' + blank + b"[" + blank + b"]" + blank + b",1]}" + blank) == {"a": [1]}


def test_an_array_within_an_array_may_be_long():
    assert read(b'{"a":[[' + b"1," * 20_000 + b"1],2]}") == {"a": [1] * 20_001 + [2]}


def test_brackets_with_space_between_them_nest_too_deep_as_others_do():
    nested = b"[" * 99 + b" " * 20_000
    with pytest.raises(InvalidArgument, match="too deep"):
        read(b'{"a":' + nested + b"[1")
    assert read(b'{"a":' + nested + b"1" + b"]" * 99 + b"}") == {"a": [1]}


def test_strings_that_are_not_utf_8_keep_their_bytes():
    assert read(b'{"a\xff":"b\xff"}') == {"a\udcff": "b\udcff"}


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [
        (DataType.INT32, [1] * 30_000),
        (DataType.BYTES, ["a"] * 30_000),
        (DataType.BYTES, ["a" * 100_000, "b" * 100_000, "c"]),
    ],
)
@pytest.mark.parametrize("limit", [50, 50_000])
def test_a_long_array_over_the_limit_is_refused(datatype, elements, limit):
    text = json.dumps({"data": elements}).encode()
    packing = Packing("A", datatype, None, limit, len(text))
    at_once(LongText(text, lambda *_: packing).document())
    with pytest.raises(InvalidArgument, match=f"exceeds the maximum allowed value of {limit} bytes"):
        packing.finish(len(elements))


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [
        (DataType.INT32, ["a" * 100_000, 1]),
        (DataType.BYTES, [1, "a" * 100_000]),
        (DataType.BYTES, ["a" * 100_000] * 2 + ["b"]),
    ],
)
def test_a_long_string_in_the_wrong_place_is_told_as_a_short_one(datatype, elements):
    text = json.dumps({"data": elements}).encode()
    packing = Packing("A", datatype, 1, 2**40, len(text))
    at_once(LongText(text, lambda *_: packing).document())
    with pytest.raises(Internal) as long:
        packing.finish(1)
    with pytest.raises(Internal) as short:
        pack(elements, "A", datatype, 1, 2**40)
    assert long.value.message == short.value.message


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.BYTES])
def test_a_long_array_that_nests_too_deep_is_told_as_a_short_one(datatype):
    data: Any = [1]
    for _ in range(99):
        data = [data]
    text = json.dumps({"data": data}).encode()
    with pytest.raises(InvalidArgument) as short:
        pack(data, "A", datatype, 1, 2**40)
    with pytest.raises(InvalidArgument) as long:
        at_once(LongText(text, lambda *_: Packing("A", datatype, 1, 2**40, len(text))).document())
    assert long.value.message == short.value.message


HOSTILE = {
    "objects": b"[" + b"{}," * MIB + b"1]",
    "objects in a tensor": b'{"data":[1,' + b"{}," * MIB + b"1]}",
    "members": b"{" + b'"a":1,' * MIB + b'"a":1}',
    "equal members": b'{"inputs":[' + b'{"name":1,"name":1},' * (MIB // 20) + b"1]}",
    "arrays of objects": b"[" + b"[{}]," * MIB + b"1]",
    "small arrays": b"[" + b"{" + b'"a":[1],' * MIB + b'"b":1}]',
    "depth": b"[" * MIB,
    "depth of objects": b'{"a":' * MIB,
    "depth of both": b'[{"a":' * MIB,
    "a giant number": b"[" + b"1" * MIB + b"]",
    "a giant number of a member": b'{"a":' + b"1" * MIB + b"}",
    "a giant name": b'{"' + b"a" * MIB + b'":1}',
    "a giant string": b'{"a":"' + b"a" * MIB + b'"}',
    "giant strings": b"{" + b'"a":"' + b"a" * 65536 + b'",' + b'"a":"' + b"a" * 65536 + b'",' * 64,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_become_many_objects_is_refused(name):
    with pytest.raises(TritiumError):
        at_once(LongText(HOSTILE[name]).document())


@pytest.mark.parametrize(
    "item", [b"1,", b"NaN,", b"1e9,", b'"",', b"[],", b"[[1]],", b'"\\u0041",', b"      1,", b'"[{",']
)
def test_work_on_a_long_array_stops_at_least_once_for_each_piece_of_it(item):
    text = b'{"data":[' + item * (MIB // len(item)) + b"1]}"
    assert sum(1 for _ in LongText(text).document()) >= MIB // (32 * 1024)


def test_a_short_text_is_read_at_once_and_a_long_or_doubtful_one_is_not():
    assert read_short(b'{"a":1}') == {"a": 1}
    assert len(read_short(b"[" + b"1," * 10_000 + b"1]")) == 10_001
    with pytest.raises(TooLong):
        read_short(b"[" + b"1," * 20_000 + b"1]")
    with pytest.raises(TooLong):
        read_short(b"[" + b"1," * 10_000 + b"NaN]")
    with pytest.raises(TooLong):
        read_short(b"[" * 10_000)


def test_as_many_values_as_a_request_may_have_are_read():
    text = b'{"a":[' + b'{"b":1},' * (MAX_VALUES // 3 - 10) + b"{}]}"
    assert len(at_once(LongText(text).document())["a"]) == MAX_VALUES // 3 - 9


ENDINGS = [
    b'"z"]}',
    b'"z" ] }',
    b'"z"  ,\n"y"]}',
    b"]}",
    b'"z" x]}',
    b'"z"',
    b'"z',
    b'"z",',
    b'"z"}',
    b'"a\x01",' + b'"b",' * 100 + b'"c"]}',
    b'"a\x01' + b'b",' * 100 + b'"c"]}',
    b'"\\n\\u00e9\\"",' + b'"b",' * 20_000 + b'"c"]}',
    b'"\\x"]}',
    b'1,"c"]}',
    b'"a":"b","c":"d"]}',
    b'["b"],"c"]}',
    b'{"b":["c"]},"d"]}',
    b'"\xff\xe9",' * 100 + b'"\xc3"]}',
    b'"' + b"long" * 10_000 + b'","c"]}',
]


@pytest.mark.parametrize("between", [b",", b", ", b" ,", b",\n", b",  "])
@pytest.mark.parametrize("ending", ENDINGS)
def test_strings_of_a_long_array_are_read_as_those_of_a_short_one(between, ending):
    """A `Keep` takes strings that are packed by the hundred, where they are written plainly."""
    item = between.join([b'"a"', b'""', b'"bcd"', '"é"'.encode(), b'"],["'])
    text = b'{"data":[ ' + (item + between) * 3000 + ending
    expected, refusal = outcome(parse, text)
    got, got_refusal = outcome(read, text)
    assert got_refusal == refusal
    if expected is not None and b"{" not in ending:
        assert got["data"] == flat(expected["data"])


@given(
    st.lists(st.text(max_size=8), min_size=1, max_size=20),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.data(),
)
def test_short_strings_become_the_tensor_that_a_short_array_of_them_becomes(some, separators, drawn):
    many = some * (2 * 32 * 1024 // (3 * len(some)))
    text = json.dumps({"data": many}, ensure_ascii=drawn.draw(st.booleans()), separators=separators).encode()
    packing = Packing("A", DataType.BYTES, len(many), 2**40, len(text))
    at_once(LongText(text, lambda *_: packing).document())
    assert bytes(packing.finish(len(many))) == pack_bytes(many)


@pytest.mark.parametrize("between", [b",", b", "])
def test_plainly_written_strings_are_packed_some_thousand_at_a_time(between):
    text = b'{"data":[' + between.join(b'"%d"' % number for number in range(100_000)) + b"]}"
    packing = Packing("A", DataType.BYTES, 100_000, 2**40, len(text))
    stops = sum(1 for _ in LongText(text, lambda *_: packing).document())
    assert stops <= len(text) // (32 * 1024) + 3
