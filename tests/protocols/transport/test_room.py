"""Which connection goes when there is no more room, and what counts as one address."""

import ipaddress
import math
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocols.transport.proxies import TrustedProxies
from protocols.transport.room import PATIENCE, AddressLimit, GoingLine, first_to_go, order, reserve


@dataclass(eq=False)
class Occupant:
    yields_at: float
    served: bool = False
    holding: bool = False

    def give_way(self):
        self.yields_at = math.inf


@pytest.fixture
def line():
    return GoingLine()


occupants = st.lists(
    st.one_of(
        st.builds(Occupant, st.sampled_from([1.0, 2.0, 3.0, 9.0, math.inf]), st.booleans()),
        st.builds(Occupant, st.sampled_from([1.0, 2.0, 3.0, 9.0]), st.just(value=True)),
    )
)


def newcomers(occupants, now):
    return [each for each in occupants if not each.served and now < each.yields_at <= now + PATIENCE]


@given(occupants, st.floats(0, 10))
def test_all_that_may_go_do_so_in_order_and_nobody_else(everybody, now):
    line: GoingLine[Occupant] = GoingLine()
    assume(not newcomers(everybody, now))
    gone = []
    while (each := line.next(everybody, now)) is not None:
        assert each is not None
        gone.append(order(each))
        each.give_way()
    assert gone == sorted(gone)
    assert not [each for each in everybody if each.yields_at <= now]
    assert len(gone) == len([at for *_, at in gone if at <= now])


def test_those_that_never_brought_a_request_go_first_and_then_the_longest_idle():
    long_idle, short_idle, silent = Occupant(1.0, served=True), Occupant(5.0, served=True), Occupant(6.0)
    everybody = [short_idle, silent, long_idle]
    line: GoingLine[Occupant] = GoingLine()
    gone = []
    for _ in everybody:
        each = line.next(everybody, 7.0)
        assert each is not None
        each.give_way()
        gone.append(each)
    assert gone == [silent, long_idle, short_idle]
    assert line.next(everybody, 7.0) is None


def test_those_whose_clients_would_lose_a_stream_go_last():
    holding, idle = Occupant(1.0, served=True, holding=True), Occupant(5.0, served=True)
    occupants = [holding, idle]
    line: GoingLine[Occupant] = GoingLine()
    assert line.next(occupants, 7.0) is idle
    idle.give_way()
    assert line.next(occupants, 7.0) is holding


def test_who_was_noted_and_has_something_to_do_since_stays():
    first, second, third = everybody = [Occupant(1.0), Occupant(2.0), Occupant(3.0)]
    line: GoingLine[Occupant] = GoingLine()
    assert line.next(everybody, 4.0) is first
    first.give_way()
    second.yields_at = math.inf
    assert line.next(everybody, 4.0) is third


def test_who_was_noted_and_has_left_is_not_asked():
    first, second, third = [Occupant(1.0), Occupant(2.0), Occupant(3.0)]
    line: GoingLine[Occupant] = GoingLine()
    line.next([first, second, third], 4.0)
    assert line.next([third], 4.0) is third


def test_a_crowd_of_busy_ones_is_not_looked_at_for_every_client_at_the_door():
    looks = []

    class Counted(Occupant):
        @property
        def yields_at(self):
            looks.append(1)
            return math.inf

        @yields_at.setter
        def yields_at(self, _):
            pass

    everybody = [Counted(0.0)]
    line: GoingLine[Occupant] = GoingLine()
    for _ in range(100):
        assert line.next(everybody, 5.0) is None
    assert len(looks) == 1
    line.next(everybody, 5.2)
    assert len(looks) == 2


def test_the_first_of_a_few():
    assert first_to_go([], 1.0) is None
    assert first_to_go([Occupant(math.inf), Occupant(2.0)], 1.0) is None
    quiet = Occupant(0.5, served=True)
    assert first_to_go([Occupant(2.0), quiet], 1.0) is quiet


@pytest.mark.parametrize(("most", "more"), [(1, 1), (2, 2), (100, 8), (8192, 128)])
def test_the_reserve(most, more):
    assert reserve(most) == more


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("10.1.2.3", None),
        ("2001:db8:9::1", None),
        ("", None),
        ("/run/socket", None),
    ],
)
def test_what_counts_as_one_address(host, origin):
    trusted = TrustedProxies(map(ipaddress.ip_network, ("10.0.0.0/8", "2001:db8:9::/48")))
    assert AddressLimit(3, trusted).origin(host) == origin


def test_a_newcomer_has_time_for_its_first_bytes_and_an_idle_connection_goes_instead(line):
    used = [Occupant(float(number), served=True) for number in range(8)]
    newcomer = Occupant(10.0 + PATIENCE)
    assert line.next([*used, newcomer], 10.0) is used[0]


def test_a_newcomer_that_says_nothing_goes_before_connections_that_were_used(line):
    used = [Occupant(float(number), served=True) for number in range(8)]
    silent = Occupant(10.0)
    assert line.next([*used, silent], 10.0) is silent


def test_a_flood_of_newcomers_makes_room_for_itself_the_oldest_first(line):
    used = [Occupant(float(number), served=True) for number in range(8)]
    flood = [Occupant(10.0 + PATIENCE - 0.1 * number) for number in range(8)]
    gone = []
    while (each := line.next([*used, *flood], 10.0)) in flood:
        each.give_way()
        flood.remove(each)
        gone.append(each.yields_at)
    assert len(gone) == 6  # until they are a quarter
    assert each is used[0]
    assert min(one.yields_at for one in flood) == pytest.approx(10.0 + PATIENCE - 0.1)


def test_a_newcomer_does_not_make_room_where_all_others_are_busy(line):
    busy = [Occupant(math.inf, served=True) for _ in range(8)]
    assert line.next([*busy, Occupant(10.0 + PATIENCE)], 10.0) is None
