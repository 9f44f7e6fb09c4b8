"""Why an identity may do something or may not: the rule that decides, and those passed over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors.values.callers import ANONYMOUS, Action
from engine.identity.document import AuthFile
from engine.identity.limits import Limits, strictest
from engine.identity.rules import GROUP, MODEL, Decision, Identity, Rule, Rulebook
from engine.identity.wording import default_in_words, limits_in_words, rule_in_words, table_text
from engine.models.problems import did_you_mean


class NoSuchIdentity(Exception):
    """No identity is meant by these words. The message says what would have worked."""


def named_identity(file: AuthFile, name: str, groups: Sequence[str] = ()) -> Identity:
    """Return the identity called `name` of an auth file; with `groups`, the one that has just these.

    Those of tokens and models are in no file: their names begin with an issuer's prefix or with `model:`.
    Raises NoSuchIdentity.
    """
    if name == ANONYMOUS or name.startswith(MODEL):
        if groups:
            raise NoSuchIdentity(f"'{name}' has no groups: leave --group out")
        return Identity(name=name)
    proofs: dict[Identity, str] = {}
    for key in file.keys.values():
        if key.identity.name == name:
            proofs.setdefault(key.identity, f"key '{key.id}'")
    for each in file.certificates.values():
        if each.identity.name == name:
            proofs.setdefault(each.identity, f"certificate '{each.subject}'")
    if groups and (proofs or _of_token(file, name)):
        return Identity(name=name, groups=frozenset(groups))
    if len(proofs) > 1:
        told = "; ".join(f"{how}: {', '.join(sorted(each.groups)) or 'none'}" for each, how in proofs.items())
        raise NoSuchIdentity(
            f"'{name}' has different groups by what proves it ({told}): say which, with --group"
        )
    if proofs:
        return next(iter(proofs))
    if _of_token(file, name):
        return Identity(name=name)
    told = (
        did_you_mean(name, file.identities())
        or "names are those of [[key]] and [[certificate]]; of a token, "
    )
    if not told.startswith("did"):
        prefixes = [f"{each.prefix}:…" for each in file.issuers.values()]
        told += ", ".join(prefixes) if prefixes else "none, since no [[issuer]] is there"
    raise NoSuchIdentity(f"no key or certificate of the file is for '{name}' ({told})")


def _of_token(file: AuthFile, name: str) -> bool:
    return name.startswith(tuple(f"{each.prefix}:" for each in file.issuers.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the rules say to one question. `passed` are rules that do not match, and why."""

    identity: Identity
    action: Action
    model: str
    namespace: str
    decision: Decision
    passed: Sequence[tuple[Rule, str]]
    limits: Limits
    limits_by_address: Limits
    notes: Sequence[str]

    @property
    def question(self) -> str:
        """What was asked, in words."""
        on = f" on model '{self.model}'" if self.model else ", on no model in particular"
        within = f" in namespace '{self.namespace}'" if self.namespace else ""
        return f"'{self.identity.name}' asks for '{self.action.value}'{on}{within}"

    @property
    def reason(self) -> str:
        """Which rule decides and what it says, or why there is none that does."""
        rule = self.decision.rule
        if rule is None:
            return default_in_words(self.action, allowed=self.decision.allowed)
        return f"{rule} {rule_in_words(rule)}"

    def as_json(self, text: str) -> Mapping[str, object]:
        """Return it for programs; `text` is that of the auth file."""
        rule = self.decision.rule
        return {
            "identity": self.identity.name,
            "groups": sorted(self.identity.groups),
            "action": self.action.value,
            "model": self.model,
            "namespace": self.namespace,
            "allowed": self.decision.allowed,
            "reason": self.reason,
            "rule": None
            if rule is None
            else {"number": rule.number, "line": rule.line, "text": table_text(text, rule.line)},
            "passed_over": [
                {"number": each.number, "line": each.line, "why": why} for each, why in self.passed
            ],
            "limits": limits_in_words(self.limits),
            "limits_at_each_address": limits_in_words(self.limits_by_address),
            "notes": list(self.notes),
        }

    def as_lines(self, text: str) -> Sequence[str]:
        """Return it for a reader; `text` is that of the auth file."""
        rule = self.decision.rule
        lines = [
            f"{'allowed' if self.decision.allowed else 'denied'}: {self.question}",
            f"  groups: {', '.join(sorted(self.identity.groups)) or 'none'}",
            f"  why: {self.reason}",
        ]
        if rule is not None:
            lines += [f"    {line}" for line in table_text(text, rule.line).splitlines()]
        lines += [f"  passed over {each}: {why}" for each, why in self.passed]
        lines.append(f"  limits: {limits_in_words(self.limits)}")
        if not self.limits_by_address.none:
            lines.append(f"  limits at each address: {limits_in_words(self.limits_by_address)}")
        return [*lines, *(f"  note: {each}" for each in self.notes)]


def explain(
    file: AuthFile, identity: Identity, action: Action, model: str = "", namespace: str = ""
) -> Explanation:
    """Return what the rules say, and why."""
    book = Rulebook(file.rules)
    limits = [each for each in file.limits if each.subjects & identity.subjects]
    decision = book.of(identity).decide(action, model, namespace)
    return Explanation(
        identity=identity,
        action=action,
        model=model,
        namespace=namespace,
        decision=decision,
        passed=_passed(book, identity, decision, action, model),
        limits=strictest([each.limits for each in limits if not each.by_address]),
        limits_by_address=strictest([each.limits for each in limits if each.by_address]),
        notes=tuple(_notes(file, book, identity, model, namespace)),
    )


def _passed(
    book: Rulebook, identity: Identity, decision: Decision, action: Action, model: str
) -> Sequence[tuple[Rule, str]]:
    """Return the rules about `identity` that stand before the one that decides, and why they do not match."""
    before = book.rules if decision.rule is None else book.rules[: book.rules.index(decision.rule)]
    found = []
    for rule in before:
        if rule.subjects & identity.subjects:
            if not book.covers(rule, action):
                why = f"it is not about '{action.value}'"
            elif not model:
                why = "it denies some models only, and this concerns none in particular"
            elif Rulebook([replace(rule, namespaces=("*",))]).of(identity).decide(action, model).rule is None:
                why = f"its models do not include '{model}'"
            else:
                why = "its namespaces do not include this one"
            found.append((rule, why))
    return found


def _notes(file: AuthFile, book: Rulebook, identity: Identity, model: str, namespace: str) -> Sequence[str]:
    notes = []
    if book.by_namespace and model and not namespace:
        notes.append("some rules ask in which repository a model lies: say it with --namespace")
    if _of_token(file, identity.name) and not identity.groups and _names_groups(book):
        notes.append(
            "the groups of this identity stand in its token: give them with --group, or the token itself"
        )
    return notes


def _names_groups(book: Rulebook) -> bool:
    return any(subject.startswith(GROUP) for rule in book.rules for subject in rule.subjects)
