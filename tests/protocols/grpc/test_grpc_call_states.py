"""The table of a call's states: what may follow what, and what holds on every way through it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.grpc.call_states import TRANSITIONS, CallState, Step

ROWS = [(state, step, following) for state, row in TRANSITIONS.items() for step, following in row.items()]
BUGS = [(state, step) for state in CallState for step in Step if step not in TRANSITIONS[state]]

WAYS = {
    "a small request": [Step.BEGIN, Step.ANSWER, Step.SEND, Step.END],
    "no room at first": [Step.PARK, Step.BEGIN, Step.ANSWER, Step.SEND, Step.END],
    "refused on its head": [Step.ANSWER, Step.SEND, Step.END],
    "late while it was parked": [Step.PARK, Step.ANSWER, Step.SEND, Step.END],
    "cancelled while it came": [Step.LOSE, Step.SEND, Step.END],
    "cancelled while it was parked": [Step.PARK, Step.LOSE, Step.SEND, Step.END],
    "cancelled in its model": [Step.BEGIN, Step.LOSE, Step.SEND, Step.END],
    "cancelled behind its answer": [Step.BEGIN, Step.ANSWER, Step.LOSE, Step.SEND, Step.END],
    "cancelled behind its refusal": [Step.ANSWER, Step.LOSE, Step.SEND, Step.END],
    "cancelled while windows were shut": [Step.BEGIN, Step.ANSWER, Step.SEND, Step.LOSE, Step.END],
    "a method that fails when it is told": [Step.BEGIN, Step.ANSWER, Step.SEND, Step.SEND, Step.END],
    "a connection that ends without a writer": [Step.BEGIN, Step.LOSE, Step.LOSE, Step.END],
    "a coroutine that says nothing": [Step.SERVE, Step.ANSWER, Step.END],
    "a coroutine that speaks": [Step.SERVE, Step.SPEAK, Step.ANSWER, Step.END],
    "a coroutine that lost its client": [Step.SERVE, Step.LOSE, Step.LOSE, Step.END],
    "a coroutine that spoke and lost its client": [Step.SERVE, Step.SPEAK, Step.LOSE, Step.END],
}


@pytest.mark.parametrize("steps", WAYS.values(), ids=WAYS.keys())
def test_every_way_of_a_call_ends_with_what_it_took_given_back(steps):
    state = CallState.RECEIVING
    for step in steps:
        state = state.after[step]
    assert state is CallState.OVER


def test_the_ways_visit_every_row_of_the_table():
    visited = set()
    for steps in WAYS.values():
        state = CallState.RECEIVING
        for step in steps:
            visited.add((state, step, state := state.after[step]))
    assert visited == set(ROWS)


@pytest.mark.parametrize(("state", "step"), BUGS)
def test_a_step_that_the_table_does_not_have_is_a_bug(state, step):
    with pytest.raises(RuntimeError, match=f"a call that is {state.value} can't {step.value}"):
        state.after[step]


@given(st.data())
def test_a_closed_call_stays_closed_and_a_method_that_began_is_told_once(data):
    state, begun, told = CallState.RECEIVING, 0, 0
    while TRANSITIONS[state]:
        step = data.draw(st.sampled_from(sorted(TRANSITIONS[state], key=lambda step: step.value)))
        following = state.after[step]
        begun += step is Step.BEGIN
        told += step is Step.SEND and not state.told
        assert following.closed >= state.closed
        assert step is not Step.ANSWER or not state.closed
        if state.gone:
            assert following.gone or following is CallState.OVER
        if state is following:  # a step that may be taken any number of times
            break
        state = following
    assert told <= begun
