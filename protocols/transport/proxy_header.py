"""The header of the PROXY protocol, by which a proxy introduces its client before the first byte. Pure.

Both versions are read: a line of text, and a binary block. What stands behind the addresses in the block
(TLVs) is passed over. Reference: haproxy's proxy-protocol.txt, sections 2.1 and 2.2.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

LONGEST_LINE: Final = 107
"""Bytes of a header of version 1, with its end (section 2.1)."""

LONGEST_BLOCK: Final = 16 * 1024
"""Bytes of a header of version 2 that is read. Certificates in TLVs take some KiB, and the length field
allows 64 KiB."""

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED: Final = len(SIGNATURE) + 4  # version and command, family and protocol, two bytes of length
_WORD: Final = b"PROXY "
_LINE: Final = re.compile(
    rb"PROXY (TCP4|TCP6) ([0-9A-Fa-f:.]{2,39}) ([0-9A-Fa-f:.]{2,39}) (\d{1,5}) (\d{1,5})\r\n"
)
_UNKNOWN: Final = re.compile(rb"PROXY UNKNOWN(?: [^\r\n]*)?\r\n")
_LOCAL: Final = 0
_PROXY: Final = 1
_UNSPECIFIED: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_UNIX: Final = 0x31
# Bytes of both addresses and ports, by family and protocol.
_ADDRESSES: Final = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}


class BadProxyHeader(Exception):
    """These bytes are no header, nor the beginning of one. The message says why."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A header of `size` bytes.

    `source` is the client's address and port. It is None where the proxy speaks for itself, as in a health
    check, or does not know, or has its client on a Unix socket.
    """

    size: int
    source: tuple[str, int] | None = None


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header with which `data` begins; None where more bytes of it are to come.

    Raises BadProxyHeader as soon as `data` can't be one.
    """
    if _WORD.startswith(data[: len(_WORD)]):
        return _read_line(data)
    if SIGNATURE.startswith(data[: len(SIGNATURE)]):
        return _read_block(data) if len(data) >= _FIXED else None
    raise BadProxyHeader(f"no header of the PROXY protocol, but {data[:16]!r}")


def _read_line(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:LONGEST_LINE].partition(b"\r\n")
    if not end:
        if len(data) >= LONGEST_LINE:
            raise BadProxyHeader(f"a line of the PROXY protocol has {LONGEST_LINE} bytes at most")
        return None
    line += end
    if _UNKNOWN.fullmatch(line):
        return ProxyHeader(len(line))
    found = _LINE.fullmatch(line)
    if found is None:
        raise BadProxyHeader(f"malformed line of the PROXY protocol: {line!r}")
    family = ipaddress.IPv4Address if found[1] == b"TCP4" else ipaddress.IPv6Address
    try:
        source, _ = (str(family(found[place].decode())) for place in (2, 3))
    except ValueError as error:
        raise BadProxyHeader(f"malformed address in a line of the PROXY protocol: {error}") from None
    ports = int(found[4]), int(found[5])
    if max(ports) > 0xFFFF:
        raise BadProxyHeader(f"malformed port in a line of the PROXY protocol: {max(ports)}")
    return ProxyHeader(len(line), (source, ports[0]))


def _read_block(data: bytes) -> ProxyHeader | None:
    version, command = divmod(data[12], 16)
    family = data[13]
    length = int.from_bytes(data[14:16], "big")
    size = _FIXED + length
    if version != 2 or command > _PROXY:
        raise BadProxyHeader(f"unknown version {version} or command {command} of the PROXY protocol")
    if size > LONGEST_BLOCK:
        raise BadProxyHeader(
            f"a header of the PROXY protocol of {size} bytes: {LONGEST_BLOCK} at most are read"
        )
    if command == _PROXY:
        if family not in _ADDRESSES:
            raise BadProxyHeader(f"unknown family and transport 0x{family:02x} in the PROXY protocol")
        if length < _ADDRESSES[family]:
            raise BadProxyHeader(f"{length} bytes are too few for the addresses of family 0x{family:02x}")
    if len(data) < size:
        return None
    return ProxyHeader(size, _source(data, family) if command == _PROXY else None)


def _source(data: bytes, family: int) -> tuple[str, int] | None:
    if family == _TCP4:
        return str(ipaddress.IPv4Address(data[16:20])), int.from_bytes(data[24:26], "big")
    if family == _TCP6:
        return str(ipaddress.IPv6Address(data[16:32])), int.from_bytes(data[48:50], "big")
    return None
