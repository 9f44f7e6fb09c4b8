"""What web pages may ask for: decisions on a request that a browser sent.

A page of another site can have a visitor's browser send requests to any address that the visitor reaches,
without the visitor's consent. A browser says so itself: in `Sec-Fetch-Site`, which no page can forge, and in
`Origin`. Other clients send neither, and nothing is asked of them.

A page cannot read the answer to a request to another site, unless that site lets it (CORS). But the owner of
a name can have it mean this server's address once the page is loaded (DNS rebinding). To the browser, page
and server are then one site. So the host that the browser asked for must be one that no page's owner can have
made up: an address, `localhost`, or a name that the operator trusts.

References: Fetch Metadata Request Headers (W3C), section 2.3; RFC 6454, section 7; Fetch Standard (WHATWG),
section 3.2; RFC 3986, section 3.2.2.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

Header = tuple[bytes, bytes]

FROM_PAGES: Final = frozenset((b"origin", b"sec-fetch-site"))
"""Header fields, in lower case, by which a browser says which page a request is of."""

ANY: Final = "*"

_OF_THIS_SITE: Final = frozenset({b"same-origin", b"none"})  # `none`: the visitor typed the address
_TYPED: Final = b"none"
_PORTS: Final = {b"http": 80, b"https": 443}
_SHOWN: Final = 100  # bytes of a client's text that a refusal repeats
_AUTHORITY: Final = re.compile(
    rb"(?:\[(?P<address>[0-9A-Fa-f:.]+)(?:%[A-Za-z0-9._~%-]+)?\]|(?P<name>[A-Za-z0-9._~-]+))"
    rb"(?::(?P<port>[0-9]{0,5}))?"
)


class Use(Enum):
    """What a request asks for, as far as it matters which page sent it."""

    HEALTH = "health"  # tells a page nothing
    READ = "read"  # a browser keeps the answer from pages of other sites
    INFERENCE = "inference"  # costs time, and models may do anything with it
    CHANGE = "change"


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPolicy:
    """Which hosts a browser may ask for, and pages of which other origins may have answers.

    `trusted_hosts` are names in lower case; `*.example` stands for all names below `example`. `origins` are
    as browsers send them. `*` in either stands for all.
    """

    trusted_hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def shares_with(self, origin: bytes | None) -> bool:
        """Whether a page of this origin may read answers."""
        return ANY in self.origins or (
            origin is not None and origin.decode("latin-1").lower() in self.origins
        )

    def complaint(self, use: Use, fields: Mapping[bytes, bytes]) -> str:
        """Return why a request is refused for the page that sent it; empty where it is not.

        `fields` are those of `page_fields`.
        """
        origin, site = fields.get(b"origin"), fields.get(b"sec-fetch-site")
        if use is Use.HEALTH or (origin is None and site is None):
            return ""
        foreign = foreign_origin(fields)
        if foreign is not None and use is Use.CHANGE:
            return f"a web page of another site sent this ({foreign}), and may not change what is served"
        shared = self.shares_with(origin)
        if foreign is not None and use is Use.INFERENCE and not shared:
            return (
                f"a web page of another site sent this ({foreign}), whose origin --cors-allowed-origins does"
                " not name"
            )
        if shared and use is not Use.CHANGE:
            return ""
        if origin is None and site is not None and site.strip().lower() == _TYPED:
            return ""
        return self._distrust(fields.get(b"host", b""))

    def _distrust(self, host: bytes) -> str:
        name = host_of(host)
        if name is not None and self._trusts(name):
            return ""
        shown = host[:_SHOWN].decode("latin-1")
        return (
            f"a browser asked for this at the host '{shown}', which is no address and not localhost; if that"
            " is a name of this server, --trusted-hosts must name it"
        )

    def _trusts(self, name: str) -> bool:
        trusted = self.trusted_hosts
        if is_local_or_address(name) or ANY in trusted or name in trusted:
            return True
        labels = name.split(".")
        return any(f"*.{'.'.join(labels[at:])}" in trusted for at in range(1, len(labels)))


def page_fields(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Return the fields of a head, names in lower case, that tell of pages and of the host asked for.

    A repeated field is one with all values, which then is none of those that are allowed.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in FROM_PAGES or name == b"host":
            found[name] = found[name] + b", " + value if name in found else value
    return found


def foreign_origin(fields: Mapping[bytes, bytes]) -> str | None:
    """Return which header, with its value, says that another site sends this; None where none does.

    `fields` are the request's headers, their names in lower case. `Sec-Fetch-Site` decides where it is there,
    because a proxy between may have changed the host that `Origin` is compared with.
    """
    relation = fields.get(b"sec-fetch-site")
    if relation is not None:
        return None if relation.strip().lower() in _OF_THIS_SITE else _shown(b"Sec-Fetch-Site", relation)
    origin = fields.get(b"origin")
    if origin is None or _is_this_server(origin, fields.get(b"host", b"")):
        return None
    return _shown(b"Origin", origin)


def _shown(name: bytes, value: bytes) -> str:
    return (name + b": " + value[:_SHOWN]).decode("latin-1")


def _is_this_server(origin: bytes, host: bytes) -> bool:
    scheme, _, authority = origin.lower().partition(b"://")
    default = _PORTS.get(scheme)  # pages of applications have other schemes, such as tauri://localhost
    page, server = _AUTHORITY.fullmatch(authority), _AUTHORITY.fullmatch(host.lower())
    if default is None or page is None or server is None:
        return False
    same = page["address"] == server["address"] and page["name"] == server["name"]
    return same and int(page["port"] or default) == int(server["port"] or default)


def host_of(authority: bytes) -> str | None:
    """Return the host in the value of a Host field, in lower case, without its port and the root's dot.

    None for what is no host with an optional port, such as one with a user's name in front.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return (found["address"] or found["name"]).decode().lower().removesuffix(".") or None


def is_local_or_address(host: str) -> bool:
    """Whether a host as `host_of` returns it is `localhost`, or an address as browsers write it."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
