"""Whether a Ray cluster's head can be reached, before Ray tries: Ray goes on for minutes at a closed port."""

from __future__ import annotations

import socket
from typing import Final

_TIMEOUT: Final = 5.0  # seconds
_CLIENT: Final = "ray://"


class HeadAway(Exception):
    """There is no cluster at an address; the message says why, and what would work."""


def head_of(address: str) -> str:
    """Return host:port of the head at `address`, which may be `auto`. Raises HeadAway, ImportError."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found: str | None = canonicalize_bootstrap_address(address)
    except ValueError as error:
        raise HeadAway(f"{address} is no address of a Ray cluster: give host:port of its head") from error
    if found is None:
        raise HeadAway("no Ray cluster runs on this machine: give host:port of its head")
    check_listens(found)
    return found


def check_listens(address: str) -> None:
    """Raise HeadAway if no process listens at host:port, or at ray://host:port."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not port.isdecimal():
        raise HeadAway(f"{address} has no port: give host:port of the head of a Ray cluster")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
    except OSError as error:
        raise HeadAway(f"no Ray cluster answers at {address}: {error.strerror or error}") from error
