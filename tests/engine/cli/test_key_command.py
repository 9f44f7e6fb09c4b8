"""`tritium key`: keys are made, listed and revoked, and shown once."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from engine.__main__ import main
from engine.identity.document import read_auth_file
from engine.identity.keys import matches

RULE = '[[rule]]\nfor = ["authenticated"]\nallow = ["inference"]\n'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "auth.toml"


@pytest.fixture
def key(path, capsys):
    """Run `tritium key` on the file: exit status, standard output, standard error."""

    def run(*words):
        status = main(["key", *words, "--auth-file", str(path)])
        return status, *capsys.readouterr()

    return run


def read(path):
    return read_auth_file(path.read_text(), "auth.toml")


def test_a_new_key_is_alone_on_standard_output(key, path):
    status, out, err = key("new", "--name", "ci", "--group", "builders", "--group", "x", "--expires", "90d")
    assert status == 0
    id_, _, secret = out.removesuffix("\n").partition(".")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secret)
    found = read(path).keys[id_]
    assert matches(secret, found.digest)
    assert (id_, found.identity.name, found.identity.groups) == ("ci", "ci", {"builders", "x"})
    assert abs(found.expires - (datetime.now(UTC) + timedelta(days=90)).timestamp()) < 60
    assert path.stat().st_mode & 0o777 == 0o600
    assert "auth.toml, made now: key 'ci' is for 'ci' until 20" in err
    assert "no rule allows 'ci' anything yet" in err
    assert secret not in err
    assert secret not in path.read_text()


def test_an_identity_can_have_several_keys(key, path):
    path.write_text(RULE)
    _, first, err = key("new", "--name", "ci")
    _, second, _ = key("new", "--name", "ci")
    _, third, _ = key("new", "--name", "ci", "--id", "blue")
    assert [each.partition(".")[0] for each in (first, second, third)] == ["ci", "ci-2", "blue"]
    assert err.count("\n") == 1  # a rule allows it something
    assert {each.identity.name for each in read(path).keys.values()} == {"ci"}


def test_keys_are_listed_without_secrets_and_digests(key, path):
    outs = [key("new", "--name", "ci", "--expires", "2999-12-31")[1], key("new", "--name", "a@b")[1]]
    status, out, _ = key("list")
    assert status == 0
    assert out == (
        "id   name  groups  expires               revoked  standing\n"
        "ci   ci    -       2999-12-31T00:00:00Z  -        good\n"
        "a-b  a@b   -       never                 -        good\n"
    )
    status, told, _ = key("list", "--json")
    assert [each["id"] for each in json.loads(told)] == ["ci", "a-b"]
    digests = [each.digest for each in read(path).keys.values()]
    assert not any(word.strip() in out + told for word in [*outs, *digests])


def test_a_file_without_keys_says_how_to_make_one(key, path):
    path.write_text("")
    assert key("list") == (0, "", f"{path}: no keys; `tritium key new` makes one\n")


def test_a_key_is_revoked_once(key, path):
    key("new", "--name", "ci")
    status, out, err = key("revoke", "ci")
    assert (status, out) == (0, "")
    assert "key 'ci' is revoked" in err
    assert read(path).keys["ci"].revoked
    before = path.read_bytes()
    status, _, err = key("revoke", "ci")
    assert status == 0
    assert re.search(r"was revoked already: 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\n", err)
    assert path.read_bytes() == before
    assert re.search(r"^ci +ci .* 20\d\d-.*Z  revoked$", key("list")[1], re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["revoke", "cii"], "no key with the id 'cii' (did you mean 'ci'?)"),
        (["new", "--name", "a b"], "'a b' is no name"),
        (["new", "--name", "x", "--id", "ci"], "there is a key 'ci' already"),
        (["new", "--name", "x", "--expires", "soon"], "write a span from now such as 12h, 90d"),
        (["new", "--name", "x", "--expires", "2020-01-01"], "is over already"),
    ],
)
def test_what_makes_no_sense_changes_nothing(key, path, words, told):
    key("new", "--name", "ci")
    before = path.read_bytes()
    status, out, err = key(*words)
    assert (status, out) == (1, "")
    assert told in err
    assert path.read_bytes() == before


@pytest.mark.parametrize("words", [["list"], ["revoke", "ci"]])
@pytest.mark.parametrize(
    ("text", "told"), [(None, "No such file"), ("x", "not TOML"), ("[[rul]]", "did you mean 'rule'")]
)
def test_a_file_that_can_not_be_used_is_told(key, path, words, text, told):
    if text is not None:
        path.write_text(text)
    status, out, err = key(*words)
    assert (status, out) == (1, "")
    assert told in err


def test_help_teaches(capsys):
    for words in (["key"], ["key", "new"], ["key", "list"], ["key", "revoke"]):
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0
        assert "auth file" in capsys.readouterr().out


@pytest.mark.system
@pytest.mark.slow
def test_calls_at_the_same_time_lose_no_key(path):
    command = [sys.executable, "-m", "engine", "key", "new", "--auth-file", str(path), "--name", "ci"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)
    ]
    outs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 8
    shown = dict(out.strip().split(".") for out in outs)
    found = read(path).keys
    assert set(shown) == set(found) == {"ci", *(f"ci-{number}" for number in range(2, 9))}
    assert all(matches(secret, found[id_].digest) for id_, secret in shown.items())
    assert os.listdir(path.parent) == ["auth.toml"]
