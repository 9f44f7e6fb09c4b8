"""How names of the server, and origins of pages that may use it, are written."""

import pytest

from engine.settings.forms import SettingsError
from engine.settings.settings import Settings


def pages(*flags):
    return Settings.from_argv(["--model-repository=/models", *flags]).pages


def test_names_and_origins_are_read_in_lower_case_and_collected():
    read = pages(
        "--trusted-hosts=Models.Example.,*.Cluster.Local",
        "--trusted-hosts=my_service",
        "--cors-allowed-origins=https://App.Example, http://localhost:3000",
        "--cors-allowed-origins=chrome-extension://abc",
    )
    assert read.trusted_hosts == {"models.example", "*.cluster.local", "my_service"}
    assert read.cors_allowed_origins == {
        "https://app.example",
        "http://localhost:3000",
        "chrome-extension://abc",
    }


def test_nothing_is_trusted_unless_it_is_named():
    assert (pages().trusted_hosts, pages().cors_allowed_origins) == (frozenset(), frozenset())
    everything = pages("--trusted-hosts=*", "--cors-allowed-origins=*")
    assert (everything.trusted_hosts, everything.cors_allowed_origins) == ({"*"}, {"*"})


def test_an_origin_is_read_without_the_port_that_browsers_leave_out():
    flag = "--cors-allowed-origins=https://a.example:443,http://b.example:80,https://c.example:80"
    assert pages(flag).cors_allowed_origins == {
        "https://a.example",
        "http://b.example",
        "https://c.example:80",
    }


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--trusted-hosts=models.example:8000", "--trusted-hosts=models.example"),
        ("--trusted-hosts=https://models.example", "--trusted-hosts=models.example"),
        ("--trusted-hosts=a,,b", "--trusted-hosts=models.example"),
        ("--trusted-hosts=*example", "--trusted-hosts=models.example"),
        ("--cors-allowed-origins=app.example", "https://app.example"),
        ("--cors-allowed-origins=https://app.example/", "https://app.example"),
        ("--cors-allowed-origins=https://", "https://app.example"),
        ("--cors-allowed-origins=null", "any page can make itself one of the origin 'null'"),
    ],
)
def test_a_word_that_is_none_is_refused_with_one_that_would_do(flag, hint):
    with pytest.raises(SettingsError) as caught:
        pages(flag)
    assert hint in caught.value.hint
