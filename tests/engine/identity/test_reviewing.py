"""What is told of an auth file, and which of it looks like a mistake."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.callers import ANONYMOUS, Action
from engine.identity import reviewing
from engine.identity.document import ApiKey, AuthFile, Certificate, read_auth_file
from engine.identity.reviewing import review, shadowed
from engine.identity.rules import Identity, Rule, Rulebook

DIGEST = "ab" * 32
NOW = 1_800_000_000.0  # 2027-01-15
CI = f'[[key]]\nid = "ci"\ndigest = "{DIGEST}"\ngroups = ["builders"]\n'
ISSUER = (
    '[[issuer]]\nissuer = "https://login.example"\naudience = "tritium"\n'
    'jwks = "jwks.json"\nalgorithms = ["RS256"]\n'
)


def of(text):
    return review(read_auth_file(text, "auth.toml"), NOW)


def rules(*given):
    """Return a file with the key `ci` and rules of (subjects, actions, models)."""
    text = CI
    for subjects, verb, actions, *more in given:
        listed = [f"for = {subjects}", f"{verb} = {actions}", *more]
        text += "[[rule]]\n" + "\n".join(listed).replace("'", '"') + "\n"
    return text


def unused(*given):
    found = shadowed(read_auth_file(rules(*given), "auth.toml"))
    return [(rule.number, [each.number for each in by]) for rule, by in found]


# -- what it says


def test_an_empty_file_opens_health_and_metrics_only():
    found = of("")
    assert (found.identities, found.rules, found.limits, found.warnings) == ((), (), (), ())
    assert [line.partition(":")[0] for line in found.anonymous] == ["health", "metrics"]


def test_identities_rules_and_limits_are_told():
    found = of(
        CI
        + ISSUER
        + ISSUER.replace("login", "sso").replace('"RS256"', '"ES256"')
        + 'groups = "roles"\nprefix = "sso"\n'
        + '[[certificate]]\nsubject = "CN=edge"\nname = "edge"\n'
        + '[[rule]]\nfor = ["edge", "ci"]\nallow = ["inference"]\n'
        + '[[limit]]\nfor = ["group:builders"]\nconcurrent = 2\n'
        + '[[limit]]\nfor = ["anonymous"]\nper = "address"\nconcurrent = 1\n'
    )
    assert found.identities == (
        "1 key (1 good) of 1 identity: ci",
        "tokens of 'https://login.example' for tritium: jwt:<sub>, without groups; signed by RS256 with a "
        "key in jwks.json",
        "tokens of 'https://sso.example' for tritium: sso:<sub>, groups from their claim 'roles'; signed by "
        "ES256 with a key in jwks.json",
        "1 certificate: CN=edge",
        "group:builders has 1 identity",
    )
    assert found.rules == ("rule 1 (line 20) allows inference on every model to ci and edge",)
    assert found.limits == (
        "group:builders, each: 2 inferences at a time",
        "clients without credentials, each at each address: 1 inferences at a time",
    )
    assert found.warnings == ()
    assert found.as_json()["rules"] == list(found.rules)
    assert set(found.as_json()) == {"identities", "rules", "limits", "anonymous", "warnings"}


def test_what_is_open_to_anonymous_ends_at_a_rule_about_everything():
    found = of(
        rules(
            (["*"], "deny", ["inference"], "models = ['secret-*']"),
            ([ANONYMOUS], "allow", ["inference", "metrics"]),
            (["*"], "deny", ["*"]),
        )
    )
    assert found.anonymous == (
        "health: no rule names 'health', and until one does it is open to all",
        "inference: rule 1 (line 5) denies models secret-* and rule 2 (line 9) allows every model",
        "metrics: rule 2 (line 9) allows every model",
    )


# -- what looks like a mistake


def test_rules_by_namespace_say_what_the_server_must_be_told():
    (told, *_) = warned(
        CI.replace("groups", "# ") + '[[rule]]\nfor = ["ci"]\nallow = ["*"]\nnamespaces = ["/x"]\n'
    )
    assert told == "rule 1 (line 5) names namespaces: a server with this file takes --model-namespacing=true"


def warned(text):
    return of(text).warnings


def test_management_that_is_open_to_all_is_told():
    (warning,) = warned(
        CI + '[[rule]]\nfor = ["*"]\nallow = ["model-repository", "upload", "inference"]\n'
        '[[limit]]\nfor = ["group:builders"]\nconcurrent = 2\n'
    )
    assert warning == (
        "rule 1 (line 5): clients without credentials may use 'upload' (bring code along that the server "
        "runs) and 'model-repository' (load and unload models)"
    )


def test_probes_that_will_be_refused_are_told():
    first, second = warned(
        CI.replace("groups", "# ") + '[[rule]]\nfor = ["ci"]\nallow = ["health", "metrics"]\n'
    )
    assert "kubelet's probes will be refused" in first
    assert "a Prometheus without credentials will be refused" in second
    assert not warned(CI.replace("groups", "# ") + '[[rule]]\nfor = ["*"]\nallow = ["health", "metrics"]\n')


def test_groups_without_members_and_members_without_rules_are_told():
    gone = f'[[key]]\nid = "old"\ndigest = "{DIGEST}"\ngroups = ["gone"]\nrevoked = true\n'
    rule = '[[rule]]\nfor = ["ci", "group:gone"]\nallow = ["inference"]\n'
    assert warned(CI + gone + rule) == (
        "group:gone has no member: no good key and no certificate is in it",
        "no rule or limit names group:builders",
    )
    sso = ISSUER + 'groups = "roles"\n'
    assert "has no member but those of tokens" in warned(CI + gone + sso + rule)[0]


def test_identities_that_may_do_nothing_are_told():
    (warning, *_) = warned(CI + '[[rule]]\nfor = ["group:builders"]\ndeny = ["inference"]\n')
    assert warning == "no rule allows anything to ci"


def test_keys_that_end_are_told():
    def key(id_, expires):
        return f'[[key]]\nid = "{id_}"\nname = "n"\ndigest = "{DIGEST}"\nexpires = {expires}\n'

    rule = '[[rule]]\nfor = ["n"]\nallow = ["inference"]\n'
    assert warned(key("a", "2027-01-01") + key("b", "2027-01-20") + key("c", "2027-03-01") + rule) == (
        "1 key expired: a at 2027-01-01T00:00:00Z",
        "1 key will expire soon: b at 2027-01-20T00:00:00Z",
    )


def test_a_rule_that_can_never_decide_is_told():
    text = rules((["*"], "allow", ["inference"]), (["ci"], "deny", ["inference"], "models = ['m']"))
    assert "rule 2 (line 8) can never decide: rule 1 before it decides all that it is about" in warned(text)
    text = rules(
        (["*"], "allow", ["inference"]),
        (["*"], "deny", ["metadata"]),
        (["ci"], "deny", ["inference", "metadata"], "models = ['m']"),
    )
    assert any("rule 1 and rule 2 before it decide all" in warning for warning in warned(text))


def on(models):
    return ["*"], "allow", ["health"], f"models = ['{models}']"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        # Each subject is within another one.
        ([(["*"], "allow", ["*"]), (["ci", ANONYMOUS, "authenticated"], "deny", ["health"])], [(2, [1])]),
        ([(["authenticated"], "allow", ["*"]), (["group:builders"], "deny", ["health"])], [(2, [1])]),
        ([(["group:builders"], "allow", ["*"]), (["ci"], "deny", ["health"])], [(2, [1])]),
        ([(["authenticated"], "allow", ["*"]), ([ANONYMOUS], "deny", ["health"])], []),
        ([(["*"], "allow", ["*"]), (["model:m"], "deny", ["health"])], []),
        ([(["model:m"], "allow", ["*"]), (["model:m"], "deny", ["health"])], [(2, [1])]),
        ([(["ci"], "allow", ["*"]), (["*"], "deny", ["health"])], []),
        # Actions.
        ([(["*"], "allow", ["health"]), (["*"], "deny", ["*"])], []),
        ([(["*"], "allow", ["health"]), (["*"], "deny", ["health", "metrics"])], []),
        # Patterns of models and namespaces.
        ([on("a*"), on("ab?")], [(2, [1])]),
        ([on("a?"), on("ab")], [(2, [1])]),
        ([on("a?*"), on("a*b")], []),
        ([on("a"), on("a', 'b")], []),
        ([(["*"], "allow", ["*"], "namespaces = ['/x']"), (["*"], "allow", ["*"], "models = ['b']")], []),
        ([(["*"], "allow", ["*"]), (["*"], "allow", ["*"], "namespaces = ['/x']")], [(2, [1])]),
        # A rule that denies some models says nothing about what concerns none.
        ([(["*"], "deny", ["*"], "models = ['a*']"), (["*"], "allow", ["*"], "models = ['ab']")], []),
        ([(["*"], "deny", ["*"], "models = ['a*']"), (["*"], "deny", ["*"], "models = ['ab']")], [(2, [1])]),
        (
            [
                (["*"], "deny", ["*"], "models = ['a*']"),
                (["*"], "allow", ["*"], "models = ['c']"),
                (["*"], "allow", ["*"], "models = ['ab']"),
            ],
            [(3, [1, 2])],
        ),
    ],
)  # fmt: skip
def test_rules_are_covered_by_earlier_ones(given, found):
    assert unused(*given) == found


def test_a_name_with_different_groups_is_only_in_those_that_it_always_has():
    text = CI + '[[certificate]]\nsubject = "CN=ci"\nname = "ci"\n'
    text += '[[rule]]\nfor = ["group:builders"]\nallow = ["*"]\n[[rule]]\nfor = ["ci"]\ndeny = ["health"]\n'
    assert list(shadowed(read_auth_file(text, "auth.toml"))) == []


def test_many_patterns_are_not_all_tried():
    many = [on(f"{number}-*") for number in range(reviewing.MOST_GENERAL)]
    assert unused(*many, on("1-x"))
    late = on("z*")
    assert not unused(*many, late, on("zz"))
    assert unused(*many, late, late)


GLOBS = ("*", "a", "b", "ab", "a*", "*b", "?", "[ab]", "a?*")
NAMES = ("a", "b", "ab", "abb", "c", "")
IDENTITIES = (
    Identity(name=ANONYMOUS),
    Identity(name="x", groups=frozenset({"g"})),
    Identity(name="x", groups=frozenset({"g", "h"})),
    Identity(name="y"),
    Identity(name="jwt:z", groups=frozenset({"h"})),
    Identity(name="model:m"),
)
SUBJECTS = ("*", "authenticated", ANONYMOUS, "x", "y", "jwt:z", "group:g", "group:h", "model:m")
ACTIONS = (Action.HEALTH, Action.INFERENCE, Action.UPLOAD)
some = st.builds(
    Rule,
    number=st.just(1),
    line=st.just(1),
    subjects=st.frozensets(st.sampled_from(SUBJECTS), min_size=1, max_size=3),
    allows=st.booleans(),
    actions=st.none() | st.frozensets(st.sampled_from(ACTIONS), min_size=1),
    models=st.lists(st.sampled_from(GLOBS), min_size=1, max_size=2).map(tuple),
    namespaces=st.just(("*",)) | st.lists(st.sampled_from(GLOBS), min_size=1, max_size=2).map(tuple),
)


def numbered(found):
    return [
        Rule(
            number=at,
            line=at,
            subjects=each.subjects,
            allows=each.allows,
            actions=each.actions,
            models=each.models,
            namespaces=each.namespaces,
        )
        for at, each in enumerate(found, 1)
    ]


@given(st.lists(some, min_size=2, max_size=6).map(numbered))
def test_what_is_told_to_decide_nothing_never_decides(found):
    keys = {
        str(at): ApiKey(id=str(at), digest=DIGEST, identity=each)
        for at, each in enumerate(IDENTITIES)
        if ":" not in each.name and each.name != ANONYMOUS
    }
    certificates = {"CN=y": Certificate(subject="CN=y", identity=Identity(name="y"))}
    file = AuthFile(keys=keys, issuers={}, certificates=certificates, rules=found, limits=[])
    told = {rule.number for rule, _ in shadowed(file)}
    book = Rulebook(found)
    for identity in IDENTITIES:
        permissions = book.of(identity)
        for action, model, namespace in itertools.product(ACTIONS, NAMES, NAMES):
            decision = permissions.decide(action, model, namespace)
            assert decision.rule is None or decision.rule.number not in told
