"""Denials: the first of a kind at once, the rest of a minute as a count, and floods in sum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.audit.denials import GATHERING, MOST_KINDS, RATE, SEVERAL, WINDOW, Denial, Denials


def denial(address="192.0.2.7", **more):
    given = {"action": "inference", "code": "UNAUTHENTICATED", "reason": "no", "model": "m", **more}
    return Denial(address=address, **given)


def told(denials, now, **options):
    return [(each.denial.address, each.count) for each in denials.due(now, **options)]


def test_the_first_of_a_kind_is_told_at_once_and_those_of_the_next_minute_as_a_count():
    denials = Denials()
    assert denials.next_due() == math.inf
    assert denials.add(denial(), 10.0)
    assert denials.next_due() == 10.0 + GATHERING
    assert told(denials, 10.0) == []
    assert told(denials, 10.0 + GATHERING) == [("192.0.2.7", 1)]
    for second in range(11, 40):
        assert not denials.add(denial(), float(second))
    assert told(denials, 69.9) == []
    assert denials.next_due() == 10.0 + WINDOW
    [counted] = denials.due(10.0 + WINDOW)
    assert (counted.count, counted.seconds, counted.denial.model) == (29, WINDOW, "m")


def test_a_kind_that_goes_on_is_counted_in_another_minute_and_one_that_ends_is_forgotten():
    denials = Denials()
    denials.add(denial(), 0.0)
    denials.add(denial(), 1.0)
    assert told(denials, 60.0) == [("192.0.2.7", 1), ("192.0.2.7", 1)]
    denials.add(denial(), 61.0)
    assert told(denials, 120.0) == [("192.0.2.7", 1)]
    assert told(denials, 180.0) == []
    assert denials.next_due() == math.inf
    assert denials.add(denial(), 200.0)


def test_kinds_differ_by_identity_address_listener_action_and_code():
    denials = Denials()
    for more in (
        {},
        {"identity": "ci"},
        {"via": "grpc"},
        {"action": "metadata"},
        {"code": "PERMISSION_DENIED"},
    ):
        denials.add(denial(**more), 0.0)
    denials.add(denial("192.0.2.8"), 0.0)
    assert len(denials.due(1.0)) == 6


def test_a_count_names_the_model_only_where_it_was_the_same():
    denials = Denials()
    denials.add(denial(model="a"), 0.0)
    denials.due(1.0)
    denials.add(denial(model="b"), 1.0)
    denials.add(denial(model="b"), 2.0)
    assert denials.due(60.0)[0].denial.model == "b"
    denials.add(denial(model="b"), 61.0)
    denials.add(denial(model="c"), 62.0)
    denials.add(denial(model="c"), 63.0)
    assert denials.due(120.0)[0].denial.model == ""


def test_beyond_a_burst_of_kinds_the_rest_is_told_in_sum_by_code():
    denials = Denials()
    for number in range(1000):
        denials.add(denial(f"address {number}"), 0.0)
    denials.add(denial("one more", code="PERMISSION_DENIED"), 0.0)
    assert len(denials.due(1.0)) == MOST_KINDS
    sums = [(each.denial.address, each.denial.code, each.count) for each in denials.due(WINDOW)]
    assert sums == [(SEVERAL, "UNAUTHENTICATED", 1000 - MOST_KINDS), (SEVERAL, "PERMISSION_DENIED", 1)]


def test_everything_can_be_had_before_its_time():
    denials = Denials()
    for address in ("a", "a", "b"):
        denials.add(denial(address), 0.0)
    assert told(denials, 0.0, everything=True) == [("a", 1), ("b", 1), ("a", 1)]
    assert told(denials, 0.0, everything=True) == []


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(0, 5)), max_size=300))
def test_every_denial_is_told_once_and_a_flood_makes_few_records(clients):
    denials, now, told, records = Denials(), 0.0, 0, 0
    for client, pause in clients:
        now += pause
        denials.add(denial(str(client)), now)
        found = denials.due(now)
        told += sum(each.count for each in found)
        records += len(found)
    rest = denials.due(now, everything=True)
    assert told + sum(each.count for each in rest) == len(clients)
    windows = now / WINDOW + 2
    assert records + len(rest) <= 2 * (MOST_KINDS + now * RATE) + windows * (MOST_KINDS + 1)


@pytest.mark.parametrize(
    ("seconds", "most"), [(3_600, 1_000), pytest.param(86_400, 20_000, marks=pytest.mark.slow)]
)
def test_a_flood_from_ever_new_addresses_makes_a_bounded_number_of_records(seconds, most):
    denials, records = Denials(), 0
    for second in range(seconds):
        for number in range(3):
            denials.add(denial(f"{second}.{number}"), float(second))
        records += len(denials.due(float(second)))
    assert records < most
