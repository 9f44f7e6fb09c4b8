"""`tritium traffic`, against a server that gives prepared answers."""

import io
import json
import re
from typing import Any

import pytest

from engine.__main__ import main
from tests.support.answering import answering

PLAN: dict[str, Any] = {
    "model": "resnet",
    "since_ms": 1_790_000_000_000,
    "for_seconds": 130.0,
    "origin": "runtime",
    "plan": {"weights": {"1": 90, "2": 10}, "sticky": {"header": "x-user"}},
    "versions": [
        {
            "version": 1,
            "state": "READY",
            "weight": 90,
            "share": 1.0,
            "requests": 900,
            "share_of_requests": 0.9,
            "answers": 900,
            "errors": 0,
            "mean_latency_seconds": 0.0018,
        },
        {
            "version": 2,
            "state": "READY",
            "weight": 10,
            "share": 0.0,
            "requests": 100,
            "share_of_requests": 0.1,
            "answers": 100,
            "errors": 25,
            "mean_latency_seconds": 0.002,
            "rolled_back": {"reason": "error rate 0.25 over 0.2", "since_ms": 1, "for_seconds": 12.0},
        },
        {"version": 7, "state": "", "weight": None, "share": 0.0, "requests": 0, "share_of_requests": 0.0},
    ],
    "mirror": {
        "version": 3,
        "sent": 9,
        "same": 6,
        "different": 2,
        "errors": 1,
        "uncompared": 0,
        "skipped": 4,
        "outstanding": 0,
        "differences": [
            {
                "version": 3,
                "request_id": "r1",
                "what": "value",
                "output": "Y",
                "index": [0, 3],
                "elements": 2,
                "client": 1.5,
                "mirror": 1.25,
            },
            {
                "version": 3,
                "request_id": "",
                "what": "error",
                "client": "an answer",
                "mirror": "Internal: \x1b[31m",
            },
        ],
    },
    "warnings": ["version 7 has a weight and does not exist"],
}
SHOWN = """\
resnet: an operator's plan, in force for 2m 10s
version  state      weight  share   requests  of all  errors      mean latency
1        READY      90      100.0%  900       90.0%   0           1.8 ms
2        READY      10      0.0%    100       10.0%   25 (25.0%)  2 ms
7        not there  -       0.0%    0         0.0%    -           -
requests with one value of header 'x-user' meet one version
version 2 lost its share 12.0s ago: error rate 0.25 over 0.2
mirror to version 3: 9 sent, 6 same, 2 different, 1 failed, 0 uncompared, 4 skipped
  output 'Y' [0, 3] value: client got 1.5, mirror gave 1.25, 2 elements differ (request 'r1')
  error: client got an answer, mirror gave Internal: \\x1b[31m
warning: version 7 has a weight and does not exist
"""


class Answers:
    """What the server answers, and what it was sent."""

    def __init__(self):
        self.status = 200
        self.document = PLAN
        self.asked: list[Any] = []
        self.url = ""


@pytest.fixture
def server():
    answers = Answers()

    def answer(request):
        posted = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        answers.asked.append((request.path, json.loads(posted) if posted else None, request.headers["key"]))
        return answers.status, json.dumps(answers.document).encode()

    with answering(answer) as answers.url:
        yield answers


def traffic(server, *words):
    return main(["traffic", "--url", server.url, *words])


def posted(server, *words):
    """Run the command and return the plan that it posted."""
    assert traffic(server, "m", *words) == 0
    ((_, plan, _),) = server.asked
    server.asked.clear()
    return plan


def test_the_traffic_of_a_model_is_shown_plainly_in_a_pipe(server, capsys):
    assert traffic(server, "res net/1", "--header", "key: s3cret") == 0
    assert capsys.readouterr().out == SHOWN
    assert server.asked == [("/v2/tritium/models/res%20net%2F1/traffic", None, "s3cret")]


def test_a_model_without_a_plan_says_who_answers(server, capsys):
    version = {"version": 1, "state": "READY", "share": 1, "requests": 0, "mean_latency_seconds": 0.03}
    server.document = {"model": "m", "origin": "none", "plan": None, "versions": [version], "mirror": None}
    assert traffic(server, "m") == 0
    said = capsys.readouterr().out
    assert said.startswith("m: no traffic plan; the highest version answers\n")
    # Requests are not counted by version.
    assert said.splitlines()[-1].split() == ["1", "READY", "-", "100.0%", "-", "-", "-", "30", "ms"]
    server.document |= {"origin": "runtime", "for_seconds": 3}
    assert traffic(server, "m", "--off") == 0
    assert capsys.readouterr().out.startswith("m: no traffic plan for 3.0s (ended by an operator); the")


def test_the_servers_json_is_for_programs(server, capsys):
    assert traffic(server, "m", "--json") == 0
    assert json.loads(capsys.readouterr().out) == PLAN


def test_the_traffic_of_a_model_is_drawn_on_a_terminal():
    from rich.console import Console

    from engine.cli.traffic import drawn

    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=120).print(drawn(PLAN))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    for words in (
        "resnet: an operator's plan",
        "25 (25.0%)",
        "lost its share 12.0s ago",
        "warning: version 7",
    ):
        assert words in plain
    assert "\x1b[31m'" not in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0000123, "0.0123 ms"),
        (0.000878, "0.878 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.0204, "1.02 s"),
        (59.9, "59.9 s"),
        (250, "4m 10s"),
    ],
)
def test_a_latency_is_told_in_the_unit_that_suits_it(server, capsys, seconds, words):
    version = PLAN["versions"][0] | {"mean_latency_seconds": seconds}
    server.document = PLAN | {"versions": [version]}
    assert traffic(server, "m") == 0
    assert capsys.readouterr().out.splitlines()[2].endswith(f"  {words}")


def test_differences_that_read_alike_are_told_once_with_their_number(server, capsys):
    error = {"version": 3, "request_id": "", "what": "error", "client": "an answer", "mirror": "Internal: no"}
    value = PLAN["mirror"]["differences"][0]
    differences = [*[error] * 3, value, error, value | {"request_id": "r7"}]
    server.document = PLAN | {"mirror": PLAN["mirror"] | {"differences": differences}}
    assert traffic(server, "m") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == [
        "  error: client got an answer, mirror gave Internal: no (4 times)",
        "  output 'Y' [0, 3] value: client got 1.5, mirror gave 1.25, 2 elements differ"
        " (2 times, last in request 'r7')",
    ]


@pytest.mark.parametrize(
    ("status", "error", "cure", "words"),
    [
        (
            403,
            "This API is restricted, expecting header 'admin-key'",
            "; give it with --header 'NAME: VALUE'",
            [],
        ),
        (400, "invalid traffic plan: 'weights.1' is -1", "", ["--weights", "1=-1"]),
    ],
)
def test_what_the_server_refuses_is_told_in_its_words(server, capsys, status, error, cure, words):
    server.status, server.document = status, {"error": error}
    assert traffic(server, "m", *words) == 1
    assert capsys.readouterr().err == (
        f"the server at {server.url} answered {status} to /v2/tritium/models/m/traffic: {error}{cure}\n"
    )


def test_weights_alone_are_a_plan(server):
    assert posted(server, "--weights", "1=90, 2=10") == {"weights": {"1": 90, "2": 10}}


def test_each_flag_has_its_place_in_the_plan(server):
    plan = posted(
        server,
        *("--weights=1=1,2=0.5", "--sticky-header=x-user", "--mirror=3"),
        *("--mirror-fraction=0.1", "--mirror-tolerance=0.01", "--rollback-error-rate=0.05"),
        *("--rollback-latency-ratio=2", "--rollback-latency=0.5", "--rollback-min-requests=50"),
        "--rollback-window=10",
    )
    assert plan == {
        "weights": {"1": 1.0, "2": 0.5},
        "sticky": {"header": "x-user"},
        "mirror": {"version": 3, "fraction": 0.1, "tolerance": 0.01},
        "rollback": {
            "max_error_rate": 0.05,
            "max_latency_ratio": 2.0,
            "max_latency": 0.5,
            "min_requests": 50,
            "window": 10.0,
        },
    }
    assert posted(server, "--weights=1=1", "--sticky-parameter=u")["sticky"] == {"parameter": "u"}


def test_the_plans_of_the_command_are_plans_to_the_server(server):
    from actors.traffic.policy.traffic_plan import read_plan

    read_plan(posted(server, "--weights=1=1,2=1", "--mirror=3", "--rollback-latency=1"))


def test_off_ends_the_plan(server):
    assert posted(server, "--off") == {}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--weights", "1:90"], "expected VERSION=WEIGHT such as 1=90,2=10, got '1:90'"),
        (["--weights", "1=much"], "expected VERSION=WEIGHT such as 1=90,2=10, got '1=much'"),
        (["--weights", "1=nan"], "expected VERSION=WEIGHT such as 1=90,2=10, got '1=nan'"),
        (["--weights", "1=1,1=2"], "version 1 has two weights"),
        (["--mirror", "2"], "a plan is given as a whole: say with --weights which versions answer"),
        (["--off", "--mirror", "2"], "--off ends the plan"),
        (["--off", "--weights", "1=1"], "--off ends the plan"),
        (["--weights", "1=1", "--sticky-header", "a", "--sticky-parameter", "b"], "not allowed with"),
    ],
)
def test_flags_that_make_no_plan_are_refused_before_anything_is_sent(server, capsys, words, complaint):
    with pytest.raises(SystemExit):
        traffic(server, "m", *words)
    assert complaint in capsys.readouterr().err
    assert server.asked == []


def test_a_server_that_knows_nothing_of_traffic_is_told_apart(server, capsys):
    server.document = {"name": "triton"}
    assert traffic(server, "m") == 1
    assert "did not answer with a traffic plan" in capsys.readouterr().err
    server.status, server.document = 404, []
    assert traffic(server, "m") == 1
    assert "is it Tritium" in capsys.readouterr().err
