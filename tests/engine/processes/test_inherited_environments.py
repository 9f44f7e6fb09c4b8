"""The environment variables that workers inherit: by default all but those for the server alone."""

import pytest

from engine.processes.inheritance import for_workers, inherited
from engine.settings.settings import Settings, SettingsError

OF_THE_MODELS = {
    "HF_TOKEN": "t",
    "MY_ENV": "1",
    "DATABASE_URL": "postgres://",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "SCORES_PORT_8000_TCP": "tcp://10.0.0.2:8000",
    "https_proxy": "http://proxy",
}
S3 = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token"}
OWN = {
    "TRITIUM_HTTP_RESTRICTED_API": "health:key=secret",
    "TRITIUM_WORKER": "mark",
    "TRITIUM_SERVICE_HOST": "10.0.0.3",
    "TRITONCACHE_REDIS_USERNAME": "u",
    "TRITONCACHE_REDIS_PASSWORD": "p",
    "NOTIFY_SOCKET": "/run/notify",
    "LISTEN_FDS": "2",
}


def test_a_worker_has_the_servers_environment_but_for_the_servers_own():
    environ = {**OF_THE_MODELS, **S3, **OWN}
    assert inherited(environ) == {**OF_THE_MODELS, **S3, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("repository", "own"),
    [
        ("s3://bucket/models", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/models", "AWS_SESSION_TOKEN"),
        ("s3://bucket/models", "TRITON_CLOUD_CREDENTIAL_PATH"),
        ("gs://bucket/models", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket/models", "TRITON_CLOUD_CREDENTIAL_PATH"),
        ("as://account/container", "AZURE_STORAGE_KEY"),
    ],
)
def test_credentials_of_a_storage_are_the_servers_own_where_it_uses_them(repository, own):
    assert own in inherited({own: "x"}, repositories=["/models"])
    assert own not in inherited({own: "x"}, repositories=["/models", repository])


def test_credentials_of_another_storage_are_the_models():
    assert "AWS_SECRET_ACCESS_KEY" in inherited(S3, repositories=["gs://bucket/models"])


def test_a_minimal_environment_is_that_of_a_strict_sandbox():
    environ = {**OF_THE_MODELS, **S3, **OWN, "PATH": "/bin"}
    assert inherited(environ, mode="minimal") == {"PATH": "/bin", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("flags", "has"), [((), True), (("inherit",), True), (("minimal",), False), (("MINIMAL",), False)]
)
def test_the_operator_chooses(flags, has):
    argv = ["--model-repository=/models", *(f"--worker-environment={flag}" for flag in flags)]
    assert ("MY_ENV" in for_workers(Settings.from_argv(argv), {"MY_ENV": "1"})) is has


def test_there_are_two_choices():
    with pytest.raises(SettingsError, match="invalid argument for --worker-environment"):
        Settings.from_argv(["--model-repository=/models", "--worker-environment=none"])
