"""A source's identity for an address: environment, credential file, and the error where neither will do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.values.errors import InvalidArgument, NotFound
from engine.repository.remote.credentials import (
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
    find,
    prefix_of,
    region_of,
)
from engine.settings.uris import Scheme

S3, GCS, AZURE = Scheme.S3, Scheme.GCS, Scheme.AZURE
FILE = {
    "s3": {
        "": {"key_id": "any", "secret_key": "s"},
        "s3://bucket": {"key_id": "bucket", "secret_key": "s", "region": "eu-west-1", "session_token": "t"},
        "s3://bucket/team": {"profile": "team"},
    },
    "gs": {"gs://bucket": "/keys/gs.json"},
    "as": {
        "as://account": {"account_str": "account", "account_key": "a2V5"},
        "as://account/open": {},
        "as://account/identity": {"auth_type": "managed_identity", "client_id": "me"},
    },
}


def written(tmp_path: Path, content: Any) -> dict[str, str]:
    path = tmp_path / "credentials.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {
        "TRITON_CLOUD_CREDENTIAL_PATH": str(path),
        "AWS_ACCESS_KEY_ID": "environment",
        "AWS_SECRET_ACCESS_KEY": "environment",
        "GOOGLE_APPLICATION_CREDENTIALS": "/environment",
        "AZURE_STORAGE_KEY": "environment",
    }


KEY = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "p"}


@pytest.mark.parametrize(
    ("uri", "scheme", "environ", "expected"),
    [
        pytest.param(
            "s3://b", S3, KEY, S3Credentials(key_id="id", secret_key="secret"), id="a key before a profile"
        ),
        pytest.param(
            "s3://b",
            S3,
            KEY | {"AWS_SESSION_TOKEN": "t"},
            S3Credentials(key_id="id", secret_key="secret", session_token="t"),
            id="a session's token",
        ),
        pytest.param(
            "s3://b",
            S3,
            {"AWS_ACCESS_KEY_ID": "id", "AWS_PROFILE": "p"},
            S3Credentials(profile="p"),
            id="half a key is no key",
        ),
        pytest.param("s3://b", S3, {}, S3Credentials(), id="nothing of AWS"),
        pytest.param(
            "gs://b",
            GCS,
            {"GOOGLE_APPLICATION_CREDENTIALS": "/k"},
            GcsCredentials(path="/k"),
            id="Google takes the path of a file",
        ),
        pytest.param("gs://b", GCS, {}, GcsCredentials(), id="nothing of Google"),
        pytest.param(
            "as://a/c",
            AZURE,
            {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"},
            AzureCredentials(account="a", key="k", auth_type="key"),
            id="a key of Azure",
        ),
        pytest.param("as://a/c", AZURE, {}, AzureCredentials(), id="nothing of Azure"),
        pytest.param(
            "as://a/c",
            AZURE,
            {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "me"},
            AzureCredentials(auth_type="managed_identity", client_id="me"),
            id="an identity of Azure",
        ),
    ],
)
def test_the_environment_has_credentials(
    uri: str, scheme: Scheme, environ: dict[str, str], expected: object
) -> None:
    assert find(uri, scheme, environ) == expected


def test_the_region_is_the_credentials_own_then_the_environments_then_the_profiles() -> None:
    environ = {"AWS_DEFAULT_REGION": "environment"}
    assert region_of(S3Credentials(region="own"), environ, "profile") == "own"
    assert region_of(S3Credentials(), environ, "profile") == "environment"
    assert region_of(S3Credentials(), {}, "profile") == "profile"
    assert region_of(S3Credentials(), {}) == "us-east-1"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sas", "AZURE_STORAGE_AUTH_TYPE: 'sas' is none of 'key', 'managed_identity'"),
        ("key", "AZURE_STORAGE_AUTH_TYPE is 'key', but AZURE_STORAGE_KEY is empty"),
    ],
)
def test_azures_types_are_told_apart(kind: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        find("as://a/c", AZURE, {"AZURE_STORAGE_AUTH_TYPE": kind})


@pytest.mark.parametrize(
    ("uri", "scheme", "expected"),
    [
        ("s3://other/x", S3, S3Credentials(key_id="any", secret_key="s")),
        (
            "s3://bucket/x",
            S3,
            S3Credentials(key_id="bucket", secret_key="s", region="eu-west-1", session_token="t"),
        ),
        ("s3://bucket/team/x", S3, S3Credentials(profile="team")),
        ("gs://bucket/x", GCS, GcsCredentials(path="/keys/gs.json")),
        ("as://account/c", AZURE, AzureCredentials(account="account", key="a2V5", auth_type="key")),
        ("as://account/open/x", AZURE, AzureCredentials()),
        ("as://account/identity", AZURE, AzureCredentials(auth_type="managed_identity", client_id="me")),
    ],
)
def test_the_longest_prefix_in_the_file_replaces_the_environment(
    tmp_path: Path, uri: str, scheme: Scheme, expected: object
) -> None:
    assert find(uri, scheme, written(tmp_path, FILE)) == expected


@pytest.mark.parametrize(
    ("uri", "scheme", "content", "path"),
    [
        ("gs://elsewhere/x", GCS, FILE, "gs://elsewhere/x"),
        ("as://elsewhere/x?sig=secret", AZURE, {"s3": {}}, "as://elsewhere/x"),
    ],
)
def test_an_address_without_a_prefix_in_the_file_is_not_found(
    tmp_path: Path, uri: str, scheme: Scheme, content: Any, path: str
) -> None:
    with pytest.raises(NotFound) as caught:
        find(uri, scheme, written(tmp_path, content))
    assert caught.value.message == f"Cannot match credential for path  {path}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the file of TRITON_CLOUD_CREDENTIAL_PATH is not JSON"),
        ([], "expected an object of storages"),
        ({"s3": []}, "expected an object of storages"),
        ({"s3": {"": "x"}}, "s3: '': expected an object with secret_key, key_id"),
        ({"s3": {"": {"secret_kye": "x"}}}, r"unknown key 'secret_kye' \(did you mean 'secret_key'\?\)"),
        ({"s3": {"": {"region": 1}}}, "'region' must be a string"),
        ({"s3": {"": {"key_id": "x"}}}, "key_id and secret_key go together"),
    ],
)
def test_a_credential_file_that_cannot_be_meant_is_refused(
    tmp_path: Path, content: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        find("s3://b", S3, written(tmp_path, content))


def test_a_missing_credential_file_and_one_for_google_that_is_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="can't be read"):
        find("s3://b", S3, {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none")})
    with pytest.raises(InvalidArgument, match="expected the path of a JSON file"):
        find("gs://b", GCS, written(tmp_path, {"gs": {"": {}}}))


def test_secrets_are_not_shown() -> None:
    shown = repr(S3Credentials(key_id="id", secret_key="hush", session_token="hush")) + repr(
        AzureCredentials(account="a", key="hush")
    )
    assert "hush" not in shown


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.sampled_from(["", "s3://b", "s3://b/", "s3://b/m", "s3://b/model", "s3://c"]), unique=True)
)
def test_no_prefix_that_matches_is_longer_than_the_one_that_counts(
    tmp_path_factory: pytest.TempPathFactory, prefixes: list[str]
) -> None:
    environ = written(tmp_path_factory.mktemp("file"), {"s3": {prefix: {} for prefix in prefixes}})
    matching = [prefix for prefix in prefixes if "s3://b/model/1".startswith(prefix)]
    if not matching:
        with pytest.raises(NotFound):
            prefix_of("s3://b/model/1", S3, environ)
    else:
        assert prefix_of("s3://b/model/1", S3, environ) == max(matching, key=len)
