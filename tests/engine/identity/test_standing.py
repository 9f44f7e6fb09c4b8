"""How keys stand, and what may be shown of them."""

import math
import tomllib

import pytest

from engine.identity.document import ApiKey, read_auth_file
from engine.identity.rules import Identity
from engine.identity.standing import SOON, Standing, key_facts, standing

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("expires", "revoked", "found"),
    [
        (math.inf, False, Standing.GOOD),
        (100 + SOON + 1, False, Standing.GOOD),
        (100 + SOON, False, Standing.EXPIRING),
        (101, False, Standing.EXPIRING),
        (100, False, Standing.EXPIRED),
        (100, True, Standing.REVOKED),
        (math.inf, True, Standing.REVOKED),
    ],
)
def test_a_key_stands_by_its_expiry_and_its_revocation(expires, revoked, found):
    key = ApiKey(id="k", digest=DIGEST, identity=Identity(name="n"), expires=expires, revoked=revoked)
    assert standing(key, 100) is found


@pytest.mark.parametrize(
    ("word", "shown", "for_programs"),
    [
        ("false", "-", False),
        ("true", "yes", True),
        ("2026-01-01", "2026-01-01", "2026-01-01"),
        ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    ],
)
def test_revocations_are_shown_with_their_time(word, shown, for_programs):
    text = f'[[key]]\nid = "k"\ndigest = "{DIGEST}"\nrevoked = {word}\n'
    (facts,) = key_facts(tomllib.loads(text), read_auth_file(text, "a"), 0.0)
    assert facts.as_row()[4] == shown
    assert facts.as_json()["revoked"] == for_programs


def test_nothing_secret_is_shown():
    text = (
        f'[[key]]\nid = "k"\ndigest = "{DIGEST}"\nname = "n"\ngroups = ["b", "a"]\nexpires = 2030-01-01\n'
        f'[[key]]\nid = "l"\ndigest = "{DIGEST}"\n'
    )
    first, second = key_facts(tomllib.loads(text), read_auth_file(text, "a"), 0.0)
    assert first.as_row() == ("k", "n", "a,b", "2030-01-01T00:00:00Z", "-", "good")
    assert second.as_row() == ("l", "l", "-", "never", "-", "good")
    assert second.as_json() == {
        "id": "l",
        "name": "l",
        "groups": [],
        "expires": None,
        "revoked": False,
        "standing": "good",
    }
    assert list(key_facts({}, read_auth_file("", "a"), 0.0)) == []
