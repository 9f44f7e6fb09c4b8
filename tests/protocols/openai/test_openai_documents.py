"""JSON texts of any size: strict, the same whether they are read at once or in slices, and bounded."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.generation.facts import BadAsk
from protocols.openai.documents import (
    MAX_DEPTH,
    MAX_NUMBERS,
    MAX_STRING,
    MAX_VALUES,
    PIECE,
    LongDocument,
    parse,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS | st.lists(st.integers(0, 50_000), max_size=60),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


def in_slices(text):
    return at_once(LongDocument(text).value())


BOTH = pytest.mark.parametrize("read", [parse, in_slices])


def refusal(read, text):
    with pytest.raises(BadAsk) as error:
        read(text)
    return error.value.message.removeprefix("the body is no JSON that can be read: ")


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_both_ways_read_what_json_means(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse(text) == in_slices(text) == value


@given(st.binary(max_size=40) | st.text('[]{}:,"\\u d8e1.-tfn', max_size=30).map(str.encode))
def test_both_ways_refuse_the_same(text):
    outcomes = []
    for read in (parse, in_slices):
        try:
            outcomes.append(read(text))
        except BadAsk:
            outcomes.append(BadAsk)
    assert repr(outcomes[0]) == repr(outcomes[1])


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"  ",
        b"{",
        b"[1,",
        b"[1 2]",
        b"{1:2}",
        b'{"a" 1}',
        b'{"a":1,}',
        b"[1]x",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"123456789012345678901234567890",
        b"[" + b"1" * 30 + b"]",
        b"01",
        b"+1",
        b"'a'",
        b'"\xff"',
        b'"\\ud800"',
        b'["\\udc00\\ud800"]',
        b'"a\nb"',
        b'"\\x"',
        b'"abc',
        b'"\\u12"',
        b'{"a":1,"a":2}',
        b'[{"b":{"a":1,"\\u0061":2}}]',
        b"\xef\xbb\xbf1",
        b"tru",
        b"[" * 100 + b"]" * 100,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_two_parsers_could_read_differently_is_refused(read, text):
    assert refusal(read, text).isprintable()


@BOTH
def test_errors_say_where(read):
    assert refusal(read, '{"é":1 1}'.encode()).endswith(" at byte 8")
    assert refusal(read, b'{"a":1,"a":2}') == "an object has the name 'a' twice"
    assert refusal(read, b"[" * 70 + b"]" * 70) == f"it nests more than {MAX_DEPTH} levels deep"


@BOTH
def test_as_deep_as_it_may_be(read):
    text = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert json.dumps(read(text)).encode() == text
    assert "deep" in refusal(read, b"[" + text + b"]")
    assert read(b"[" + b"[]," * 99 + b"1]") == [[]] * 99 + [1]


@BOTH
def test_pairs_of_surrogates_are_characters(read):
    assert read(b'"\\ud83d\\ude00 \\\\ud800"') == "😀 \\ud800"


@pytest.mark.parametrize(
    "piece",
    ["a", "é", "€", "😀", '\\"', "\\\\", "\\u00e9", "\\ud83d\\ude00", "ab€\\n"],
)
def test_long_strings_are_cut_between_characters(piece):
    for shift in range(13):
        text = f'["{"x" * shift}{piece * 12_000}"]'.encode()
        assert in_slices(text) == json.loads(text)


def test_long_runs_of_numbers():
    for ids in ([7] * 50_000, list(range(20_000)), [-1, 2] * 9000):
        for separators in ((",", ":"), (" ,\n ", ":")):
            text = json.dumps({"a": ids, "b": [ids[:40], "x"]}, separators=separators).encode()
            assert in_slices(text) == {"a": ids, "b": [ids[:40], "x"]}


@pytest.mark.parametrize("tail", [b"1.5]", b'"a"]', b"[1]]", b"null]", b"1e2]", b"-1, 2.0, 3]"])
def test_a_run_of_numbers_may_go_on_as_something_else(tail):
    text = b"[" + b"12," * 10_000 + tail
    assert in_slices(text) == json.loads(text)


@pytest.mark.parametrize("tail", [b"", b"1", b",1]", b"--1]", b"1 2]", b"01]", b"-]", b"1" * 30 + b"]"])
def test_a_broken_run_of_numbers_is_refused(tail):
    assert refusal(in_slices, b"[" + b"12," * 10_000 + tail)
    assert refusal(in_slices, b"[" + b"12," * 30 + tail)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (b"[" + b"{}," * (MAX_VALUES + 1) + b"1]", f"{MAX_VALUES} values"),
        (b"[" + b"[]," * (MAX_VALUES + 1) + b"1]", f"{MAX_VALUES} values"),
        (b'{"a":[' + b"1," * (MAX_NUMBERS + 1) + b"1]}", f"{MAX_NUMBERS} whole numbers"),
        (b'"' + b"a" * (MAX_STRING + 9) + b'"', f"{MAX_STRING} bytes in a string"),
        (b'["' + b'","'.join([b"a" * 2**20] * 9) + b'"]', "bytes in its strings together"),
    ],
    ids=["objects", "arrays", "numbers", "string", "strings"],
)
def test_a_long_text_is_bounded(text, most):
    message = refusal(in_slices, text)
    assert message.startswith("the body has more than")
    assert most in message


@pytest.mark.parametrize(
    "text",
    [
        b" " * 2**20 + b"1",
        b'"' + b"a" * 2**20 + b'"',
        b'"' + b"\\u00e9" * 2**17 + b'"',
        b"[" + b"1," * 2**19 + b"1]",
        b"[" + b'"",' * 19_000 + b"1]",
        b"[" + b"0.5," * 19_000 + b"1]",
    ],
    ids=["space", "string", "escapes", "numbers", "strings", "floats"],
)
def test_no_step_is_long(text):
    document = LongDocument(text)
    places = [0, *(document.at for _ in document.value())]
    assert max(b - a for a, b in pairwise(places)) <= 2 * PIECE
