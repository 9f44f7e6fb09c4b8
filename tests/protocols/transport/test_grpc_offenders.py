"""Whose connections wait after a flood, and for how long."""

import pytest

from protocols.transport.offenders import FIRST_WAIT, FORGOTTEN_AFTER, LONGEST_WAIT, MAX_ADDRESSES, Offenders

CLIENT = "ipv4:192.0.2.1:4000"


def flooded(*peers, at=0.0):
    offenders = Offenders()
    for peer in peers:
        offenders.flooded(peer, at)
    return offenders


def test_nobody_waits_before_there_was_a_flood():
    assert Offenders().wait(CLIENT, 0.0) == 0


def test_after_a_flood_the_address_waits_whatever_its_port():
    assert flooded(CLIENT).wait("ipv4:192.0.2.1:4001", 0.0) == FIRST_WAIT


def test_the_wait_runs_from_the_flood_and_ends():
    offenders = flooded(CLIENT)
    assert offenders.wait(CLIENT, FIRST_WAIT / 2) == pytest.approx(FIRST_WAIT / 2)
    assert offenders.wait(CLIENT, FIRST_WAIT) == 0


def test_others_do_not_wait():
    assert flooded(CLIENT).wait("ipv4:192.0.2.2:4000", 0.0) == 0


@pytest.mark.parametrize(("floods", "wait"), [(2, 2 * FIRST_WAIT), (3, 4 * FIRST_WAIT), (30, LONGEST_WAIT)])
def test_each_further_flood_doubles_the_wait_up_to_the_longest(floods, wait):
    assert flooded(*[CLIENT] * floods).wait(CLIENT, 0.0) == pytest.approx(wait)


def test_floods_of_long_ago_are_forgotten():
    offenders = flooded(*[CLIENT] * 10)
    offenders.flooded(CLIENT, FORGOTTEN_AFTER)
    assert offenders.wait(CLIENT, FORGOTTEN_AFTER) == pytest.approx(FIRST_WAIT)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ipv6:[2001:db8::1]:1", "ipv6:[2001:db8::ffff:2]:2", True),
        ("ipv6:[2001:db8::1]:1", "ipv6:[2001:db8:0:1::1]:1", False),
        ("ipv6:[fe80::1%eth0]:1", "ipv6:[fe80::2%eth0]:1", True),
        ("ipv6:[::ffff:192.0.2.1]:1", CLIENT, True),
        ("ipv6:[::ffff:192.0.2.2]:1", CLIENT, False),
    ],
)
def test_an_owner_of_an_ipv6_network_is_one_client(one, other, same):
    assert (flooded(one).wait(other, 0.0) > 0) is same


@pytest.mark.parametrize("peer", ["unix:", ""])
def test_who_can_not_be_told_apart_does_not_wait(peer):
    assert flooded(peer).wait(peer, 0.0) == 0


def test_addresses_without_end_cost_no_memory_without_end():
    offenders = flooded(CLIENT, *(f"ipv4:10.0.{n >> 8}.{n & 255}:1" for n in range(MAX_ADDRESSES)))
    assert offenders.wait(CLIENT, 0.0) == 0
    assert offenders.wait("ipv4:10.0.0.0:1", 0.0) == FIRST_WAIT
