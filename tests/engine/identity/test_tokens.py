"""JSON Web Tokens: the good ones, and every way that is known of making a bad one look good."""

import base64
import hashlib
import hmac
import json

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from actors.values.errors import Unauthenticated
from engine.identity.document import AuthFileError, Issuer
from engine.identity.rules import Identity
from engine.identity.tokens import Tokens, read_key_set

NOW = 1_800_000_000.0
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
CLAIMS = {"iss": "https://login.example", "aud": "tritium", "sub": "alice", "exp": NOW + 600}


def issuer(**changes):
    given = {
        "issuer": "https://login.example",
        "audience": ("tritium", "other"),
        "jwks": "jwks.json",
        "algorithms": ("RS256", "ES256", "EdDSA"),
    }
    return Issuer(**{**given, **changes})


@pytest.fixture
def jwks(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [key.as_dict(private=False) for key in (RSA, EC, ED)]}))
    return path


@pytest.fixture
def tokens(jwks):
    def made(**changes):
        one = issuer(**changes)
        return Tokens({one.issuer: one}, {one.issuer: read_key_set(one, jwks)})

    return made


def signed(claims=None, *, key=RSA, algorithm="RS256", **header):
    return jwt.encode(
        {"alg": algorithm, "kid": key.kid, **header},
        {**CLAIMS, **(claims or {})},
        key,
        algorithms=[algorithm],
    )


def b64(document):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")])
def test_a_good_token_names_its_identity_until_it_expires(tokens, key, algorithm):
    proven = tokens().prove(signed(key=key, algorithm=algorithm), NOW)
    assert proven.identity == Identity(name="jwt:alice")
    assert proven.until == NOW + 660


@pytest.mark.parametrize(
    ("roles", "groups"),
    [
        (["a", "b"], {"a", "b"}),
        ("a b", {"a", "b"}),
        (["a", 5, "with space", "x\ny"], {"a"}),
        ([], set()),
    ],
)
def test_groups_are_those_of_the_named_claim(tokens, roles, groups):
    assert tokens(groups="roles").prove(signed({"roles": roles}), NOW).identity.groups == groups
    assert tokens().prove(signed({"roles": roles}), NOW).identity.groups == frozenset()


def test_a_name_may_be_another_claim_behind_another_prefix(tokens):
    proven = tokens(name="email", prefix="corp").prove(signed({"email": "al@example.com"}), NOW)
    assert proven.identity.name == "corp:al@example.com"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": NOW - 61}, "it has expired"),
        ({"exp": "never"}, "exp"),
        ({"exp": None}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": 10**400}, "its expiry is no time"),
        ({"nbf": NOW + 61}, "not yet valid"),
        ({"iat": NOW + 61}, "issued in the future"),
        ({"aud": "elsewhere"}, "aud"),
        ({"aud": ["elsewhere"]}, "aud"),
        ({"aud": None}, "aud"),
        ({"sub": ""}, "its claim 'sub' is no name"),
        ({"sub": None}, "sub"),
        ({"sub": "a\nb"}, "its claim 'sub' is no name"),
        ({"sub": "x" * 129}, "its claim 'sub' is no name"),
        ({"iss": "https://evil.example"}, "an issuer that this server does not know"),
        ({"iss": ["https://login.example"]}, "an issuer that this server does not know"),
    ],
)
def test_claims_that_do_not_hold_are_refused(tokens, claims, said):
    with pytest.raises(Unauthenticated, match="the token is not good: ") as refused:
        tokens().prove(signed(claims), NOW)
    assert said in refused.value.message
    assert refused.value.invalid


@pytest.mark.parametrize("missing", ["exp", "aud", "sub", "iss"])
def test_what_must_be_there_must_be_there(tokens, missing):
    claims = {name: value for name, value in CLAIMS.items() if name != missing}
    token = jwt.encode({"alg": "RS256", "kid": "rsa"}, claims, RSA)
    with pytest.raises(Unauthenticated):
        tokens().prove(token, NOW)


def test_a_header_may_have_the_certificates_of_its_key(tokens):
    heads = JWSRegistry(algorithms=["RS256"])
    heads.max_header_length = 8192
    header = {"alg": "RS256", "kid": RSA.kid, "x5c": ["A" * 2000]}
    assert tokens().prove(jwt.encode(header, CLAIMS, RSA, registry=heads), NOW)


def test_clock_skew_is_borne_and_no_more(tokens):
    assert tokens().prove(signed({"exp": NOW - 59, "nbf": NOW + 59}), NOW)


@pytest.mark.parametrize(
    "groups", [{"a": 1}, 5, [str(n) for n in range(257)]], ids=["object", "number", "too many"]
)
def test_groups_of_another_form_are_refused(tokens, groups):
    with pytest.raises(Unauthenticated, match="is no list of groups"):
        tokens(groups="roles").prove(signed({"roles": groups}), NOW)


def forged(header, claims=CLAIMS, signature=b""):
    return f"{b64(header)}.{b64(claims)}.{b64(signature) if signature else ''}"


def hmac_by_public_key():
    """Sign with the public key as if it were a shared secret (RFC 8725, section 2.1)."""
    text = f"{b64({'alg': 'HS256', 'kid': 'rsa'})}.{b64(CLAIMS)}"
    return f"{text}.{b64(hmac.digest(RSA.as_pem(private=False), text.encode(), hashlib.sha256))}"


def by_own_key_inside():
    key = RSAKey.generate_key(2048, {"kid": "mine"})
    return jwt.encode({"alg": "RS256", "kid": "mine", "jwk": key.as_dict(private=False)}, CLAIMS, key)


def with_another_payload():
    head, _, signature = signed().split(".")
    return f"{head}.{b64({**CLAIMS, 'sub': 'root'})}.{signature}"


def with_a_cut_signature():
    return signed()[:-2]


@pytest.mark.parametrize(
    "token",
    [
        forged({"alg": "none"}),
        forged({"alg": "None"}),
        forged({"alg": "none", "kid": "rsa"}, signature=b"x"),
        forged({"alg": "RS256", "kid": "rsa"}),
        forged({"kid": "rsa"}, signature=b"x"),
        forged([], signature=b"x"),
        hmac_by_public_key(),
        by_own_key_inside(),
        with_another_payload(),
        with_a_cut_signature(),
        signed(key=RSAKey.generate_key(2048, {"kid": "rsa"})),
        signed(algorithm="PS256"),
        signed(key=OctKey.import_key("x" * 32, {"kid": "rsa"}), algorithm="HS256"),
        forged({"alg": "RS256", "kid": "rsa", "crit": ["exp"]}, signature=b"x"),
        forged({"alg": "RS256", "kid": "../../etc/passwd"}, signature=b"x"),
        forged({"alg": "RS256", "kid": ["rsa"]}, signature=b"x"),
        forged({"alg": ["none"], "kid": "rsa"}, signature=b""),
        forged({"alg": "ES256", "kid": "ec"}, signature=bytes(64)),
        forged({"alg": "ES256", "kid": "ec"}, signature=bytes(32) + b"\1" * 32),
        forged({"alg": "EdDSA", "kid": "ed"}, signature=bytes(64)),
        forged({"alg": "RS256", "kid": "rsa", "b64": False, "crit": ["b64"]}, signature=b"x"),
        forged({"alg": "RS256", "kid": "rsa", "x5c": ["MIIB"], "jwk": {"kty": "RSA"}}, signature=b"x"),
        forged({"alg": "dir", "enc": "A256GCM"}) + ".x.x",
        jwt.encode({"alg": "RS256", "kid": "rsa", "cty": "JWT"}, {"jwt": signed()}, RSA),
        forged({"alg": "RS256", "kid": "rsa", "x5u": "http://127.0.0.1:1/", "jku": "http://127.0.0.1:1/"}),
        "..",
        "a.b.c",
        "a.b.c.d",
        f"{b64({'alg': 'RS256'})}.{b64(b'[' * 6000)}.x",
        f"{b64({'alg': 'RS256'})}.{b64(b'[]')}.x",
        f"{b64({'alg': 'RS256'})}.{b64(chr(255).encode('latin-1'))}.x",
        f"{b64(b'[' * 4000)}.{b64(CLAIMS)}.x",
    ],
)
def test_forged_tokens_are_refused(tokens, token):
    with pytest.raises(Unauthenticated, match="the token is not good: "):
        tokens().prove(token, NOW)


def test_what_a_token_says_of_itself_is_repeated_in_part_and_safe_to_print(tokens):
    for kid in ("\x1b[2J\x7f", "k" * 5000):
        with pytest.raises(Unauthenticated) as refused:
            tokens().prove(forged({"alg": "RS256", "kid": kid}, signature=b"x"), NOW)
        assert refused.value.message.isprintable()
        assert len(refused.value.message) < 200


def test_a_token_of_one_issuer_is_not_good_by_the_key_of_another(tmp_path):
    keys = {}
    issuers = {}
    for name, key in (("https://a.example", RSA), ("https://b.example", EC)):
        path = tmp_path / f"{key.kid}.json"
        path.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        issuers[name] = issuer(issuer=name)
        keys[name] = read_key_set(issuers[name], path)
    both = Tokens(issuers, keys)
    assert both.prove(signed({"iss": "https://a.example"}), NOW)
    with pytest.raises(Unauthenticated):
        both.prove(signed({"iss": "https://b.example"}), NOW)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file or directory"),
        ("{", "is no JSON Web Key Set"),
        ("[]", "is no JSON Web Key Set"),
        ('{"keys": []}', "it has no key"),
        ('{"keys": [{"kty": "RSA"}]}', "is no JSON Web Key Set"),
        ('{"keys": [{"kty": "oct", "k": "AAAA"}]}', "it has a secret key; public keys belong there"),
        (json.dumps(KeySet([EC]).as_dict(private=True)), "it has a secret key; public keys belong there"),
        ("[" * 5000, "is no JSON Web Key Set"),
        (" " * (1024 * 1024 + 1), "it has more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_set_of_public_keys_is_refused(tmp_path, content, said):
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AuthFileError) as refused:
        read_key_set(issuer(), path)
    assert said in str(refused.value)
    assert "[[issuer]] 'https://login.example', 'jwks': '" in str(refused.value)
