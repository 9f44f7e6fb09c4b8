"""Commands that talk to a server show it a key, which need not stand on their command line."""

import json

import pytest

from engine.__main__ import main
from engine.settings.scanning import CLIENT_KEY, settings_among
from tests.support.answering import answering

KEY = "ci." + "s" * 43
TREE = {"name": "root", "state": "running", "children": []}


class Answers:
    """What the server answers, and the credentials that it was shown."""

    def __init__(self):
        self.status = 200
        self.document = TREE
        self.shown = []
        self.url = ""


@pytest.fixture
def server():
    answers = Answers()

    def answer(request):
        answers.shown.append(request.headers["Authorization"])
        return answers.status, json.dumps(answers.document).encode()

    with answering(answer) as answers.url:
        yield answers


@pytest.fixture(autouse=True)
def no_key_of_mine(monkeypatch):
    monkeypatch.delenv(CLIENT_KEY, raising=False)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return str(path)


def tree(server, *words):
    return main(["tree", "--url", server.url, *words])


def test_a_key_comes_from_a_file(server, key_file):
    assert tree(server, "--key-file", key_file) == 0
    assert server.shown == [f"Bearer {KEY}"]


def test_a_key_comes_from_a_variable_that_is_no_setting(server, key_file, monkeypatch, tmp_path):
    monkeypatch.setenv(CLIENT_KEY, f"{KEY}\n")
    assert tree(server) == 0
    other = tmp_path / "other"
    other.write_text("other.key")
    assert tree(server, "--key-file", str(other)) == 0
    assert server.shown == [f"Bearer {KEY}", "Bearer other.key"]
    assert settings_among({CLIENT_KEY: KEY, "TRITIUM_HTTP_PORT": "1"}) == {"TRITIUM_HTTP_PORT": "1"}


def test_a_header_is_as_good_and_wins_over_the_variable(server, key_file, monkeypatch, capsys):
    monkeypatch.setenv(CLIENT_KEY, KEY)
    assert tree(server, "--header", "authorization: Bearer mine") == 0
    assert server.shown == ["Bearer mine"]
    assert tree(server, "--header", "Authorization: Bearer mine", "--key-file", key_file) == 1
    assert "both say who asks: leave one out" in capsys.readouterr().err


def test_a_secret_header_on_the_command_line_earns_a_warning_without_it(server, tmp_path, capsys):
    path = tmp_path / "header"
    path.write_text("admin-key: s3cret")
    for words, warned in (
        (["--header", "admin-key: s3cret"], True),
        (["--header", "Authorization: Bearer s3cret"], True),
        (["--header", "x-tenant: s3cret"], False),
        (["--header-file", str(path)], False),
    ):
        assert tree(server, *words) == 0
        told = capsys.readouterr().err
        assert ("use --header-file FILE" in told) is warned
        assert "s3cret" not in told


@pytest.mark.parametrize("content", ["", "\n", "two words", "kéy"])
def test_what_is_no_key_is_not_sent(server, tmp_path, capsys, content):
    path = tmp_path / "key"
    path.write_text(content)
    assert tree(server, "--key-file", str(path)) == 1
    assert "--key-file" in capsys.readouterr().err
    assert server.shown == []


@pytest.mark.parametrize(
    ("status", "error", "words", "told"),
    [
        (401, "takes credentials", [], "; give a key with --key-file FILE, or in the"),
        (401, "", [], "it asks for credentials; give a key with"),
        (401, "the API key is not good", ["key"], "the API key is not good. They are from --key-file "),
        (401, "", ["header"], "the credentials are not good. They are from --header"),
        (403, "'ci' may not use 'statistics'", ["key"], "server's auth file, `tritium auth explain`"),
        (403, "", ["key"], "its API 'statistics' is restricted; give it with --header"),
        (403, "This API is restricted, expecting header 'k'", [], "'k'; give it with --header 'NAME: VALUE'"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(server, key_file, capsys, status, error, words, told):
    server.status, server.document = status, {"error": error}
    given = {"key": ["--key-file", key_file], "header": ["--header", "Authorization: Bearer x"]}
    assert tree(server, *(word for name in words for word in given[name])) == 1
    err = capsys.readouterr().err
    assert told in err
    assert KEY not in err


def test_a_key_is_not_sent_on_to_where_a_server_points(server, key_file, capsys):
    server.status = 307
    assert tree(server, "--key-file", key_file) == 1
    assert "commands do not follow" in capsys.readouterr().err
    assert len(server.shown) == 1
