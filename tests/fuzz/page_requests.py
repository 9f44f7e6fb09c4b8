"""Requests that pages send: the verdict on Host, Origin and Sec-Fetch-Site, against a reading of its own.

An input is four lines: trusted hosts, origins that may read answers, what is asked for, and the fields.
"""

import ipaddress
import re
from random import Random

from protocols.http.origins import OriginPolicy, Use, page_fields
from tests.fuzz.mutation import damaged

_HOSTS = (
    b"localhost",
    b"LOCALHOST:8000",
    b"127.0.0.1:8000",
    b"[::1]:8000",
    b"[::ffff:127.0.0.1]",
    b"server.example",
    b"a.server.example",
    b"evil.example",
    b"server.example.evil.example",
    b"evilserver.example",
    b"server.example.",
    b"127.0.0.1.evil.example",
    b"localhost.evil.example",
    b"",
    b"user@localhost",
    b"localhost:8000:1",
    b"0x7f.1",
    b"2130706433",
    b"[::1",
    b"127.1",
    b"localhost\xff",
    b"a b",
    b"*.server.example",
)
_SITES = (b"same-origin", b"same-site", b"cross-site", b"none", b"NONE", b" none ", b"", b"none, none", b"x")
_SCHEMES = (b"http://", b"https://", b"HTTP://", b"null", b"file://", b"tauri://", b"")


class PageRequests:
    """Asks the policy about requests."""

    name = "pages"
    prefix = "pages"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """A policy and the fields of one request."""
        trusted = chance.choice(
            (b"", b"server.example", b"*.server.example", b"server.example *.server.example", b"*")
        )
        origins = chance.choice((b"", b"", b"https://page.example", b"*", b"null"))
        fields = []
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.5:
                origin = chance.choice(_SCHEMES) + chance.choice((*_HOSTS, b"page.example"))
                fields.append(b"origin:" + origin)
            else:
                fields.append(b"sec-fetch-site:" + chance.choice(_SITES))
        fields += [b"host:" + chance.choice(_HOSTS) for _ in range(chance.choice((0, 1, 1, 1, 2)))]
        use = chance.choice([each.value for each in Use]).encode()
        octets = b"\n".join((trusted, origins, use, *fields))
        return octets if chance.random() < 0.7 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare the verdict."""
        trusted, origins, asked, *lines = (*octets.split(b"\n"), b"", b"", b"")
        use = next((each for each in Use if each.value.encode() == asked), Use.CHANGE)
        fields = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in lines)]
        policy = OriginPolicy(
            trusted_hosts=frozenset(trusted.decode("latin-1").split()),
            origins=frozenset(origins.decode("latin-1").split()),
        )
        said = policy.complaint(use, page_fields(fields))
        assert bool(said) == _refused(policy, use, fields), said or "let in"
        return f"{use.value} is {'refused' if said else 'let in'}"


def _refused(policy: OriginPolicy, use: Use, fields: list[tuple[bytes, bytes]]) -> bool:
    origins = [value for name, value in fields if name == b"origin"]
    sites = [value for name, value in fields if name == b"sec-fetch-site"]
    hosts = [value for name, value in fields if name == b"host"]
    if use is Use.HEALTH or not (origins or sites):
        return False
    origin = b", ".join(origins).decode("latin-1") if origins else None
    host = b", ".join(hosts)
    shared = "*" in policy.origins or (origin is not None and origin.lower() in policy.origins)
    site = b", ".join(sites).strip().lower()
    own = site in (b"same-origin", b"none") if sites else _same(origin or "", host)
    if not own and (use is Use.CHANGE or (use is Use.INFERENCE and not shared)):
        return True
    if shared and use is not Use.CHANGE:
        return False
    if not origins and site == b"none":
        return False
    return not _trusted(policy, host)


def _trusted(policy: OriginPolicy, host: bytes) -> bool:
    """Whether a Host names what no page's owner can have made up, or what the operator named."""
    text = host.decode("latin-1").lower()
    address = re.fullmatch(r"\[([0-9a-f:.]+)(?:%[a-z0-9._~%-]+)?\](?::\d{0,5})?", text, re.ASCII)
    plain = re.fullmatch(r"([a-z0-9._~-]+?)\.?(?::\d{0,5})?", text, re.ASCII)
    found = address or plain
    if found is None or not found[1] or (plain is not None and text.split(":")[0] == "."):
        return False
    name = found[1]
    if name == "localhost" or "*" in policy.trusted_hosts or name in policy.trusted_hosts:
        return True
    if any(each.startswith("*.") and name.endswith(each[1:]) for each in policy.trusted_hosts):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(origin: str, host: bytes) -> bool:
    """Whether an Origin is the server that was asked, by RFC 6454, section 4, and default ports."""
    page = re.match(r"(?i)(https?)://(.*)", origin, re.DOTALL)
    if page is None:
        return False
    default = {"http": 80, "https": 443}[page[1].lower()]
    ours, theirs = _split(page[2], default), _split(host.decode("latin-1"), default)
    return ours is not None and ours == theirs


def _split(authority: str, default: int) -> tuple[str, int] | None:
    found = re.fullmatch(
        r"(\[[0-9a-f:.]+(?:%[a-z0-9._~%-]+)?\]|[a-z0-9._~-]+)(?::(\d{0,5}))?",
        authority,
        re.IGNORECASE | re.ASCII,
    )
    if found is None:
        return None
    return found[1].lower().split("%")[0].strip("[]"), int(found[2] or default)
