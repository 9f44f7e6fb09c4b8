"""Secrets come from files, are told of where they stand in argv, and are in no text about the settings."""

import os

import pytest

from engine.settings.cache import RedisCache
from engine.settings.listening import RestrictedHeader
from engine.settings.secrets import concealed, looks_secret
from engine.settings.settings import FLAGS, Settings, SettingsError

SECRET = "hunter2-marker"
REPOSITORY = "--model-repository=/models"
SIGNED_URI = f"as://account/container/models?sv=1&sig={SECRET}"
WORDS = {
    "http-restricted-api": f"inference:x-key={SECRET}",
    "grpc-restricted-protocol": f"inference:x-key={SECRET}",
    "openai-restricted-api": f"inference:x-key={SECRET}",
    "backend-config": f"python,service_token={SECRET}",
    "cache-config": f"redis,password={SECRET}",
    "model-repository": SIGNED_URI,
}
REDIS = ("--cache-config=redis,host=h", "--cache-config=redis,port=1")


def arguments(name, word):
    return [f"--{name}={word}", *(REDIS if name.startswith("cache") else ()), REPOSITORY]


@pytest.fixture
def file(tmp_path):
    """Write a file of words; returns its path."""

    def write(text):
        path = tmp_path / "words"
        path.write_text(text)
        return path

    return write


def value(settings, name):
    return {
        "http-restricted-api": settings.http_restricted_api,
        "grpc-restricted-protocol": settings.grpc.restricted_protocol,
        "openai-restricted-api": settings.openai.restricted,
        "backend-config": settings.backend_settings,
        "cache-config": settings.cache,
        "model-repository": sorted(settings.model_repositories),
    }[name]


def test_every_flag_that_may_hold_a_secret_has_one_that_names_a_file():
    secret = {flag.name for flag in FLAGS if flag.secret is not None}
    assert secret == WORDS.keys()
    assert {f"{name}-file" for name in secret} <= {flag.name for flag in FLAGS}


@pytest.mark.parametrize("name", WORDS)
def test_a_line_of_a_file_is_a_word_of_the_flag(name, file):
    path = file(f"# what it is for\n\n{WORDS[name]}\r\n")
    filed = Settings.from_argv(arguments(f"{name}-file", path))
    given = Settings.from_argv(arguments(name, WORDS[name]))
    assert value(filed, name) == value(given, name) != value(Settings.from_argv([REPOSITORY]), name)
    assert filed.warnings == ()


@pytest.mark.parametrize("name", WORDS)
def test_a_variable_names_a_file_too(name, file):
    environ = {f"TRITIUM_{name}_file".upper().replace("-", "_"): str(file(WORDS[name]))}
    settings = Settings.from_argv([REPOSITORY, *REDIS] if name == "cache-config" else [REPOSITORY], environ)
    if name in ("cache-config", "model-repository"):  # the command line has other words, and wins
        assert SECRET not in str(value(settings, name))
    else:
        given = Settings.from_argv(arguments(name, WORDS[name]))
        assert value(settings, name) == value(given, name)


def test_a_descriptor_is_read_once():
    reading, writing = os.pipe()
    try:
        os.write(writing, WORDS["http-restricted-api"].encode())
        os.close(writing)
        settings = Settings.from_argv([f"--http-restricted-api-file=/dev/fd/{reading}", REPOSITORY])
    finally:
        os.close(reading)
    assert settings.http_restricted_api == {"inference": RestrictedHeader("x-key", SECRET)}


@pytest.mark.parametrize("name", WORDS)
def test_a_secret_in_argv_earns_one_warning_that_names_the_flag_and_not_the_secret(name):
    (warning,) = Settings.from_argv(arguments(name, WORDS[name])).warnings
    assert warning.startswith(f"--{name} holds a secret on the command line")
    assert f"--{name}-file" in warning
    assert SECRET not in warning


@pytest.mark.parametrize("name", WORDS)
def test_a_secret_in_a_variable_is_in_no_argv(name):
    environ = {f"TRITIUM_{name}".upper().replace("-", "_"): WORDS[name]}
    if name == "cache-config":
        environ["TRITIUM_CACHE_CONFIG"] = f"redis,host=h;redis,port=1;{WORDS[name]}"
    argv = [] if name == "model-repository" else [REPOSITORY]
    assert Settings.from_argv(argv, environ).warnings == ()


@pytest.mark.parametrize(
    "argv",
    [
        ("--backend-config=python,threads=4",),
        ("--cache-config=local,size=1",),
        REDIS,
        ("--model-repository=s3://bucket/models?x",),
    ],
)
def test_what_is_no_secret_earns_no_warning(argv):
    assert Settings.from_argv([*argv, REPOSITORY]).warnings == ()


@pytest.mark.parametrize("name", WORDS)
def test_no_text_about_the_settings_has_a_secret(name, file):
    for argv in (arguments(name, WORDS[name]), arguments(f"{name}-file", file(WORDS[name]))):
        settings = Settings.from_argv(argv)
        assert SECRET not in repr(settings)
        assert SECRET not in str(settings.options())


def test_every_backend_setting_of_a_file_is_hidden_and_others_only_by_their_names(file):
    path = file(f"python,plain={SECRET}\n")
    settings = Settings.from_argv(
        [
            REPOSITORY,
            f"--backend-config-file={path}",
            "--backend-config=python,threads=4",
            "--backend-config=api_key=k",
        ]
    )
    options = dict(settings.options())
    assert options["backend_config[python]"] == "threads=4, plain=…"
    assert options["backend_config"] == "api_key=…"


@pytest.mark.parametrize(
    "argv",
    [
        [f"--http-restricted-api=inference:{SECRET}"],
        [f"--http-restricted-api=x-key={SECRET}:inference"],
        [f"--http-restricted-api=interference:x-key={SECRET}"],
        [f"--http-restricted-api=inference:x={SECRET}", f"--http-restricted-api=inference:x={SECRET}"],
        [f"--grpc-restricted-protocol==x{SECRET}"],
        [f"--backend-config=,token={SECRET}"],
        [f"--backend-config==x{SECRET}"],
        [f"--cache-config==redis,password={SECRET}"],
        [f"--cache-config=redis,password={SECRET}"],
        [f"--cache-config=redis,host=h,password={SECRET}"],
        [f"--cache-config=rediss,password={SECRET}"],
        [f"--cache-config=redis,passwort={SECRET}"],
        [f"--cache-config=redis,password={SECRET}", "--cache-config=local,size=1"],
        [f"--cache-config=redis,password={SECRET}", "--cache-config=redis,password_file=/f", *REDIS],
        [f"cache-config=redis,password={SECRET}"],
        [f"-cache-config=redis,password={SECRET}"],
        [f"--cache-configs=redis,password={SECRET}"],
    ],
)
def test_an_error_about_a_flag_does_not_repeat_its_secret(argv):
    with pytest.raises(SettingsError) as error:
        Settings.from_argv([REPOSITORY, *argv])
    assert SECRET not in error.value.message + error.value.hint


@pytest.mark.parametrize(
    "content", [f"inference:{SECRET}", f"{SECRET}=inference:x=y", f"x={SECRET}:inference=y"]
)
def test_an_error_about_a_file_does_not_repeat_its_lines(file, content):
    with pytest.raises(SettingsError) as error:
        Settings.from_argv([REPOSITORY, f"--http-restricted-api-file={file(content)}"])
    assert SECRET not in error.value.message + error.value.hint


def test_a_file_that_can_not_be_read_is_named(tmp_path):
    for path, why in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(SettingsError, match=f"--cache-config-file: '.*' can't be read: .*{why}"):
            Settings.from_argv([REPOSITORY, f"--cache-config-file={path}"])
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is no UTF-8 text"):
        Settings.from_argv([REPOSITORY, f"--cache-config-file={tmp_path / 'bytes'}"])
    with (tmp_path / "large").open("wb") as large:
        large.truncate((1 << 20) + 1)
    with pytest.raises(SettingsError, match="more than 1048576 bytes"):
        Settings.from_argv([REPOSITORY, f"--cache-config-file={tmp_path / 'large'}"])


class TestRedisPassword:
    """The password alone in a file, as a secret is mounted into a container."""

    def cache(self, *settings, environ=None):
        words = [*REDIS, *(f"--cache-config=redis,{setting}" for setting in settings)]
        found = Settings.from_argv([REPOSITORY, *words], environ).cache
        assert isinstance(found, RedisCache)
        return found

    def test_it_is_all_of_the_file_but_the_line_feed(self, file):
        assert self.cache(f"password_file={file(f' {SECRET} ' + chr(10))}").password == f" {SECRET} "

    def test_it_goes_before_the_variable(self, file):
        environ = {"TRITONCACHE_REDIS_PASSWORD": "other"}
        assert self.cache(f"password_file={file(SECRET)}", environ=environ).password == SECRET
        assert self.cache(environ=environ).password == "other"

    def test_an_empty_file_is_refused(self, file):
        with pytest.raises(SettingsError, match=r"redis,password_file: '.*' is empty"):
            self.cache(f"password_file={file(chr(10))}")

    def test_it_stands_in_one_place_only(self, file):
        with pytest.raises(SettingsError, match="has both 'password' and 'password_file'"):
            self.cache("password=a", f"password_file={file(SECRET)}")


@pytest.mark.parametrize(
    "name", ["token", "hf_token", "apiKey", "API_KEY", "aws-secret-key", "db.password", "auth"]
)
def test_names_of_secrets_are_known(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["threads", "tokenizer", "keyboard", "monkey", "default-max-batch-size", "author", ""]
)
def test_names_of_other_settings_are_no_secrets(name):
    assert not looks_secret(name)


def test_a_word_is_shown_up_to_where_its_value_begins():
    assert [concealed(word) for word in ("a=b", "a,b=c=d", "a:b=c", "a", "", "=x")] == [
        "a=…",
        "a,b=…",
        "a:…",
        "a",
        "",
        "=…",
    ]
