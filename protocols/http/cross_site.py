"""Whether a browser sends a request on behalf of a page of another site.

Such a page can have a visitor's browser send a POST to any address that the visitor reaches, without the
visitor's consent. A browser says so itself: in `Sec-Fetch-Site`, which no page can forge, and in `Origin`.
Other clients send neither.

References: Fetch Metadata Request Headers (W3C), section 2.3; RFC 6454, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_OF_THIS_SITE: Final = frozenset({b"same-origin", b"none"})  # `none`: the visitor typed the address
_PORTS: Final = {"http": 80, "https": 443}


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
    return (name + b": " + value[:100]).decode("latin-1")


def _is_this_server(origin: bytes, host: bytes) -> bool:
    try:
        page = urlsplit(origin.decode("latin-1"))
        server = urlsplit("//" + host.decode("latin-1"))
        default = _PORTS.get(page.scheme)
        ports = (page.port or default, server.port or default)
    except ValueError:  # such as a port that is no number
        return False
    return page.hostname is not None and page.hostname == server.hostname and ports[0] == ports[1]
