"""`tritium migrate` over what charts and tutorials have: what it finds, says, and how it ends."""

from __future__ import annotations

import json

import pytest

from engine.__main__ import main
from tests.support import triton_commands as seen


@pytest.fixture
def migrated(tmp_path, capsys):
    """Have a text judged; return the status and the JSON report of each command line."""

    def run(text, *more):
        (tmp_path / "file").write_text(text)
        status = main(["migrate", str(tmp_path / "file"), "--json", *map(str, more)])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("text", "verdict", "told"),
    [
        (seen.QUICKSTART, "differs", {"same": 3, "differs": 1}),
        (seen.CHART_ON_PREMISES, "differs", {"open": 1, "differs": 1, "same": 1}),
        (seen.CHART_MARKETPLACE, "differs", {"open": 3, "differs": 1}),
        (seen.CHART_VALUES, "differs", {"differs": 2, "same": 1}),
        (seen.SERVING_RUNTIME, "differs", {"same": 5, "differs": 1}),
        (seen.MODEL_MESH, "differs", {"same": 5, "differs": 1}),
        (seen.LAUNCHER, "change", {"refused": 2}),
        (seen.MPI, "differs", {"open": 1, "same": 3, "no_effect": 1}),
        (seen.CYBER_COMPOSE, "differs", {"same": 4, "differs": 1}),
        (seen.RECOMMENDER, "works", {"same": 2}),
        (seen.LANGUAGE, "differs", {"same": 1, "differs": 1}),
        (seen.CACHE, "differs", {"same": 1, "differs": 3}),
        (seen.TRACES, "works", {"same": 5}),
        (seen.SPANS, "differs", {"same": 1, "differs": 2}),
        (seen.DOCKERFILE, "differs", {"same": 1, "no_effect": 2, "differs": 1}),
        (seen.SECURE, "works", {"same": 6}),
        (seen.OLD, "change", {"same": 2, "refused": 1}),
        (seen.MISTAKEN, "change", {"same": 2, "refused": 1}),
        (seen.TUNED, "differs", {"same": 2, "no_effect": 3}),
        (seen.SCRIPT_IN_POD, "differs", {"open": 1, "same": 1, "differs": 1}),
        (seen.RATES, "differs", {"same": 5, "differs": 1}),
    ],
)
def test_what_charts_and_tutorials_have_gets_a_verdict(migrated, text, verdict, told):
    status, (report,) = migrated(text)
    fates = [each["fate"] for each in report["judgements"]]
    assert {fate: fates.count(fate) for fate in fates} == told, report["judgements"]
    assert report["verdict"] == verdict
    assert status == (1 if verdict == "change" else 0)


@pytest.mark.parametrize(
    ("text", "line", "command"),
    [
        (
            seen.QUICKSTART,
            2,
            "--model-repository=/models --model-control-mode=explicit --load-model=densenet_onnx",
        ),
        (seen.MODEL_MESH, 7, "--model-repository=/models/_triton_models --model-control-mode=explicit"),
        (seen.MPI, 3, "--grpc-port=8001 --http-port=8000 --disable-auto-complete-config"),
        (seen.DOCKERFILE, 5, "--model-repository=/models"),
        (seen.SCRIPT_IN_POD, 7, "--allow-metrics=true"),
    ],
)
def test_a_command_line_is_told_with_its_place_and_what_it_is_here(migrated, text, line, command):
    _, (report,) = migrated(text)
    assert report["line"] == line
    assert command in " ".join(report["serve"])


def test_what_has_no_effect_or_is_unknown_is_left_out_of_the_command(migrated):
    _, (tuned,) = migrated(seen.TUNED)
    assert tuned["serve"] == ["tritium", "serve", "--model-repository=/models", "--metrics-interval-ms=500"]
    _, (old,) = migrated(seen.OLD)
    assert old["serve"] == ["tritium", "serve", "--model-repository=/models", "--log-verbose=1"]


def test_secrets_are_not_repeated(migrated, tmp_path, capsys):
    _, (cache,) = migrated(seen.CACHE)
    _, (rates,) = migrated(seen.RATES)
    assert "hunter2" not in json.dumps(cache)
    assert "s3cret" not in json.dumps(rates)
    for text in (seen.CACHE, seen.RATES):
        (tmp_path / "file").write_text(text)
        main(["migrate", str(tmp_path / "file")])
        assert not {"hunter2", "s3cret"} & set(capsys.readouterr().out.replace("=", " ").split())


def test_flags_may_stand_on_the_command_line_itself(capsys):
    assert main(["migrate", "--", "tritonserver", "--model-repository=/m", "--http-thread-count=8"]) == 0
    text = capsys.readouterr().out
    assert "no effect  --http-thread-count=8: one event loop serves all HTTP connections" in text
    assert "here: tritium serve --model-repository=/m\n" in text
    assert text.endswith("verdict: works, with differences\n")


def test_a_misspelt_flag_is_told_with_the_nearest(capsys):
    assert main(["migrate", "--", "tritonserver", "--model-repositry=/m", "--http-port=many"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "unrecognized option '--model-repositry' (did you mean --model-repository?)" in text
    assert "--http-port takes a whole number" in text
    assert "2 things have to be changed" in text


def test_models_are_checked_where_they_can_be_reached(migrated, tmp_path):
    good, bad = tmp_path / "models" / "good", tmp_path / "models" / "bad"
    for folder in (good, bad):
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    (good / "config.pbtxt").write_text('backend: "python"\n')
    (bad / "config.pbtxt").write_text('backend: "tensorrtllm"\n')
    status, (report,) = migrated(seen.TRACES, "--repository", tmp_path / "models")
    models = {each["what"]: each for each in report["judgements"] if each["what"].startswith("model ")}
    assert models["model good"]["fate"] == "same"
    assert models["model bad"]["fate"] == "refused"
    assert "tensorrtllm" in models["model bad"]["why"]
    assert status == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere/compose.yaml"], "can't be read"),
        (["--", "nginx", "-g"], "there is no `tritonserver` with flags in: nginx -g"),
        (["--repository", "/nowhere", "--", "tritonserver", "--model-repository=/m"], "not a directory"),
    ],
)
def test_where_there_is_nothing_to_judge_the_status_is_two(words, said, capsys):
    assert main(["migrate", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_file_without_a_command_line_is_told(tmp_path, capsys):
    (tmp_path / "compose.yaml").write_text("services:\n  web:\n    image: nginx\n    command: nginx -g x\n")
    assert main(["migrate", str(tmp_path / "compose.yaml")]) == 2
    assert "there is no command line of tritonserver in" in capsys.readouterr().err


def test_several_servers_of_one_file_are_judged_one_by_one(migrated):
    status, reports = migrated(seen.TRACES + "\n" + seen.OLD)
    assert [each["verdict"] for each in reports] == ["works", "change"]
    assert status == 1
