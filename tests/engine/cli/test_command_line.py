"""The `tritium` command as it is typed, in processes of its own where that is what matters."""

import io
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from actors.values.interfaces import IndexEntry
from actors.values.specs import ModelKey
from engine.__main__ import main, usage
from engine.cli.check import check
from engine.cli.serve import help_text
from engine.cli.tree.command import plain
from engine.observability.announcing import startup_text
from engine.observability.text import aligned, duration, printable
from engine.settings.forms import size_text
from engine.settings.option import Group
from engine.settings.settings import FLAGS
from tests.support.answering import answering
from tests.support.operators import clean_environ


def run(*words, **environ):
    """Run `python -m engine` and return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "engine", *words],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean_environ(**environ),
        check=False,
    )


# -- help and mistakes


@pytest.mark.system
def test_help_is_quick_and_complete():
    started = time.perf_counter()
    process = run("--help")
    assert time.perf_counter() - started < 5  # generous: a loaded machine; typically 0.03 s
    assert (process.returncode, process.stderr) == (0, "")
    for command in ("serve", "check", "tree", "traffic"):
        assert f"  {command} " in process.stdout


@pytest.mark.system
def test_the_command_imports_nothing_heavy():
    code = (
        "import sys, engine.__main__, engine.cli.serve, engine.cli.tree.command, engine.cli.traffic;"
        "heavy = {'trio', 'structlog', 'rich', 'numpy', 'google.protobuf', 'orjson'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert process.stdout.strip() == "[]"


def test_the_help_of_serve_shows_every_flag_and_fits_the_terminal():
    text = help_text(80, everything=True)
    assert all(len(line) <= 80 for line in text.splitlines() if line.startswith("      "))
    for flag in FLAGS:
        assert f"--{flag.name}" in text
    for group in Group:
        assert f"{group.value}:\n" in text


def test_flags_with_choices_name_and_explain_them_in_the_short_help_too():
    text = " ".join(help_text(80).split())
    for flag in FLAGS:
        if flag.form.choices and f" --{flag.name}=" in text:
            assert f" --{flag.name}={'|'.join(flag.form.choices)} " in text
    assert "explicit: load what --load-model names" in text
    assert "--worker-environment=inherit|minimal Tritium's own. inherit: workers have" in text


def test_the_help_of_serve_is_short_and_says_where_the_rest_is():
    text, whole = help_text(80), help_text(80, everything=True)
    assert len(text) < 0.7 * len(whole)
    left_out = {flag.name for flag in FLAGS if f"  --{flag.name}" not in text}
    assert {"http-thread-count", "grpc-keepalive-time", "trace-file", "backend-config-file"} <= left_out
    assert not {"http-port", "model-repository-links", "log-file", "openai-port"} & left_out
    assert f"has {len(left_out)} more flags" in text


@pytest.mark.parametrize("width", [70, 100])
def test_the_help_of_the_command_fits_the_terminal(width):
    explained = usage(width).partition("\nexamples:")[0]
    assert max(map(len, explained.splitlines())) <= width


@pytest.mark.parametrize(
    ("words", "told"),
    [(["serve", "--help=all"], r"\[default: 67108864\]"), (["--version"], r"\Atritium.*\n\Z")],
)
def test_defaults_stand_in_the_help_and_the_version_is_one_line(capsys, words, told):
    assert main(words) == 0
    assert re.search(told, capsys.readouterr().out)


@pytest.mark.system
def test_an_unknown_flag_ends_with_status_one_and_the_usage_on_stderr():
    process = run("serve", "--model-repositry=/models")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.splitlines()[:2] == [
        "unrecognized option '--model-repositry'",
        "did you mean --model-repository?",
    ]
    assert "usage: tritium serve" in process.stderr


def test_serve_reads_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("TRITIUM_HTTP_PORT", "many")
    assert main(["serve", "--model-repository=/models"]) == 1
    assert "--http-port takes a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["srve"], "did you mean 'serve'?"),
        (["--model-repository=x"], "tritium serve --model-repository=x"),
        (
            ["xyzzy"],
            "commands are serve, run, sagemaker, init, check, migrate, convert, sign, verify, key, auth, tree, ",
        ),
        (["check", "/nowhere/models"], "there is no such directory"),
        (["check", __file__], "not a directory"),
        (["tree", "--url", "http://127.0.0.1:1"], "at http://127.0.0.1:1: Connection refused\n"),
        (["tree", "--url", "file:///etc/passwd"], "takes an http:// address"),
        (["traffic", "m", "--url", "ftp://x"], "--url takes an http:// address. Got ftp://x\n"),
    ],
)
def test_what_cannot_be_done_ends_with_status_one_and_says_what_would_work(words, hint, capsys):
    assert main(words) == 1
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "check",
            (
                "model file (onnx)",
                "--no-model-code",
                "exit status:",
                "tritium check ./models\n",
                "--model MODEL",
            ),
        ),
        ("traffic", ("--rollback-error-rate",)),
        ("logs", ("--trace r7", "--log-requests=true")),
    ],
)
def test_the_help_of_a_command_explains_it_and_fits_the_terminal(command, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert [each for each in words if each not in out] == []
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.system
def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        process = subprocess.run(
            [sys.executable, "-m", "engine", "serve", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert process.stderr == b""


# -- check

GOOD = """
name: "add"
backend: "python"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
"""
BAD = 'name: "broken"\nbackend: "python"\nmax_batch_sise: 8\n'


@pytest.fixture
def repository(tmp_path):
    def write(**models):
        for name, config in models.items():
            (tmp_path / name / "1").mkdir(parents=True)
            (tmp_path / name / "1" / "model.py").write_text("")
            (tmp_path / name / "config.pbtxt").write_text(config)
        return str(tmp_path)

    return write


THREADED = GOOD + 'parameters { key: "tritium.isolation" value { string_value: "thread" } }\n'


@pytest.mark.parametrize(
    ("models", "status", "words", "end"),
    [
        pytest.param(
            {"add": GOOD},
            0,
            (
                "✓ add  version 1\n",
                "dynamic, up to 8 rows, waiting 0.1 ms for more",
                "tritium.execution_timeout is off: hangs are not contained",
            ),
            "1 of 1 model would load\n",
            id="what would be served",
        ),
        pytest.param(
            {"add": GOOD, "broken": BAD},
            1,
            ("✗ broken", "broken/config.pbtxt:3:1: error: ", "did you mean 'max_batch_size'?"),
            "1 of 2 models would load\n",
            id="a mistake",
        ),
        pytest.param(
            {"add": THREADED},
            0,
            ("a crash of it takes the server down",),
            "1 of 1 model would load\n",
            id="a model inside the server process",
        ),
        pytest.param({}, 0, (), "no models found\n", id="an empty repository"),
    ],
)
def test_check_shows_what_would_be_served_and_points_at_mistakes(
    repository, capsys, models, status, words, end
):
    assert main(["check", "--verbose", repository(**models)]) == status
    out = capsys.readouterr().out
    assert [each for each in words if each not in out] == []
    assert out.endswith(end)


def test_check_says_the_same_as_json(repository, capsys):
    assert main(["check", "--json", repository(add=GOOD, broken=BAD)]) == 1
    report = json.loads(capsys.readouterr().out)
    add, broken = report["models"]
    assert (report["ok"], add["ok"], broken["ok"]) == (False, True, False)
    assert (add["backend"], add["versions"], add["isolation"]) == ("python", [1], "process")
    assert add["config"]["max_batch_size"] == 8
    assert (broken["problems"][0]["line"], broken["problems"][0]["column"]) == (3, 1)


@pytest.mark.parametrize(("gpus", "ok"), [(0, False), (2, True)])
def test_check_sees_the_gpus_that_a_server_here_would_see(
    repository, gpus, ok, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for number in range(gpus):
        (tmp_path / f"nvidia{number}").touch()
    on_gpu = GOOD + "instance_group { kind: KIND_GPU }\n"
    assert check([repository(add=on_gpu)], devices=tmp_path) == (0 if ok else 1)
    assert ("has kind KIND_GPU but no GPUs are available" in capsys.readouterr().out) is not ok


def test_check_finds_a_model_that_two_repositories_hold(tmp_path, capsys):
    for repository in ("a", "b"):
        (tmp_path / repository / "add" / "1").mkdir(parents=True)
        (tmp_path / repository / "add" / "config.pbtxt").write_text(GOOD)
    assert main(["check", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "model appears in two or more repositories" in capsys.readouterr().out


# -- tree

NODE = {
    "now": 5000.0,
    "name": "root",
    "state": "running",
    "since": 1275.0,
    "restarts": 0,
    "last_exit": None,
    "info": {},
    "children": [
        {
            "name": "models",
            "state": "running",
            "since": 4940.0,
            "restarts": 2,
            "last_exit": "crashed: ValueError('\x1b[31m')",
            "info": {"model": "add"},
            "children": [],
        },
        {"name": "frontends", "state": "backing_off", "since": 4999.75, "restarts": 1, "children": []},
    ],
}


@pytest.fixture
def server():
    """An HTTP server that answers what `answers` says, by path."""
    answers: dict[str, Any] = {"/v2/tritium/tree": (200, json.dumps(NODE).encode())}

    def answer(request):
        if any(request.headers.get(name) != value for name, value in answers.get("opened by", {}).items()):
            return 403, b""
        return answers.get(request.path, (404, b""))

    with answering(answer) as url:
        yield url, answers


def test_tree_draws_the_supervision_tree_plainly_into_a_pipe(server, capsys):
    assert main(["tree", "--url", server[0]]) == 0
    assert capsys.readouterr().out == (
        "root  running, for 1h 2m\n"
        "├─ models  running, for 1m 0s, 2 restarts, model=add,"
        " last ended: crashed: ValueError('\\x1b[31m')\n"
        "└─ frontends  backing off, for 0.2s, 1 restart\n"
    )


def test_tree_tells_the_first_few_of_a_list(server, capsys):
    regions = [{"name": f"r{number}", "age": 1.5, "users": 0} for number in range(10)]
    node = {"name": "shared-memory", "state": "running", "info": {"registered": 10, "regions": regions}}
    server[1]["/v2/tritium/tree"] = (200, json.dumps({**NODE, "children": [node]}).encode())
    assert main(["tree", "--url", server[0]]) == 0
    listed = "; ".join(f"name r{number} age 1.5 users 0" for number in range(8))
    said = f"└─ shared-memory  running, registered=10, regions=[{listed}; 2 more]\n"
    assert capsys.readouterr().out.endswith(said)


def test_tree_tells_no_ages_where_the_server_does_not_tell_the_time(server, capsys):
    server[1]["/v2/tritium/tree"] = (200, json.dumps({**NODE, "now": None}).encode())
    assert main(["tree", "--url", server[0]]) == 0
    assert capsys.readouterr().out.startswith("root  running\n├─ models  running, 2 restarts")


def test_tree_prints_the_servers_json(server, capsys):
    assert main(["tree", "--json", "--url", server[0].removeprefix("http://")]) == 0
    assert json.loads(capsys.readouterr().out) == NODE


def test_tree_draws_in_colour_on_a_terminal():
    from rich.console import Console

    from engine.cli.tree.command import drawn

    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=120).print(drawn(NODE))
    assert "\x1b[" in out.getvalue()
    assert "models" in out.getvalue()
    assert "\x1b[31m'" not in out.getvalue()  # what a model says is never obeyed


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, b""), "answered 404"),
        ((200, b"hello"), "did not answer with a tree"),
        ((200, b"[]"), "with a tree"),
    ],
)
def test_tree_says_so_where_something_else_answers(server, capsys, answer, message):
    server[1]["/v2/tritium/tree"] = answer
    assert main(["tree", "--url", server[0]]) == 1
    assert message in capsys.readouterr().err


def test_tree_opens_a_restricted_api_with_its_headers(server, capsys):
    server[1]["opened by"] = {"admin-key": "s3cret: yes", "x-tenant": "a"}
    assert main(["tree", "--url", server[0]]) == 1
    error = capsys.readouterr().err
    assert "answered 403" in error
    assert "its API 'statistics' is restricted; give it with --header 'NAME: VALUE'" in error
    headers = ["--header", "admin-key: s3cret: yes", "--header=X-Tenant:a"]
    assert main(["tree", "--json", "--url", server[0], *headers]) == 0
    assert json.loads(capsys.readouterr().out) == NODE


@pytest.mark.parametrize("header", ["admin-key", ": value", "admin key: x", "a: b\r\nc: d", "a: ü"])
def test_tree_refuses_what_is_no_header(header, capsys):
    with pytest.raises(SystemExit):
        main(["tree", "--header", header])
    assert "expected 'NAME: VALUE'" in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.slow
def test_a_terminal_without_our_marks_gets_plain_ones(repository):
    done = run("check", repository(add=GOOD, broken=BAD), "--no-model-code", PYTHONIOENCODING="ascii")
    assert done.stdout.startswith("+ add ")
    assert "\nx broken" in done.stdout
    assert "\\u" not in done.stdout


# -- tables and words


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536 * 1024, "1.5 MiB"), (2**31, "2 GiB")],
)
def test_sizes_are_told_in_units_that_people_read(nbytes, words):
    assert size_text(nbytes) == words


def test_the_tree_tells_memory_in_such_units():
    told = [{"name": "r", "bytes": 4096}]
    document = {
        "name": "residency",
        "state": "running",
        "info": {"budget": 2**31, "regions": told, "n": 2**31},
    }
    text = plain(document)
    assert "budget=2 GiB, regions=[name r bytes 4 KiB], n=2147483648" in text


MODELS = [
    IndexEntry(name="add", version=1, state="READY"),
    IndexEntry(name="broken", state="UNAVAILABLE", reason="Invalid argument: no\nbackend"),
]


@pytest.mark.parametrize(
    ("models", "text"),
    [
        pytest.param(
            MODELS,
            "Model   Version  Status\n"
            "add     1        READY\n"
            "broken  -        UNAVAILABLE: Invalid argument: no\n"
            "\n",
            id="aligned",
        ),
        pytest.param(
            [MODELS[0], IndexEntry(name="b"), IndexEntry(name="c")],
            "Model  Version  Status\n"
            "add    1        READY\n"
            "2 more models are in the repositories, not loaded\n"
            "\n",
            id="models that are not loaded are counted",
        ),
        pytest.param([], "Model  Version  Status\n\n", id="without models it is a heading"),
    ],
)
def test_the_startup_table_is_plain_in_a_pipe(models, text):
    shown = startup_text(models, [("http", "0.0.0.0:8000")])
    assert shown == f"{text}Option  Value\nhttp    0.0.0.0:8000\n"


def test_a_model_that_is_loaded_on_demand_is_not_told_as_a_failure():
    models = [IndexEntry(name="lazy", version=1, state="UNAVAILABLE", reason="unloaded")]
    text = startup_text(models, [], on_demand={ModelKey("lazy", "")})
    assert "lazy   1        ON DEMAND: loaded by its first request\n" in text
    assert "UNAVAILABLE: unloaded" in startup_text(models, [])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0.0s"), (3.21, "3.2s"), (60, "1m 0s"), (250, "4m 10s"), (7500, "2h 5m"), (273600, "3d 4h")],
)
def test_durations_are_told_in_the_units_that_matter(seconds, words):
    assert duration(seconds) == words


def test_what_a_terminal_might_obey_is_spelt_out():
    assert printable("a\x1b[2Jb\nü") == "a\\x1b[2Jb\\nü"
    assert printable("\udcff") == "\\udcff"


def test_columns_start_at_the_same_place():
    assert aligned([("a", "b"), ("long", "c")]) == "a     b\nlong  c\n"


def test_check_knows_that_hangs_of_language_models_are_noticed_otherwise(repository, capsys):
    language = 'backend: "transformers"\n'
    never = 'parameters { key: "tritium.hang_within" value { string_value: "0" } }\n'
    assert main(["check", repository(watched=language)]) == 0
    assert "hang" not in capsys.readouterr().out.replace("unchanged", "")
    assert main(["check", repository(never=language + never)]) == 0
    assert "tritium.hang_within is 0: an engine that stands still is not noticed" in capsys.readouterr().out


def test_check_tells_the_limit_that_all_models_would_have(repository, capsys):
    own = (
        GOOD.replace('"add"', '"own"')
        + 'parameters { key: "tritium.execution_timeout" value { string_value: "7" } }'
    )
    path = repository(add=GOOD, own=own)
    assert main(["check", "--verbose", "--default-execution-timeout=30", path]) == 0
    out = capsys.readouterr().out
    assert re.search(r"execution timeout +30 s, by --default-execution-timeout\n", out)
    assert re.search(r"execution timeout +7 s\n", out)
    assert "hangs are not contained" not in out
    assert main(["check", "--default-execution-timeout=30", "--json", path]) == 0
    limits = {
        each["name"]: each["execution_timeout"] for each in json.loads(capsys.readouterr().out)["models"]
    }
    assert limits == {"add": 30, "own": 7}


@pytest.mark.parametrize("word", ["soon", "-1"])
def test_check_refuses_a_limit_that_is_none(repository, capsys, word):
    assert main(["check", f"--default-execution-timeout={word}", repository(add=GOOD)]) != 0
    assert "default-execution-timeout" in capsys.readouterr().err
