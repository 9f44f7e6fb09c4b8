"""The names of a client that showed a certificate: one way to write each, for rules and logs. Pure.

A certificate gives the names that it was signed for. First its subject, where it has one, then its subject
alternative names, in their order:

    CN=alice,OU=Search,O=Example     the subject, as RFC 4514 writes it: the most specific part first
    DNS:client.example               a name in the domain name system
    URI:spiffe://example/alice       a URI, such as a SPIFFE ID
    EMAIL:alice@example.com          a mail address
    IP:192.0.2.7                     an address

A subject has `=` before any `:`, so that no subject can be taken for another kind of name. Alternative names
of other kinds are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

# RFC 4514, section 3; attributes of other types keep the name that OpenSSL gives them.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_KINDS: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL", "IP Address": "IP"}
_SPECIAL: Final = frozenset('"+,;<>\\')

Attribute = tuple[str, str]
Subject = Iterable[Iterable[Attribute]]
"""Parts of a subject as `ssl.SSLSocket.getpeercert` gives them: the least specific one first."""


def client_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate, as `getpeercert` gives it; none if there is none."""
    return tuple(_names(certificate)) if certificate else ()


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    if subject := rfc4514(certificate.get("subject", ())):
        yield subject
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in _KINDS:
            yield f"{_KINDS[kind]}:{name}"


def rfc4514(subject: Subject) -> str:
    """Return a subject as RFC 4514 writes it."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(list(subject)))


def _attribute(attribute: Attribute) -> str:
    kind, value = attribute
    return f"{_SHORT.get(kind, kind)}={_escaped(value)}"


def _escaped(value: str) -> str:
    """Escape what would be read as something else (RFC 4514, section 2.4), and what can't be printed."""
    last = len(value) - 1
    return "".join(
        f"\\{each}"
        if each in _SPECIAL or (each == " " and at in (0, last)) or (each == "#" and at == 0)
        else each
        if each.isprintable()
        else "".join(f"\\{byte:02X}" for byte in each.encode("utf-8", "surrogatepass"))
        for at, each in enumerate(value)
    )
