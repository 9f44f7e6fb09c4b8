"""What a server says of itself at its start: what is open, and what any client may do that reaches it."""

import pytest

from engine.observability.openness import exposures, openness
from engine.settings.settings import Settings, SettingsError

EXPLICIT = "--model-control-mode=explicit"
LOCAL = ("--http-address=127.0.0.1", "--grpc-address=localhost")


def settings(*flags):
    return Settings.from_argv(["--model-repository=/models", *flags])


DEFAULT = {
    "inference": "0.0.0.0:8000 and 0.0.0.0:8001",
    "management": "0.0.0.0:8000 and 0.0.0.0:8001",
    "metrics": "0.0.0.0:8002",
    "credentials": "none",
    "uploads": "off",
    "sandbox": "guard by default",
    "tls": "none",
}


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ([], {}),
        ([EXPLICIT], {"uploads": "on"}),
        ([EXPLICIT, "--uploads=strict", "--sandbox=guard"], {"uploads": "strict", "sandbox": "guard"}),
        (["--auth-file=keys.toml"], {"credentials": "auth file"}),
        (
            ["--management-address=::1", "--allow-http=false"],
            {"inference": "0.0.0.0:8001", "management": "[::1]:8003 and [::1]:8004"},
        ),
        (
            ["--management-address=127.0.0.1", "--allow-grpc=false"],
            {"inference": "0.0.0.0:8000", "management": "127.0.0.1:8003"},
        ),
        (
            ["--grpc-unix-socket=/run/grpc"],
            dict.fromkeys(("inference", "management"), "0.0.0.0:8000, 0.0.0.0:8001 and unix:/run/grpc"),
        ),
        (["--allow-http=false", "--allow-grpc=false"], {"inference": "none", "management": "none"}),
        (
            ["--grpc-use-ssl=true", "--grpc-server-cert=c", "--grpc-server-key=k"],
            {"tls": "gRPC"},
        ),
        (
            ["--http-use-ssl=true", "--http-server-cert=c", "--http-server-key=k"],
            {"tls": "HTTP"},
        ),
        (
            [
                "--http-use-ssl=true",
                "--http-server-cert=c",
                "--http-server-key=k",
                "--metrics-use-ssl=true",
            ],
            {"tls": "HTTP and metrics"},
        ),
        (["--allow-metrics=false"], {"metrics": "none"}),
        (["--metrics-address=::1", "--metrics-port=9"], {"metrics": "[::1]:9"}),
        (["--http-restricted-api=model-repository:k=v"], {}),
        (
            ["--http-restricted-api=model-repository:k=v", "--grpc-restricted-protocol=model-repository:k=v"],
            {"credentials": "a header for loads"},
        ),
    ],
)
def test_what_is_open_is_told_by_the_settings(flags, changed):
    assert openness(settings(*flags)) == DEFAULT | changed


def test_of_another_servers_http_no_address_is_known():
    places = "HTTP of the ASGI server and 0.0.0.0:8001"
    told = openness(settings(EXPLICIT), http=False)
    assert (told["inference"], told["management"]) == (places, places)
    (warning,) = exposures(settings(EXPLICIT), http=False)
    assert "reaches 0.0.0.0:8001 may" in warning


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ([], "0.0.0.0:8000 and 0.0.0.0:8001"),
        (["--http-address=127.0.0.1"], "0.0.0.0:8001"),
        (["--http-address=::", "--allow-grpc=false"], "[::]:8000"),
        (["--http-address=models.example", "--grpc-address=127.0.0.2"], "models.example:8000"),
        (["--management-address=10.0.0.7"], "10.0.0.7:8003 and 10.0.0.7:8004"),
        (["--http-restricted-api=model-repository:k=v"], "0.0.0.0:8001"),
    ],
)
def test_uploads_from_elsewhere_earn_a_warning(flags, places):
    *_, warning = exposures(settings(EXPLICIT, *flags))
    assert f"any client that reaches {places} may load a model that it brings along" in warning


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--model-control-mode=poll"],
        [EXPLICIT, *LOCAL],
        [EXPLICIT, "--management-address=127.0.0.1"],
        [EXPLICIT, "--uploads=off"],
        [EXPLICIT, "--uploads=strict"],
        [EXPLICIT, "--auth-file=keys.toml"],
        [
            EXPLICIT,
            "--http-restricted-api=model-repository:k=v",
            "--grpc-restricted-protocol=model-repository:k=v",
        ],
    ],
)
def test_a_server_to_which_no_stranger_uploads_earns_none(flags):
    assert list(exposures(settings(*flags))) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--http-restricted-api=model-repository,health:k=v", "--grpc-restricted-protocol=health:k=v"],
            "model-repository is restricted over one protocol only, and open over gRPC:"
            " --grpc-restricted-protocol restricts it there too",
        ),
        (
            ["--grpc-restricted-protocol=trace,statistics:k=v"],
            "statistics and trace are restricted over one protocol only, and open over HTTP:"
            " --http-restricted-api restricts them there too",
        ),
    ],
)
def test_an_api_that_is_restricted_over_one_protocol_earns_a_warning(flags, told):
    assert list(exposures(settings(*flags))) == [told]
    assert list(exposures(settings(*flags, "--auth-file=keys.toml"))) == []
    assert list(exposures(settings(*flags, "--allow-grpc=false"))) == []
    assert list(exposures(settings(*flags, "--allow-http=false"))) == []


@pytest.mark.parametrize("flag", ["--auth-file", "--management-address"])
def test_an_empty_variable_of_a_shell_leaves_nothing_open(flag):
    with pytest.raises(SettingsError, match=f"{flag} is empty"):
        settings(f"{flag}=")


def test_uploads_count_in_explicit_mode_only():
    assert settings(EXPLICIT, "--uploads=off").warnings == ()
    (warning,) = settings("--uploads=off").warnings
    assert warning == "--uploads has no effect: only --model-control-mode=explicit takes load requests"
