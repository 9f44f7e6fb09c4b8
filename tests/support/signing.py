"""Models on disk, and keys that sign them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from engine.provenance import ed25519
from engine.provenance.keys import TrustedFiles
from engine.provenance.manifest import APART, MANIFEST, SIGNATURE, write_manifest
from engine.provenance.minisign import SecretKey, Signature, digest, sealed
from engine.provenance.trust import sign

NOW = 1_750_000_000


def new_key(name: str = "first") -> SecretKey:
    """Return a key that signs, the same one for the same name."""
    seed = hashlib.sha256(name.encode()).digest()
    return SecretKey(seed[:8], seed, ed25519.point_of(seed))


def signed_as(manifest: bytes, comment: str, key: SecretKey) -> str:
    """Return a valid signature file with any trusted comment at all."""
    signature = ed25519.signed(key.seed, digest(manifest))
    return Signature(
        key.key_id, signature, comment, ed25519.signed(key.seed, sealed(signature, comment))
    ).file("x")


def trusted(folder: Path, *keys: SecretKey, revoked: str = "") -> TrustedFiles:
    """Write a file of trusted keys, and return what reads it."""
    path = folder / "trusted.keys"
    path.write_text(
        "".join(f"{key.public.text}\n" for key in keys) + (f"revoked {revoked}\n" if revoked else "")
    )
    return TrustedFiles([path])


def write(model: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into the folder of a model, which is returned."""
    for name, content in files.items():
        path = model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return model


def listing(model: Path) -> bytes:
    """Return the manifest of what is there."""
    files = [path for path in model.rglob("*") if path.is_file()]
    names = {str(path.relative_to(model)): path for path in files}
    return write_manifest(
        {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in names.items()
            if name not in APART
        }
    )


def sign_model(model: Path, key: SecretKey, *, manifest: bytes | None = None, name: str = "") -> Path:
    """Sign a model's folder, by default what is there under its own name."""
    data = listing(model) if manifest is None else manifest
    (model / MANIFEST).write_bytes(data)
    (model / SIGNATURE).write_text(sign(data, name or model.name, key, now=NOW))
    return model
