"""Signed models' files: manifests, signatures and lists of trusted keys, read in one way or refused.

An input is a manifest and two more texts, a signature and a list of keys. Only what the one key of these
tests has signed counts, whatever was done to the texts.
"""

import hashlib
from functools import cache, lru_cache
from random import Random
from typing import Final

from engine.provenance.manifest import ManifestRefused, read_strictly, write_manifest
from engine.provenance.minisign import Malformed, PublicKey, SecretKey, Signature
from engine.provenance.trust import KeysUnusable, NotTrusted, Trust, check_signature, sign
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series
from tests.support.signing import new_key

MODEL: Final = "add_sub"
_NAMES: Final = (
    "config.pbtxt",
    "1/model.onnx",
    "1/a b",
    "1/b\\c",
    "../x",
    "/etc/passwd",
    "a//b",
    "é",
    "e\u0301",
    "\u202e",
)
_DIGESTS: Final = tuple(hashlib.sha256(bytes((each,))).hexdigest() for each in range(4))


class SignedFiles:
    """Reads the three texts, and looks at what is accepted."""

    name = "signed"
    prefix = "signed"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """What belongs together, with damage to one of the texts, or what was made by another key."""
        manifest = _manifest(chance)
        key = _key("other" if chance.random() < 0.1 else "first")
        signature = _signed(manifest, chance.choice((MODEL, MODEL, MODEL, "another")), key)
        parts = [manifest, signature.encode(), _trusted(chance).encode()]
        if chance.random() < 0.6:
            hurt = chance.randrange(3)
            parts[hurt] = damaged(parts[hurt], chance, [*corpus, *parts])
        return series((0, part) for part in parts)

    def check(self, octets: bytes) -> str:
        """Read each by itself, and then all together."""
        parts = [part for _, part in parts_of(octets)]
        manifest, signature, keys = (*parts, b"", b"", b"")[:3]
        listed = _listed(manifest)
        text, told = signature.decode("utf-8", "surrogateescape"), keys.decode("utf-8", "replace")
        _read_signature(text)
        for line in told.splitlines():
            _read_keys(line)
        try:
            trust = Trust().with_file("keys", told)
        except KeysUnusable as error:
            return _told("keys", str(error))
        try:
            by = check_signature(manifest, text, MODEL, trust)
        except NotTrusted:
            return "the signature is refused"
        signer = next(key for key in (_key("first"), _key("other")) if key.public == by.key)
        assert signer.public.text in told
        assert signer.public.name not in trust.revoked
        assert text.split("\n")[1:4] == _signed(manifest, MODEL, signer).split("\n")[1:4], "one spelling"
        return "the manifest is refused" if listed is None else "all is good"


def _listed(manifest: bytes) -> dict[str, str] | None:
    try:
        listed = read_strictly(manifest)
    except ManifestRefused as error:
        _told("manifest", str(error))
        return None
    for path in listed:
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
    again = write_manifest(listed)
    assert read_strictly(again) == listed
    assert len(listed) == manifest.count(b"\n")
    return listed


def _told(what: str, message: str) -> str:
    assert message.isprintable()
    assert what in message.lower() or "path" in message or "sha256sums" in message.lower()
    return f"{what}: refused"


def _read_signature(text: str) -> None:
    try:
        read = Signature.read(text)
    except Malformed:
        return
    assert Signature.read(read.file("x")) == read


def _read_keys(text: str) -> None:
    for kind in (PublicKey, SecretKey):
        try:
            kind.read(text)
        except Malformed:
            continue


@cache
def _key(name: str) -> SecretKey:
    return new_key(name)


@lru_cache(maxsize=64)
def _signed(manifest: bytes, model: str, key: SecretKey) -> str:
    return sign(manifest, model, key, now=1)


def _manifest(chance: Random) -> bytes:
    lines = [
        f"{chance.choice(_DIGESTS)}{chance.choice(('  ', '  ', ' *', ' '))}{chance.choice(_NAMES)}\n"
        for _ in range(chance.randrange(1, 5))
    ]
    if chance.random() < 0.7:
        return write_manifest({name: chance.choice(_DIGESTS) for name in _NAMES[: chance.randrange(1, 5)]})
    return "".join(lines).encode()


def _trusted(chance: Random) -> str:
    lines = [f"{_key('first').public.text}   # the team"]
    if chance.random() < 0.3:
        lines.append(_key("other").public.text)
    if chance.random() < 0.2:
        lines.append(
            f"revoked {chance.choice((_key('first').public.name, _key('first').public.text, 'x', ''))}"
        )
    chance.shuffle(lines)
    return "\n".join(("untrusted comment: x", *lines))
