"""Ed25519 keys and signatures as minisign writes them, so that its users and its tools need nothing of ours.

A public key is one line of base64, a signature four lines of text::

    untrusted comment: <anything>
    base64(algorithm[2] || key id[8] || signature[64])
    trusted comment: <what the second signature vouches for>
    base64(second signature[64])

The first signature is of the BLAKE2b-512 digest of the signed bytes (algorithm `ED`), the second one of the
first signature and the trusted comment. minisign's older form, `Ed`, signs the bytes themselves. It is
refused: `minisign` has not written it by default since version 0.10.

Reference: "Signature format" and "Public key format" of minisign's documentation. Nothing here reads a file,
and no library is imported: `engine.provenance.ed25519` does the mathematics.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from typing import Final

PREHASHED: Final = b"ED"
LEGACY: Final = b"Ed"
MOST_COMMENT: Final = 8192  # bytes, as in minisign
_UNTRUSTED: Final = "untrusted comment: "
_TRUSTED: Final = "trusted comment: "
_CHECKSUM: Final = b"B2"
_NO_PASSWORD: Final = b"\0\0"
_KEY_ID: Final = 8  # bytes
_SIGNATURE: Final = 64
_POINT: Final = 32
_SECRET: Final = 158


class Malformed(Exception):
    """Some text is not what minisign would have written. The message completes `<what> `: `is no …`."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What a signature is checked with. `point` is Ed25519's public key, 32 bytes."""

    key_id: bytes
    point: bytes

    @classmethod
    def read(cls, text: str) -> PublicKey:
        """Return the key in one line of base64. Raises Malformed."""
        data = _decoded(text, 2 + _KEY_ID + _POINT, "is no public key")
        if data[:2] != LEGACY:
            raise Malformed("is no Ed25519 public key")
        return cls(data[2 : 2 + _KEY_ID], data[2 + _KEY_ID :])

    @property
    def text(self) -> str:
        """The line of base64, which `minisign -P` takes."""
        return _encoded(LEGACY + self.key_id + self.point)

    @property
    def name(self) -> str:
        """The key id as people are told of it; see `shown`."""
        return shown(self.key_id)


@dataclass(frozen=True, slots=True)
class SecretKey:
    """What signs. `seed` is Ed25519's secret, 32 bytes."""

    key_id: bytes
    seed: bytes = field(repr=False)
    point: bytes

    @classmethod
    def read(cls, text: str) -> SecretKey:
        """Return the key in a secret key file. Raises Malformed, without a word of what the text holds."""
        lines = text.splitlines()
        if len(lines) != 2 or not lines[0].startswith(_UNTRUSTED):
            raise Malformed("is no secret key file")
        data = _decoded(lines[1], _SECRET, "is no secret key file")
        if data[:2] != LEGACY or data[4:6] != _CHECKSUM:
            raise Malformed("is no secret key file")
        if data[2:4] != _NO_PASSWORD:
            raise Malformed("is protected by a password, which only minisign asks for")
        inner = data[54:]
        key_id, seed, point, checksum = inner[:8], inner[8:40], inner[40:72], inner[72:]
        if _checksum(key_id, seed, point) != checksum:
            raise Malformed("is damaged: its checksum does not match")
        return cls(key_id, seed, point)

    @property
    def public(self) -> PublicKey:
        """The key that others check by."""
        return PublicKey(self.key_id, self.point)

    def file(self, comment: str) -> str:
        """Return the text of a secret key file without a password, which minisign reads too."""
        inner = self.key_id + self.seed + self.point + _checksum(self.key_id, self.seed, self.point)
        # A password would need a salt, and two figures of how dear guessing it is.
        data = LEGACY + _NO_PASSWORD + _CHECKSUM + bytes(32 + 8 + 8) + inner
        return f"{_UNTRUSTED}{comment}\n{_encoded(data)}\n"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of some bytes, and one of itself with a comment."""

    key_id: bytes
    signature: bytes
    comment: str
    seal: bytes

    @classmethod
    def read(cls, text: str) -> Signature:
        """Return the signature in a file. Raises Malformed."""
        lines = text.removesuffix("\n").split("\n")
        if len(lines) != 4 or not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
            raise Malformed("is no signature file: it has four lines, of which a trusted comment is one")
        data = _decoded(lines[1], 2 + _KEY_ID + _SIGNATURE, "has no signature in its second line")
        if data[:2] == LEGACY:
            raise Malformed("is in minisign's older form: sign without -l, with minisign 0.10 or newer")
        if data[:2] != PREHASHED:
            raise Malformed("is of an unknown algorithm")
        comment = lines[2].removeprefix(_TRUSTED)
        if len(comment.encode("utf-8", "surrogateescape")) > MOST_COMMENT:
            raise Malformed(f"has a trusted comment of more than {MOST_COMMENT} bytes")
        seal = _decoded(lines[3], _SIGNATURE, "has no signature in its fourth line")
        return cls(data[2 : 2 + _KEY_ID], data[2 + _KEY_ID :], comment, seal)

    def file(self, comment: str) -> str:
        """Return the text of a signature file; `comment` is the untrusted one."""
        first = _encoded(PREHASHED + self.key_id + self.signature)
        return f"{_UNTRUSTED}{comment}\n{first}\n{_TRUSTED}{self.comment}\n{_encoded(self.seal)}\n"

    @property
    def sealed(self) -> bytes:
        """What the second signature is of."""
        return sealed(self.signature, self.comment)


def digest(signed: bytes) -> bytes:
    """Return what the first signature is of."""
    return hashlib.blake2b(signed).digest()


def sealed(signature: bytes, comment: str) -> bytes:
    """Return what the second signature is of, by the first one and the trusted comment."""
    return signature + comment.encode("utf-8", "surrogateescape")


def shown(key_id: bytes) -> str:
    """Return a key id as minisign shows it: 16 hexadecimal digits, the last byte first."""
    return key_id[::-1].hex().upper()


def _checksum(key_id: bytes, seed: bytes, point: bytes) -> bytes:
    return hashlib.blake2b(LEGACY + key_id + seed + point, digest_size=32).digest()


def _decoded(text: str, size: int, complaint: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Malformed(complaint) from None
    # One value has one spelling: base64 of other lengths has bits to spare at its end.
    if len(data) != size or _encoded(data) != text:
        raise Malformed(complaint)
    return data


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
