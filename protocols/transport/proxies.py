"""Which proxies are trusted, and whose request it is that one of them brings. Pure.

A trusted proxy tells the client's address in `Forwarded` (RFC 7239) or `X-Forwarded-For`. A client can send
these fields too, and most proxies put what they know behind it. So a list is read from its right end: each
entry was written by the party to its right, and counts as long as that party is trusted. The first address
that is no trusted proxy's is the client's.

Where an entry can't be read (`unknown`, a name that hides the address, garbage), the client is the proxy that
wrote it. Where a request has both fields and they don't lead to the same address, one of them may be the
client's own, passed on by a proxy that knows only the other. Then the client is the proxy itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocols.transport.room import Address, Network, address_of

MOST_HOPS: Final = 32
"""Entries of a list that are read, from its right end."""

LONGEST_FORWARDED: Final = 2048
"""Bytes of all fields of one name together that are read, from their right end: entries may be empty.

A `Forwarded` field is read as a whole or not at all, since commas may be quoted.
"""

_LONGEST_NODE: Final = 64
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
# RFC 7239, section 4. Addresses with colons need quotes there; many proxies leave them out. What was
# matched is never given back, so that no text takes longer than its length.
_PAIR: Final = re.compile(
    rf'[ \t]*+(?:({_TOKEN}++)=(?:"((?:[^"\\]|\\.)*+)"|((?:{_TOKEN}|[:\[\]])*+)))?[ \t]*+([;,]|\Z)',
    re.DOTALL,
)
_GARBAGE: Final[Sequence[dict[str, str]]] = ({},)  # one element that names nothing
_QUOTED_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}|_[A-Za-z0-9._\-]+")


@dataclass(frozen=True, slots=True)
class Node:
    """A client or proxy, as a proxy saw it. `port` is 0 where it is not told."""

    address: Address
    port: int = 0


class TrustedProxies:
    """The networks whose clients are believed when they say whose requests they bring."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        # By version and by how many bits of an address are its own: looking up takes no longer for many.
        self._known: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}
        for network in networks:
            own = network.max_prefixlen - network.prefixlen
            of_version = self._known[network.version]
            of_version.setdefault(own, set()).add(int(network.network_address) >> own)

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address):
            return False
        number = int(address)
        return any((number >> own) in known for own, known in self._known[address.version].items())

    def trusts(self, host: str) -> bool:
        """Whether the party at `host`, a numeric address, is trusted. What is no address never is."""
        address = address_of(host)
        return address is not None and address in self

    def client(self, forwarded: Sequence[bytes], x_forwarded_for: Sequence[bytes]) -> Node | None:
        """Return whose request it is that a trusted proxy brings; None where it is the proxy's own.

        The arguments are the values of the fields of these names, in the order in which they came.
        """
        told = self._first_stranger(_forwarded_nodes(forwarded)) if forwarded else None
        if not x_forwarded_for:
            return told
        other = self._first_stranger(_listed_nodes(x_forwarded_for))
        if not forwarded:
            return other
        agreed = told is not None and other is not None and told.address == other.address
        return told if agreed else None

    def _first_stranger(self, nodes: Iterator[Node | None]) -> Node | None:
        """Return the first of `nodes` that is not trusted, or the last one that could be read."""
        found: Node | None = None
        for node in islice(nodes, MOST_HOPS):
            if node is None:
                break
            found = node
            if node.address not in self:
                break
        return found


def _listed_nodes(fields: Sequence[bytes]) -> Iterator[Node | None]:
    """Yield what `X-Forwarded-For` lists, from the right; None for an entry that can't be read."""
    whole = b",".join(fields)
    entries = whole[-LONGEST_FORWARDED:].split(b",")
    if len(whole) > LONGEST_FORWARDED:
        del entries[0]  # it may be cut
    for entry in reversed(entries):
        text = entry.strip(b" \t")
        if text:  # empty entries of a list mean nothing (RFC 9110, section 5.6.1)
            yield node_of(text.decode("latin-1")) if len(text) <= _LONGEST_NODE else None


def _forwarded_nodes(fields: Sequence[bytes]) -> Iterator[Node | None]:
    """Yield the nodes that `Forwarded` names by `for`, from the right; None for one that can't be read."""
    left = LONGEST_FORWARDED
    for field in reversed(fields):
        if len(field) > left:
            return
        left -= len(field) + 1  # with the comma that it stands for
        elements = forwarded_elements(field.decode("latin-1"))
        for element in reversed(_GARBAGE if elements is None else elements):
            name = element.get("for")
            yield None if name is None else node_of(name)


def forwarded_elements(text: str) -> Sequence[dict[str, str]] | None:
    """Return what each element of a `Forwarded` field says, by parameter in lower case; None for garbage."""
    elements: list[dict[str, str]] = []
    element: dict[str, str] = {}
    at = 0
    while True:
        found = _PAIR.match(text, at)
        if found is None:
            return None
        name, quoted, token, end = found.groups()
        if name is not None:
            name = name.lower()
            if name in element:
                return None  # RFC 7239, section 4: each parameter once
            element[name] = token if quoted is None else _QUOTED_PAIR.sub(r"\1", quoted)
        if end != ";":
            if element:
                elements.append(element)
            element = {}
            if not end:
                return elements
        at = found.end()


def node_of(text: str) -> Node | None:
    """Return the node that `text` names, with or without a port; None where it names no address.

    An IPv6 address has brackets (RFC 7239, section 6). Without a port it may stand bare, as it does in
    `X-Forwarded-For`.
    """
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            return None
        port = rest[1:] if rest else "0"
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        port = "0"
    if len(host) > _LONGEST_NODE or "%" in host or not _PORT.fullmatch(port):
        return None
    number = 0 if port.startswith("_") else int(port)
    address = address_of(host)
    return None if address is None or number > 0xFFFF else Node(address, number)


def forwarding(fields: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the values of `Forwarded` and of `X-Forwarded-For` in a head whose names are in lower case."""
    forwarded: list[bytes] = []
    x_forwarded_for: list[bytes] = []
    for name, value in fields:
        if name == b"forwarded":
            forwarded.append(value)
        elif name == b"x-forwarded-for":
            x_forwarded_for.append(value)
    return tuple(forwarded), tuple(x_forwarded_for)
