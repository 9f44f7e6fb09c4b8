"""Headers of the PROXY protocol, both versions: what they say, byte by byte and broken."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.transport.proxy_header import (
    LONGEST_BLOCK,
    LONGEST_LINE,
    SIGNATURE,
    BadProxyHeader,
    ProxyHeader,
    read_proxy_header,
)

PORTS = st.integers(0, 65535)
V4 = st.ip_addresses(v=4)
V6 = st.ip_addresses(v=6)
SAME_FAMILY = st.one_of(st.tuples(V4, V4), st.tuples(V6, V6))


def line(source, target, source_port=1, target_port=2):
    return f"PROXY TCP{source.version} {source} {target} {source_port} {target_port}\r\n".encode()


def block(family, addresses, *, command=0x21, tlvs=b""):
    body = addresses + tlvs
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


def addressed(source, target, source_port=1, target_port=2, **rest):
    ports = source_port.to_bytes(2, "big") + target_port.to_bytes(2, "big")
    return block(0x11 if source.version == 4 else 0x21, source.packed + target.packed + ports, **rest)


def first_of(data):
    """The header, and how many bytes it took to know it."""
    for size in range(len(data) + 1):
        header = read_proxy_header(data[:size])
        if header is not None:
            return header, size
    return None, len(data)


@given(SAME_FAMILY, PORTS, PORTS, st.binary(max_size=20))
def test_a_line_says_whose_connection_it_is(addresses, source_port, target_port, rest):
    source, target = addresses
    text = line(source, target, source_port, target_port)
    header, size = first_of(text + rest)
    assert header == ProxyHeader(len(text), (str(source), source_port))
    assert size == len(text)


@given(SAME_FAMILY, PORTS, PORTS, st.binary(max_size=300), st.binary(max_size=20))
def test_a_block_says_whose_connection_it_is(addresses, source_port, target_port, tlvs, rest):
    source, target = addresses
    data = addressed(source, target, source_port, target_port, tlvs=tlvs)
    header, size = first_of(data + rest)
    assert header == ProxyHeader(len(data), (str(source), source_port))
    assert size == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
        b"PROXY UNKNOWN anything at all\r\n",
        block(0x00, b"", command=0x20),  # LOCAL: a health check of the proxy
        block(0x11, b"1234567890ab", command=0x20),
        block(0x99, b"", command=0x20),
        block(0x00, b"", tlvs=b"xyz"),
        block(0x31, bytes(216)),
    ],
)
def test_a_proxy_may_speak_for_itself(data):
    assert first_of(data + b"GET /") == (ProxyHeader(len(data)), len(data))


ADDRESSES = (ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("192.0.2.2"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "no header of the PROXY protocol, but b'G'"),
        (b"PROXIES", "no header"),
        (b"proxy TCP4 ", "no header"),
        (b"\x16\x03\x01", "no header"),
        (b"\r\n\r\nX", "no header"),
        (b"PROXY \r\n", "malformed line"),
        (b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n", "malformed line"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 \r\n", "malformed line"),
        (b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n", "malformed line"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n", "malformed line"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n", "malformed line"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n\r\n", "malformed line"),
        (b"PROXY UNKNOWNS\r\n", "malformed line"),
        (b"PROXY TCP4 ::1 ::1 1 1\r\n", "malformed address"),
        (b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n", "malformed address"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.256 1 1\r\n", "malformed address"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.1 1 65536\r\n", "malformed port"),
        (b"PROXY UNKNOWN " + b"x" * LONGEST_LINE, "has 107 bytes at most"),
        (b"PROXY UNKNOWN " + b"x" * LONGEST_LINE + b"\r\n", "has 107 bytes at most"),
        (addressed(*ADDRESSES, command=0x11), "unknown version 1 or command 1"),
        (addressed(*ADDRESSES, command=0x22), "unknown version 2 or command 2"),
        (block(0x12, bytes(12)), "unknown family and transport 0x12"),
        (block(0x41, bytes(12)), "unknown family and transport 0x41"),
        (block(0x11, bytes(11)), "11 bytes are too few"),
        (block(0x21, bytes(35)), "35 bytes are too few"),
        (block(0x11, bytes(LONGEST_BLOCK)), "of 16400 bytes: 16384 at most"),
        (block(0x11, b"")[:14] + b"\xff\xff", "of 65551 bytes"),
    ],
)
def test_what_is_no_header_is_told_at_once(data, said):
    with pytest.raises(BadProxyHeader, match=said):
        first_of(data)


def test_the_longest_line_is_a_line():
    longest = b"PROXY UNKNOWN " + b"x" * (LONGEST_LINE - 16) + b"\r\n"
    assert len(longest) == LONGEST_LINE
    assert first_of(longest) == (ProxyHeader(LONGEST_LINE), LONGEST_LINE)
    full = ipaddress.ip_address("ffff:" * 7 + "ffff")
    assert len(line(full, full, 65535, 65535)) <= LONGEST_LINE


@given(
    st.one_of(st.binary(), st.binary().map(lambda rest: SIGNATURE + rest), st.binary().map(b"PROXY ".__add__))
)
def test_any_bytes_are_a_header_or_its_beginning_or_none(data):
    try:
        header = read_proxy_header(data)
    except BadProxyHeader as bad:
        assert str(bad)  # noqa: PT017  # any other exception fails the test
        return
    assert header is None or header.size <= len(data)
    if header is None:
        assert len(data) < LONGEST_BLOCK
