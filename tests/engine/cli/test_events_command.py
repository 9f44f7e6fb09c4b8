"""`tritium events` against a server that says what it is told to: what is asked, shown, and asked again."""

import json

import pytest

from engine.__main__ import main
from engine.cli.client import Client, ServerUnavailable
from engine.cli.events import Following
from tests.support.answering import answering

FIRST = (
    "retry: 1000\n: a comment\nid: b-1\nevent: model_ready\n"
    'data: {"timestamp": "2026-11-24T12:34:24.112000Z", "level": "info", "event": "model_ready",'
    ' "model": "killer", "version": 1}\n\n'
)
CRASH = (
    "id: b-2\nevent: child_exited\n"
    'data: {"timestamp": "2026-11-24T12:34:25.000000Z", "level": "error", "event": "child_exited",'
    ' "actor": "models/\\u001b[31m/1", "exception": "Traceback:\\n  ValueError: on cue"}\n\n'
)
GAP = 'event: events_missed\ndata: {"level": "warning", "event": "events_missed", "missed": 3}\n\n'
QUIET = ": \nid: b-9\n\n"


class Asked(Exception):
    """The server was asked once more than a test has answers."""


@pytest.fixture
def server():
    """A server with a list of answers, (status, body), and what it was asked: (path, last id, key)."""
    answers: list = []
    asked: list = []

    def answer(request):
        headers = request.headers
        asked.append((request.path, headers.get("Last-Event-ID"), headers.get("Authorization")))
        status, body = answers.pop(0) if answers else (404, "")
        return status, body.encode()

    with answering(answer) as url:
        yield url, answers, asked


def events(server, *words):
    return main(["events", "--url", server[0], *words])


def test_without_follow_it_shows_what_is_kept_as_the_log_looks(server, capsys):
    server[1].append((200, FIRST + CRASH))
    assert events(server) == 0
    assert server[2] == [("/v2/tritium/events?after=0&follow=false", None, None)]
    assert capsys.readouterr().out == (
        "2026-11-24T12:34:24.112000Z  info    model_ready           model=killer version=1\n"
        "2026-11-24T12:34:25.000000Z  error   child_exited          actor=models/\\x1b[31m/1\n"
        "    Traceback:\n      ValueError: on cue\n"
    )


def test_json_has_a_line_for_each_event_with_its_id(server, capsys):
    server[1].append((200, GAP + FIRST + QUIET))
    assert events(server, "--json") == 0
    gap, first = map(json.loads, capsys.readouterr().out.splitlines())
    assert (gap["event"], gap["missed"], "id" in gap, "timestamp" in gap) == ("events_missed", 3, False, True)
    assert first == {
        "id": "b-1",
        "timestamp": "2026-11-24T12:34:24.112000Z",
        "level": "info",
        "event": "model_ready",
        "model": "killer",
        "version": 1,
    }


def test_what_is_no_record_is_passed_over(server, capsys):
    strange = "id: b-5\nevent: x\ndata: what\n\ndata: [1]\n\ndata: {\n\nretry: 5\nunknown\n\n"
    server[1].append((200, strange + FIRST))
    assert events(server) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_server_selects(server, monkeypatch):
    monkeypatch.setenv("TRITIUM_API_KEY", "k.secret")
    server[1].append((200, ""))
    words = ("--model", "a&b", "--model", "c*", "--event", "child_*", "--level", "error", "--after", "b-7")
    assert events(server, *words) == 0
    path = "/v2/tritium/events?model=a%26b&model=c%2A&event=child_%2A&level=error&after=b-7&follow=false"
    assert server[2] == [(path, None, "Bearer k.secret")]


def test_since_leaves_out_what_was_before(server, capsys):
    server[1].append((200, FIRST + CRASH))
    assert events(server, "--since", "2026-11-24T12:34:24.5Z") == 0
    assert "after=0" in server[2][0][0]
    assert capsys.readouterr().out.startswith("2026-11-24T12:34:25.000000Z  error")


def test_a_time_that_is_none_is_said(server, capsys):
    assert events(server, "--since", "yesterday") == 1
    assert "expected a time such as" in capsys.readouterr().err
    assert server[2] == []


def test_since_and_after_are_two_ways_to_say_where_to_begin(server, capsys):
    with pytest.raises(SystemExit):
        events(server, "--since", "1h", "--after", "b-1")
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (503, '{"error": "16 clients follow the events"}', "answered 503 to /v2/tritium/events: 16 clients"),
        (404, "", "answered 404 to /v2/tritium/events: is it Tritium"),
        (200, "data: " + "x" * 2**20, "did not answer with events"),
    ],
)
def test_a_server_that_refuses_from_the_start_ends_it(server, capsys, status, body, told):
    server[1].append((status, body))
    assert events(server, "--follow") == 1
    assert told in capsys.readouterr().err


def following(url, pauses, most, *query):
    """The records of a stream that is followed, until it was lost more than `most` times."""

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) > most:
            raise Asked

    return Following(Client(url, []), query, live=True, pause=pause).records()


def test_follow_comes_back_with_the_id_of_the_last_event(server, capsys):
    server[1].extend([(200, FIRST), (503, '{"error": "busy"}'), (200, QUIET), (200, GAP + CRASH)])
    records = following(server[0], [], 9, ("model", "m"))
    assert [next(records).id for _ in range(3)] == ["b-1", "", "b-2"]
    with pytest.raises(ServerUnavailable, match="answered 404"):  # there is no use in trying again
        next(records)
    assert [last for _, last, _ in server[2]] == [None, "b-1", "b-1", "b-9", "b-2"]
    assert {path for path, _, _ in server[2]} == {"/v2/tritium/events?model=m"}
    assert capsys.readouterr().err.splitlines() == [
        f"the server ended the stream; coming back after event b-{last}" for last in (1, 9, 2)
    ]


def test_follow_waits_for_a_server_that_is_away(capsys):
    pauses: list[float] = []
    with answering(lambda _: (200, FIRST.encode())) as url:
        records = following(url, pauses, 3)
        assert next(records).id == "b-1"
    with pytest.raises(Asked):
        next(records)
    assert pauses == [1.0] * 4
    assert len(capsys.readouterr().err.splitlines()) == 1  # one for a loss, not for each attempt
