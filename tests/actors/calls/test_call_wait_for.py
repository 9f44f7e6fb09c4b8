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


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({}, None),
        ({"call": either("instance")}, None),
        (
            {"call": either("instance"), "instance": either("batch"), "batch": every("call")},
            ["call", "instance", "batch", "call"],
        ),
        ({"call": either("blocked", "free"), "blocked": either("batch"), "batch": every("call")}, None),
        ({"call": either("batch"), "batch": every("ends", "call")}, ["call", "batch", "call"]),
        ({"call": either("a"), "a": every("b"), "b": every("a")}, ["call", "a", "b", "a"]),
    ],
    ids=[
        "what waits for nothing",
        "a call of a free model",
        "a model that calls its only instance",
        "one instance that will be free is enough",
        "a batch waits for all of its calls",
        "what waits behind a circle is stuck without being in it",
    ],
)
def test_a_deadlock_is_told_by_its_chain(graph, found):
    assert chain(graph) == found


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
