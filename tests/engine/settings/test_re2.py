"""Regular expressions that Triton takes are taken, or refused with what to write instead."""

import re

import pytest

from engine.settings.re2 import compiled


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("x-.*", ["x-user", "X-User"], ["y"]),
        ("(?-i)x-.*", ["x-user"], ["X-User"]),
        ("(?i)(?-i)x-.*", ["x-user"], ["X-User"]),
        ("a(?-i)b|c", ["Ab", "ab", "c"], ["aB", "C"]),
        ("(a(?-i)b)c", ["AbC"], ["ABC"]),
        ("(?-i:a)b", ["aB"], ["Ab"]),
        ("(?s-i)a.b", ["a\nb"], ["A\nb"]),
        ("^[[:alpha:]_]+$", ["Ab_"], ["a1"]),
        ("^[^[:digit:]]$", ["a"], ["1"]),
        (r"^\Qa.b*\E$", ["a.b*"], ["axb"]),
        (r"^a\z", ["a"], ["a\n"]),
        (r"^\x{e9}$", ["é"], ["e"]),
        ("^(?<name>a)b$", ["ab"], ["b"]),
        ("^(?P<name>a)b$", ["ab"], ["b"]),
        (r"^[]a]+$", ["]a"], ["b"]),
        (r"^[a\]]+$", ["]a"], ["b"]),
        (r"^\(\|\)$", ["(|)"], ["()"]),
        ("^(?:a|b)$", ["a", "b"], ["c"]),
        ("^[(?i)]$", ["(", "i"], ["x"]),
    ],
)
def test_it_matches_as_re2_does(pattern, matching, others):
    found = compiled(pattern, re.IGNORECASE)
    assert [text for text in matching + others if found.search(text)] == matching


@pytest.mark.parametrize(
    ("pattern", "cure"),
    [
        (r"\p{Greek}", "write the ranges"),
        (r"[\pL]", "write the ranges"),
        (r"(?U)a*", r"write \*\? for \*"),
        (r"\C", r"write \(\?s:\.\)"),
        ("[[:letter:]]", "there are alnum"),
        ("[[:^alpha:]]", r"write \[\^\[:alpha:\]\]"),
        ("[a", "does not end"),
        ("(a", "unterminated subpattern"),
        (r"\x{110000}", "no character"),
    ],
)
def test_what_python_has_no_counterpart_for_is_refused_with_the_cure(pattern, cure):
    with pytest.raises(re.error, match=cure):
        compiled(pattern)
