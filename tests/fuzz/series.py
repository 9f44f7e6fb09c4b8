"""Several byte strings as one: an input that is a conversation rather than a message."""

from collections.abc import Iterable


def series(parts: Iterable[tuple[int, bytes]]) -> bytes:
    """Return parts, each behind a byte of the target's own and two bytes of length."""
    return b"".join(bytes((tag,)) + len(part).to_bytes(2, "big") + part for tag, part in parts)


def parts_of(octets: bytes) -> list[tuple[int, bytes]]:
    """Cut an input into parts; what is cut short is a shorter part."""
    found = []
    at = 0
    while at + 3 <= len(octets):
        end = at + 3 + int.from_bytes(octets[at + 1 : at + 3], "big")
        found.append((octets[at], octets[at + 3 : end]))
        at = end
    return found
