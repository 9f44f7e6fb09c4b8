"""When an engine or a text worker counts as hung. Without a loop."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.generation.policy.progress import LONGEST, LOOK_EVERY, Progress, Seen, look_every

IDLE = Seen(busy=False, signs=0)


class Watched:
    """Looks at something once a second."""

    def __init__(self, within=60.0, **options):
        self.now = 1000.0
        self.progress = Progress(within, self.now, **options)

    def look(self, seconds=1, **seen):
        for _ in range(seconds):
            self.now += 1.0
            self.progress.look(Seen(**{"busy": True, "signs": 0, **seen}), self.now)
        return self.progress


def test_work_without_a_sign_of_life_is_a_hang_after_a_while():
    watched = Watched()
    watched.look()  # it begins
    assert not watched.look(29).suspected
    assert watched.look(1).suspected
    assert not watched.look(29).hangs
    assert watched.look(1).hangs


@pytest.mark.parametrize("sign", [{"signs": 1}, {"busy": False}])
def test_a_sign_or_rest_begins_anew(sign):
    watched = Watched()
    watched.look(60)
    assert not watched.look(**sign).suspected
    assert not watched.look(59, signs=sign.get("signs", 0)).hangs
    assert watched.look(2, signs=sign.get("signs", 0)).hangs


def test_rest_is_no_hang():
    assert not Watched().look(10_000, busy=False).suspected


def test_a_server_that_was_stopped_itself_blames_it_on_nothing():
    watched = Watched()
    watched.look(10)
    watched.now += 3600.0
    assert watched.look().silent == 9 + 2 * LOOK_EVERY


def test_long_prompts_are_given_the_time_that_such_prompts_took():
    watched = Watched()
    watched.look(prompts=1000)
    watched.look(20, prompts=1000)
    watched.look(signs=1)  # 21 s for a thousand tokens
    assert watched.look(signs=1, prompts=4000).bound == pytest.approx(60 + 84)
    assert not watched.look(142, signs=1, prompts=4000).hangs
    assert watched.look(1, signs=1, prompts=4000).hangs
    assert watched.look(signs=2, prompts=10**6).bound == 60 * LONGEST, "but not for ever"
    assert watched.look(signs=3).bound == 60.0


def test_a_silence_without_a_long_prompt_says_nothing_of_prompts():
    watched = Watched()
    watched.look(prompts=10)
    watched.look(40, prompts=10)
    watched.look(signs=1)
    assert watched.look(signs=1, prompts=4000).bound == 60.0


def test_a_request_that_is_taken_in_for_ever_is_a_hang_whatever_steps_there_are():
    watched = Watched()
    watched.look(taking_in_since=7.0)
    for sign in range(59):
        assert not watched.look(signs=sign, taking_in_since=7.0).hangs
    assert watched.look(signs=99, taking_in_since=7.0).hangs
    assert not watched.look(signs=100, taking_in_since=8.0).hangs
    assert not watched.look(signs=101, taking_in_since=math.inf).suspected


def test_what_is_idle_is_probed_now_and_then():
    watched = Watched(probe_every=10.0)
    assert not watched.look(9, busy=False).probe_due(watched.now)
    assert watched.look(1, busy=False).probe_due(watched.now)
    assert not watched.look(1, busy=False).probe_due(watched.now), "it was just now"
    watched.look(8, busy=False)
    assert not watched.look(1, busy=True).probe_due(watched.now), "it has work"
    watched.look(1, busy=False, signs=1)
    assert not watched.look(9, busy=False, signs=1).probe_due(watched.now), "it has just said something"
    assert watched.look(1, busy=False, signs=1).probe_due(watched.now)
    assert not Watched().look(10_000, busy=False).probe_due(math.inf), "it is not wanted"


def test_looks_are_frequent_enough_for_a_short_time():
    assert look_every(60.0) == LOOK_EVERY
    assert look_every(0.4) == pytest.approx(0.05)


EIGHTHS = st.integers(0, 800).map(lambda number: number / 8)
"""Times whose sums are exact."""


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 5000), EIGHTHS), max_size=60))
def test_only_silence_at_work_makes_a_hang(looks):
    progress, now, signs, quiet = Progress(20.0, 0.0), 0.0, 0, 0.0
    for busy, sign, prompts, passed in looks:
        now, signs = now + passed, signs + sign
        quiet = 0.0 if sign or not busy else quiet + passed
        progress.look(Seen(busy=busy, signs=signs, prompts=prompts), now)
        assert progress.silent <= quiet
        assert not progress.hangs or quiet >= 20.0
        assert 20.0 <= progress.bound <= 100.0
        assert progress.suspected or not progress.hangs
