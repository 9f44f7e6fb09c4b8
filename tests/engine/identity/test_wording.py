"""What auth files say, in plain words."""

import math
from datetime import UTC, datetime

import pytest

from actors.values.callers import Action
from engine.identity.limits import Limits
from engine.identity.rules import Rule
from engine.identity.wording import (
    default_in_words,
    limits_in_words,
    listed,
    moment_text,
    read_moment,
    rule_in_words,
    table_text,
)

NOW = datetime(2026, 11, 24, 10, 0, 0, 999, tzinfo=UTC)


def rule(*subjects, **changes):
    given = {"number": 1, "line": 1, "allows": True, "actions": frozenset({Action.INFERENCE})}
    return Rule(subjects=frozenset(subjects), **{**given, **changes})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (rule("ci"), "allows inference on every model to ci"),
        (
            rule(
                "ci", "group:ops", models=("resnet*",), actions=frozenset({Action.METADATA, Action.INFERENCE})
            ),
            "allows metadata and inference on models resnet* to ci and group:ops",
        ),
        (
            rule("*", "authenticated", "anonymous", allows=False, actions=None, models=("a", "b")),
            "denies everything on models a and b to all clients, clients without credentials and all "
            "clients with good credentials",
        ),
        (
            rule("ci", models=("a",), namespaces=("/one", "/two")),
            "allows inference on model a in namespaces /one and /two to ci",
        ),
    ],
)
def test_a_rule_is_a_sentence(said, words):
    assert rule_in_words(said) == words


def test_the_default_has_a_reason():
    assert "until one does it is open" in default_in_words(Action.HEALTH, allowed=True)
    assert "no longer open to all" in default_in_words(Action.METRICS, allowed=False)
    assert "no rule matches" in default_in_words(Action.INFERENCE, allowed=False)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(), "no limit"),
        (Limits(concurrent=4), "4 inferences at a time"),
        (Limits(requests=0.5, burst=2), "0.5 requests a second, in bursts of up to 2 s"),
        (
            Limits(requests=10, bytes=1048576, concurrent=4),
            "10 requests a second, 1,048,576 bytes a second and 4 inferences at a time, in bursts of up to "
            "1 s",
        ),
    ],
)
def test_limits_are_told_with_their_bursts(limits, words):
    assert limits_in_words(limits) == words


def test_long_lists_are_cut():
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"


def test_the_text_of_a_table_ends_where_the_next_begins():
    text = "# first\n[[rule]]\nfor = ['a']  \r\n\n# second\n[[rule]]\nfor = ['b']\n\n"
    assert table_text(text, 2) == "[[rule]]\nfor = ['a']"
    assert table_text(text, 6) == "[[rule]]\nfor = ['b']"
    assert table_text(text, 0) == ""


@pytest.mark.parametrize(
    ("word", "moment"),
    [
        ("12h", "2026-11-24T22:00:00Z"),
        ("90d", "2027-02-22T10:00:00Z"),
        ("2w", "2026-12-08T10:00:00Z"),
        ("1y", "2027-11-24T10:00:00Z"),
        ("2030-01-31", "2030-01-31T00:00:00Z"),
        ("2030-01-31T12:00", "2030-01-31T12:00:00Z"),
        ("2030-01-31T12:00:00+01:00", "2030-01-31T11:00:00Z"),
    ],
)
def test_a_time_is_a_span_a_date_or_a_moment(word, moment):
    at = read_moment(word, NOW)
    assert moment_text(at.timestamp()) == moment
    assert at.microsecond == 0


@pytest.mark.parametrize(
    "word", ["", "90", "90m", "-1d", "tomorrow", "2030-13-01", "999999y", "2030-01-31T25:00"]
)
def test_what_is_no_time_is_refused(word):
    with pytest.raises(ValueError, match="write a span from now such as 12h"):
        read_moment(word, NOW)


@pytest.mark.parametrize("word", ["0d", "2026-11-24", "2020-01-01T00:00:00Z"])
def test_a_key_does_not_end_before_it_begins(word):
    with pytest.raises(ValueError, match="is over already: it is 2026-11-24T10:00:00Z"):
        read_moment(word, NOW)


def test_for_ever_is_never():
    assert moment_text(math.inf) == "never"
