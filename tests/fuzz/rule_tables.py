"""Rules: the answer is that of the first rule that fits, as a reading of a few lines finds it.

An input is lines: `allow` or `deny` with subjects, actions, models and namespaces, and questions. Patterns
are judged by a matcher that tries everything, one character after the other.
"""

from random import Random

from actors.values.callers import Action
from engine.identity.rules import OPEN_UNLESS_NAMED, Decision, Identity, Rule, Rulebook
from tests.fuzz.mutation import damaged

_SUBJECTS = ("alice", "bob", "group:team", "authenticated", "anonymous", "*", "model:chain")
_NAMES = ("alice", "bob", "anonymous", "model:chain")
_ACTIONS = ("inference", "metadata", "health", "metrics", "model-repository", "upload", "*")
_GLOBS = (
    "*",
    "add_*",
    "a?d",
    "[ab]*",
    "[!a]*",
    "[",
    "[]",
    "[]a]",
    "[a-c]x",
    "*a*a*b",
    "**",
    "a.b",
    "\\",
    "é*",
    "a\0b",
)
_MODELS = (
    "",
    "add_sub",
    "add",
    "b",
    "]",
    "ax",
    "xaab",
    "a.b",
    "acb",
    "\\",
    "éa",
    "aaaaaaaaaaaaaaaa",
    "a\nb",
    "A",
)


class RuleTables:
    """Asks rule tables, and an oracle."""

    name = "rules"
    prefix = "rules"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Some rules and some questions; damaged or not."""
        octets = _drawn(chance).encode() if chance.random() < 0.8 else chance.choice(corpus)
        return octets if chance.random() < 0.5 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare all answers."""
        rules: list[Rule] = []
        questions: list[tuple[str, ...]] = []
        for line in octets.decode("utf-8", "replace").split("\n"):
            words = line.split("\t")
            if len(words) == 5 and words[0] in ("allow", "deny"):
                rule = _rule(len(rules) + 1, words)
                if rule is not None:
                    rules.append(rule)
            elif len(words) == 5 and words[0] == "?":
                questions.append(tuple(words[1:]))
        book = Rulebook(rules[:60])
        outcome = "no question"
        for question in questions[:60]:
            outcome = _compare(book, rules[:60], question)
        return outcome


def _rule(number: int, words: list[str]) -> Rule | None:
    subjects, actions = words[1].split(","), words[2].split(",")
    known = {action.value: action for action in Action}
    if not all(subjects) or not all(each == "*" or each in known for each in actions):
        return None
    return Rule(
        number=number,
        line=number,
        subjects=frozenset(subjects),
        allows=words[0] == "allow",
        actions=None if "*" in actions else frozenset(known[each] for each in actions),
        models=tuple(words[3].split(",")),
        namespaces=tuple(words[4].split(",")),
    )


def _compare(book: Rulebook, rules: list[Rule], question: tuple[str, ...]) -> str:
    name, asked, model, namespace = question
    actions = [action for action in Action if action.value == asked]
    if not actions or not name:
        return "no question"
    groups = frozenset({"team"}) if name == "alice" else frozenset()
    decision = book.of(Identity(name=name, groups=groups)).decide(actions[0], model, namespace)
    named = any(rule.actions is not None and actions[0] in rule.actions for rule in rules)
    if actions[0] in OPEN_UNLESS_NAMED and not named:
        assert decision == Decision(allowed=True)
        return "open"
    deciding = next((rule for rule in rules if _fits(rule, name, groups, actions[0], model, namespace)), None)
    assert decision.rule is deciding
    if deciding is not None:
        assert decision.allowed is deciding.allows
        return "allowed" if decision.allowed else "denied"
    assert not decision.allowed
    return "denied by default"


def _fits(rule: Rule, name: str, groups: frozenset[str], action: Action, model: str, namespace: str) -> bool:
    own = {name, *(f"group:{group}" for group in groups)}
    if not name.startswith("model:"):
        own |= {"*"} if name == "anonymous" else {"*", "authenticated"}
    if not own & rule.subjects or (rule.actions is not None and action not in rule.actions):
        return False
    if not model:
        # A question about no model: a permission for some counts, a ban of some does not.
        return rule.allows or rule.models == ("*",) == rule.namespaces
    if not any(matches(glob, model) for glob in rule.models):
        return False
    if "*" in rule.namespaces:
        return True
    # Where it is not known in which repository a model lies, a ban counts and a permission does not.
    return any(matches(glob, namespace) for glob in rule.namespaces) if namespace else not rule.allows


def matches(glob: str, name: str) -> bool:
    """Whether a pattern of file names fits, by the positions that it can have reached."""
    reached = {0}
    at = 0
    while at < len(glob):
        sign = glob[at]
        at += 1
        if sign == "*":
            reached = set(range(min(reached), len(name) + 1)) if reached else set()
            continue
        allowed, at = _class_of(glob, at) if sign == "[" else (None, at)
        reached = {
            place + 1
            for place in reached
            if place < len(name) and (sign == "?" or _takes(sign, allowed, name[place]))
        }
    return len(name) in reached


def _class_of(glob: str, at: int) -> tuple[str | None, int]:
    """Return what stands in brackets, and the place behind; None where they do not end."""
    start = at + 1 if glob[at : at + 1] == "!" else at
    end = glob.find("]", start + 1)
    return (None, at) if end < 0 else (glob[at:end], end + 1)


def _takes(sign: str, listed: str | None, letter: str) -> bool:
    if listed is None:
        return sign == letter
    negated = listed.startswith("!")
    signs = listed[negated:]
    found = False
    at = 0
    while at < len(signs):
        if at + 2 < len(signs) and signs[at + 1] == "-":
            found = found or signs[at] <= letter <= signs[at + 2]
            at += 3
        else:
            found = found or signs[at] == letter
            at += 1
    return found is not negated


def _drawn(chance: Random) -> str:
    lines = []
    for _ in range(chance.randrange(1, 12)):
        globs, names = _some(chance, _GLOBS), "*" if chance.random() < 0.7 else _some(chance, _GLOBS)
        verdict = chance.choice(("allow", "deny"))
        lines.append("\t".join((verdict, _some(chance, _SUBJECTS), _some(chance, _ACTIONS), globs, names)))
    for _ in range(chance.randrange(1, 12)):
        model, namespace = chance.choice(_MODELS), chance.choice(_MODELS)
        lines.append("\t".join(("?", chance.choice(_NAMES), chance.choice(_ACTIONS[:-1]), model, namespace)))
    return "\n".join(lines)


def _some(chance: Random, words: tuple[str, ...]) -> str:
    return ",".join(chance.choice(words) for _ in range(chance.choice((1, 1, 2, 3))))
