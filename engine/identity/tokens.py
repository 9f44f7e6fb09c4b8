"""JSON Web Tokens: whose they are, by keys that lie in local files. `joserfc` does the cryptography.

The algorithms are those that the auth file lists for the issuer, never those of the token's choice, and none
has a shared secret (RFC 8725, sections 2.1 and 3.1). Keys and addresses of keys inside a token are ignored. A
token must name its issuer, its audience and its expiry.
"""

from __future__ import annotations

import base64
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.values.errors import Unauthenticated
from engine.identity.document import AuthFileError, Issuer
from engine.identity.keys import LONGEST_TOKEN
from engine.identity.rules import Identity
from engine.settings.extras import how_to_install

LARGEST_JWKS: Final = 1024 * 1024

_CLAIM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/|+:=-]{0,127}")
"""The form of a claim that becomes a name: it is printed in logs and metrics."""

_LONGEST_SHOWN: Final = 120

_MISSING: Final = f"an auth file with [[issuer]] needs the package joserfc: {how_to_install('auth')}"


@dataclass(frozen=True, slots=True)
class Proven:
    """What a good token says. `until` is when it ends, in seconds of the epoch, clock skew included."""

    identity: Identity
    until: float


class Tokens:
    """Verifies the tokens of all issuers of an auth file."""

    def __init__(self, issuers: Mapping[str, Issuer], key_sets: Mapping[str, Any]) -> None:
        """`key_sets` are by issuer, as `read_key_set` returns them."""
        self._issuers = issuers
        self._key_sets = key_sets

    def prove(self, token: str, now: float) -> Proven:
        """Return what `token` proves at `now`, in seconds of the epoch.

        Raises Unauthenticated, and says what is wrong with the token as far as that helps its owner.
        """
        issuer = self._issuers.get(_issuer_of(token))
        if issuer is None:
            raise _refusal("it is from an issuer that this server does not know")
        from joserfc import jwt
        from joserfc.errors import ExpiredTokenError, JoseError
        from joserfc.jws import JWSRegistry

        heads = JWSRegistry(algorithms=issuer.algorithms)
        heads.max_header_length = LONGEST_TOKEN  # certificates (x5c) pass the 512 bytes of the default
        try:
            decoded = jwt.decode(token, self._key_sets[issuer.issuer], registry=heads)
            registry = jwt.JWTClaimsRegistry(
                now=int(now),
                leeway=int(issuer.skew),
                iss={"essential": True, "value": issuer.issuer},
                aud={"essential": True, "values": list(issuer.audience)},
                exp={"essential": True},
            )
            registry.validate(decoded.claims)
        except ExpiredTokenError:
            raise _refusal("it has expired") from None
        except JoseError as error:
            told = (error.description or error.error)[:_LONGEST_SHOWN]  # it may repeat what the header says
            raise _refusal(told if told.isprintable() else ascii(told)) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _refusal("it can't be read") from None
        claims = decoded.claims
        return Proven(_identity(issuer, claims), _expiry(claims) + issuer.skew)


def _issuer_of(token: str) -> str:
    """Return who claims to have issued a token, which is not verified yet."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        issuer = claims["iss"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise _refusal("it can't be read, or names no issuer") from None
    return issuer if isinstance(issuer, str) else ""


def _expiry(claims: Mapping[str, Any]) -> float:
    try:
        expiry = math.inf if claims["exp"] is True else float(claims["exp"])
    except OverflowError:
        expiry = math.inf
    if not math.isfinite(expiry):
        raise _refusal("its expiry is no time")
    return expiry


def _identity(issuer: Issuer, claims: Mapping[str, Any]) -> Identity:
    name = claims.get(issuer.name)
    if not isinstance(name, str) or not _CLAIM.fullmatch(name):
        raise _refusal(f"its claim '{issuer.name}' is no name")
    groups = claims.get(issuer.groups, []) if issuer.groups else []
    if isinstance(groups, str):
        groups = groups.split()
    if not isinstance(groups, list) or len(groups) > 256:
        raise _refusal(f"its claim '{issuer.groups}' is no list of groups")
    named = frozenset(group for group in groups if isinstance(group, str) and _CLAIM.fullmatch(group))
    return Identity(name=f"{issuer.prefix}:{name}", groups=named)


def _refusal(why: str) -> Unauthenticated:
    return Unauthenticated(f"the token is not good: {why}", invalid=True)


def read_key_set(issuer: Issuer, path: Path) -> Any:
    """Return the keys in the JWKS file at `path` (RFC 7517, section 5). Raises AuthFileError."""
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet
    except ImportError as error:
        raise AuthFileError(_MISSING) from error
    # Issuers still say EdDSA, which RFC 9864 calls Ed25519.
    warnings.filterwarnings("ignore", message="EdDSA is deprecated")
    place = f"[[issuer]] '{issuer.issuer}', 'jwks': '{path}'"
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_JWKS + 1)
        if len(content) > LARGEST_JWKS:
            raise AuthFileError(f"{place}: it has more than {LARGEST_JWKS} bytes")
        document = json.loads(content)
        keys = document["keys"]
        for key in keys:
            if key["kty"] == "oct" or "d" in key:
                raise AuthFileError(f"{place}: it has a secret key; public keys belong there")
        if not keys:
            raise AuthFileError(f"{place}: it has no key")
        return KeySet.import_key_set(document)
    except OSError as error:
        raise AuthFileError(f"{place}: can't be read: {error.strerror}") from error
    except (JoseError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuthFileError(
            f'{place}: is no JSON Web Key Set, {{"keys": [{{"kty": …}}]}}: {type(error).__name__}: {error}'
        ) from error
