"""The auth file: what it says, and how it teaches."""

import math

import pytest

from actors.values.callers import ANONYMOUS, Action
from engine.identity import document
from engine.identity.document import AuthFileError, read_auth_file
from engine.identity.limits import Limits
from engine.identity.rules import Identity

DIGEST = "ab" * 32
KEY = f'[[key]]\nid = "ci"\ndigest = "{DIGEST}"\n'
ISSUER = (
    '[[issuer]]\nissuer = "https://login.example"\naudience = "tritium"\n'
    'jwks = "jwks.json"\nalgorithms = ["RS256"]\n'
)


def read(text):
    return read_auth_file(text, "auth.toml")


def test_an_empty_file_knows_the_anonymous_only():
    file = read("")
    assert file.identities() == {ANONYMOUS: Identity(name=ANONYMOUS)}
    assert (file.rules, file.limits) == ([], [])


def test_a_key_is_named_by_its_id_unless_it_has_a_name():
    file = read(KEY + f'[[key]]\nid = "k2"\nname = "alice"\ndigest = "{DIGEST}"\ngroups = ["a", "b"]\n')
    assert file.keys["ci"].identity == Identity(name="ci")
    assert file.keys["ci"].expires == math.inf
    assert file.keys["k2"].identity == Identity(name="alice", groups=frozenset({"a", "b"}))


@pytest.mark.parametrize(
    ("line", "expires", "revoked"),
    [
        ("expires = 1970-01-02T00:00:00Z", 86400, False),
        ("expires = 1970-01-02T01:00:00+01:00", 86400, False),
        ("expires = 1970-01-02T00:00:00", 86400, False),
        ("expires = 1970-01-02", 86400, False),
        ("revoked = true", math.inf, True),
        ("revoked = false", math.inf, False),
        ("revoked = 2026-01-01T00:00:00Z", math.inf, True),
        ("groups = []", math.inf, False),
    ],
)
def test_keys_end(line, expires, revoked):
    key = read(KEY + line).keys["ci"]
    assert (key.expires, key.revoked) == (expires, revoked)


def test_an_issuer_has_defaults():
    issuer = read(ISSUER).issuers["https://login.example"]
    assert issuer.audience == ("tritium",)
    assert (issuer.skew, issuer.prefix, issuer.name, issuer.groups) == (60.0, "jwt", "sub", "")


def test_certificates_rules_and_limits():
    file = read(
        '[[certificate]]\nsubject = "CN=alice,O=Example"\nname = "alice"\n'
        '[[rule]]\nfor = ["alice", "anonymous"]\nallow = ["inference", "metadata"]\nmodels = ["a*"]\n'
        '[[rule]]\nfor = ["*"]\ndeny = ["*"]\nnamespaces = ["/x"]\n'
        '[[limit]]\nfor = ["alice"]\nrequests_per_second = 5\nbytes_per_second = "1MiB"\nconcurrent = 2\n'
        '[[limit]]\nfor = ["authenticated"]\nper = "address"\nbytes_per_second = 10\nburst_seconds = 3\n'
    )
    assert file.certificates["CN=alice,O=Example"].identity == Identity(name="alice")
    first, second = file.rules
    assert (first.allows, first.actions, first.models) == (True, {Action.INFERENCE, Action.METADATA}, ("a*",))
    assert (second.allows, second.actions, second.namespaces, second.line) == (False, None, ("/x",), 8)
    assert [each.limits for each in file.limits] == [
        Limits(requests=5, bytes=1024 * 1024, concurrent=2),
        Limits(bytes=10, burst=3),
    ]
    assert [each.by_address for each in file.limits] == [False, True]


def test_groups_of_tokens_are_known_at_the_token_only():
    rule = '[[rule]]\nfor = ["group:x", "jwt:alice", "model:chain"]\nallow = ["inference"]\n'
    assert read(ISSUER + 'groups = "roles"\n' + rule).rules
    with pytest.raises(AuthFileError, match="'group:x'"):
        read(ISSUER + rule)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "auth.toml: not TOML: "),
        ("[[keys]]\n", "auth.toml: 'keys' is not known (did you mean 'key'?)"),
        (
            "zzz = 1\n",
            "'zzz' is not known (tables are [[key]], [[issuer]], [[certificate]], [[rule]], [[limit]])",
        ),
        ("[key]\n", "'key' is an array of tables: write [[key]]"),
        ("key = [1]\n", "'key' is an array of tables: write [[key]]"),
        (
            "[[key]]\n",
            "auth.toml, line 1: [[key]] number 1, 'id': takes a text in quotation marks; it is missing",
        ),
        ('[[key]]\nid = ""\n', "'id': takes a text in quotation marks"),
        ('[[key]]\nid = "a.b"\n', "'a.b' is no id: it takes letters, digits, - and _, 64 at most"),
        ('[[key]]\nid = "a"\ndigest = "secret"\n', "'digest': is not 64 hexadecimal digits"),
        (KEY + "revoked = 1\n", "'revoked': takes true, false, or the time of the revocation"),
        (KEY + 'expires = "soon"\n', "'expires': takes a time such as 2030-01-31T12:00:00Z"),
        (KEY + 'grups = ["a"]\n', "'grups': is not known (did you mean 'groups'?)"),
        (KEY + "zzz = 1\n", "'zzz': is not known (keys are digest, expires, groups, id, name, revoked)"),
        (KEY + 'name = "a b"\n', "'a b' is no name: it takes letters, digits and . _ @ / -"),
        (KEY + 'name = "anonymous"\n', "'anonymous' has a meaning of its own"),
        (KEY + 'groups = ["a:b"]\n', "'groups': 'a:b' is no name"),
        (KEY + 'groups = "a"\n', "'groups': takes an array of texts"),
        ("\n\n" + KEY + KEY, "auth.toml, line 6: [[key]] number 2, 'id': 'ci' is there already"),
        (ISSUER.replace("RS256", "HS256"), "'algorithms': 'HS256' is not taken; those that are: RS256, "),
        (ISSUER.replace("RS256", "none"), "'none' is not taken"),
        (ISSUER.replace('"tritium"', "5"), "'audience': takes an array of texts"),
        (ISSUER + "clock_skew = -1\n", "'clock_skew': takes a number, at least 0 and at most 3600"),
        (ISSUER + "clock_skew = true\n", "'clock_skew': takes a number"),
        (ISSUER + ISSUER.replace("login", "other"), "[[issuer]] number 2, 'prefix': 'jwt' is there already"),
        (ISSUER + ISSUER, "[[issuer]] number 2, 'issuer': 'https://login.example' is there already"),
        ('[[rule]]\nfor = ["*"]\n', "'allow': a rule has either 'allow' or 'deny'"),
        ('[[rule]]\nfor = ["*"]\nallow = ["*"]\ndeny = ["*"]\n', "either 'allow' or 'deny'"),
        ('[[rule]]\nallow = ["*"]\n', '\'for\': takes an array of texts, such as ["a", "b"]; it is missing'),
        (
            '[[rule]]\nfor = ["*"]\nallow = ["inferense"]\n',
            "'inferense' is no action (did you mean 'inference'?)",
        ),
        (
            '[[rule]]\nfor = ["*"]\ndeny = ["zzz"]\n',
            "'deny': 'zzz' is no action (actions are health, metadata, ",
        ),
        ('[[rule]]\nfor = ["*"]\nallow = []\n', "'allow': takes an array of texts"),
        (KEY + '[[rule]]\nfor = ["cii"]\nallow = ["*"]\n', "is 'cii' (did you mean 'ci'?)"),
        ('[[rule]]\nfor = ["zzz"]\nallow = ["*"]\n', "is 'zzz' (subjects are identities, "),
        ('[[limit]]\nfor = ["*"]\n', "a limit limits something"),
        ('[[limit]]\nfor = ["zz"]\nconcurrent = 1\n', "auth.toml, line 1: [[limit]] number 1, 'for': "),
        ('[[limit]]\nfor = ["*"]\nconcurrent = 1\nper = "ip"\n', "'per': 'ip' is not known; a limit is per"),
        ('[[limit]]\nfor = ["*"]\nconcurrent = 0\n', "'concurrent': takes a number, at least 1"),
        ('[[limit]]\nfor = ["*"]\nbytes_per_second = "1 fish"\n', 'or a size such as "10MiB"'),
        (f'[[limit]]\nfor = ["*"]\nconcurrent = 1{"0" * 400}\n', "'concurrent': takes a number that is less"),
        (KEY + "expires = 0001-01-01T00:00:00+23:59\n", "'expires': is before the first year"),
        ("a = " + "[" * 5000, "auth.toml: not TOML: "),
        ("a = " + "1" * 5000, "auth.toml: not TOML: "),
    ],
)
def test_mistakes_are_told_with_their_place_and_remedy(text, said):
    with pytest.raises(AuthFileError) as refused:
        read(text)
    assert said in str(refused.value)


def test_a_table_whose_place_is_not_found_is_told_by_its_number():
    with pytest.raises(AuthFileError, match=r"^auth\.toml: \[\[key\]\] number 1, 'digest'"):
        read('key = [{id = "a"}]\n')


def test_there_may_be_so_many_keys(monkeypatch):
    monkeypatch.setattr(document, "MOST_KEYS", 100)  # reading as many as there may be takes seconds
    one = f'{{id = "a", digest = "{DIGEST}"}},'
    with pytest.raises(AuthFileError, match=f"and there may be {document.MOST_KEYS} at most"):
        read(f"key = [{one * (document.MOST_KEYS + 1)}]")
