"""API keys: how they are made, written and compared. Pure, but for the secrets of a new key.

A key is `<id>.<secret>`; a client sends it as `Authorization: Bearer <id>.<secret>` (RFC 6750, section 2.1).
The secret is 256 random bits in base64url. It can't be guessed, so no slow hash is needed: the auth file has
its BLAKE2b digest. A key is found by its id, and its secret compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final

from actors.values.errors import Unauthenticated

SECRET_BYTES: Final = 32
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""How the auth file has the digest of a secret: BLAKE2b with 32 bytes, in hexadecimal digits."""

ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The form of a key's id. It has no dot, which ends the id in a key."""

LONGEST_TOKEN: Final = 8 * 1024
"""Bytes of the longest credentials that are looked at."""

_PERSON: Final = b"tritium-key-1"


def new_secret() -> str:
    """Return the secret of a new key: 43 characters that are safe in headers, shells and TOML."""
    return base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def digest_of(secret: str) -> str:
    """Return what the auth file keeps of a secret."""
    return hashlib.blake2b(
        secret.encode("utf-8", "replace"), digest_size=SECRET_BYTES, person=_PERSON
    ).hexdigest()


NO_DIGEST: Final = digest_of("")
"""The digest that the secret of an unknown key is compared with, so that it takes as long as any other."""


def matches(secret: str, digest: str) -> bool:
    """Whether `secret` is the one that `digest` was made of. Takes the same time if it is not."""
    return hmac.compare_digest(digest_of(secret), digest)


def bearer(authorization: bytes) -> str:
    """Return the token of an `Authorization` field. Raises Unauthenticated for another scheme, or no token.

    The scheme is matched in any letter case (RFC 9110, section 11.1).
    """
    if len(authorization) > LONGEST_TOKEN:
        raise Unauthenticated(
            f"the Authorization has {len(authorization)} bytes, and may have {LONGEST_TOKEN} at most",
            invalid=True,
        )
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "the Authorization is not understood: send 'Authorization: Bearer <key>', an API key or a JWT",
            invalid=True,
        )
    return token
