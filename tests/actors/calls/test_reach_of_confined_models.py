"""Which models a confined model may have loaded and unloaded, by level."""

import pytest

from actors.calls.reach import confines_calls, why_not_load, why_not_unload
from actors.values.confinement import Sandbox


def test_the_rule_binds_from_basic_on():
    assert [confines_calls(level) for level in Sandbox] == [False, False, True, True]


@pytest.mark.parametrize("caller", Sandbox)
@pytest.mark.parametrize("callee", Sandbox)
def test_a_model_reaches_what_is_confined_at_least_as_it_is(caller, callee):
    may = caller in (Sandbox.OFF, Sandbox.GUARD) or callee.holds(caller)
    assert (why_not_load("a", caller, "b", brings=False, levels={"b": callee}) == "") == may
    assert (why_not_unload("a", caller, "b", {"b": callee}) == "") == may


def test_a_refusal_says_what_would_work():
    levels = {"b": Sandbox.STRICT, "c": Sandbox.GUARD}
    told = why_not_load("a", Sandbox.BASIC, "b", brings=False, levels=levels)
    assert told == (
        "model 'a' runs in a basic sandbox and may not load 'b', of which 'c' is a part: the sandbox of 'c'"
        " is 'guard'. Set its 'tritium.sandbox' to 'basic', or start the server with --sandbox=basic"
    )


def test_what_a_model_brings_is_no_matter_of_levels():
    told = why_not_load("a", Sandbox.STRICT, "b", brings=True, levels={"b": Sandbox.STRICT})
    assert "leave them out" in told
    assert why_not_load("a", Sandbox.GUARD, "b", brings=True, levels={}) == ""


def test_a_model_that_is_nowhere_is_refused_by_the_repository():
    assert why_not_load("a", Sandbox.STRICT, "b", brings=False, levels={}) == ""
