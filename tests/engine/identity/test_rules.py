"""Rules: which one decides, and what holds without one."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import ANONYMOUS, Action
from engine.identity.rules import Decision, Identity, Rule, Rulebook

ALICE = Identity(name="alice", groups=frozenset({"team"}))
STRANGER = Identity(name=ANONYMOUS)


def rule(number, subjects, actions, *, allows=True, models=("*",), namespaces=("*",)):
    return Rule(
        number=number,
        line=10 * number,
        subjects=frozenset(subjects),
        allows=allows,
        actions=None if actions is None else frozenset(actions),
        models=models,
        namespaces=namespaces,
    )


def decided(rules, identity, action, model="", namespace=""):
    return Rulebook(rules).of(identity).decide(action, model, namespace)


def test_what_no_rule_allows_is_denied():
    assert decided([], ALICE, Action.INFERENCE, "m") == Decision(allowed=False)


@pytest.mark.parametrize("action", [Action.HEALTH, Action.METRICS])
def test_health_and_metrics_are_open_as_long_as_no_rule_names_them(action):
    assert decided([rule(1, ["alice"], None)], STRANGER, action).allowed
    named = [rule(1, ["alice"], [action])]
    assert not decided(named, STRANGER, action).allowed
    assert decided(named, ALICE, action) == Decision(True, named[0])


def test_a_rule_about_every_action_names_neither_health_nor_metrics():
    rules = [rule(1, ["alice"], [Action.INFERENCE]), rule(2, ["*"], None, allows=False)]
    for action in (Action.HEALTH, Action.METRICS):
        assert decided(rules, STRANGER, action).allowed
    assert not decided(rules, STRANGER, Action.METADATA, "m").allowed
    named = [rule(1, ["prometheus"], [Action.METRICS]), *rules]
    assert not decided(named, STRANGER, Action.METRICS).allowed


def test_the_first_rule_that_matches_decides():
    rules = [
        rule(1, ["alice"], [Action.INFERENCE], allows=False, models=("secret-*",)),
        rule(2, ["*"], None),
    ]
    assert decided(rules, ALICE, Action.INFERENCE, "secret-1") == Decision(False, rules[0])
    assert decided(rules, ALICE, Action.INFERENCE, "open") == Decision(True, rules[1])
    assert decided(rules, ALICE, Action.METADATA, "secret-1") == Decision(True, rules[1])
    assert str(rules[0]) == "rule 1 (line 10)"


@pytest.mark.parametrize(
    ("subject", "alice", "anonymous", "model"),
    [
        ("*", True, True, False),
        ("authenticated", True, False, False),
        ("group:team", True, False, False),
        ("group:other", False, False, False),
        ("alice", True, False, False),
        ("anonymous", False, True, False),
        ("model:chain", False, False, True),
    ],
)
def test_the_identities_that_a_subject_means(subject, alice, anonymous, model):
    rules = [rule(1, [subject], [Action.INFERENCE])]
    who = (ALICE, STRANGER, Identity(name="model:chain"))
    found = tuple(decided(rules, each, Action.INFERENCE, "m").allowed for each in who)
    assert found == (alice, anonymous, model)


def test_what_concerns_no_model_is_allowed_if_it_is_on_any():
    rules = [
        rule(1, ["alice"], [Action.METADATA], allows=False, models=("b",)),
        rule(2, ["alice"], [Action.METADATA], models=("a",)),
    ]
    assert decided(rules, ALICE, Action.METADATA) == Decision(True, rules[1])
    closed = [rule(1, ["alice"], [Action.METADATA], allows=False), *rules]
    assert decided(closed, ALICE, Action.METADATA) == Decision(False, closed[0])


def test_namespaces_are_those_of_repositories():
    rules = [rule(1, ["alice"], [Action.INFERENCE], namespaces=("/models/a",))]
    book = Rulebook(rules)
    assert book.by_namespace
    assert book.of(ALICE).decide(Action.INFERENCE, "m", "/models/a").allowed
    assert not book.of(ALICE).decide(Action.INFERENCE, "m", "/models/b").allowed
    assert not book.of(ALICE).decide(Action.INFERENCE, "m", "").allowed
    assert not Rulebook([rule(1, ["*"], None)]).by_namespace


@pytest.mark.parametrize(
    ("namespace", "allowed"),
    [
        ("/models/a", True),
        ("/models/b", False),
        ("/models/c", True),
        ("", False),  # no repository has it: denied by any namespace, and allowed by none
        (None, True),  # asked about again, once it is known which repository has it
    ],
)
def test_a_model_in_no_known_repository_is_denied_by_namespace(namespace, allowed):
    rules = [
        rule(1, ["alice"], [Action.MODEL_REPOSITORY], allows=False, namespaces=("*/b",)),
        rule(2, ["alice"], [Action.MODEL_REPOSITORY], namespaces=("/models/a",)),
        rule(3, ["alice"], None, namespaces=("/models/*",)),
    ]
    assert decided(rules, ALICE, Action.MODEL_REPOSITORY, "m", namespace).allowed is allowed


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule(1, ["alice"], None)], True),
        ([rule(1, ["alice"], None, models=("a*",))], False),
        ([rule(1, ["alice"], None, namespaces=("a*",))], False),
        ([rule(1, ["alice"], None, models=("a*",)), rule(2, ["*"], [Action.STATISTICS])], True),
        ([rule(1, ["*"], None, allows=False, models=("a*",)), rule(2, ["alice"], None)], False),
        ([rule(1, ["*"], [Action.TRACE], allows=False), rule(2, ["alice"], None)], True),
    ],
)
def test_what_shows_every_model_takes_a_rule_about_every_model(rules, allowed):
    permissions = Rulebook(rules).of(ALICE)
    assert permissions.allows_all(Action.STATISTICS) is allowed
    assert permissions.allows_all(Action.HEALTH)


@given(
    globs=st.lists(st.text("ab*?[]", min_size=1, max_size=4), min_size=1, max_size=3),
    model=st.text("abA/", min_size=1, max_size=4),
)
def test_models_are_matched_as_file_names_are_in_the_same_letter_case(globs, model):
    found = decided([rule(1, ["alice"], None, models=tuple(globs))], ALICE, Action.INFERENCE, model).allowed
    assert found == any(fnmatch.fnmatchcase(model, glob) for glob in globs)


ACTIONS = st.sampled_from([Action.INFERENCE, Action.METADATA, Action.HEALTH])
RULES = st.lists(
    st.tuples(
        st.sampled_from(["*", "alice", "group:team", "bob"]),
        st.one_of(st.none(), st.sets(ACTIONS, min_size=1)),
        st.booleans(),
        st.sampled_from(["*", "a*", "b"]),
    ),
    max_size=5,
)


@given(given_rules=RULES, action=ACTIONS, model=st.sampled_from(["a", "ab", "b", "c"]))
def test_the_answer_is_that_of_the_first_rule_that_fits(given_rules, action, model):
    rules = [
        rule(n, [subject], actions, allows=allows, models=(models,))
        for n, (subject, actions, allows, models) in enumerate(given_rules, 1)
    ]
    fits = [
        (allows, n)
        for n, (subject, actions, allows, models) in enumerate(given_rules, 1)
        if subject != "bob" and (actions is None or action in actions) and fnmatch.fnmatchcase(model, models)
    ]
    named = any(actions is not None and action in actions for _, actions, _, _ in given_rules)
    is_open = action is Action.HEALTH and not named
    expected = is_open or (bool(fits) and fits[0][0])
    assert decided(rules, ALICE, action, model).allowed == expected
