"""Rules: which identity may do what with which models. Pure.

Rules are tried in the order of the auth file, and the first that matches decides. Without a match the answer
is no. Health checks and metrics are the exceptions: they are open to all as long as no rule names them. One
about every action names neither, so a last rule that denies the rest doesn't shut out probes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from actors.values.callers import ANONYMOUS, Action

EVERYONE: Final = "*"
KNOWN: Final = "authenticated"
GROUP: Final = "group:"
MODEL: Final = "model:"
"""What the names of subjects begin with: groups, and models that call other models."""

OPEN_UNLESS_NAMED: Final = (Action.HEALTH, Action.METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client, or a confined model that calls others, as rules know it."""

    name: str
    groups: frozenset[str] = frozenset()

    @property
    def subjects(self) -> frozenset[str]:
        """The words by which a rule can mean it."""
        known = () if self.name == ANONYMOUS or self.name.startswith(MODEL) else (KNOWN,)
        everyone = () if self.name.startswith(MODEL) else (EVERYONE,)
        return frozenset((self.name, *everyone, *known, *(GROUP + group for group in self.groups)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. `number` counts from 1, and `line` is that of its header in the file.

    `actions` None: every one. Patterns are those of file names (`*`, `?`, `[abc]`), in the same letter case.
    """

    number: int
    line: int
    subjects: frozenset[str]
    allows: bool
    actions: frozenset[Action] | None
    models: tuple[str, ...] = ("*",)
    namespaces: tuple[str, ...] = ("*",)

    def __str__(self) -> str:
        return f"rule {self.number} (line {self.line})"

    def covers(self, action: Action) -> bool:
        """Whether it is about `action`."""
        return self.actions is None or action in self.actions


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and the rule that says so; None for the default."""

    allowed: bool
    rule: Rule | None = None


class About(Protocol):
    """What is about some subjects: a rule, a limit."""

    @property
    def subjects(self) -> frozenset[str]:
        """The identities that it is about."""


E = TypeVar("E", bound=About)


class BySubject(Generic[E]):
    """Entries of a file by their subjects, so that those about one identity are found among thousands."""

    def __init__(self, entries: Sequence[E]) -> None:
        self._by_subject: dict[str, list[tuple[int, E]]] = {}
        for place, entry in enumerate(entries):
            for subject in entry.subjects:
                self._by_subject.setdefault(subject, []).append((place, entry))

    def about(self, identity: Identity) -> list[E]:
        """Return the entries about `identity`, in their order."""
        found = {
            place: entry
            for subject in identity.subjects
            for place, entry in self._by_subject.get(subject, ())
        }
        return [found[place] for place in sorted(found)]


class _Compiled:
    """A rule and its patterns, made once for all identities that it is about."""

    __slots__ = ("models", "namespaces", "rule", "subjects")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.subjects = rule.subjects
        self.models = _pattern(rule.models)
        self.namespaces = _pattern(rule.namespaces)


class Rulebook:
    """The rules in force."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._by_subject = BySubject([_Compiled(rule) for rule in rules])
        self.open = frozenset(
            action
            for action in OPEN_UNLESS_NAMED
            if not any(rule.actions is not None and action in rule.actions for rule in rules)
        )
        self.first_by_namespace = next((rule for rule in rules if rule.namespaces != ("*",)), None)
        """The first rule that asks in which repository a model lies, if any does."""
        self.by_namespace = self.first_by_namespace is not None

    def covers(self, rule: Rule, action: Action) -> bool:
        """Whether `rule` can decide about `action`."""
        return action not in self.open and rule.covers(action)

    def of(self, identity: Identity) -> Permissions:
        """Return what the rules say about one identity."""
        return Permissions(self._by_subject.about(identity), self.open)


class Permissions:
    """The rules about one identity."""

    def __init__(self, rules: Sequence[_Compiled], opened: frozenset[Action]) -> None:
        self._rules = rules
        self._open = opened

    def decide(self, action: Action, model: str, namespace: str | None = "") -> Decision:
        """Return whether `action` is allowed on `model`, and by which rule.

        `model` is empty for what concerns none in particular: then a rule counts if it is for any model. If
        `namespace` is None, so does one for any namespace: the model's is found, and asked about, later. An
        empty one is that of a model in no known repository: rules deny it by any namespace, and allow it by
        none.
        """
        if action in self._open:
            return Decision(allowed=True)
        for each in self._rules:
            rule, models, namespaces = each.rule, each.models, each.namespaces
            if not rule.covers(action):
                continue
            if not model:
                counts = rule.allows or rule.models == ("*",) == rule.namespaces
            elif models is not None and not models.fullmatch(model):
                counts = False
            elif namespaces is None:
                counts = True
            elif namespace:
                counts = namespaces.fullmatch(namespace) is not None
            else:
                counts = rule.allows is (namespace is None)
            if counts:
                return Decision(rule.allows, rule)
        return Decision(allowed=False)

    def allows_all(self, action: Action) -> bool:
        """Whether `action` is allowed on every model in every namespace.

        A model that one rule denies is not looked for in earlier ones: then the answer is no.
        """
        if action in self._open:
            return True
        for each in self._rules:
            rule = each.rule
            if rule.covers(action) and (not rule.allows or each.models is each.namespaces is None):
                return rule.allows
        return False


def _pattern(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Return the expression that matches what any of `globs` does; None for everything."""
    if "*" in globs:
        return None
    return re.compile("|".join(f"(?:{fnmatch.translate(glob)})" for glob in globs))
