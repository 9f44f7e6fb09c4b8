"""Whose request a trusted proxy brings, by what it and its client wrote into two fields."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import Peer
from protocols.transport.clients import Clients
from protocols.transport.proxies import (
    LONGEST_FORWARDED,
    MOST_HOPS,
    Node,
    TrustedProxies,
    forwarded_elements,
    forwarding,
    node_of,
)

TRUSTED = TrustedProxies(map(ipaddress.ip_network, ("10.0.0.0/8", "192.0.2.7/32", "2001:db8:9::/48")))
SPOOFED, CLIENT, PROXY = "198.51.100.66", "203.0.113.5", "10.0.0.2"


def told(forwarded=(), x=()):
    node = TRUSTED.client([line.encode() for line in forwarded], [line.encode() for line in x])
    return None if node is None else str(node.address)


def test_networks_of_all_sizes_are_known():
    inside = ("10.9.9.9", "192.0.2.7", "2001:db8:9:ffff::1", "::ffff:10.0.0.1")
    outside = ("11.0.0.1", "192.0.2.8", "2001:db8:8::1", "", "/run/socket", "10.0.0", "::")
    assert [TRUSTED.trusts(host) for host in inside] == [True] * len(inside)
    assert [TRUSTED.trusts(host) for host in outside] == [False] * len(outside)
    assert "10.9.9.9" not in TRUSTED  # a text is no address
    everything = TrustedProxies([ipaddress.ip_network("0.0.0.0/0")])
    assert everything.trusts(CLIENT)
    assert not everything.trusts("::1")


@pytest.mark.parametrize(
    ("fields", "client"),
    [
        ([CLIENT], CLIENT),
        ([f"{SPOOFED}, {CLIENT}"], CLIENT),
        ([f"{SPOOFED}, {CLIENT}, {PROXY}"], CLIENT),
        ([f"{SPOOFED},{CLIENT}\t, {PROXY} ,10.1.1.1"], CLIENT),
        ([SPOOFED, CLIENT], CLIENT),  # fields are one list, in their order
        ([SPOOFED, f"{CLIENT}, {PROXY}"], CLIENT),
        ([f"{PROXY}, 10.0.0.3"], PROXY),  # inside the trusted networks, the first one is the client
        ([f"{CLIENT}:4711"], CLIENT),
        (["2001:db8::5"], "2001:db8::5"),
        (["[2001:db8::5]"], "2001:db8::5"),
        (["[2001:db8::5]:4711"], "2001:db8::5"),
        (["::ffff:203.0.113.5"], CLIENT),
        ([f"{CLIENT},, "], CLIENT),  # empty entries mean nothing
        # What can't be read is not passed over: the proxy that wrote it is the client.
        ([f"{CLIENT}, unknown"], None),
        ([f"{CLIENT}, unknown, {PROXY}"], PROXY),
        ([f"{CLIENT}, _hidden, {PROXY}"], PROXY),
        (["localhost"], None),
        ([f"{CLIENT} {CLIENT}"], None),
        ([f"{CLIENT}:http"], None),
        ([f"{CLIENT}:65536"], None),
        (["fe80::1%eth0"], None),
        (["[203.0.113.5]"], None),
        (["[2001:db8::5"], None),
        (["[2001:db8::5]4711"], None),
        (["x" * 100_000], None),
        ([""], None),
        ([", ,"], None),
    ],
)
def test_who_is_told_by_x_forwarded_for(fields, client):
    assert told(x=fields) == client


@pytest.mark.parametrize(
    ("fields", "client"),
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For={CLIENT};proto=https;by={PROXY};host=example.org"], CLIENT),
        ([f"for={SPOOFED}, for={CLIENT};proto=http , for={PROXY}"], CLIENT),
        ([f"for={SPOOFED}", f"for={CLIENT}", f"for={PROXY}"], CLIENT),
        ([f'for="{CLIENT}:4711"'], CLIENT),
        ([f"for={CLIENT}:4711"], CLIENT),  # without the quotes that it should have
        (['for="[2001:db8::5]:4711"'], "2001:db8::5"),
        (["for=[2001:db8::5]"], "2001:db8::5"),
        ([f'for="{CLIENT}:_port"'], CLIENT),
        ([r'for="\2\03.0.113.5"'], CLIENT),
        ([f"for={CLIENT},,;, "], CLIENT),
        ([f'for={CLIENT};by="a,b;for={SPOOFED}"'], CLIENT),
        ([f"for=unknown, for={PROXY}"], PROXY),
        (["for=_hidden"], None),
        ([f"for={CLIENT}, proto=https"], None),  # the last hop does not say for which client
        ([f"for={CLIENT}, for={PROXY}, by={PROXY}"], None),
        ([f"for={CLIENT};for={SPOOFED}"], None),  # each parameter once
        ([f"for = {CLIENT}"], None),
        ([f'for="{CLIENT}'], None),
        ([f"for={CLIENT} proto=http"], None),
        (["for="], None),
        ([CLIENT], None),
        ([f"for={CLIENT};pad={'x' * LONGEST_FORWARDED}"], None),
        # An earlier field that is garbage costs the later ones nothing.
        (['for="', f"for={CLIENT}"], CLIENT),
        (['for="', f"for={PROXY}"], PROXY),
        ([""], None),
    ],
)
def test_who_is_told_by_forwarded(fields, client):
    assert told(fields) == client


@pytest.mark.parametrize("own", [f'for={SPOOFED};by="', 'for="', 'by="\\', f"for={SPOOFED};by=", "for=x;"])
@pytest.mark.parametrize("appended", [f"for={CLIENT}", f'for="{CLIENT}";proto=http', 'for="[2001:db8::5]"'])
def test_no_beginning_that_a_client_chose_hides_what_its_proxy_appended(own, appended):
    assert told([f"{own}, {appended}"]) in {told([appended]), None}


def test_two_fields_count_where_they_agree():
    assert told([f"for={CLIENT}"], [CLIENT]) == CLIENT
    assert told([f'for="{CLIENT}:1"'], [f"{SPOOFED}, {CLIENT}:2, {PROXY}"]) == CLIENT
    # One of them may be the client's own, passed on by a proxy that writes the other.
    assert told([f"for={SPOOFED}"], [CLIENT]) is None
    assert told([f"for={CLIENT}"], ["unknown"]) is None
    assert told(["for=unknown"], [CLIENT]) is None
    assert told() is None


def test_no_more_than_so_many_hops_are_followed():
    hops = ", ".join([SPOOFED, *(f"10.0.0.{number}" for number in range(MOST_HOPS))])
    assert told(x=[hops]) == "10.0.0.0"
    assert told([", ".join(f"for={hop}" for hop in hops.split(", "))]) == "10.0.0.0"


@pytest.mark.parametrize("way", [{"x": [CLIENT]}, {"forwarded": [f"for={CLIENT}"]}], ids=["x", "forwarded"])
def test_no_more_than_so_many_bytes_are_read_of_all_fields_together(way):
    """Lists of empty entries have no hops to count."""
    ((name, fields),) = way.items()
    assert told(**{name: [*fields, *(["," * 100] * 15)]}) == CLIENT
    assert told(**{name: [*fields, *(["," * 100] * 30)]}) is None
    assert told(**{name: [*fields, *([""] * LONGEST_FORWARDED)]}) is None
    assert told(**{name: ["," * LONGEST_FORWARDED, *fields]}) == CLIENT
    # A hop that was read before the end counts.
    near = [field.replace(CLIENT, PROXY) for field in fields]
    assert told(**{name: [*fields, "," * LONGEST_FORWARDED, *near]}) == PROXY


@pytest.mark.parametrize("cut", range(len(CLIENT) + 1))
def test_no_part_of_an_address_that_is_cut_is_taken_for_one(cut):
    rest = "," * (LONGEST_FORWARDED - len(PROXY) - cut) + PROXY
    assert told(x=[f"{CLIENT}{rest}"]) == (CLIENT if cut == len(CLIENT) else PROXY)


@given(st.ip_addresses(), st.integers(0, 65535), st.booleans())
def test_a_node_is_what_was_written(address, port, with_port):
    mapped = getattr(address, "ipv4_mapped", None)
    host = f"[{address}]" if address.version == 6 else str(address)
    node = node_of(f"{host}:{port}" if with_port else host)
    assert node == Node(mapped or address, port if with_port else 0) or "%" in host


token = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.~!", min_size=1)


@given(st.lists(st.dictionaries(token, st.text(st.characters(codec="latin-1"))), min_size=1))
def test_elements_are_what_was_written(elements):
    def quoted(value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ", ".join(";".join(f"{name}={quoted(value)}" for name, value in each.items()) for each in elements)
    assert forwarded_elements(text) == [each for each in elements if each]


values = st.lists(st.one_of(st.binary(), st.text('for=";,\\ 10.:[]').map(str.encode)), max_size=4)


@given(values, values)
def test_nothing_that_a_client_can_send_is_more_than_a_node_or_none(forwarded, x):
    assert isinstance(TRUSTED.client(forwarded, x), Node | None)


@given(values, st.booleans())
def test_what_a_client_sends_never_changes_what_its_proxy_says(spoofed, forwarded):
    if forwarded:
        assert TRUSTED.client([*spoofed, f"for={CLIENT}".encode()], []) == Node(ipaddress.ip_address(CLIENT))
    else:
        assert TRUSTED.client([], [*spoofed, CLIENT.encode()]) == Node(ipaddress.ip_address(CLIENT))


# The clients of one connection

FIELDS = [(b"host", b"h"), (b"x-forwarded-for", CLIENT.encode())]


def test_a_peer_that_is_not_trusted_speaks_for_itself():
    for address in ("203.0.113.9", ""):
        peer = Peer(address)
        clients = Clients(peer, TRUSTED)
        assert clients.of(FIELDS) is peer
        assert clients.of([(b"forwarded", b"for=10.0.0.1")]) is peer


def test_a_trusted_proxy_brings_many_clients_and_each_is_remembered():
    proxy = Peer(PROXY, ("CN=proxy",), port=1)
    clients = Clients(proxy, TRUSTED)
    assert clients.of([(b"host", b"h")]) is proxy
    assert clients.of([(b"x-forwarded-for", b"unknown")]) is proxy
    client = clients.of(FIELDS)
    assert (client.address, client.port, client.names) == (CLIENT, 0, ("CN=proxy",))
    assert client.text == f"ipv4:{CLIENT}:0"
    assert clients.of(FIELDS) is client
    other = clients.of([(b"forwarded", b'for="[2001:db8::5]:4711"')])
    assert (other.address, other.text) == ("2001:db8::5", "ipv6:[2001:db8::5]:4711")
    for number in range(200):  # as many as are remembered, and more
        clients.of([(b"x-forwarded-for", b"203.0.113.%d" % number)])
    assert clients.of(FIELDS) is not client
    assert clients.of(FIELDS).address == CLIENT


def test_an_address_that_was_told_of_the_connection_is_asked_about():
    peer = Peer("203.0.113.9")
    clients = Clients(peer, TRUSTED)
    peer.stand_at(PROXY, 1)
    assert clients.of(FIELDS).address == CLIENT


def test_fields_are_found_by_their_whole_names():
    fields = [(b"forwarded", b"a"), (b"x-forwarded-for", b"b"), (b"x-forwarded", b"c"), (b"forwarded", b"d")]
    assert forwarding(fields) == ((b"a", b"d"), (b"b",))


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("ipv4:192.0.2.1:80", "192.0.2.1", 80),
        ("ipv6:[2001:db8::5]:80", "2001:db8::5", 80),
        ("unix:", "", 0),
        ("", "", 0),
    ],
)
def test_a_peer_knows_the_parts_of_its_address(text, address, port):
    peer = Peer.at(text)
    assert (peer.address, peer.port, peer.text) == (address, port, text)
    assert not address or Peer(address, port=port).text == text
