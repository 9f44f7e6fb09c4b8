"""Ed25519 (RFC 8032) by the library of the extra `tritium[auth]`, imported where it is first needed."""

from __future__ import annotations

from engine.settings.extras import how_to_install, is_missing


class LibraryMissing(Exception):
    """The library is not installed. The message says what installs it."""

    def __init__(self) -> None:
        super().__init__(f"signatures need the package 'cryptography': {how_to_install('auth')}")


def require_library() -> None:
    """Raise LibraryMissing if signatures can't be made or checked here; nothing is imported for it."""
    if is_missing("cryptography"):
        raise LibraryMissing


def is_valid(point: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` (64 bytes) is one of `message` by the key with the public `point` (32 bytes).

    Raises LibraryMissing.
    """
    require_library()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(point).verify(signature, message)
    except (InvalidSignature, ValueError):  # or the point is on no curve
        return False
    return True


def signed(seed: bytes, message: bytes) -> bytes:
    """Return a signature of `message` by the secret `seed` (32 bytes). Raises LibraryMissing."""
    require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)


def point_of(seed: bytes) -> bytes:
    """Return the public point of a secret `seed`. Raises LibraryMissing."""
    require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
