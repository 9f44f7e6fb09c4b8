"""Credentials: a gate lets in what a plain reading of the standards lets in, and nothing else.

An input is a series of `Authorization` fields on one connection. What the connection was found to be before
must never decide about the next field, so each is asked for on a fresh connection too.
"""

import base64
import binascii
import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import KeySet, OKPKey

from actors.values.callers import Peer
from actors.values.errors import Unauthenticated
from engine.identity.document import read_auth_file
from engine.identity.gate import Book, Gate
from engine.identity.keys import digest_of
from engine.identity.tokens import Tokens
from tests.fuzz.mutation import damaged
from tests.fuzz.series import parts_of, series

NOW: Final = 1_800_000_000
ISSUER, AUDIENCE = "https://login.example", "tritium"
SECRET: Final = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I"
_PRIVATE: Final = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"credentials").digest())
_PUBLIC: Final = _PRIVATE.public_key()
_FILE: Final = f"""
[[key]]
id = "good"
digest = "{digest_of(SECRET)}"

[[key]]
id = "revoked"
digest = "{digest_of(SECRET)}"
revoked = true

[[key]]
id = "expired"
digest = "{digest_of(SECRET)}"
expires = 2020-01-01T00:00:00Z

[[issuer]]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
jwks = "jwks.json"
algorithms = ["EdDSA"]
clock_skew = 0
"""
_CLAIMS: Final[Mapping[str, Any]] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 60}
_HEADER: Final[Mapping[str, Any]] = {"alg": "EdDSA", "kid": "ed"}
_CHANGES: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("iss", (None, "", "https://other.example", [ISSUER], {"a": 1}, 7)),
    ("aud", (None, "", "other", [AUDIENCE], ["other", AUDIENCE], [], {AUDIENCE: 1}, 7, [[AUDIENCE]])),
    ("sub", (None, "", "a\nb", "bob", "x" * 200, ["alice"], 7, "é")),
    ("exp", (None, NOW - 1, NOW, NOW + 0.5, "soon", str(NOW + 60), True, [], 1e300, 10**400, float("nan"))),
    ("nbf", (NOW + 1, NOW, NOW - 1, "x", None, True, -1)),
    ("iat", (NOW + 1, NOW, NOW - 1, "x", None, 10**30)),
    ("jti", ("x", 7)),
)
_HEADERS: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("alg", ("none", "None", "HS256", "RS256", "ES256", "Ed25519", "", None, ["EdDSA"], "eddsa")),
    ("kid", (None, "", "other", "../../etc/passwd", "ed' OR '1'='1", 7, ["ed"])),
    ("crit", (["exp"], ["b64"], [], "exp", ["x"])),
    ("b64", (False, True, "x")),
    ("jku", ("http://127.0.0.1:1/", 7)),
    ("jwk", ({"kty": "OKP"}, "x")),
    ("x5c", (["x"], 7)),
    ("zip", ("DEF",)),
    ("typ", ("JWT", "at+jwt", 7)),
    ("cty", ("JWT",)),
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/|+:=-]{0,127}")


@cache
def _gate() -> Gate:
    key = OKPKey.import_key(
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": _b64(_PUBLIC.public_bytes_raw())}
    )
    file = read_auth_file(_FILE, "auth.toml")
    tokens = Tokens(file.issuers, {ISSUER: KeySet([key])})
    return Gate(Book(file, tokens), now=lambda: 0.0, wall_clock=lambda: float(NOW))


class Credentials:
    """Shows fields to a gate, on one connection and on fresh ones."""

    name = "credentials"
    prefix = "credentials"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Good fields and bad ones in a row, some damaged."""
        fields = [_field(chance) for _ in range(chance.randrange(1, 5))]
        octets = series((0, field) for field in fields) if chance.random() < 0.9 else chance.choice(corpus)
        return octets if chance.random() < 0.7 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Ask, and compare with `_expected`."""
        warnings.filterwarnings("ignore", message="EdDSA is deprecated")  # as `read_key_set` does
        peer = Peer("192.0.2.1")
        outcome = "nothing"
        for _, field in parts_of(octets):
            said = _asked(field, peer)
            assert said == _asked(field, Peer("192.0.2.2")), "a connection remembers too much"
            expected = _expected(field)
            named = said.removeprefix("is ") if said.startswith("is ") else None
            assert named in (expected, None), f"{said}, and it should be {expected}"
            assert named == expected or b"." in field.partition(b".")[2], (
                "a token may be judged more strictly"
            )
            outcome = said
        return outcome


def _asked(field: bytes, peer: Peer) -> str:
    try:
        return f"is {_gate().identify(field, peer).name}"
    except Unauthenticated as error:
        refused = error
    assert SECRET not in refused.message
    assert refused.message.isprintable()
    assert refused.challenge == 'Bearer realm="tritium", error="invalid_token"'
    return refused.message.split(":")[0]


def _expected(field: bytes) -> str | None:
    """Return whose the field is by a reading of its own; None for no identity's."""
    if not field:
        return "anonymous"
    if len(field) > 8192:
        return None
    found = re.fullmatch(rb"(?i:bearer) (.+)", field, re.DOTALL)
    # What is left to a server: blanks around the token. This one ignores them.
    token = "" if found is None else found[1].decode("latin-1").strip()
    if token.count(".") < 2:
        return "good" if token == f"good.{SECRET}" else None
    try:
        return _by_token(token)
    except (ValueError, binascii.Error, InvalidSignature, RecursionError):
        return None


def _by_token(token: str) -> str | None:
    head, payload, signature = token.split(".")
    _PUBLIC.verify(_unb64(signature), f"{head}.{payload}".encode("ascii"))
    header, claims = json.loads(_unb64(head)), json.loads(_unb64(payload))
    if not isinstance(header, dict) or not isinstance(claims, dict) or not _good_header(header):
        return None
    return f"jwt:{claims['sub']}" if _good_claims(claims) else None


def _good_header(header: Mapping[str, Any]) -> bool:
    return header.get("alg") == "EdDSA" and not header.get("crit")


def _good_claims(claims: Mapping[str, Any]) -> bool:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    name = claims.get("sub")
    return (
        claims.get("iss") == ISSUER
        and AUDIENCE in audiences
        and isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and _is_time(claims.get("exp"))
        and NOW < claims["exp"] < 1e308
        and all(claims[each] is None or (_is_time(claims[each]) and claims[each] <= NOW)
                for each in ("nbf", "iat") if each in claims)
    )  # fmt: skip


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _field(chance: Random) -> bytes:
    match chance.randrange(8):
        case 0:
            return chance.choice((b"", b"Bearer", b"Bearer ", b"Basic eDp5", b"bearer  good.x", b"Bearer ."))
        case 1 | 2:
            id_ = chance.choice(("good", "revoked", "expired", "unknown", "GOOD", ""))
            secret = chance.choice((SECRET, SECRET[:-1], SECRET + "=", SECRET.lower(), ""))
            scheme = chance.choice(("Bearer", "bearer", "BEARER", "Bearer\t", "Token"))
            return f"{scheme} {id_}.{secret}{chance.choice(('', ' ', ', x'))}".encode()
        case _:
            return b"Bearer " + _token(chance).encode("latin-1")


def _token(chance: Random) -> str:
    header, claims = dict(_HEADER), dict(_CLAIMS)
    if chance.random() < 0.4:
        _change(header, chance, _HEADERS)
    for _ in range(chance.choice((0, 1, 1, 2))):
        _change(claims, chance, _CHANGES)
    text = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
    signature = _PRIVATE.sign(text.encode())
    match chance.randrange(12):
        case 0:
            signature = bytes(64)
        case 1:
            signature = b""
        case 2:
            text = text.split(".")[0] + "." + _b64(json.dumps({**claims, "sub": "root"}).encode())
        case 3:
            return f"{text}.{_b64(signature)}" + chance.choice(("=", "==", ".", ".x", "\n"))
        case _:
            pass
    return f"{text}.{_b64(signature)}"


def _change(
    document: dict[str, Any], chance: Random, changes: tuple[tuple[str, tuple[Any, ...]], ...]
) -> None:
    key, values = chance.choice(changes)
    document[key] = chance.choice(values)
    if document[key] is None and chance.random() < 0.5:
        del document[key]


def _b64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    """Decode base64url without padding (RFC 7515, section 2)."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
