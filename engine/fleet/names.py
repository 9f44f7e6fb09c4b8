"""Which names of hosts and of models a fleet's file, and a balancer's configuration, may have."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = r"[0-9A-Za-z]([0-9A-Za-z_-]{0,61}[0-9A-Za-z])?"
_HOST: Final = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(\.{_LABEL})*\.?")
_MOST_BYTES: Final = 255  # of a model's name, as of a folder's


def is_address(host: str) -> bool:
    """Whether `host` is an address of IPv4 or IPv6, rather than a name."""
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_host(host: str) -> bool:
    """Whether `host` is an address, or a name that can be looked up (RFC 1123, and underscores)."""
    return is_address(host) or bool(_HOST.fullmatch(host))


def is_model_name(name: str) -> bool:
    """Whether a model can have this name: its folder has it, and paths and headers carry it."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _MOST_BYTES and name not in {".", ".."} and "/" not in name and name.isprintable()
