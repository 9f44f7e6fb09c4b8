import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.serving.policy.confinement import (
    FILLED_PER_SECOND,
    LONGEST,
    SHORTEST,
    STARTED_PER_SECOND,
    Usage,
    judge,
    next_look,
)
from actors.serving.policy.retries import Oom, TooManyProcesses
from actors.values.confinement import Confinement

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("usage", "limits", "verdict"),
    [
        (Usage(100, 1), Confinement(), None),
        (Usage(100, 1), Confinement(memory=100), None),
        (Usage(101, 1), Confinement(memory=100), Oom(101, 100)),
        (Usage(2**50, 1), Confinement(processes=1), None),
        (Usage(0, 3), Confinement(processes=3), None),
        (Usage(0, 4), Confinement(processes=3), TooManyProcesses(4, 3)),
        (Usage(0, 0), Confinement(memory=1, processes=1), None),
    ],
)
def test_what_is_over_a_limit_is_killed_for_it(usage, limits, verdict):
    assert judge(usage, limits) == verdict


def test_the_reasons_tell_how_much_there_was_and_which_setting_says_so():
    assert str(Oom(101 * MEBIBYTE - 1, 100 * MEBIBYTE)) == (
        "lack of memory: it had 101 MiB, and 100 MiB are its limit (tritium.memory_limit_mb)"
    )
    assert str(TooManyProcesses(4, 3)) == (
        "starting processes: there were 4, and 3 are its limit (tritium.max_processes)"
    )
    assert (Oom(2, 1).label, TooManyProcesses(2, 1).label) == ("oom", "processes")
    assert TooManyProcesses(2, 1).blames_request


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(1, 10_000), st.integers(0, 10_000))
def test_nobody_gets_past_a_limit_by_more_than_the_shortest_wait_allows(memory, used, processes, started):
    limits = Confinement(memory=memory, processes=processes)
    usage = Usage(used, started)
    wait = next_look(usage, limits)
    assert SHORTEST <= wait <= LONGEST
    if judge(usage, limits) is None:
        assert used + wait * FILLED_PER_SECOND <= memory + SHORTEST * FILLED_PER_SECOND + 1
        assert started + wait * STARTED_PER_SECOND <= processes + 1 + SHORTEST * STARTED_PER_SECOND + 1


@pytest.mark.parametrize(
    ("limits", "wait"),
    [
        (Confinement(), LONGEST),
        (Confinement(processes=1000), LONGEST),
        (Confinement(processes=1 + int(STARTED_PER_SECOND) // 10), 0.1),
        (Confinement(memory=FILLED_PER_SECOND // 10), 0.1),
        (Confinement(memory=1), SHORTEST),
    ],
)
def test_only_a_limit_that_is_set_asks_for_a_look(limits, wait):
    assert next_look(Usage(0, 2), limits) == pytest.approx(wait)


def test_who_is_far_from_every_limit_is_seldom_looked_at():
    assert next_look(Usage(0, 1), Confinement(memory=2**40)) == LONGEST
