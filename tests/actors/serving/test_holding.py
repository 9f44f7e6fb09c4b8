"""When a model that is held back may begin (contract, scheduling.md section 12)."""

import pytest

from actors.serving.policy.holding import HoldBack, StartAfter


@pytest.mark.parametrize("after", [None, StartAfter(), StartAfter(0, 5)])
def test_nothing_is_held_back_where_no_queued_request_is_asked_for(after):
    hold = HoldBack(after)
    assert hold.open
    assert hold.opens(0)


@pytest.mark.parametrize(
    ("queued", "backlogged", "opens"), [(2, 3, True), (9, 9, True), (1, 3, False), (2, 2, False)]
)
def test_a_first_batch_waits_until_both_numbers_are_reached(queued, backlogged, opens):
    assert HoldBack(StartAfter(2, 3)).opens(queued, backlogged) is opens


def test_what_has_been_opened_stays_open():
    hold = HoldBack(StartAfter(2))
    assert [hold.opens(1), hold.opens(2), hold.opens(0)] == [False, True, True]
