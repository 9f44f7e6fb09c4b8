"""`tritium fleet` over real servers: status, plan, apply, roll, drain, and a controller that runs."""

import http.client
import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from chaos.fleet.ground import BETTER, BROKEN, GOOD, MODEL, Ground
from chaos.subject.ports import free_ports

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """Two servers that wait for their fleet."""
    made = Ground(tmp_path_factory.mktemp("fleet"), 2, {"settle_seconds": 0})
    try:
        trio.run(made.start)
        made.want(GOOD)
        yield made
    finally:
        made.kill_all()


@pytest.fixture
def fleet(ground):
    """Run a command about the fleet; return its status and what it wrote."""

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "engine", "fleet", *words, f"--file={ground.file}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@contextmanager
def begun(ground, *words):
    """Begin a command about the fleet; give its process, and what it writes to both outputs."""
    command = [sys.executable, "-m", "engine", "fleet", *words, f"--file={ground.file}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield process, process.stdout, process.stderr


def replace_text(path, text):
    """Write a file at once, as it is read meanwhile."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def serving(ground):
    return trio.run(ground.serving)


def ready(ground):
    async def ask():
        return [await server.is_ready() for server in ground.servers.values()]

    return trio.run(ask)


def test_a_fleet_is_brought_to_what_its_file_says_and_changed(ground, fleet):
    assert ready(ground) == [False, False]
    status, shown, _ = fleet("status")
    assert status == 1
    assert shown.count("waits for its models") == 2
    status, shown, _ = fleet("plan")
    assert (status, shown) == (0, f"{MODEL}: roll version 1 out; its replicas are r0, r1\n")
    status, shown, said = fleet("apply")
    assert status == 0, said
    assert f"{MODEL}: version 1 good on 2 replicas" in said
    assert ready(ground) == [True, True]
    assert fleet("plan")[1] == "nothing is to be done\n"

    status, _, said = fleet("roll", MODEL, str(BETTER))
    assert status == 0, said
    assert serving(ground) == {"r0": [BETTER], "r1": [BETTER]}
    assert f"versions: {BETTER}" in ground.file.read_text()

    status, shown, said = fleet("roll", MODEL, str(BROKEN))
    assert status == 1
    assert "its weights are missing" in shown
    assert serving(ground) == {"r0": [BETTER], "r1": [BETTER]}
    assert ready(ground) == [True, True]
    assert f"{MODEL}: version 3 was refused" in fleet("plan")[1]
    status, told, _ = fleet("status", "--json")
    document = json.loads(told)
    assert (status, document["settled"], document["controller"]["owner"]) == (0, True, "")
    assert [each["models"] for each in document["replicas"]] == [{MODEL: {"versions": [BETTER]}}] * 2


def test_a_replica_is_drained_and_comes_back(ground, fleet):
    ground.want(BETTER, "controller: {drain_delay_seconds: 0}\n")
    assert fleet("apply")[0] == 0
    status, shown, said = fleet("drain", "r1")
    assert (status, shown) == (
        0,
        "r1 is drained: it gets no new requests, nothing waits there, and it may be ended\n",
    )
    assert ready(ground) == [True, False]
    assert serving(ground)["r1"] == [BETTER]  # requests that still come are answered
    assert fleet("drain", "r1", "--undo")[:2] == (0, "r1 serves again\n")
    assert ready(ground) == [True, True]
    status, _, said = fleet("drain", "r7")
    assert (status, said) == (1, "there is no replica 'r7'; there are r0, r1\n")


def test_what_no_replica_may_serve_stays_where_it_is_and_ends_the_command(ground, fleet):
    ground.want(GOOD)
    assert fleet("apply")[0] == 0
    replace_text(
        ground.file, ground.file.read_text().replace("versions: 1", "versions: 1, labels: {gpu: h100}")
    )
    status, shown, _ = fleet("apply")
    assert status == 1
    assert "none of 2 replicas has its labels gpu=h100; there are no labels at all" in shown
    assert serving(ground) == {"r0": [GOOD], "r1": [GOOD]}
    status, _, said = fleet("drain", "r0")
    assert status == 1
    assert "r0 is not drained: steps: no other replica may serve it" in said
    assert fleet("drain", "r0", "--undo")[0] == 0
    assert ready(ground) == [True, True]


def test_a_command_that_is_ended_leaves_the_fleet_in_order(ground, fleet):
    ground.want(GOOD, "controller: {drain_delay_seconds: 3600}\n")
    assert fleet("apply")[0] == 0
    with begun(ground, "drain", "r1") as (process, _, errors):
        assert any("r1 gets no new requests" in line for line in errors)
        process.terminate()
        said = errors.read()
    assert process.returncode == 143
    assert said.splitlines()[-1].startswith("ended by SIGTERM; `tritium fleet status --file")
    status, told, _ = fleet("status", "--json")
    assert (status, json.loads(told)["controller"]["owner"]) == (0, "")
    assert fleet("drain", "r1", "--undo")[0] == 0


def test_a_reader_who_leaves_does_not_end_a_roll(ground):
    ground.want(GOOD)
    with begun(ground, "roll", MODEL, str(BETTER)) as (process, _, errors):
        assert "has version 2 now" in next(errors)
        errors.close()
    assert process.returncode == 0
    assert serving(ground) == {"r0": [BETTER], "r1": [BETTER]}


def test_who_watches_sees_a_mistake_in_the_file_and_goes_on(ground):
    ground.want(GOOD)
    whole = ground.file.read_text()
    with begun(ground, "status", "--watch=0.1") as (process, shown, errors):
        assert any(line.startswith("r1 ") for line in shown)
        replace_text(ground.file, f"{whole}models: {{}}\n")
        assert "models: is there twice" in next(errors)
        assert any(line.startswith("r1 ") for line in shown)
        process.terminate()
        assert shown.read().endswith("\n")
    assert process.returncode == 0


def test_a_balancers_file_follows_the_fleet_and_its_command_is_run(ground, tmp_path):
    ground.want(GOOD)
    whole = ground.file.read_text()
    file, marks = tmp_path / "haproxy.cfg", tmp_path / "marks"
    marks.touch()
    follow = [f"--output={file}", "--watch=0.1", f"--reload=echo x >> {marks}"]
    with begun(ground, "proxy-config", "haproxy", *follow) as (process, _, errors):
        assert next(errors) == f"{file} is written\n"
        assert next(errors).endswith("is done\n")
        assert "server r1 " in file.read_text()
        replace_text(ground.file, "\n".join(line for line in whole.splitlines() if "r1" not in line))
        assert next(errors) == f"{file} is written\n"
        assert next(errors).endswith("is done\n")
        assert "server r1 " not in file.read_text()
        replace_text(ground.file, "replicas: []")
        assert "stays as it is: the fleet has no replicas" in next(errors)
        process.terminate()
        assert errors.read() == ""
    assert process.returncode == 0
    assert marks.read_text() == "x\nx\n"
    assert "server r0 " in file.read_text()


def test_a_balancers_file_stays_while_replicas_have_not_answered_yet(ground, tmp_path):
    file = tmp_path / "envoy.json"
    file.write_text("{}")
    whole = ground.file.read_text()
    (port,) = free_ports(1)
    replace_text(ground.file, f"replicas: [{{name: away, url: 'http://127.0.0.1:{port}'}}]")
    with begun(ground, "proxy-config", "envoy", f"--output={file}", "--watch=0.1") as (process, _, errors):
        assert next(errors) == f"{file} stays as it is until away answers, for 60 s at most\n"
        process.terminate()
        assert errors.read() == ""
    assert process.returncode == 0
    assert file.read_text() == "{}"
    replace_text(ground.file, whole)


def test_a_configuration_in_the_file_is_in_force_and_goes_with_it(ground, fleet):
    ground.want(GOOD)
    plain = ground.file.read_text()
    config = {
        "backend": "python",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    }
    replace_text(
        ground.file, plain.replace("{versions: 1}", f"{{versions: 1, config: {json.dumps(config)}}}")
    )
    for _ in range(2):  # the second finds nothing to do
        status, _, said = fleet("apply", "--timeout=50")
        assert status == 0, said
    assert "loads" not in said
    assert counts(ground) == [2, 2]
    replace_text(ground.file, plain)
    assert fleet("apply", "--timeout=50")[0] == 0
    assert counts(ground) == [1, 1]


def counts(ground):
    """Return how many instances of the model each server has."""

    async def ask():
        configs = [await server.ask(f"/v2/models/{MODEL}/config") for server in ground.servers.values()]
        return [json.loads(each.body)["instance_group"][0]["count"] for each in configs]

    return trio.run(ask)


def test_replicas_are_ready_after_a_new_model_has_failed_to_load(ground, fleet):
    ground.want(GOOD)
    assert fleet("apply")[0] == 0
    shutil.copytree(ground.repository / MODEL, ground.repository / "odd")
    text = ground.file.read_text()
    replace_text(ground.file, text.replace("models:\n", f"models:\n  odd: {{versions: {BROKEN}}}\n"))
    status, shown, _ = fleet("apply")
    assert status == 1
    assert "its weights are missing" in shown
    assert ready(ground) == [True, True]
    assert fleet("status")[0] == 0
    replace_text(ground.file, text)


def test_a_controller_that_runs_for_good_shows_all_and_follows_the_file(ground, tmp_path):
    ground.want(BETTER)
    command = [sys.executable, "-m", "engine", "fleet", "run", f"--file={ground.file}", "--name=one"]
    (port,) = free_ports(1)
    log = tmp_path / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen(
            [*command, f"--metrics-address=127.0.0.1:{port}", "--log-format=json"], stderr=written
        ) as process,
    ):
        try:
            document = _until(lambda: _status(port), lambda told: told["settled"])
            assert document["controller"]["standing"] == "works"
            ground.want(GOOD)
            _until(lambda: _status(port), lambda told: told["models"][0]["good"] == {"versions": [GOOD]})
            replace_text(ground.file, "replicas: 3\n")
            _until(log.read_text, lambda text: "replicas: takes a list" in text)
            text = _until(lambda: _get(port, "/metrics"), lambda text: "tritium_fleet_replicas " in text)
            families = {each.name: each for each in text_string_to_metric_families(text)}
            seen = {sample.labels["replica"] for sample in families["nv_inference_request_success"].samples}
            assert seen == {"r0", "r1"}
            assert families["tritium_fleet_replicas_wanted"].samples[0].value == 1
            assert families["tritium_fleet_model_replicas"].samples[0].value == 2
        finally:
            process.terminate()
            process.wait(timeout=20)
    assert process.returncode == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert events[-1]["event"] == "fleet_controller_ends"


def test_what_follows_the_fleet_is_a_file(capsys):
    from engine.cli.fleet.command import fleet

    for words, said in (
        (["--watch"], "--watch takes --output=FILE"),
        (["--reload=x"], "--reload takes --watch"),
    ):
        with pytest.raises(SystemExit):
            fleet(["proxy-config", "envoy", *words])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("roll", "m", "0"),
        ("roll", "m", "1,,2"),
        ("roll", "m", "\u0663"),
        ("apply", "--timeout=nan"),
        ("apply", "--timeout=-1"),
        ("status", "--watch=inf"),
        ("status", "--watch=soon"),
        ("run", "--metrics-address=:9100"),
        ("run", "--metrics-address=127.0.0.1:99999"),
        ("run", "--metrics-address=127.0.0.1"),
        ("proxy-config", "haproxy", "--output=x", "--watch=0"),
    ],
)
def test_a_word_that_makes_no_sense_is_told_with_what_would(words, capsys):
    from engine.cli.fleet.command import fleet

    with pytest.raises(SystemExit) as caught:
        fleet(words)
    assert caught.value.code == 2
    assert f"Got {words[-1].rpartition('=')[2]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (("apply",), None, "No such file or directory"),
        (
            ("apply",),
            "replicas: []\nmodels: {m: {version: 1}}",
            "line 2: models.m.version: there is no such key",
        ),
        (("roll", "m", "2"), "replicas: []", "no model 'm' is there; it names none"),
    ],
)
def test_mistakes_are_told_and_nothing_is_done(tmp_path, words, text, said, capsys):
    from engine.cli.fleet.command import fleet

    file = tmp_path / "fleet.yaml"
    if text is not None:
        file.write_text(text)
    assert fleet([*words, f"--file={file}"]) in (1, 2)
    assert said in capsys.readouterr().err


def _status(port):
    return json.loads(_get(port, "/v2/tritium/fleet/status"))


def _get(port, path):
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


def _until(ask, condition, within=60):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            told = ask()
        except (OSError, http.client.HTTPException):
            told = None
        if told is not None and condition(told):
            return told
        time.sleep(0.05)
    raise AssertionError(f"not within {within} s: {told}")
