"""API keys: their form, and how they are compared."""

import re

import pytest

from actors.values.errors import Unauthenticated
from engine.identity.keys import DIGEST, LONGEST_TOKEN, bearer, digest_of, matches, new_secret


def test_secrets_are_256_bits_that_need_no_quotes():
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", secret) for secret in secrets)


def test_a_secret_matches_its_own_digest_only():
    secret = new_secret()
    digest = digest_of(secret)
    assert DIGEST.fullmatch(digest)
    assert matches(secret, digest)
    for other in (new_secret(), secret[:-1], secret + "A", "", "é", "\udcff"):
        assert not matches(other, digest)


@pytest.mark.parametrize("field", [b"Bearer a.b", b"bearer a.b", b"BEARER   a.b "])
def test_the_scheme_is_in_any_letter_case(field):
    assert bearer(field) == "a.b"


@pytest.mark.parametrize(
    "field", [b"Basic YTpi", b"Bearer", b"Bearer ", b"a.b", b"\xff", b"Bearer\ta.b", b"Bearer,Bearer a"]
)
def test_other_schemes_are_refused_and_never_repeated(field):
    with pytest.raises(Unauthenticated, match="send 'Authorization: Bearer <key>'") as refused:
        bearer(field)
    assert refused.value.invalid
    assert "YTpi" not in refused.value.message


def test_credentials_of_any_length_are_not_looked_at():
    with pytest.raises(Unauthenticated, match=f"may have {LONGEST_TOKEN} at most"):
        bearer(b"Bearer " + b"x" * LONGEST_TOKEN)
