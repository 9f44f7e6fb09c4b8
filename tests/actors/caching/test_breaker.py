"""When a server that does not answer is asked again."""

from actors.caching.policy.breaker import FAILURES_ALLOWED, FIRST_PAUSE, LONGEST_PAUSE, Breaker


def test_nothing_goes_through_before_the_first_sign_of_life():
    breaker = Breaker()
    assert not breaker.closed
    assert breaker.succeeded()
    assert breaker.closed
    assert not breaker.succeeded()


def test_failures_in_a_row_shut_it_off_and_others_do_not():
    breaker = Breaker()
    breaker.succeeded()
    for _ in range(FAILURES_ALLOWED):
        assert not breaker.failed()
    breaker.succeeded()
    for _ in range(FAILURES_ALLOWED):
        assert not breaker.failed()
    assert breaker.failed()
    assert not breaker.closed


def test_trials_become_rarer_up_to_a_bound():
    breaker = Breaker()
    breaker.failed()
    pauses = [breaker.pause]
    for _ in range(8):
        breaker.failed()
        pauses.append(breaker.pause)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
