"""How keys stand: good, about to expire, expired or revoked. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any, Final

from engine.identity.document import ApiKey, AuthFile
from engine.identity.wording import moment_text

SOON: Final = 14 * 86_400.0
"""Seconds before its expiry from which a key is told to be about to expire."""


class Standing(Enum):
    """Whether a key opens anything."""

    GOOD = "good"
    EXPIRING = "expires soon"
    EXPIRED = "expired"
    REVOKED = "revoked"


def standing(key: ApiKey, now: float) -> Standing:
    """Return how `key` stands at `now`, in seconds of the epoch."""
    if key.revoked:
        return Standing.REVOKED
    if now >= key.expires:
        return Standing.EXPIRED
    return Standing.EXPIRING if key.expires - now <= SOON else Standing.GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What may be shown of a key: nothing that helps to guess or to compare it.

    `revoked` is empty, `yes`, or the time of the revocation.
    """

    id: str
    name: str
    groups: tuple[str, ...]
    expires: float
    revoked: str
    standing: Standing

    def as_row(self) -> tuple[str, ...]:
        """Return its cells under `HEADINGS`."""
        return (
            self.id,
            self.name,
            ",".join(self.groups) or "-",
            moment_text(self.expires),
            self.revoked or "-",
            self.standing.value,
        )

    def as_json(self) -> Mapping[str, object]:
        """Return it for programs: times in ISO 8601, `expires` null for never."""
        return {
            "id": self.id,
            "name": self.name,
            "groups": list(self.groups),
            "expires": None if math.isinf(self.expires) else moment_text(self.expires),
            "revoked": self.revoked if self.revoked not in {"", "yes"} else self.revoked == "yes",
            "standing": self.standing.value,
        }


HEADINGS: Final = ("id", "name", "groups", "expires", "revoked", "standing")


def key_facts(document: Mapping[str, Any], file: AuthFile, now: float) -> Iterator[KeyFacts]:
    """Yield what may be shown of each key, in the order of the file whose TOML `document` it is."""
    for table, key in zip(document.get("key", ()), file.keys.values(), strict=True):
        yield KeyFacts(
            id=key.id,
            name=key.identity.name,
            groups=tuple(sorted(key.identity.groups)),
            expires=key.expires,
            revoked=revocation_text(table.get("revoked", False)),
            standing=standing(key, now),
        )


def revocation_text(said: object) -> str:
    """Return what `revoked` says in a table: empty for false, `yes`, or the time of the revocation."""
    if isinstance(said, datetime):
        return moment_text(said.timestamp()) if said.tzinfo is not None else f"{said.isoformat()}Z"
    if isinstance(said, date):
        return said.isoformat()
    return "yes" if said else ""
