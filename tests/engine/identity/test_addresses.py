"""Limits by address: what counts as one, what is shared, and what is kept of very many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import Action, Peer
from actors.values.errors import InvalidArgument, PermissionDenied, TooManyRequests, Unauthenticated
from engine.identity.addresses import Account, AddressedCaller, Addresses, AddressGate, Anyone
from engine.identity.document import read_auth_file
from engine.identity.gate import Book, Gate
from engine.identity.keys import digest_of
from engine.identity.limits import Limits, Usage
from engine.identity.refusals import MOST_COUNTS, Refusals
from engine.identity.tokens import Tokens

ONE, OTHER = "192.0.2.1", "192.0.2.2"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def refusal(caller, action=Action.INFERENCE, model="m", size=0):
    """What `caller` is told, and after how many seconds to try again; None where it is let in."""
    try:
        caller.admit(action, model, size=size)
    except TooManyRequests as error:
        return error.message, error.retry_after
    return None


# Without an auth file


@pytest.fixture
def told():
    return []


@pytest.fixture
def gate(clock, told):
    limits = Limits(requests=2, bytes=1000, concurrent=1)
    return AddressGate(Addresses(limits, clock), lambda name, error: told.append((name, error.message)))


def test_everyone_may_do_everything_and_no_more_of_it_than_an_address_may(gate, clock, told):
    caller = gate.identify(b"", Peer(ONE))
    assert caller.name == "anonymous"
    for action in Action:
        caller.require(action, "m")
        assert caller.may(action, "m")
        assert caller.may_all(action)
    assert [refusal(caller) for _ in range(2)] == [None, None]
    message, wait = refusal(caller)
    assert message == "'192.0.2.1' may make 2 requests a second, and has used them up"
    assert wait == pytest.approx(0.5)
    assert told == [("anonymous", message)]
    assert gate.refusals == {("anonymous", "resource_exhausted"): 1}
    assert gate.admitted() == {"anonymous": 2}
    clock.now = 0.5
    assert refusal(caller) is None


def test_an_address_is_one_over_all_its_connections_whatever_credentials_they_show(gate):
    for authorization in (b"", b"Bearer nonsense"):
        assert refusal(gate.identify(authorization, Peer(ONE))) is None
    assert refusal(gate.identify(b"Basic eA==", Peer(ONE))) is not None
    assert refusal(gate.identify(b"", Peer(OTHER))) is None


@pytest.mark.parametrize(
    ("one", "same"),
    [("2001:db8:1:2::3", "2001:db8:1:2:4:5:6:7"), ("::ffff:192.0.2.1", ONE), ("fe80::1%eth0", "fe80::2")],
)
def test_an_ipv6_network_counts_as_one_address(gate, one, same):
    for address in (one, same):
        assert refusal(gate.identify(b"", Peer(address))) is None
    assert refusal(gate.identify(b"", Peer(one))) is not None
    assert len(gate.addresses) == 1


def test_health_checks_take_nothing_and_are_never_refused(gate):
    caller = gate.identify(b"", Peer(ONE))
    for _ in range(10):
        assert refusal(caller, Action.HEALTH, "") is None
    assert gate.admitted() == {"anonymous": 0}
    assert [refusal(caller) is None for _ in range(3)] == [True, True, False]
    assert refusal(caller, Action.HEALTH, "") is None


def test_clients_of_a_unix_socket_have_no_address_and_no_limits(gate):
    caller = gate.identify(b"", Peer())
    assert [refusal(caller) for _ in range(10)] == [None] * 10
    caller.begin()
    caller.begin()
    caller.received(10**9)
    caller.end()
    caller.require(Action.TRACE)
    assert caller.may(Action.TRACE, "m")
    assert caller.may_all(Action.TRACE)
    assert len(gate.addresses) == 0


def test_bytes_and_inferences_under_way_are_an_addresss_too(gate, clock):
    one, again = (gate.identify(b"", Peer(ONE)) for _ in range(2))
    assert refusal(one, size=900) is None
    one.received(1100)
    message, wait = refusal(again)
    assert "1000 bytes a second" in message
    assert wait == pytest.approx(1.001)
    one.begin()
    with pytest.raises(TooManyRequests, match=r"'192\.0\.2\.1' may make 1 inferences at a time"):
        again.begin()
    gate.identify(b"", Peer(OTHER)).begin()
    one.end()
    again.begin()


def test_what_was_found_out_about_a_connection_is_kept_with_it(gate):
    peer = Peer(ONE)
    assert gate.identify(b"", peer) is gate.identify(b"Bearer x", peer)


# Very many addresses


def account(address, limits):
    return Account(address, address, limits)


def test_those_go_first_whose_use_is_over(clock):
    limits = Limits(requests=1)
    addresses = Addresses(limits, clock, most=3)
    for number, address in enumerate("abc"):
        clock.now = float(number)
        addresses.usage(account(address, limits)).take(0, clock, address)
    clock.now = 2.5  # a and b have all their tokens again
    addresses.usage(account("d", limits)).take(0, clock, "d")
    assert len(addresses) == 3
    with pytest.raises(TooManyRequests):
        addresses.usage(account("c", limits)).take(0, clock, "c")
    running = addresses.usage(account("b", limits))
    running.begin("b")
    clock.now = 100.0
    for number in range(50):
        addresses.usage(account(f"e{number}", limits))
    assert addresses.usage(account("b", limits)) is running
    assert len(addresses) == 3


def test_nobody_is_forgotten_whose_inferences_are_under_way(clock):
    limits = Limits(concurrent=2)
    addresses = Addresses(limits, clock, most=20)

    def at(address):
        return AddressedCaller(Anyone(), addresses, [account(str(address), limits)], Refusals())

    running = [at(number) for number in range(100) for _ in range(2)]
    for caller in running:
        caller.begin()
    assert len(addresses) == 100
    for number in range(100):
        with pytest.raises(TooManyRequests):
            at(number).begin()
        at(f"other {number}").received(1)
    assert len(addresses) < 120
    for caller in running:
        caller.end()
    for number in range(100):
        at(number).begin()
        at(number).end()
        assert addresses.usage(account(str(number), limits)).running == 0
    for number in range(100):
        at(f"later {number}").received(1)
    assert len(addresses) == 20


def test_where_none_is_at_rest_the_bound_holds_and_the_one_that_was_counted_for_longest_goes(clock):
    limits = Limits(requests=1)
    addresses = Addresses(limits, clock, most=20)
    for number in range(100):
        addresses.usage(account(str(number), limits)).take(0, clock, "")
    assert len(addresses) == 20
    addresses.usage(account("99", limits)).begin("99")
    with pytest.raises(TooManyRequests):
        addresses.usage(account("99", limits)).take(0, clock, "")


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.1, 1.0])), max_size=100))
def test_a_bound_that_is_never_reached_changes_nothing(steps):
    clock = Clock()
    limits = Limits(requests=2)
    addresses = Addresses(limits, clock, most=10)
    alone = {address: Usage(limits) for address in range(10)}
    for address, pause in steps:
        clock.now += pause
        caller = AddressedCaller(Anyone(), addresses, [account(str(address), limits)], Refusals())
        try:
            alone[address].take(0, clock, str(address))
            expected = None
        except TooManyRequests as error:
            expected = error.message, error.retry_after
        assert refusal(caller) == expected


# With an auth file

FILE = """
[[key]]
id = "k1"
digest = "{alice}"
name = "alice"
groups = ["builders"]
[[key]]
id = "k2"
digest = "{bob}"
name = "bob"
[[rule]]
for = ["*"]
allow = ["inference"]
models = ["m*"]
[[limit]]
for = ["*"]
per = "address"
requests_per_second = 2
[[limit]]
for = ["bob"]
requests_per_second = 3
concurrent = 1
[[limit]]
for = ["group:builders"]
per = "address"
concurrent = 1
"""
ALICE, BOB = b"Bearer k1.a", b"Bearer k2.b"


class Filed:
    def __init__(self, clock, flags=None):
        self.clock = clock
        addresses = None if flags is None else Addresses(flags, clock)
        self.gate = Gate(self.book(), now=clock, wall_clock=clock, addresses=addresses)

    def book(self, text=FILE):
        text = text.format(alice=digest_of("a"), bob=digest_of("b"))
        return Book(read_auth_file(text, "auth.toml"), Tokens({}, {}))

    def at(self, address, authorization=b""):
        return self.gate.identify(authorization, Peer(address))


def test_an_identity_has_a_bucket_at_each_address(clock):
    filed = Filed(clock)
    for address in (ONE, OTHER):
        for authorization in (ALICE, b""):
            caller = filed.at(address, authorization)
            assert [refusal(caller) for _ in range(2)] == [None, None]
            message, _ = refusal(filed.at(address, authorization))
            assert message.startswith(f"'{caller.name} at {address}' may make 2 requests a second")
    assert filed.gate.admitted() == {"alice": 4, "anonymous": 4}
    assert filed.gate.refusals == {("alice", "resource_exhausted"): 2, ("anonymous", "resource_exhausted"): 2}


def test_limits_of_an_identity_hold_over_its_addresses(clock):
    filed = Filed(clock)
    one, other = filed.at(ONE, BOB), filed.at(OTHER, BOB)
    assert [refusal(one), refusal(one), refusal(other)] == [None] * 3
    message, _ = refusal(other)
    assert message.startswith("'bob' may make 3 requests a second")
    clock.now = 1 / 3  # bob has one again; what was refused has cost his address nothing
    assert refusal(other) is None
    one.begin()
    with pytest.raises(TooManyRequests, match="'bob' may make 1 inferences"):
        other.begin()
    one.end()
    other.begin()


def test_limits_of_a_group_are_each_members_at_each_address(clock):
    filed = Filed(clock)
    one, other = filed.at(ONE, ALICE), filed.at(OTHER, ALICE)
    one.begin()
    with pytest.raises(TooManyRequests, match=rf"'alice at {ONE}' may make 1 inferences"):
        one.begin()
    other.begin()


def test_the_flags_count_an_address_for_all_identities(clock):
    filed = Filed(clock, Limits(requests=3))
    asked = [refusal(filed.at(ONE, each)) for each in (ALICE, BOB, b"")]
    assert asked == [None] * 3
    message, _ = refusal(filed.at(ONE, ALICE))
    assert message.startswith(f"'{ONE}' may make 3 requests a second")
    assert refusal(filed.at(OTHER, ALICE)) is None
    unix = filed.at("", ALICE)
    assert refusal(unix) is None


def test_what_a_rule_denies_costs_an_address_what_a_request_does(clock):
    filed = Filed(clock, Limits(requests=3))
    caller = filed.at(ONE, BOB)
    assert caller.may(Action.INFERENCE, "m")
    assert not caller.may(Action.TRACE, "m")
    assert not caller.may_all(Action.INFERENCE)
    for _ in range(2):
        with pytest.raises(PermissionDenied):
            caller.admit(Action.INFERENCE, "other", size=5)
    with pytest.raises(PermissionDenied):
        caller.require(Action.TRACE)
    with pytest.raises(TooManyRequests, match=f"'{ONE}' may make 3 requests a second"):
        caller.admit(Action.INFERENCE, "m")
    clock.now = 1.0
    assert refusal(caller) is None


def test_bad_credentials_cost_an_address_what_a_request_does(clock):
    filed = Filed(clock, Limits(requests=3))
    for _ in range(3):
        assert filed.at(ONE, BOB)  # good ones are counted when something is asked
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            filed.at(ONE, b"Bearer x.y")
    with pytest.raises(TooManyRequests, match=f"'{ONE}' may make 3 requests a second"):
        filed.at(ONE, b"Bearer x.y")
    with pytest.raises(Unauthenticated):
        filed.at(OTHER, b"Bearer x.y")
    filed.at(ONE, BOB).admit(Action.HEALTH)


def test_another_file_keeps_what_was_used_and_changes_what_may_be(clock):
    filed = Filed(clock)
    peer = Peer(ONE)
    assert [refusal(filed.gate.identify(ALICE, peer)) for _ in range(2)] == [None, None]
    filed.gate.adopt(filed.book())
    assert refusal(filed.gate.identify(ALICE, peer)) is not None
    filed.gate.adopt(filed.book(FILE.replace("requests_per_second = 2", "requests_per_second = 4")))
    assert [refusal(filed.gate.identify(ALICE, peer)) for _ in range(4)] == [None] * 4
    assert refusal(filed.gate.identify(ALICE, peer)) is not None
    filed.gate.adopt(filed.book(FILE.replace('per = "address"', 'per = "identity"')))
    assert refusal(filed.gate.identify(ALICE, peer)) is None


def test_without_limits_by_address_nothing_is_kept_of_any(clock):
    filed = Filed(clock)
    filed.gate.adopt(filed.book(FILE.replace('per = "address"', "")))
    assert not isinstance(filed.at(ONE, BOB), AddressedCaller)
    filed.gate.adopt(filed.book(FILE.replace('for = ["*"]\nper', 'for = ["alice"]\nper')))
    assert not isinstance(filed.at(ONE, BOB), AddressedCaller)  # others have some
    assert isinstance(filed.at(ONE, ALICE), AddressedCaller)
    assert len(filed.gate.addresses) == 0


def test_a_usage_is_given_back_as_it_was_taken(clock):
    for limits in (Limits(requests=1), Limits(bytes=10), Limits(requests=1, bytes=10), Limits()):
        usage = Usage(limits)
        for _ in range(3):
            usage.take(20, clock, "a")
            usage.give_back(20)
        assert usage.admitted == 0
        assert usage.at_rest(clock.now)


def test_names_of_refusals_are_bounded():
    refusals = Refusals()
    for number in range(MOST_COUNTS + 5):
        refusals(f"jwt:{number}", InvalidArgument("x"))
    assert refusals.counts["other", "invalid_arg"] == 5
    assert len(refusals.counts) == MOST_COUNTS + 1
