"""What is worth knowing about an auth file that can be read: what it says, and what it hardly means. Pure."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.values.callers import ANONYMOUS, Action
from engine.identity.document import ApiKey, AuthFile, Limit
from engine.identity.rules import EVERYONE, GROUP, KNOWN, MODEL, OPEN_UNLESS_NAMED, Identity, Rule, Rulebook
from engine.identity.standing import Standing, standing
from engine.identity.wording import (
    WILD,
    default_in_words,
    limits_in_words,
    listed,
    moment_text,
    rule_in_words,
    subjects_in_words,
    things_in_words,
)

RISKY: Final = {
    Action.UPLOAD: "bring code along that the server runs",
    Action.MODEL_REPOSITORY: "load and unload models",
    Action.TRAFFIC: "change which versions answer",
    Action.SETTINGS: "change settings of logs and traces",
    Action.TRACE: "change settings of traces",
    Action.LOGGING: "change settings of logs",
    Action.SHARED_MEMORY: "register memory of the server's machine",
}
"""What a client that shows no credentials should hardly be allowed."""

MOST_GENERAL: Final = 200
"""Patterns that are tried one by one on those of later rules. Beyond them, only equal ones are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """An auth file in words. `warnings` are what its author hardly meant."""

    identities: Sequence[str]
    rules: Sequence[str]
    limits: Sequence[str]
    anonymous: Sequence[str]
    warnings: Sequence[str]

    def as_json(self) -> Mapping[str, object]:
        """Return it for programs."""
        return {
            "identities": list(self.identities),
            "rules": list(self.rules),
            "limits": list(self.limits),
            "anonymous": list(self.anonymous),
            "warnings": list(self.warnings),
        }


def review(file: AuthFile, now: float) -> Review:
    """Return what `file` says, at `now` in seconds of the epoch."""
    keys = list(file.keys.values())
    living = _proven(file, [key for key in keys if standing(key, now) in {Standing.GOOD, Standing.EXPIRING}])
    return Review(
        identities=tuple(_identities(file, keys, now)),
        rules=tuple(f"{rule} {rule_in_words(rule)}" for rule in file.rules),
        limits=tuple(
            f"{subjects_in_words(each.subjects)}, each{' at each address' if each.by_address else ''}: "
            f"{limits_in_words(each.limits)}"
            for each in file.limits
        ),
        anonymous=tuple(_anonymous(file)),
        warnings=(
            *_by_namespace(file),
            *_unused_rules(file),
            *_lonely_groups(file, living),
            *_useless(file, living),
            *_too_open(file),
            *_ending(keys, now),
        ),
    )


def _identities(file: AuthFile, keys: Sequence[ApiKey], now: float) -> Iterator[str]:
    names = sorted({key.identity.name for key in keys})
    count = Counter(standing(key, now) for key in keys)
    told = ", ".join(f"{number} {kind.value}" for kind in Standing if (number := count[kind]))
    if keys:
        owners = _counted(len(names), "identity", "identities")
        yield f"{_counted(len(keys), 'key')} ({told}) of {owners}: {listed(names)}"
    for issuer in file.issuers.values():
        groups = f", groups from their claim '{issuer.groups}'" if issuer.groups else ", without groups"
        yield (
            f"tokens of '{issuer.issuer}' for {listed(issuer.audience)}: "
            f"{issuer.prefix}:<{issuer.name}>{groups}; "
            f"signed by {listed(issuer.algorithms)} with a key in {issuer.jwks}"
        )
    subjects = sorted(file.certificates)
    if subjects:
        yield f"{_counted(len(subjects), 'certificate')}: {listed(subjects)}"
    members = {(each.name, group) for each in _proven(file, keys) for group in each.groups}
    for group, number in sorted(Counter(group for _, group in members).items()):
        yield f"{GROUP}{group} has {_counted(number, 'identity', 'identities')}"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


# -- what is open


def _anonymous(file: AuthFile) -> Iterator[str]:
    """Yield what clients without credentials may do."""
    book = Rulebook(file.rules)
    for action in Action:
        rules = _rules_about(file.anonymous, book, action)
        if any(rule.allows for rule in rules):
            told = [
                f"{rule} {'allows' if rule.allows else 'denies'} {things_in_words(rule)}" for rule in rules
            ]
            yield f"{action.value}: {listed(told)}"
        elif not rules and action in book.open:
            yield f"{action.value}: {default_in_words(action, allowed=True)}"


def _rules_about(identity: Identity, book: Rulebook, action: Action) -> Sequence[Rule]:
    """Return the rules that can decide whether `identity` may do `action`, up to one about everything."""
    found = []
    for rule in book.rules:
        if rule.subjects & identity.subjects and book.covers(rule, action):
            found.append(rule)
            if rule.models == ("*",) == rule.namespaces:
                break
    return found


def _too_open(file: AuthFile) -> Iterator[str]:
    book = Rulebook(file.rules)
    permissions = book.of(file.anonymous)
    by_rule: dict[Rule, list[str]] = {}
    for action, deed in RISKY.items():
        decision = permissions.decide(action, "")
        if decision.allowed and decision.rule is not None:
            by_rule.setdefault(decision.rule, []).append(f"'{action.value}' ({deed})")
    for rule, deeds in by_rule.items():
        yield f"{rule}: clients without credentials may use {listed(deeds)}"
    for action in OPEN_UNLESS_NAMED:
        if action not in book.open and not permissions.decide(action, "").allowed:
            asks = "kubelet's probes" if action is Action.HEALTH else "a Prometheus without credentials"
            yield (
                f"a rule names '{action.value}', so {asks} will be refused: allow it to \"{ANONYMOUS}\" "
                "where that is not meant"
            )


# -- what opens nothing


def _proven(file: AuthFile, keys: Iterable[ApiKey]) -> list[Identity]:
    """Return the identities that `keys` and the file's certificates prove."""
    return [*(key.identity for key in keys), *(each.identity for each in file.certificates.values())]


def _lonely_groups(file: AuthFile, living: Sequence[Identity]) -> Iterator[str]:
    members = {group for each in living for group in each.groups}
    told: Sequence[Rule | Limit] = (*file.rules, *file.limits)
    subjects = {subject for each in told for subject in each.subjects}
    named = {each.removeprefix(GROUP) for each in subjects if each.startswith(GROUP)}
    tokens = " but those of tokens" if any(issuer.groups for issuer in file.issuers.values()) else ""
    for group in sorted(named - members):
        yield f"{GROUP}{group} has no member{tokens}: no good key and no certificate is in it"
    if members - named:
        yield f"no rule or limit names {listed([GROUP + group for group in sorted(members - named)])}"


def _useless(file: AuthFile, living: Sequence[Identity]) -> Iterator[str]:
    allowed = frozenset(subject for rule in file.rules if rule.allows for subject in rule.subjects)
    names = sorted({each.name for each in living if not each.subjects & allowed})
    if names:
        yield f"no rule allows anything to {listed(names)}"


def _ending(keys: Sequence[ApiKey], now: float) -> Iterator[str]:
    for kind, said in ((Standing.EXPIRED, "expired"), (Standing.EXPIRING, "will expire soon")):
        found = sorted((key.expires, key.id) for key in keys if standing(key, now) is kind)
        if found:
            told = listed([f"{id_} at {moment_text(at)}" for at, id_ in found])
            yield f"{_counted(len(found), 'key')} {said}: {told}"


# -- rules that never decide


def _by_namespace(file: AuthFile) -> Iterator[str]:
    rule = Rulebook(file.rules).first_by_namespace
    if rule is not None:
        yield f"{rule} names namespaces: a server with this file takes --model-namespacing=true"


def _unused_rules(file: AuthFile) -> Iterator[str]:
    for rule, by in shadowed(file):
        told = listed([f"rule {each.number}" for each in by])
        verb = "decides" if len(by) == 1 else "decide"
        yield f"{rule} can never decide: {told} before it {verb} all that it is about"


def shadowed(file: AuthFile) -> Iterator[tuple[Rule, Sequence[Rule]]]:
    """Yield the rules that can never decide, and the earlier ones that cover them.

    What is yielded is certain. Rules that are covered in more roundabout ways are not all found.
    """
    before: dict[tuple[str, Action | None], _Earlier] = {}
    groups = _groups_of(file)
    for rule in file.rules:
        by = _all_covering(rule, before, groups)
        if by is not None:
            yield rule, sorted(by, key=lambda each: each.number)
            continue
        for subject in rule.subjects:
            for action in rule.actions or (None,):
                before.setdefault((subject, action), _Earlier()).add(rule)


def _all_covering(
    rule: Rule,
    before: Mapping[tuple[str, Action | None], _Earlier],
    groups: Mapping[str, frozenset[str]],
) -> set[Rule] | None:
    """Return the earlier rules that together decide all that `rule` could; None if it has a use."""
    by: set[Rule] = set()
    for subject in rule.subjects:
        words = (subject, *_wider(subject), *(GROUP + group for group in groups.get(subject, ())))
        for action in rule.actions or (None,):
            places = [(word, each) for word in words for each in {action, None}]
            found = _covering(rule, [before[place] for place in places if place in before])
            if found is None:
                return None
            by |= found
    return by


def _wider(subject: str) -> Sequence[str]:
    """Return the other subjects that each identity has that this one means."""
    if subject.startswith(MODEL) or subject == EVERYONE:
        return ()
    return (EVERYONE,) if subject in {ANONYMOUS, KNOWN} else (EVERYONE, KNOWN)


def _groups_of(file: AuthFile) -> Mapping[str, frozenset[str]]:
    """Return, by the name of an identity, the groups that it has whatever proves it."""
    found: dict[str, frozenset[str]] = {}
    for identity in _proven(file, file.keys.values()):
        found[identity.name] = found.get(identity.name, identity.groups) & identity.groups
    return found


class _Earlier:
    """Rules about one subject and one action, so that those are found that cover a later one."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Rule] = {}
        self._general: list[tuple[str, str, Rule]] = []
        self.about_none: Rule | None = None
        """The first rule that decides what concerns no model in particular."""

    def add(self, rule: Rule) -> None:
        """Have a rule that stands after those before."""
        for model in rule.models:
            for namespace in rule.namespaces:
                self._pairs.setdefault((model, namespace), rule)
                if WILD.search(model) or WILD.search(namespace):
                    self._general.append((model, namespace, rule))
        if self.about_none is None and _decides_on_none(rule):
            self.about_none = rule

    def over(self, model: str, namespace: str) -> Rule | None:
        """Return a rule that matches whatever these patterns match."""
        found = self._pairs.get((model, namespace))
        if found is not None:
            return found
        for wide_model, wide_namespace, rule in self._general[:MOST_GENERAL]:
            if _within(model, wide_model) and _within(namespace, wide_namespace):
                return rule
        return None


def _decides_on_none(rule: Rule) -> bool:
    """Whether `rule` decides what concerns no model in particular (`Permissions.decide`)."""
    return rule.allows or rule.models == ("*",) == rule.namespaces


def _covering(rule: Rule, earlier: Sequence[_Earlier]) -> set[Rule] | None:
    """Return what covers `rule` among rules about a subject and an action; None if it has a use."""
    by = set()
    if _decides_on_none(rule):
        found = next((each.about_none for each in earlier if each.about_none is not None), None)
        if found is None:
            return None
        by.add(found)
    for model in rule.models:
        for namespace in rule.namespaces:
            found = next((each for one in earlier if (each := one.over(model, namespace)) is not None), None)
            if found is None:
                return None
            by.add(found)
    return by


def _within(narrow: str, wide: str) -> bool:
    """Whether the pattern `wide` surely matches all that `narrow` does."""
    if wide in {"*", narrow}:
        return True
    if not WILD.search(narrow):
        return fnmatch.fnmatchcase(narrow, wide)
    # A pattern that ends in its only wildcard covers those that begin as it does.
    start = wide[:-1]
    return wide.endswith("*") and not WILD.search(start) and narrow.startswith(start)
