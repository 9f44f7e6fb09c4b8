"""`tritium auth explain`: whether a client may do something, and which rule says so."""

import io
import json
import sys
from datetime import UTC, datetime

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from engine.__main__ import main
from engine.identity.keys import digest_of

SECRET = "s" * 43
KEYS = "".join(
    f'[[key]]\nid = "{id_}"\nname = "{id_}"\ndigest = "{digest_of(SECRET)}"\n{more}\n'
    for id_, more in (
        ("ci", 'groups = ["builders"]'),
        ("old", "expires = 2020-01-01"),
        ("gone", "revoked = true"),
    )
)
TEXT = f"""\
{KEYS}
[[issuer]]
issuer = "https://login.example"
audience = "tritium"
jwks = "jwks.json"
algorithms = ["ES256"]
groups = "groups"

[[rule]]
for = ["group:builders", "group:ops"]
allow = ["inference"]
models = ["resnet*"]
"""
EC = ECKey.generate_key("P-256", {"kid": "ec"})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text(TEXT)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [EC.as_dict(private=False)]}))
    return path


@pytest.fixture
def explain(path, capsys):
    """Run `tritium auth explain` on the file: exit status, standard output, standard error."""

    def run(*words):
        status = main(["auth", "explain", *words, "--auth-file", str(path)])
        return status, *capsys.readouterr()

    return run


def token(**claims):
    now = int(datetime.now(UTC).timestamp())
    given = {"iss": "https://login.example", "aud": "tritium", "sub": "alice", "exp": now + 600, **claims}
    return jwt.encode({"alg": "ES256", "kid": "ec"}, given, EC, algorithms=["ES256"])


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--identity", "ci", "inference", "resnet50"], 0, "allowed: 'ci' asks for 'inference' on model"),
        (["--identity", "ci", "inference", "bert"], 1, "passed over rule 1 (line 24): its models do"),
        (["--identity", "jwt:bob", "--group", "ops", "inference", "resnet"], 0, "groups: ops"),
        (["--identity", "jwt:bob", "inference", "resnet"], 1, "note: the groups of this identity"),
        (["--anonymous", "health"], 0, "until one does it is open to all"),
        (["--anonymous", "inference", "resnet"], 1, "why: no rule matches"),
        (["--identity", "model:m", "inference", "resnet"], 1, "denied: 'model:m'"),
    ],
)  # fmt: skip
def test_an_identity_is_explained(explain, words, status, told):
    found, out, err = explain(*words)
    assert (found, err) == (status, "")
    assert told in out


def test_the_rule_stands_there_in_its_own_text(explain):
    _, out, _ = explain("--identity", "ci", "inference", "resnet50")
    assert '    [[rule]]\n    for = ["group:builders", "group:ops"]\n    allow = ["inference"]\n' in out


def test_programs_get_json(explain):
    status, out, _ = explain("--identity", "ci", "inference", "resnet50", "--namespace", "/m", "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["allowed"], found["rule"]["number"], found["namespace"]) == (True, 1, "/m")


# -- credentials


def shown(explain, tmp_path, key, *words):
    (tmp_path / "key").write_text(f"{key}\n")
    return explain("--key-file", str(tmp_path / "key"), *(words or ("inference", "resnet")))


def test_a_key_in_a_file_needs_no_warning(explain, tmp_path):
    status, out, err = shown(explain, tmp_path, f"ci.{SECRET}")
    assert (status, err) == (0, "")
    assert out.startswith("allowed: 'ci'")


def test_a_key_on_the_command_line_is_warned_of(explain):
    status, out, err = explain(f"ci.{SECRET}", "inference", "resnet")
    assert status == 0
    assert "every user of this machine can read it; use --key-file FILE" in err
    assert SECRET not in out + err


def test_a_key_may_come_on_standard_input(explain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"ci.{SECRET}\n"))
    assert explain("-", "inference", "resnet")[::2] == (0, "")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("ci.wrong", "it is not the secret of key 'ci'"),
        ("other.wrong", "no key of this file has its id"),
        ("ci", "a key is ID.SECRET, and this has no dot"),
        (f"old.{SECRET}", "the API key 'old' has expired"),
        (f"gone.{SECRET}", "the API key 'gone' was revoked"),
        ("a.b.c", "the token is not good"),
    ],
)
def test_bad_keys_are_denied_and_told_why(explain, tmp_path, key, told):
    status, out, err = shown(explain, tmp_path, key)
    assert (status, err) == (1, "")
    assert out.startswith("denied: ")
    assert told in out
    assert SECRET not in out


def test_a_bad_key_is_told_to_programs_too(explain, tmp_path):
    status, out, _ = shown(explain, tmp_path, "ci.wrong", "health", "--json")
    found = json.loads(out)
    assert (status, found["allowed"], found["identity"]) == (1, False, None)
    assert "not the secret" in found["reason"]


@pytest.mark.parametrize(
    ("claims", "status", "told"),
    [
        ({"groups": ["ops"]}, 0, "allowed: 'jwt:alice'"),
        ({}, 1, "denied: 'jwt:alice'"),
        ({"exp": 1_000_000_000}, 1, "denied: the token is not good: it has expired"),
        ({"iss": "https://evil.example"}, 1, "(issuers of this file: 'https://login.example')"),
    ],
)
def test_tokens_are_verified_and_explained(explain, tmp_path, claims, status, told):
    found, out, _ = shown(explain, tmp_path, token(**claims))
    assert found == status
    assert told in out


# -- what makes no sense


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--anonymous", "inferense"], "'inferense' is no action (did you mean 'inference'?)"),
        (["--anonymous", "xyz"], "actions are health, metadata, inference"),
        (["--identity", "cii", "health"], "did you mean 'ci'?"),
        (["--key-file", "/no/such", "health"], "--key-file: '/no/such' can't be read"),
        (["a b", "health"], "the command line holds no key"),
    ],
)
def test_bad_input_is_told(explain, words, told):
    status, out, err = explain(*words)
    assert (status, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["KEY"], "expected KEY, ACTION and perhaps MODEL, got 1 words"),
        (["--anonymous", "health", "model", "more"], "expected ACTION and perhaps MODEL, got 3 words"),
        (["--anonymous", "--identity", "x", "health"], "not allowed with"),
        (["--anonymous", "--group", "x", "health"], "--group goes with --identity"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2(explain, capsys, words, told):
    with pytest.raises(SystemExit) as end:
        explain(*words)
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_a_file_that_makes_no_sense_ends_with_2(explain, path):
    path.write_text("[[rul]]")
    status, _, err = explain("--anonymous", "health")
    assert status == 2
    assert "did you mean 'rule'?" in err


def test_help_teaches(capsys):
    for words, told in ((["auth"], "tritium key"), (["auth", "explain"], "--anonymous health")):
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0
        assert told in capsys.readouterr().out
