"""Why an identity may do something, or may not."""

import pytest

from actors.values.callers import Action
from engine.identity.document import read_auth_file
from engine.identity.explaining import NoSuchIdentity, explain, named_identity
from engine.identity.rules import Identity

DIGEST = "ab" * 32
TEXT = f"""\
[[key]]
id = "ci"
digest = "{DIGEST}"
groups = ["builders"]

[[key]]
id = "k1"
name = "two-faced"
digest = "{DIGEST}"
groups = ["a"]

[[certificate]]
subject = "CN=two"
name = "two-faced"

[[certificate]]
subject = "CN=edge"
name = "edge"

[[issuer]]
issuer = "https://login.example"
audience = "tritium"
jwks = "jwks.json"
algorithms = ["ES256"]
prefix = "sso"
groups = "groups"

[[rule]]
for = ["*"]
deny = ["inference"]
models = ["secret-*"]

# what builders may
[[rule]]
for = ["group:builders"]
allow = ["inference", "metadata"]
models = ["resnet*"]
namespaces = ["/models"]

[[limit]]
for = ["ci"]
requests_per_second = 10

[[limit]]
for = ["*"]
concurrent = 4
"""
FILE = read_auth_file(TEXT, "auth.toml")
CI = Identity(name="ci", groups=frozenset({"builders"}))


def test_the_rule_that_decides_is_told_with_its_text():
    found = explain(FILE, CI, Action.INFERENCE, "resnet50", "/models")
    assert found.as_lines(TEXT) == [
        "allowed: 'ci' asks for 'inference' on model 'resnet50' in namespace '/models'",
        "  groups: builders",
        "  why: rule 2 (line 34) allows metadata and inference on models resnet* in namespace /models to "
        "group:builders",
        "    [[rule]]",
        '    for = ["group:builders"]',
        '    allow = ["inference", "metadata"]',
        '    models = ["resnet*"]',
        '    namespaces = ["/models"]',
        "  passed over rule 1 (line 28): its models do not include 'resnet50'",
        "  limits: 10 requests a second and 4 inferences at a time, in bursts of up to 1 s",
    ]


def test_limits_at_each_address_are_told_apart():
    both = read_auth_file(
        TEXT + '[[limit]]\nfor = ["ci"]\nper = "address"\nrequests_per_second = 5\n', "auth.toml"
    )
    lines = explain(both, CI, Action.INFERENCE, "resnet50", "/models").as_lines(TEXT)
    assert lines[-2:] == [
        "  limits: 10 requests a second and 4 inferences at a time, in bursts of up to 1 s",
        "  limits at each address: 5 requests a second, in bursts of up to 1 s",
    ]


def test_the_default_is_told_with_what_was_passed_over():
    found = explain(FILE, CI, Action.INFERENCE, "resnet50", "/other")
    assert not found.decision.allowed
    assert [(rule.number, why) for rule, why in found.passed] == [
        (1, "its models do not include 'resnet50'"),
        (2, "its namespaces do not include this one"),
    ]
    assert "why: no rule matches" in found.as_lines(TEXT)[2]
    other = explain(FILE, CI, Action.TRAFFIC)
    assert [why for _, why in other.passed] == ["it is not about 'traffic'"] * 2
    assert other.question == "'ci' asks for 'traffic', on no model in particular"


def test_a_rule_that_denies_some_models_says_nothing_of_none():
    found = explain(FILE, CI, Action.INFERENCE)
    assert [(rule.number, why) for rule, why in found.passed] == [
        (1, "it denies some models only, and this concerns none in particular")
    ]
    assert found.decision.allowed


def test_programs_get_the_same():
    found = explain(FILE, Identity(name="edge"), Action.INFERENCE, "secret-1", "/models").as_json(TEXT)
    assert found == {
        "identity": "edge",
        "groups": [],
        "action": "inference",
        "model": "secret-1",
        "namespace": "/models",
        "allowed": False,
        "reason": "rule 1 (line 28) denies inference on models secret-* to all clients",
        "rule": {
            "number": 1,
            "line": 28,
            "text": '[[rule]]\nfor = ["*"]\ndeny = ["inference"]\nmodels = ["secret-*"]',
        },
        "passed_over": [],
        "limits": "4 inferences at a time",
        "limits_at_each_address": "no limit",
        "notes": [],
    }
    assert explain(FILE, CI, Action.HEALTH).as_json(TEXT)["rule"] is None


def test_what_the_question_leaves_open_is_noted():
    (note,) = explain(FILE, CI, Action.INFERENCE, "resnet50").notes
    assert "--namespace" in note
    (note,) = explain(FILE, named_identity(FILE, "sso:alice"), Action.INFERENCE).notes
    assert "--group" in note
    plain = read_auth_file(TEXT.replace("group:builders", "ci").replace("namespaces", "# "), "auth.toml")
    assert explain(plain, named_identity(plain, "sso:alice"), Action.INFERENCE, "m").notes == ()


def test_identities_are_found_by_name():
    assert named_identity(FILE, "ci") == CI
    assert named_identity(FILE, "edge") == Identity(name="edge")
    assert named_identity(FILE, "anonymous") == FILE.anonymous
    assert named_identity(FILE, "model:pipeline") == Identity(name="model:pipeline")
    ops = Identity(name="sso:alice", groups=frozenset({"ops"}))
    assert named_identity(FILE, "sso:alice", ["ops"]) == ops
    assert named_identity(FILE, "two-faced", ["a"]).groups == {"a"}


@pytest.mark.parametrize(
    ("name", "groups", "told"),
    [
        (
            "two-faced",
            [],
            r"different groups .*\(key 'k1': a; certificate 'CN=two': none\): say which, with --group",
        ),
        ("anonymous", ["a"], "'anonymous' has no groups"),
        ("model:m", ["a"], "'model:m' has no groups"),
        ("cii", [], "did you mean 'ci'"),
        ("zzzzzz", [], r"those of \[\[key\]\] and \[\[certificate\]\]; of a token, sso:…"),
        ("zzzzzz", ["a"], "for 'zzzzzz'"),
    ],
)
def test_an_identity_that_is_not_there_is_not_made_up(name, groups, told):
    with pytest.raises(NoSuchIdentity, match=told):
        named_identity(FILE, name, groups)


def test_without_an_issuer_no_token_is_good():
    with pytest.raises(NoSuchIdentity, match=r"none, since no \[\[issuer\]\] is there"):
        named_identity(read_auth_file("", "a"), "jwt:alice")
