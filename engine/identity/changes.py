"""What changes from one auth file to the next: keys by id and name, rules and limits in words. Pure.

Neither secrets nor digests are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from engine.identity.document import ApiKey, AuthFile, Limit
from engine.identity.wording import limits_in_words, rule_in_words, subjects_in_words

T = TypeVar("T")

MOST: Final = 50
"""Changes of one kind that are told one by one; the rest are a number."""


def changes(before: AuthFile, after: AuthFile) -> Mapping[str, object]:
    """Return what is different, by kind; kinds in which nothing is different are left out."""
    old, new = before.keys, after.keys
    revoked = {id_ for id_, key in new.items() if key.revoked and id_ in old and not old[id_].revoked}
    told = {
        "keys_revoked": [_key_in_words(new[id_]) for id_ in new if id_ in revoked],
        **_named("keys", old, {**new, **{id_: old[id_] for id_ in revoked}}, _key_in_words),
        **_named(
            "certificates",
            before.certificates,
            after.certificates,
            lambda each: f"{each.subject} ({each.identity.name})",
        ),
        **_named(
            "issuers",
            {name: replace(each, line=0) for name, each in before.issuers.items()},
            {name: replace(each, line=0) for name, each in after.issuers.items()},
            lambda each: each.issuer,
        ),
        **_listed("rules", [*map(rule_in_words, before.rules)], [*map(rule_in_words, after.rules)]),
        **_listed("limits", [*map(_limit_in_words, before.limits)], [*map(_limit_in_words, after.limits)]),
    }
    return {kind: _short(texts) for kind, texts in told.items() if texts}


def _named(
    kind: str, before: Mapping[str, T], after: Mapping[str, T], words: Callable[[T], str]
) -> Mapping[str, Sequence[str]]:
    return {
        f"{kind}_added": [words(each) for name, each in after.items() if name not in before],
        f"{kind}_removed": [words(each) for name, each in before.items() if name not in after],
        f"{kind}_changed": [
            words(each) for name, each in after.items() if name in before and before[name] != each
        ],
    }


def _listed(kind: str, before: Sequence[str], after: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return what came and went; where that is nothing, whether the order, which decides, changed."""
    old, new = frozenset(before), frozenset(after)
    added, removed = _without(after, old), _without(before, new)
    moved = not added and not removed and list(before) != list(after)
    return {
        f"{kind}_added": added,
        f"{kind}_removed": removed,
        f"{kind}_reordered": ["their order, or how often each is there"] if moved else [],
    }


def _without(texts: Iterable[str], others: frozenset[str]) -> list[str]:
    return [each for each in dict.fromkeys(texts) if each not in others]


def _short(texts: Sequence[str]) -> Sequence[str]:
    return texts if len(texts) <= MOST else [*texts[:MOST], f"and {len(texts) - MOST} more"]


def _key_in_words(key: ApiKey) -> str:
    return f"{key.id} ({key.identity.name})"


def _limit_in_words(limit: Limit) -> str:
    return f"{subjects_in_words(limit.subjects)}: {limits_in_words(limit.limits)}"
