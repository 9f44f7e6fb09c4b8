"""The flags of the gRPC listener become settings, or an error that says what would have worked."""

import math

import pytest

from engine.settings.listening import GrpcSettings, KeepaliveSettings, RestrictedHeader, TlsFiles
from engine.settings.option import Group
from engine.settings.settings import BY_NAME, FLAGS, Settings, SettingsError

REPOSITORY = "--model-repository=/models"
FILES = ("--grpc-server-cert=server.pem", "--grpc-server-key=server.key")


def read(*flags):
    return Settings.from_argv([REPOSITORY, *flags])


def refusal(*flags):
    with pytest.raises(SettingsError) as caught:
        read(*flags)
    return caught.value


def test_without_flags_grpc_is_served_with_tritons_defaults():
    settings = read()
    assert settings.allow_grpc
    assert settings.grpc == GrpcSettings()
    grpc = settings.grpc
    assert (grpc.address, grpc.port, grpc.reuse_port) == ("0.0.0.0", 8001, False)
    assert (grpc.tls, grpc.unix_socket, grpc.compression) == (None, "", "none")
    assert grpc.connection_bytes == 64 * 1024 * 1024
    assert grpc.keepalive == KeepaliveSettings(
        time=7200.0,
        timeout=20.0,
        permit_without_calls=False,
        max_pings_without_data=2,
        min_ping_interval_without_data=300.0,
        max_ping_strikes=2,
        max_connection_age=math.inf,
        max_connection_age_grace=math.inf,
    )
    assert settings.warnings == ()


LISTENER = [
    ("grpc-address", "127.0.0.1", "address", "127.0.0.1"),
    ("grpc-port", "0", "port", 0),
    ("reuse-grpc-port", "true", "reuse_port", True),
    ("grpc-unix-socket", "/run/tritium/grpc", "unix_socket", "/run/tritium/grpc"),
    ("grpc-connection-bytes", "8MiB", "connection_bytes", 8 * 1024 * 1024),
    ("grpc-connection-bytes", "131072", "connection_bytes", 131072),
    ("grpc-infer-response-compression-level", "low", "compression", "low"),
    ("grpc-infer-response-compression-level", "HIGH", "compression", "high"),
    ("grpc-header-forward-pattern", "^x-", "header_forward_pattern", "^x-"),
    (
        "grpc-restricted-protocol",
        "health,trace:key=a=b",
        "restricted_protocol",
        {"health": RestrictedHeader("key", "a=b"), "trace": RestrictedHeader("key", "a=b")},
    ),
]

KEEPALIVE = [
    ("grpc-keepalive-time", "1500", "time", 1.5),
    ("grpc-keepalive-time", "2147483647", "time", math.inf),
    ("grpc-keepalive-timeout", "1", "timeout", 0.001),
    ("grpc-keepalive-permit-without-calls", "true", "permit_without_calls", True),
    ("grpc-http2-max-pings-without-data", "0", "max_pings_without_data", 0),
    ("grpc-http2-min-recv-ping-interval-without-data", "250", "min_ping_interval_without_data", 0.25),
    ("grpc-http2-max-ping-strikes", "7", "max_ping_strikes", 7),
    ("grpc-max-connection-age", "60000", "max_connection_age", 60.0),
    ("grpc-max-connection-age", "0", "max_connection_age", math.inf),
    ("grpc-max-connection-age-grace", "500", "max_connection_age_grace", 0.5),
]


@pytest.mark.parametrize(("flag", "word", "name", "value"), LISTENER)
def test_a_flag_of_the_listener_sets_its_field(flag, word, name, value):
    assert getattr(read(f"--{flag}={word}").grpc, name) == value


@pytest.mark.parametrize(("flag", "word", "name", "value"), LISTENER)
def test_a_variable_of_the_listener_sets_the_same_field(flag, word, name, value):
    environ = {"TRITIUM_MODEL_REPOSITORY": "/models", BY_NAME[flag].variable: word}
    assert getattr(Settings.from_environ(environ).grpc, name) == value


@pytest.mark.parametrize(("flag", "word", "name", "value"), KEEPALIVE)
def test_a_keepalive_flag_sets_its_field_in_seconds(flag, word, name, value):
    assert getattr(read(f"--{flag}={word}").grpc.keepalive, name) == value


@pytest.mark.parametrize(("flag", "word", "name", "value"), KEEPALIVE)
def test_a_keepalive_variable_sets_the_same_field(flag, word, name, value):
    environ = {"TRITIUM_MODEL_REPOSITORY": "/models", BY_NAME[flag].variable: word}
    assert getattr(Settings.from_environ(environ).grpc.keepalive, name) == value


def test_every_flag_of_the_listener_is_tried_here():
    tried = {flag for flag, *_ in LISTENER + KEEPALIVE} | {
        "allow-grpc",
        "grpc-use-ssl",
        "grpc-use-ssl-mutual",
    }
    tried |= {"grpc-server-cert", "grpc-server-key", "grpc-root-cert"}
    assert {flag.name for flag in FLAGS if flag.group is Group.GRPC} == tried


def test_grpc_can_be_switched_off():
    assert not read("--allow-grpc=false").allow_grpc


# -- TLS


def test_tls_takes_a_certificate_and_its_key():
    assert read("--grpc-use-ssl=true", *FILES).grpc.tls == TlsFiles(
        certificate="server.pem", key="server.key"
    )


def test_mutual_tls_is_tls_too_and_takes_what_vouches_for_clients():
    settings = read("--grpc-use-ssl-mutual=true", *FILES, "--grpc-root-cert=ca.pem")
    assert settings.grpc.tls == TlsFiles(certificate="server.pem", key="server.key", client_roots="ca.pem")


def test_the_variables_of_tls_are_those_of_its_flags():
    environ = {
        "TRITIUM_MODEL_REPOSITORY": "/models",
        "TRITIUM_GRPC_USE_SSL": "true",
        "TRITIUM_GRPC_USE_SSL_MUTUAL": "true",
        "TRITIUM_GRPC_SERVER_CERT": "server.pem",
        "TRITIUM_GRPC_SERVER_KEY": "server.key",
        "TRITIUM_GRPC_ROOT_CERT": "ca.pem",
        "TRITIUM_ALLOW_GRPC": "on",
    }
    settings = Settings.from_environ(environ)
    assert settings.allow_grpc
    assert settings.grpc.tls == TlsFiles(certificate="server.pem", key="server.key", client_roots="ca.pem")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grpc-use-ssl=true"], "--grpc-use-ssl requires --grpc-server-cert"),
        (
            ["--grpc-use-ssl=true", "--grpc-server-cert=server.pem"],
            "--grpc-use-ssl requires --grpc-server-key",
        ),
        (["--grpc-use-ssl-mutual=true", *FILES], "--grpc-use-ssl-mutual requires --grpc-root-cert"),
    ],
)
def test_tls_without_one_of_its_files_names_the_flag_that_is_missing(flags, text):
    error = refusal(*flags)
    assert error.message == text
    assert error.hint.startswith(f"{text.rpartition(' ')[2]}=FILE names the PEM file with ")


@pytest.mark.parametrize(
    "flags", [FILES, ("--grpc-root-cert=ca.pem",), ("--grpc-root-cert=ca.pem", "--grpc-use-ssl=true", *FILES)]
)
def test_a_file_that_nothing_uses_earns_a_warning(flags):
    settings = read(*flags)
    idle = [warning.partition(" ")[0] for warning in settings.warnings]
    assert idle == [flag.partition("=")[0] for flag in flags if settings.grpc.tls is None or "root" in flag]
    assert all(" has no effect: " in warning for warning in settings.warnings)


# -- mistakes


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--allow-grpc=maybe"], "invalid value for bool option: maybe"),
        (["--grpc-port=65536"], "Provided option value is out of bound. Got 65536"),
        (["--grpc-port=-1"], "Provided option value is out of bound. Got -1"),
        (["--grpc-port=grpc"], "Invalid option value. Got grpc"),
        (
            ["--grpc-infer-response-compression-level=max"],
            "invalid argument for --grpc_infer_response_compression_level",
        ),
        (["--grpc-keepalive-time=0"], "Provided option value is out of bound. Got 0"),
        (["--grpc-keepalive-timeout=0"], "Provided option value is out of bound. Got 0"),
        (["--grpc-keepalive-time=1.5"], "Invalid option value. Got 1.5"),
        (["--grpc-keepalive-time=2147483648"], "Provided option value is out of bound. Got 2147483648"),
        (["--grpc-http2-max-ping-strikes=-1"], "Provided option value is out of bound. Got -1"),
        (["--grpc-max-connection-age=-1"], "Provided option value is out of bound. Got -1"),
        (["--grpc-connection-bytes=131071"], "Provided option value is out of bound. Got 131071"),
        (["--grpc-connection-bytes=much"], "Invalid option value. Got much"),
        (["--grpc-connection-bytes=80%"], "Invalid option value. Got 80%"),
        (["--grpc-header-forward-pattern=("], None),
        (
            ["--grpc-restricted-protocol=health"],
            "--grpc-restricted-protocol option format is '<protocol>[,<protocol>...]:<key>=<value>'. Got health",
        ),
        (["--grpc-restricted-protocol=wealth:a=b"], "unknown restricted protocol 'wealth'"),
        (
            ["--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=trace,health:c=d"],
            "restricted protocol 'health' can not be specified in multiple config groups",
        ),
        (
            ["--http-port=8001"],
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8001",
        ),
        (
            ["--grpc-port=8002"],
            "The server cannot listen to GRPC requests and metrics requests at the same address and port 0.0.0.0:8002",
        ),
    ],
)
def test_a_value_of_grpc_that_makes_no_sense_is_refused(flags, text):
    error = refusal(*flags)
    assert text is None or error.message == text


def test_a_bound_on_connections_that_holds_no_call_says_what_it_must_hold():
    assert refusal("--grpc-connection-bytes=64KiB").hint.startswith(
        "--grpc-connection-bytes takes 128KiB or more: "
    )


def test_a_unix_socket_whose_path_is_too_long_says_how_long_it_may_be():
    assert read("--grpc-unix-socket=" + "x" * 107).grpc.unix_socket == "x" * 107
    error = refusal("--grpc-unix-socket=" + "ü" * 54)
    assert error.message.startswith("--grpc-unix-socket is too long for a socket's path: 108 bytes. Got ü")
    assert error.hint == "such a path has 107 bytes at most"


def test_a_unix_socket_without_grpc_earns_a_warning():
    (warning,) = read("--allow-grpc=false", "--grpc-unix-socket=/s").warnings
    assert warning.startswith("--grpc-unix-socket has no effect: --allow-grpc=false ")


def test_a_port_that_grpc_does_not_take_is_free_for_others():
    assert read("--allow-grpc=false", "--http-port=8001").http_port == 8001


# -- what an operator sees


def shown(*flags):
    return dict(read(*flags).options())


def test_the_options_tell_where_grpc_listens_and_how():
    assert shown()["grpc"] == "0.0.0.0:8001"
    assert shown("--allow-grpc=false", "--grpc-unix-socket=/s")["grpc"] == "off"
    assert shown("--grpc-address=::1")["grpc"] == "[::1]:8001"
    assert shown("--grpc-use-ssl=true", *FILES)["grpc"] == "0.0.0.0:8001 (TLS)"
    mutual = shown("--grpc-use-ssl-mutual=true", *FILES, "--grpc-root-cert=ca.pem", "--grpc-unix-socket=/s")
    assert mutual["grpc"] == "0.0.0.0:8001 (TLS, clients with certificates)"
    assert mutual["grpc_unix_socket"] == "/s"
    assert "grpc_unix_socket" not in shown("--allow-grpc=false", "--grpc-unix-socket=/s")
