"""Records: one line each, whatever clients choose; cut, chained, and read back."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.audit.records import LONGEST, End, Record, chained, cut, digest_of, moment, parse

ANYTHING = st.text(st.characters(), max_size=300)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=70) | st.dictionaries(ANYTHING, inner, max_size=70),
    max_leaves=80,
)


def whole(line):
    """Return the record in a line that must be one."""
    entry = parse(line)
    assert entry is not None
    return entry


RECORDS = st.builds(
    Record,
    time=st.floats(0, 2**32),
    action=ANYTHING.filter(bool),
    identity=ANYTHING,
    address=ANYTHING,
    model=ANYTHING,
    reason=st.text(st.characters(), max_size=5000),
    facts=st.dictionaries(ANYTHING, VALUES, max_size=70),
)


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_no_value_ends_a_line_speaks_to_a_terminal_or_makes_a_line_too_long(records):
    lines, end = chained(records, End())
    assert lines.count(b"\n") == len(records)
    assert all(32 <= byte < 127 or byte == 10 for byte in lines)
    former = ""
    for record, line in zip(records, lines.splitlines(keepends=True), strict=True):
        assert len(line) <= LONGEST
        entry = whole(line)
        assert entry.former == former
        assert entry.record.model == cut(record.model)
        assert entry.record.time == pytest.approx(record.time, abs=1e-5)
        former = digest_of(entry.line)
    assert end == End(len(records), former)


def test_a_record_has_what_it_was_given_and_leaves_out_what_is_empty():
    record = Record(time=1.5, action="model_load", identity="ci", facts={"files": {"config": {"bytes": 3}}})
    line, end = chained([record], End(7, "abc"))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500000Z",
        "n": 8,
        "action": "model_load",
        "outcome": "done",
        "identity": "ci",
        "facts": {"files": {"config": {"bytes": 3}}},
        "former": "abc",
    }
    assert whole(line).record == record
    assert end == End(8, digest_of(line))


def test_facts_are_cut_where_they_are_long_deep_or_no_json():
    deep: dict[str, object] = {"a": {"a": {"a": {"a": {"a": {}}}}}}
    facts = {
        "long": "x" * 1000,
        "list": list(range(100)),
        "deep": deep,
        "big": 2**70,
        "nan": math.nan,
        "no": b"",
    }
    entry = whole(chained([Record(time=0, action="a", facts=facts)], End())[0])
    told = entry.record.facts
    assert told["long"] == "x" * 42 + "... (1000 characters)"
    assert told["list"] == [*range(64), "... 36 more"]
    assert told["deep"] == {"a": {"a": {"a": {"a": "..."}}}}
    assert (told["big"], told["nan"], told["no"]) == (hex(2**70), "nan", "...")
    many = whole(chained([Record(time=0, action="a", facts={str(n): n for n in range(100)})], End())[0])
    assert len(many.record.facts) == 65
    assert many.record.facts["..."] == "36 more"


def test_facts_that_are_too_many_together_are_left_out_as_a_whole():
    facts = {str(number): ["y" * 500] * 60 for number in range(60)}
    line = chained([Record(time=0, action="a", facts=facts)], End())[0]
    assert len(line) < LONGEST
    assert whole(line).record.facts["left_out"].startswith("facts of ")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[1]",
        b"[" * 100_000,
        b'{"time":"2026-01-01T00:00:00Z"}',
        b'{"time":"2026-01-01T00:00:00","n":1,"action":"a","outcome":"done","former":""}',
        b'{"time":"soon","n":1,"action":"a","outcome":"done","former":""}',
        b'{"time":"2026-01-01T00:00:00Z","n":true,"action":"a","outcome":"done","former":""}',
        b'{"time":"2026-01-01T00:00:00Z","n":1,"action":"","outcome":"done","former":""}',
        b'{"time":"2026-01-01T00:00:00Z","n":1,"action":"a","outcome":"odd","former":""}',
        b'{"time":"2026-01-01T00:00:00Z","n":1,"action":"a","outcome":"done","former":1}',
        b'{"time":"2026-01-01T00:00:00Z","n":1,"action":"a","outcome":"done","former":"","model":1}',
        b'{"time":"2026-01-01T00:00:00Z","n":1,"action":"a","outcome":"done","former":"","facts":[]}',
    ],
)
def test_what_is_no_record_is_none(line):
    assert parse(line) is None


def test_times_are_told_in_utc():
    assert moment(0.25) == "1970-01-01T00:00:00.250000Z"
