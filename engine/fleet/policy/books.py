"""What a fleet's controllers hand on to each other: a document that every replica keeps a copy of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.fleet.policy.values import Ledger, Release

_FORMAT: Final = 1


class UnknownBooks(ValueError):
    """The document was not written by a controller like this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """Versions that get no requests any more, each with the reason. `plan` is the plan that was wanted."""

    plan: str
    versions: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Ledgers and spared versions by model, and the replicas that are to be removed, each with its boot.

    `owner` is the controller that writes; empty once it has ended in order.
    """

    owner: str = ""
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    spared: Mapping[str, Spared] = field(default_factory=dict)
    drained: Mapping[str, str] = field(default_factory=dict)

    def ledger(self, model: str) -> Ledger:
        """Return what is kept of a model; nothing yet, if it is new."""
        return self.ledgers.get(model, _NEW)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "format": _FORMAT,
            "owner": self.owner,
            "models": {model: _written(ledger) for model, ledger in sorted(self.ledgers.items())},
            "spared": {
                model: {"plan": each.plan, "versions": {str(v): why for v, why in each.versions.items()}}
                for model, each in sorted(self.spared.items())
            },
            "drained": dict(sorted(self.drained.items())),
        }


_NEW: Final = Ledger()


def read_books(document: object) -> Books:
    """Return the books of a document, empty ones of None. Raises UnknownBooks."""
    if document is None:
        return Books()
    try:
        return _read(document)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnknownBooks(
            f"the replicas keep a document that no controller of this version wrote: {error}"
        ) from error


def _read(document: Any) -> Books:
    if document["format"] != _FORMAT:
        raise ValueError(f"its format is {document['format']!r}, not {_FORMAT}")
    return Books(
        owner=str(document["owner"]),
        ledgers={model: _ledger(entry) for model, entry in document["models"].items()},
        spared={
            model: Spared(
                plan=str(entry["plan"]),
                versions={int(version): str(why) for version, why in entry["versions"].items()},
            )
            for model, entry in document["spared"].items()
        },
        drained={str(name): str(boot) for name, boot in document["drained"].items()},
    )


def _written(ledger: Ledger) -> dict[str, Any]:
    return {
        "good": release_document(ledger.good),
        "rolling": release_document(ledger.rolling),
        "passed": sorted(ledger.passed),
        "refused": [{**release_document(release), "reason": why} for release, why in ledger.refused.items()],
    }


def _ledger(entry: Any) -> Ledger:
    return Ledger(
        good=_release(entry["good"]),
        rolling=_release(entry["rolling"]),
        passed=frozenset(map(str, entry["passed"])),
        refused={_release(each): str(each["reason"]) for each in entry["refused"]},
    )


def release_document(release: Release) -> dict[str, Any]:
    """Return a release as JSON values."""
    return {"versions": list(release.versions), **({"config": release.config} if release.config else {})}


def _release(entry: Any) -> Release:
    return Release(tuple(map(int, entry["versions"])), str(entry.get("config", "")))
