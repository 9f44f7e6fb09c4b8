"""Where the time of a load goes, by phase: all of it, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.instances.phases import LoadPhases

SAID = ("reading", "waiting", "starting", "loading", "reading weights", "warming up", "serving", "passive")


@given(st.lists(st.tuples(st.sampled_from(SAID), st.integers(0, 10))), st.integers(0, 10))
def test_phases_make_up_the_time_since_the_first(steps, rest):
    phases, now, began = LoadPhases({"downloading": 5}), 0, None
    for said, after in steps:
        now += after
        phases.enter(said, now)
        if began is None and said not in {"serving", "passive"}:
            began = now
    told = phases.seconds(now + rest)
    assert told.pop("downloading") == 5
    assert sum(told.values()) == (0 if began is None else now + rest - began)
    phases.end(now + rest)
    ended = phases.seconds(now + rest)
    phases.enter("starting", now + 100)  # an instance after its death
    phases.end(now + 200)
    assert ended == phases.seconds(now + 300) == {"downloading": 5, **told}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("building its environment", "environment"),
        ("warming up", "warming_up"),
        ("waiting for its models", "waiting"),
        ("importing vLLM", "loading"),
        ('any words"\n', "loading"),
    ],
)
def test_phases_have_names_of_a_closed_list(said, told):
    phases = LoadPhases()
    phases.enter(said, 1)
    assert phases.seconds(3) == {told: 2}


def test_an_instance_that_serves_does_not_end_the_load_of_another():
    phases = LoadPhases()
    for now, said in enumerate(
        ("starting", "starting", "loading", "warming up", "serving", "reading weights")
    ):
        phases.enter(said, now)
    assert phases.seconds(6) == {"starting": 2, "loading": 2, "warming_up": 2}
