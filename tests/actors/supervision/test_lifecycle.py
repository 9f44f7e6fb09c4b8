"""The transition table of a child, and the snapshot values."""

import itertools

import pytest

from actors.supervision.lifecycle import ALIVE, AWAITING, TRANSITIONS, ChildState, Step, follow
from actors.supervision.restart import Killed
from actors.supervision.spec import Kind
from actors.supervision.tree import Snapshot


@pytest.mark.parametrize(("state", "step"), list(itertools.product(ChildState, Step)))
def test_every_state_and_step_follows_the_table_or_is_refused(state, step):
    if (state, step) in TRANSITIONS:
        assert follow(state, step) is TRANSITIONS[state, step]
    else:
        with pytest.raises(ValueError, match=f"{state.value} cannot {step.value}"):
            follow(state, step)


@pytest.mark.parametrize("state", ChildState)
def test_every_state_can_be_left_and_is_reached(state):
    assert any(source is state for source, _ in TRANSITIONS)
    assert state in TRANSITIONS.values()


def test_a_child_is_alive_awaiting_or_stopped():
    assert {*ALIVE, *AWAITING, ChildState.STOPPED} == set(ChildState)
    assert not ALIVE & AWAITING


LEAF = Snapshot(
    name="b",
    path="a/b",
    kind=Kind.WORKER,
    state=ChildState.BACKING_OFF,
    since=1.5,
    restarts=2,
    last_exit=Killed(),
    info={"device": "cpu"},
)
TREE = Snapshot(
    name="a", path="a", kind=Kind.SUPERVISOR, state=ChildState.RUNNING, since=0.5, children=(LEAF,)
)


def test_a_snapshot_becomes_plain_nested_dicts():
    assert TREE.as_dict() == {
        "name": "a",
        "path": "a",
        "kind": "supervisor",
        "state": "running",
        "since": 0.5,
        "restarts": 0,
        "last_exit": None,
        "info": {},
        "children": [
            {
                "name": "b",
                "path": "a/b",
                "kind": "worker",
                "state": "backing_off",
                "since": 1.5,
                "restarts": 2,
                "last_exit": "killed",
                "info": {"device": "cpu"},
                "children": [],
            }
        ],
    }


def test_a_snapshot_is_searched_by_path():
    assert TREE.find("a/b") is LEAF
    with pytest.raises(KeyError, match="'a', 'a/b'"):
        TREE.find("c")
