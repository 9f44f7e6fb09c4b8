"""Which keys' signatures count, and what a signature vouches for.

A file of trusted keys has one key a line, as minisign shows it. A comment before a key, or behind it after
`#`, is its name; a file `KEY.pub` of minisign's is such a file::

    # the release team, from 2026 on
    RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3
    revoked 7B62362F1CC9CAE7   # a laptop was lost

A key counts as soon as one of the files has it, and never once one of them revokes it.

The signature of a model is one of its `SHA256SUMS`. Its trusted comment has a field `model:<name>`, so that
a signed manifest does not count in the folder of another model. Fields are separated by tabs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.provenance import ed25519
from engine.provenance.manifest import MANIFEST, SIGNATURE, check_model_name
from engine.provenance.minisign import Malformed, PublicKey, SecretKey, Signature, digest, sealed

_KEY_ID: Final = re.compile(r"[0-9A-F]{16}")
_MODEL: Final = "model:"
_SUCH_AS: Final = "such as `tritium sign --new-key` and minisign print them"


class NotTrusted(Exception):
    """A model's signature does not count. `hint` says what would help."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class KeysUnusable(Exception):
    """A file of trusted keys can't be read, or says something else. The message has file and line."""


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A key, and where it stands."""

    key: PublicKey
    place: str


@dataclass(frozen=True, slots=True)
class Trust:
    """Keys that count, and ids of those that do not any more, each with its place. Ids are as shown."""

    keys: Mapping[str, TrustedKey] = field(default_factory=dict)
    revoked: Mapping[str, str] = field(default_factory=dict)

    def with_file(self, name: str, text: str) -> Trust:
        """Return this with what one more file says. Raises KeysUnusable."""
        keys, revoked = dict(self.keys), dict(self.revoked)
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.partition("#")[0].split()
            place = f"{name}:{number}"
            if not words or line.startswith("untrusted comment:"):
                continue
            if words[0] == "revoked":
                revoked[_revoked(words[1:], place)] = place
                continue
            key = _key(words, place)
            known = keys.setdefault(key.name, TrustedKey(key, place))
            if known.key != key:
                raise KeysUnusable(f"{place}: the key at {known.place} is another one with the same id")
        return Trust(keys, revoked)

    @property
    def usable(self) -> Iterable[str]:
        """Ids of the keys that count."""
        return [name for name in self.keys if name not in self.revoked]

    def key_of(self, signature: Signature) -> TrustedKey:
        """Return the key that a signature says it is by. Raises NotTrusted."""
        name = PublicKey(signature.key_id, b"").name
        if name in self.revoked:
            raise NotTrusted(
                f"it is signed with the key {name}, which {self.revoked[name]} revokes",
                "sign it anew with a key that is trusted",
            )
        if name not in self.keys:
            raise NotTrusted(
                f"it is signed with the key {name}, which is none of the trusted ones",
                "trusted are " + (", ".join(self.usable) or "none"),
            )
        return self.keys[name]


def check_signature(manifest: bytes, text: str, model: str, trust: Trust) -> TrustedKey:
    """Return the trusted key by which `text` is a signature of the manifest of `model`.

    Raises NotTrusted, and `ed25519.LibraryMissing`.
    """
    try:
        signature = Signature.read(text)
    except Malformed as error:
        raise NotTrusted(f"{SIGNATURE} {error}", "sign it anew: tritium sign") from None
    trusted = trust.key_of(signature)
    valid = ed25519.is_valid(trusted.key.point, signature.signature, digest(manifest))
    if not valid or not ed25519.is_valid(trusted.key.point, signature.seal, signature.sealed):
        raise NotTrusted(
            f"{SIGNATURE} is no signature of {MANIFEST} by the key {trusted.key.name}",
            "the manifest or the signature was changed; sign it anew if that was meant",
        )
    named = [part for part in signature.comment.split("\t") if part.startswith(_MODEL)]
    if named != [_MODEL + model]:
        name = named[0].removeprefix(_MODEL) if len(named) == 1 else ""
        told = f"signed as {name!a}" if name else "not signed for one model"
        raise NotTrusted(
            f"{MANIFEST} is {told}, and this is the model {model!a}",
            "a signature holds for one model's name: sign it anew under this one",
        )
    return trusted


def sign(manifest: bytes, model: str, secret: SecretKey, *, now: int) -> str:
    """Return the signature file of a manifest. `now`, seconds since the epoch, is for readers only.

    Raises ManifestRefused for a name that can't be signed, and `ed25519.LibraryMissing`.
    """
    check_model_name(model)
    comment = f"timestamp:{now}\tfile:{MANIFEST}\thashed\t{_MODEL}{model}"
    signature = ed25519.signed(secret.seed, digest(manifest))
    seal = ed25519.signed(secret.seed, sealed(signature, comment))
    made = Signature(secret.key_id, signature, comment, seal)
    return made.file(f"signature of a Tritium model by the key {secret.public.name}")


def _revoked(words: list[str], place: str) -> str:
    if len(words) == 1 and _KEY_ID.fullmatch(words[0].upper()):
        return words[0].upper()
    if len(words) == 1:
        try:
            return PublicKey.read(words[0]).name
        except Malformed:
            pass
    raise KeysUnusable(f"{place}: 'revoked' is followed by a key, or by its id of 16 hexadecimal digits")


def _key(words: list[str], place: str) -> PublicKey:
    if len(words) != 1:
        raise KeysUnusable(f"{place}: expected one key, {_SUCH_AS}")
    try:
        return PublicKey.read(words[0])
    except Malformed as error:
        raise KeysUnusable(f"{place}: {words[0][:12]!a}… {error}, {_SUCH_AS}") from None
