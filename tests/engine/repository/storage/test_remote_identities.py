"""The requests that a storage gets, their identity, and the errors when it does not answer."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from actors.values.errors import Internal, NotFound
from engine.repository.remote.credentials import MetadataToken
from engine.repository.remote.stores import CloudBucket
from engine.repository.source import SourceUnavailable
from engine.settings.extras import how_to_install
from engine.settings.uris import Location, Scheme
from tests.engine.repository.storage.conftest import HASTY, Opener
from tests.engine.repository.storage.doubles import fetch, read
from tests.engine.repository.storage.emulators import ACCOUNT, Azurite, MotoS3
from tests.engine.repository.storage.wires import Recorder

KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}


def ask(open_remote: Opener, uri: str, environ: dict[str, str]) -> str:
    """Ask for the names, which fails, and return the error."""
    with pytest.raises(SourceUnavailable) as caught:
        open_remote(uri, environ).names()
    return str(caught.value)


def test_a_key_signs_and_nothing_else_of_the_environment_joins_in(
    open_remote: Opener, listener: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"": {"key_id": "filed", "secret_key": "s", "region": "eu-north-1"}}}))
    # The library reads these by itself, and would mix them with the file's.
    for name, value in {
        "AWS_SESSION_TOKEN": "stray",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "TRITON_CLOUD_CREDENTIAL_PATH": str(file),
    }.items():
        monkeypatch.setenv(name, value)
    ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket/x", {})
    method, path, headers = listener.asked[-1]
    assert method == "GET"
    assert path.startswith("/bucket?")
    assert "Credential=filed/" in headers["authorization"]
    assert "/eu-north-1/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


def test_a_session_token_is_sent_with_its_key(open_remote: Opener, listener: Recorder) -> None:
    ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", {**KEYS, "AWS_SESSION_TOKEN": "token"})
    assert listener.header("x-amz-security-token") == "token"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_is_asked_with_the_bucket_in_the_path(
    open_remote: Opener, listener: Recorder, variable: str
) -> None:
    environ = {
        **KEYS,
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        variable: f"http://127.0.0.1:{listener.port}",
    }
    ask(open_remote, "s3://bucket/x", environ)
    assert listener.asked[-1][1].startswith("/bucket?")


@pytest.mark.parametrize(("section", "key"), [("default", "standard"), ("team", "teams")])
def test_a_profile_is_read_from_awss_own_files(
    open_remote: Opener, listener: Recorder, tmp_path: Path, section: str, key: str
) -> None:
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    credentials.write_text(
        "[default]\naws_access_key_id = standard\naws_secret_access_key = s\n"
        "[team]\naws_access_key_id = teams\naws_secret_access_key = s\n"
    )
    config.write_text("[profile team]\nregion = ap-south-1\n")
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_CONFIG_FILE": str(config)}
    if section != "default":
        environ["AWS_PROFILE"] = section
    ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", environ)
    region = "ap-south-1" if section == "team" else "us-east-1"
    authorization = listener.header("authorization")
    assert authorization is not None
    assert f"Credential={key}/" in authorization
    assert f"/{region}/s3/" in authorization


def test_a_profile_that_is_not_there_is_told_in_the_contracts_words(
    open_remote: Opener, listener: Recorder
) -> None:
    told = ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", {"AWS_PROFILE": "nobody"})
    assert "Unable to create S3 filesystem client. Check account credentials. Exception: '" in told
    assert "Message: 'ProfileNotFound: The config profile (nobody) could not be found'" in told
    assert listener.asked == []


def test_without_any_credentials_a_public_bucket_is_asked_as_nobody(
    open_remote: Opener, listener: Recorder
) -> None:
    ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", {})
    assert listener.header("authorization") is None


def test_without_boto3_a_profile_says_what_to_install(
    open_remote: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    told = ask(open_remote, "s3://127.0.0.1:1/bucket", {"AWS_PROFILE": "team"})
    assert (
        f"need boto3: {how_to_install('cloud')}, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in told
    )


@pytest.mark.parametrize("uri", ["s3://b", "gs://b", "as://a/c"])
def test_without_the_library_a_remote_repository_says_what_to_install(
    open_remote: Opener, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Internal) as caught:
        open_remote(uri, {})
    assert caught.value.message == (
        f"{uri[:5]} file-system not supported. To enable, {how_to_install('cloud')}."
    )


def test_refused_credentials_are_told_in_the_contracts_words(open_remote: Opener, listener: Recorder) -> None:
    listener.status = 403
    told = ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", KEYS)
    assert (
        "Unable to create S3 filesystem client. Check account credentials. Exception: 'GenericError' Message"
        in told
    )
    assert "403 Forbidden" in told
    told = ask(open_remote, "gs://bucket", {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{listener.port}"})
    assert "Unable to create GCS client. Check account credentials." in told
    endpoint = {"AZURE_STORAGE_SERVICE_ENDPOINT": f"http://127.0.0.1:{listener.port}/account"}
    told = ask(open_remote, "as://account/container?sv=1&sig=hush", endpoint)
    assert "Unable to create Azure filesystem client. Check account credentials." in told
    assert "sig=hush" in listener.asked[-1][1]
    assert "hush" not in told


def test_a_storage_says_in_its_own_words_what_is_wrong(open_remote: Opener, listener: Recorder) -> None:
    listener.status = 400
    listener.body = b'<?xml version="1.0"?>\n<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>'
    told = ask(open_remote, f"s3://127.0.0.1:{listener.port}/bucket", KEYS)
    assert "Unable to create S3 filesystem client." in told
    assert "400 Bad Request: ExpiredToken: The token has expired." in told


def test_a_storage_that_cannot_be_reached_is_no_matter_of_credentials(open_remote: Opener) -> None:
    assert "credentials" not in ask(open_remote, "s3://127.0.0.1:1/bucket", KEYS)


def test_googles_files_are_read_and_told_of(open_remote: Opener, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"type": "external_account"}')
    for name in ("none.json", "broken.json"):
        told = ask(open_remote, "gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / name)})
        assert "Unable to create GCS client. Check account credentials." in told


def test_googles_metadata_server_gives_a_token_if_there_is_one(listener: Recorder) -> None:
    here = {"GCE_METADATA_HOST": f"127.0.0.1:{listener.port}"}
    listener.status, listener.body = 200, b'{"access_token": "t", "expires_in": 3599, "token_type": "Bearer"}'
    assert MetadataToken.found(here | {"NO_GCE_CHECK": "true"}) is None
    assert listener.asked == []
    provider = MetadataToken.found(here)
    assert provider is not None
    assert provider()["token"] == "t"
    assert listener.header("metadata-flavor") == "Google"


def test_googles_token_is_what_the_storage_is_asked_with(listener: Recorder) -> None:
    listener.status, listener.body = 200, b'{"access_token": "t", "expires_in": 3599}'
    here = f"127.0.0.1:{listener.port}"
    location = Location(scheme=Scheme.GCS, bucket="bucket", endpoint=f"http://{here}")
    bucket = CloudBucket("gs://bucket", location, {"GCE_METADATA_HOST": here}, HASTY)
    with pytest.raises(SourceUnavailable):
        bucket.directories("")  # the answer is no listing
    assert listener.header("authorization") == "Bearer t"


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b""), (200, b"not json"), (200, b"{}"), (200, b'{"access_token": 1, "expires_in": "x"}')],
)
def test_a_metadata_server_without_a_token_is_none(listener: Recorder, status: int, body: bytes) -> None:
    listener.status, listener.body = status, body
    assert MetadataToken.found({"GCE_METADATA_HOST": f"127.0.0.1:{listener.port}"}) is None
    assert MetadataToken.found({"GCE_METADATA_HOST": "127.0.0.1:1"}) is None


def test_an_unmatched_address_is_told_at_once(open_remote: Opener, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"s3://other": {}}}')
    with pytest.raises(NotFound, match=r"^Cannot match credential for path  s3://bucket/x$"):
        open_remote("s3://bucket/x", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})


def test_a_credential_file_is_read_anew_after_a_failure(
    open_remote: Opener, azure: Azurite, tmp_path: Path
) -> None:
    azure.make_bucket("rotated")
    azure.put("rotated", "m/1/model.py", b"x")
    right = azure.environ()["AZURE_STORAGE_KEY"]
    file = tmp_path / "credentials.json"

    def write(key: str) -> None:
        file.write_text(json.dumps({"as": {f"as://{ACCOUNT}": {"account_key": key}}}))

    write("d3Jvbmc=")
    source = open_remote(
        f"as://{ACCOUNT}/rotated", {**azure.environ(), "TRITON_CLOUD_CREDENTIAL_PATH": str(file)}
    )
    with pytest.raises(SourceUnavailable, match="Unable to create Azure filesystem client"):
        source.names()
    write(right)
    assert source.names() == ["m"]
    write("d3Jvbmc=")
    assert source.names() == ["m"]  # what works is not questioned


def test_after_a_failure_the_file_is_read_once_and_asked_with_once(
    open_remote: Opener, listener: Recorder, tmp_path: Path
) -> None:
    listener.status = 403
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"": {"key_id": "me", "secret_key": "s"}}}')
    ask(
        open_remote,
        f"s3://127.0.0.1:{listener.port}/bucket",
        {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)},
    )
    assert len(listener.asked) == 2


def test_a_credential_file_that_breaks_later_is_no_order_to_unload(
    open_remote: Opener, listener: Recorder, tmp_path: Path
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"": {"key_id": "me", "secret_key": "s"}}}')
    source = open_remote(
        f"s3://127.0.0.1:{listener.port}/bucket", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}
    )
    file.write_text("{")
    with pytest.raises(SourceUnavailable, match="is not JSON"):
        source.stamp("m")


def test_one_model_may_have_credentials_of_its_own(
    open_remote: Opener, listener: Recorder, tmp_path: Path
) -> None:
    file = tmp_path / "credentials.json"
    uri = f"s3://127.0.0.1:{listener.port}/bucket"
    file.write_text(
        json.dumps(
            {
                "s3": {
                    uri: {"key_id": "all", "secret_key": "s"},
                    f"{uri}/secret": {"key_id": "few", "secret_key": "s"},
                }
            }
        )
    )
    source = open_remote(uri, {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    asked = []
    for name in ("open", "secret"):
        with pytest.raises(SourceUnavailable):
            source.stamp(name)
        asked.append((listener.header("authorization") or "").partition("Credential=")[2].partition("/")[0])
    assert asked == ["all", "few"]


def test_azures_signature_in_the_address_and_a_public_container_need_no_key(
    open_remote: Opener, azure: Azurite
) -> None:
    endpoint = {"AZURE_STORAGE_SERVICE_ENDPOINT": azure.environ()["AZURE_STORAGE_SERVICE_ENDPOINT"]}
    for container, access in (("signed", ""), ("public", "container")):
        azure.make_bucket(container, access)
        azure.put(container, "m/1/model.py", b"x")
    with pytest.raises(SourceUnavailable, match="Unable to create Azure filesystem client"):
        open_remote(f"as://{ACCOUNT}/signed", endpoint).names()
    signed = open_remote(
        f"as://{ACCOUNT}.blob.core.windows.net/signed?{azure.shared_access('signed')}", endpoint
    )
    assert read(fetch(signed, "m").path) == {"1/model.py": b"x"}
    assert open_remote(f"as://{ACCOUNT}/public", endpoint).names() == ["m"]


def test_azures_managed_identity_asks_as_the_client_it_is_given(
    open_remote: Opener, listener: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"http://127.0.0.1:{listener.port}/token")
    environ = {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "client"}
    told = ask(open_remote, "as://account/container", environ)
    assert "Unable to create Azure filesystem client. Check account credentials." in told
    assert "client_id=client" in listener.asked[-1][1]


@pytest.mark.system
def test_clients_that_fail_together_are_replaced_once(
    s3: MotoS3, open_remote: Opener, tmp_path: Path
) -> None:
    s3.make_bucket("crowd")
    s3.put("crowd", "m/1/model.py", b"x")
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"": {"key_id": "me", "secret_key": "s"}}}))
    source = open_remote(s3.uri("crowd"), {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(source.names())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [["m"]] * 8
