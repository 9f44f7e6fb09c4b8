"""Auth files: whatever the text, it is an auth file or one error that names the place.

What is read is held to what the file may say: names that logs can print, digests of keys, known actions.
"""

import re
from random import Random

from actors.values.callers import Action
from engine.identity.document import AuthFile, AuthFileError, read_auth_file
from engine.identity.reviewing import review
from tests.fuzz.mutation import damaged

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/:-]*")
_DIGEST = "0123456789abcdef" * 4
_VALUES = (
    '"alice"',
    '"group:team"',
    '"*"',
    '"model:chain"',
    '"authenticated"',
    '"jwt:bob"',
    '""',
    '"\\u001b[2J"',
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1" + "0" * 400,
    "1" * 5000,
    "2030-01-01",
    "07:32:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "[]",
    "{}",
    '["a", 1]',
    '["*"]',
    '"10MiB"',
    '"1e9GiB"',
    '"RS256"',
    '["none"]',
    "[" * 200 + "]" * 200,
    "[" * 5000,
)
_TABLES = {
    "key": {"id": '"k{n}"', "digest": f'"{_DIGEST}"', "name": '"alice"', "groups": '["team"]'},
    "issuer": {
        "issuer": '"https://login.example/{n}"',
        "audience": '"tritium"',
        "jwks": '"jwks.json"',
        "algorithms": '["ES256"]',
        "prefix": '"jwt{n}"',
    },
    "certificate": {"subject": '"CN=client{n}"', "name": '"bob"'},
    "rule": {"for": '["alice", "group:team"]', "allow": '["inference"]', "models": '["add_*"]'},
    "limit": {"for": '["*"]', "requests_per_second": "10", "burst_seconds": "2"},
}
_MORE = (
    "expires",
    "revoked",
    "deny",
    "namespaces",
    "concurrent",
    "bytes_per_second",
    "clock_skew",
    "nmae",
    '"a b"',
)


class AuthFiles:
    """Reads texts as auth files."""

    name = "auth"
    prefix = "auth"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Tables with a few wrong values, or bytes that were damaged."""
        octets = _drawn(chance).encode() if chance.random() < 0.7 else chance.choice(corpus)
        return octets if chance.random() < 0.5 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Read, and look at what was read."""
        text = octets.decode("utf-8", "replace")
        try:
            file = read_auth_file(text, "auth.toml")
        except AuthFileError as error:
            return _kind(str(error))
        _look_at(file)
        assert file == read_auth_file(text, "auth.toml")
        return "read" if file.rules else "read, and it has no rule"


def _kind(said: str) -> str:
    assert said.startswith("auth.toml")
    assert len(said) < 3_000
    found = re.search(r"\[\[[a-z]+\]\]", said)
    return f"{found[0] if found else 'the document'} is refused"


def _look_at(file: AuthFile) -> None:
    for name, identity in file.identities().items():
        assert name == identity.name
        assert _NAME.fullmatch(name)
        assert all(map(_NAME.fullmatch, identity.groups))
    for id_, key in file.keys.items():
        assert id_ == key.id
        assert "." not in id_
        assert len(key.digest) == 64
    for issuer in file.issuers.values():
        assert issuer.audience
        assert not any(algorithm.startswith(("HS", "none")) for algorithm in issuer.algorithms)
    for rule in file.rules:
        assert rule.subjects
        assert rule.models
        assert rule.actions is None or rule.actions <= set(Action)
    for limit in file.limits:
        assert not limit.limits.none
    review(file, 1_800_000_000.0)


def _drawn(chance: Random) -> str:
    text = ""
    for number in range(chance.randrange(1, 7)):
        kind = chance.choice(list(_TABLES))
        text += f"[[{kind}]]\n"
        content = dict(_TABLES[kind])
        if chance.random() < 0.3:
            content.pop(chance.choice(list(content)))
        if chance.random() < 0.4:
            content[chance.choice((*content, *_MORE))] = chance.choice(_VALUES)
        for key, value in content.items():
            text += f"{key} = {value.replace('{n}', str(number))}\n"
    return text
