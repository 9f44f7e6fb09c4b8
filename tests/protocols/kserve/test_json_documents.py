import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import Internal, InvalidArgument
from protocols.kserve.documents import dump, encode_text, number, parse, parse_members, text
from protocols.kserve.faults import locate_fault

FAULTS = [
    (b"", "The document is empty.", 0),
    (b"  \n", "The document is empty.", 3),
    (b'{"a":1} x', "The document root must not be followed by other values.", 8),
    (b"[1]]", "The document root must not be followed by other values.", 3),
    (b"01", "The document root must not be followed by other values.", 1),
    (b"x", "Invalid value.", 0),
    (b"[1,]", "Invalid value.", 3),
    (b"[", "Invalid value.", 1),
    (b"trux", "Invalid value.", 3),
    (b"fals", "Invalid value.", 4),
    (b"nul", "Invalid value.", 3),
    (b"-", "Invalid value.", 1),
    (b"+1", "Invalid value.", 0),
    (b"Nan", "Invalid value.", 2),
    (b"Infini", "Invalid value.", 6),
    (b'{"a":}', "Invalid value.", 5),
    (b"{1:2}", "Missing a name for object member.", 1),
    (b'{"a":1,}', "Missing a name for object member.", 7),
    (b"{", "Missing a name for object member.", 1),
    (b'{"a" 1}', "Missing a colon after a name of object member.", 5),
    (b'{"a"', "Missing a colon after a name of object member.", 4),
    (b'{"a":1 "b":2}', "Missing a comma or '}' after an object member.", 7),
    (b'{"a":1', "Missing a comma or '}' after an object member.", 6),
    (b'{"a":1.5.3}', "Missing a comma or '}' after an object member.", 8),
    (b'{"a":1e400}', "Number too big to be stored in double.", 5),
    (b"[{} 1]", "Missing a comma or ']' after an array element.", 4),
    (b'{"a":[1}', "Missing a comma or ']' after an array element.", 7),
    (b"[1 2]", "Missing a comma or ']' after an array element.", 3),
    (b"[01]", "Missing a comma or ']' after an array element.", 2),
    (b'["a', "Missing a closing quotation mark in string.", 3),
    (b'"a\x00"', "Missing a closing quotation mark in string.", 2),
    (b'"a\nb"', "Invalid encoding in string.", 2),
    (b'"\\q"', "Invalid escape character in string.", 1),
    (b'"ab\\', "Invalid escape character in string.", 3),
    (b'"\\u12g4"', "Incorrect hex digit after \\u escape in string.", 1),
    (b'"\\ud800"', "The surrogate pair in string is invalid.", 1),
    (b'"\\ud800\\u0041"', "The surrogate pair in string is invalid.", 1),
    (b'"\\udc00"', "The surrogate pair in string is invalid.", 1),
    (b"1.", "Miss fraction part in number.", 2),
    (b"[1.e5]", "Miss fraction part in number.", 3),
    (b"1e", "Miss exponent in number.", 2),
    (b"1e+x", "Miss exponent in number.", 3),
    (b"[1e400]", "Number too big to be stored in double.", 1),
]


@pytest.mark.parametrize(("document", "complaint", "offset"), FAULTS)
def test_a_malformed_text_is_refused_with_the_parser_s_words_and_the_byte_offset(document, complaint, offset):
    with pytest.raises(Internal) as caught:
        parse(document)
    assert caught.value.message == f"failed to parse the request JSON buffer: {complaint} at {offset}"


def test_offsets_count_bytes_rather_than_characters():
    fault = locate_fault('{"é":x}'.encode())
    assert fault is not None
    assert fault.offset == 6


@pytest.mark.parametrize(
    ("document", "value"),
    [
        (b"[NaN]", math.nan),
        (b"[-NaN]", math.nan),
        (b"[Inf]", math.inf),
        (b"[Infinity]", math.inf),
        (b"[-Inf]", -math.inf),
        (b"[-Infinity]", -math.inf),
    ],
)
def test_bare_words_that_are_no_numbers_are_taken(document, value):
    (parsed,) = parse(document)
    assert parsed == pytest.approx(value, nan_ok=True)


def test_bare_words_inside_strings_stay_as_they_are():
    assert parse(b'[Inf, "Inf -NaN \\" Inf", "NaN"]') == [math.inf, 'Inf -NaN " Inf', "NaN"]


def test_a_pair_of_surrogates_beside_bare_words_is_one_character():
    assert parse(b'[Inf,"\\ud83d\\ude00"]') == [math.inf, "\U0001f600"]


def test_numbers_beyond_64_bits_become_doubles_on_both_paths():
    huge = b"[18446744073709551616, -9223372036854775809, 18446744073709551615, %s]" % (b"1" * 30)
    expected = [18446744073709551616.0, -9223372036854775809.0, 18446744073709551615, float("1" * 30)]
    assert parse(huge) == expected
    assert parse(b"[NaN," + huge[1:])[1:] == expected
    assert [type(value) for value in parse(huge)] == [float, float, int, float]


def test_a_number_with_thousands_of_digits_is_no_accident():
    with pytest.raises(Internal, match="Number too big to be stored in double"):
        parse(b"[" + b"9" * 5000 + b"]")


def test_strings_that_are_not_utf_8_keep_their_bytes():
    (value,) = parse(b'["a\xff\xfe"]')
    assert encode_text(value) == b"a\xff\xfe"
    assert dump([text(value)]) == b'["a\xff\xfe"]'


def test_a_byte_order_mark_is_passed_over():
    assert parse(b"\xef\xbb\xbf[1]") == [1]


def test_a_text_that_nests_too_deep_for_any_parser_is_the_client_s_mistake():
    with pytest.raises(InvalidArgument, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"):
        parse(b"[" * 20000 + b"]" * 20000)
    with pytest.raises(InvalidArgument, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"):
        parse_members(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def test_a_fault_far_behind_the_start_still_gets_its_offset():
    document = b"[" + b"1," * 2000 + b"x]"
    with pytest.raises(Internal, match=r"Invalid value\. at 4001"):
        parse(document)


def test_a_long_text_that_is_only_liberal_is_taken():
    assert len(parse(b"[" + b"1," * 2000 + b"NaN]")) == 2001


@pytest.mark.parametrize(
    ("value", "written"),
    [(math.nan, b"NaN"), (math.inf, b"Infinity"), (-math.inf, b"-Infinity"), (1.5, b"1.5")],
)
def test_floats_are_written_with_the_bare_words(value, written):
    assert dump(number(value)) == written


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(json_values)
def test_standard_texts_have_no_fault(value):
    assert locate_fault(json.dumps(value).encode()) is None


@given(json_values)
def test_what_the_standard_library_writes_is_read_back_equal(value):
    written = json.dumps(value)
    assert parse(written.encode()) == json.loads(written)


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\u0dDeE+-.tfnNI 19', max_size=40).map(str.encode))
def test_a_text_is_parsed_or_refused_and_never_crashes_the_parser(document):
    try:
        parse(document)
    except (Internal, InvalidArgument):
        assert locate_fault(document) is not None
    else:
        assert locate_fault(document) is None


@given(json_values, st.integers(0, 200))
def test_a_text_cut_short_is_refused_within_what_is_left(value, length):
    whole = json.dumps([value]).encode()
    cut = whole[: min(length, len(whole) - 1)]
    fault = locate_fault(cut)
    assert fault is not None
    assert fault.offset <= len(cut)
