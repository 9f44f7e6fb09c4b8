"""Deadlocks in wait-for graphs: the decision agrees with a run in which every free call goes on."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.calls.policy import Waits, find_deadlock

NODES = st.integers(0, 9)
GRAPHS = st.dictionaries(
    NODES,
    st.none() | st.builds(Waits, st.lists(NODES, min_size=1, max_size=4).map(tuple), st.booleans()),
    max_size=10,
)


def every(*on):
    return Waits(on, every=True)


def either(*on):
    return Waits(on, every=False)


def chain(graph, start="call"):
    return find_deadlock(start, graph.get)


def test_what_waits_for_nothing_goes_on():
    assert chain({}) is None


def test_a_call_of_a_free_model_goes_on():
    assert chain({"call": either("instance")}) is None


def test_a_model_that_calls_its_only_instance_waits_for_itself():
    graph = {"call": either("instance"), "instance": either("batch"), "batch": every("call")}
    assert chain(graph) == ["call", "instance", "batch", "call"]


def test_one_instance_that_will_be_free_is_enough():
    graph = {"call": either("blocked", "free"), "blocked": either("batch"), "batch": every("call")}
    assert chain(graph) is None


def test_two_instances_that_wait_for_each_other_are_not_enough():
    graph = {
        "call": either("a", "b"),
        "a": every("other call"),
        "b": every("call"),
        "other call": either("a", "b"),
    }
    found = chain(graph)
    assert found is not None
    assert found[0] == "call"
    assert found[-1] in found[:-1]


def test_a_batch_waits_for_all_of_its_calls():
    graph = {"call": either("batch"), "batch": every("ends", "call")}
    assert chain(graph) == ["call", "batch", "call"]


def test_what_waits_behind_a_circle_is_stuck_without_being_in_it():
    graph = {"call": either("a"), "a": every("b"), "b": every("a")}
    assert chain(graph) == ["call", "a", "b", "a"]


def test_a_graph_that_is_too_large_counts_as_going_on():
    assert find_deadlock(0, lambda node: every(node + 1), limit=50) is None


def test_waiting_for_nothing_is_not_waiting():
    with pytest.raises(ValueError, match="say None"):
        Waits((), every=True)


def ended(graph):
    """Return the nodes that end if every node that can end does, again and again."""
    over: set[Any] = set()
    while True:
        now = {
            node
            for node in range(10)
            if graph.get(node) is None
            or (all if graph[node].every else any)(on in over for on in graph[node].on)
        }
        if now == over:
            return over
        over = now


@given(GRAPHS, NODES)
def test_a_deadlock_is_what_never_ends(graph, start):
    assert (find_deadlock(start, graph.get) is None) is (start in ended(graph))


@given(GRAPHS, NODES)
def test_a_chain_leads_along_waits_from_the_start_into_a_circle(graph, start):
    found = find_deadlock(start, graph.get)
    if found is None:
        return
    assert found[0] == start
    assert found[-1] in found[:-1]
    assert len(set(found)) == len(found) - 1
    for node, following in pairwise(found):
        assert following in graph[node].on
        assert following not in ended(graph)


@given(GRAPHS, NODES, NODES)
def test_knowing_less_finds_fewer_deadlocks(graph, start, unknown):
    """A node that is missing from the graph counts as going on."""
    if find_deadlock(start, graph.get) is None:
        assert find_deadlock(start, {**graph, unknown: None}.get) is None
