"""An audit log of a real server: changes, denials and keys over HTTP and gRPC, and a disk that is full."""

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from engine.identity.keys import digest_of, new_secret
from tests.support.auditing import records_in
from tests.support.operators import DOUBLE, ROOT, serving, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

CONFIG = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
)
NAMES = ("ops", "user", "leaver")
SECRETS = {name: new_secret() for name in NAMES}
KEYS = "".join(f'[[key]]\nid = "{name}"\ndigest = "{digest_of(SECRETS[name])}"\n' for name in NAMES)
RULES = """
[[rule]]
for = ["ops"]
allow = ["*"]

[[rule]]
for = ["user", "leaver"]
allow = ["inference", "model-repository"]
"""
HTTP = (tritonclient.http, "HTTPService", "http")
GRPC = (tritonclient.grpc, "GRPCInferenceService", "grpc")
BOTH = pytest.mark.parametrize(("module", "service", "via"), [HTTP, GRPC], ids=["http", "grpc"])
FILES = {"file:1/model.py": DOUBLE.encode()}


def bearer(name, secret=""):
    return {"authorization": f"Bearer {name}.{secret or SECRETS[name]}"}


def until_recorded(path, wanted, within=30.0):
    """Wait until a record fits, and return those that do."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found = [each for each in records_in(path) if wanted(each)]
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never recorded: {records_in(path)}")


def infer(module, client, headers=None):
    given = module.InferInput("X", [2], "FP32")
    given.set_data_from_numpy(np.array([1, 2], np.float32))
    return client.infer("double", [given], headers=headers).as_numpy("Y").tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(scope="module")
def log(folder):
    return folder / "audit.jsonl"


@pytest.fixture(scope="module")
def server(folder, log):
    write_model(folder / "models")
    (folder / "auth.toml").write_text(KEYS + RULES)
    flags = (
        f"--model-repository={folder / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=double",
        f"--auth-file={folder / 'auth.toml'}",
        f"--audit-log={log}",
    )
    with serving(folder, *flags) as server:
        server.wait_ready()
        yield server


def test_the_start_is_recorded_with_what_is_open_and_told_in_the_log(server, log):
    [start] = [each for each in records_in(log) if each.action == "server_started"]
    assert start.facts["credentials"] == "auth file"
    assert start.facts["inference"].startswith("127.0.0.1:")
    assert start.facts["pid"] == server.process.pid
    assert str(log) in server.wait_said(r"open: inference on .*|server_opened.*").string


@BOTH
def test_a_load_with_files_and_an_unload_are_recorded_with_names_sizes_and_digests(
    server, log, module, service, via
):
    before = len(records_in(log))
    with module.InferenceServerClient(server.address(service)) as client:
        client.load_model("double", config=CONFIG, files=FILES, headers=bearer("ops"))
        client.unload_model("double", headers=bearer("ops"))
        client.load_model("double", headers=bearer("ops"))
    found = records_in(log)[before:]
    assert [(each.action, each.outcome) for each in found] == [
        ("model_load", "asked"),
        ("model_load", "done"),
        ("model_unload", "asked"),
        ("model_unload", "done"),
        ("model_load", "asked"),
        ("model_load", "done"),
    ]
    assert {(each.identity, each.address, each.via, each.model) for each in found} == {
        ("ops", "127.0.0.1", via, "double")
    }
    files = found[0].facts["files"]
    assert files["file:1/model.py"]["bytes"] == len(DOUBLE)
    assert len(files["file:1/model.py"]["sha256"]) == 64
    assert files["config"]["bytes"] == len(CONFIG)
    assert "TritonPythonModel" not in log.read_text()


@BOTH
def test_a_load_that_fails_says_why(server, log, module, service, via):
    before = len(records_in(log))
    with module.InferenceServerClient(server.address(service)) as client:
        with pytest.raises(InferenceServerException):
            client.load_model("nowhere", headers=bearer("ops"))
    [_, end] = records_in(log)[before:]
    assert (end.outcome, end.code, end.model, end.via) == ("failed", "INTERNAL", "nowhere", via)
    assert "it is in no model repository" in end.reason


@BOTH
def test_what_is_denied_is_recorded_with_identity_address_and_reason(server, log, module, service, via):
    with module.InferenceServerClient(server.address(service)) as client:
        for call, headers in (
            (lambda given: client.load_model("double", given, config=CONFIG, files=FILES), bearer("user")),
            (lambda headers: client.get_inference_statistics("double", headers=headers), bearer("user")),
            (lambda headers: infer(module, client, headers), bearer("user", "wrong")),
            (lambda headers: infer(module, client, headers), {}),
        ):  # fmt: skip
            for _ in range(3):
                with pytest.raises(InferenceServerException):
                    call(headers)

    def denied(action, identity, code):
        [first] = until_recorded(
            log,
            lambda it: (it.outcome, it.via, it.action, it.identity) == ("denied", via, action, identity),
        )
        assert (first.address, first.code) == ("127.0.0.1", code)
        return first

    assert denied("upload", "user", "PERMISSION_DENIED").model == "double"
    # The head of a call over gRPC names no model, and this identity may see the statistics of none.
    assert denied("statistics", "user", "PERMISSION_DENIED").model == ("double" if via == "http" else "")
    assert "the API key is not good" in denied("inference", "", "UNAUTHENTICATED").reason
    assert denied("inference", "anonymous", "UNAUTHENTICATED").reason
    assert SECRETS["user"] not in log.read_text()


def test_a_change_of_the_auth_file_is_recorded_by_key_and_rule(server, log, folder):
    path = folder / "auth.toml"
    before = path.read_text()
    revoked = KEYS.replace('id = "leaver"\n', 'id = "leaver"\nrevoked = true\n')
    path.write_text(revoked + RULES.replace('["user", "leaver"]', '["user"]'))
    server.signal(signal.SIGHUP)
    try:
        [reloaded] = until_recorded(log, lambda it: "keys_revoked" in it.facts)
        assert reloaded.facts["keys_revoked"] == ["leaver (leaver)"]
        assert reloaded.facts["rules_added"] == [
            "allows inference and model-repository on every model to user"
        ]
        assert digest_of(SECRETS["leaver"]) not in log.read_text()
        path.write_text("nonsense")
        server.signal(signal.SIGHUP)
        [failed] = until_recorded(log, lambda it: it.action == "files_reloaded" and it.outcome == "failed")
        assert "not TOML" in failed.reason
    finally:
        path.write_text(before)
        server.signal(signal.SIGHUP)
    until_recorded(log, lambda it: "leaver (leaver)" in it.facts.get("keys_changed", ()))


def test_commands_write_into_the_log_of_a_running_server_and_the_chain_stays_whole(server, log, folder):
    auth = folder / "other.toml"
    made = command("key", "new", "--auth-file", auth, "--name", "ci", "--audit-log", log)
    assert made.returncode == 0
    assert made.stdout.strip().split(".")[1] not in log.read_text()
    with tritonclient.http.InferenceServerClient(server.address()) as client:
        client.load_model("double", headers=bearer("ops"))
    assert command("key", "revoke", "ci", "--auth-file", auth, "--audit-log", log).returncode == 0
    assert [each.outcome for each in records_in(log) if each.action == "key_revoke"] == ["asked", "done"]
    shown = command("audit", log, "--action", "key_*", "--outcome", "done").stdout
    assert "key_new" in shown
    assert "id: ci" in shown
    verified = command("audit", log, "--verify")
    assert "whole" in verified.stdout
    assert verified.returncode == 0


def test_the_log_may_be_moved_away_while_the_server_runs(server, log):
    count = len(records_in(log))
    log.rename(f"{log}.1")
    with tritonclient.http.InferenceServerClient(server.address()) as client:
        client.load_model("double", headers=bearer("ops"))
    assert log.stat().st_mode & 0o777 == 0o600
    assert len(records_in(log)) >= count + 2


@pytest.mark.long
def test_a_file_of_others_in_the_place_of_the_log_refuses_changes_and_ends_nothing(server, log):
    """As logrotate makes one by `create 0664`."""
    if (moved := Path(f"{log}.1")).exists():
        moved.rename(f"{log}.2")
    log.rename(moved)
    log.touch()
    log.chmod(0o664)
    with tritonclient.http.InferenceServerClient(server.address()) as client:
        with pytest.raises(InferenceServerException, match="may be written by other users") as caught:
            client.load_model("double", headers=bearer("ops"))
        assert caught.value.status() == "503"
        with pytest.raises(InferenceServerException):
            infer(tritonclient.http, client)
        server.wait_said("audit_unavailable")
        until_failed_again(server)
        assert infer(tritonclient.http, client, bearer("user")) == [2.0, 4.0]
        log.chmod(0o600)
        server.wait_said("audit_available")
        client.load_model("double", headers=bearer("ops"))
    assert [each.outcome for each in records_in(log) if each.action == "model_load"][-2:] == ["asked", "done"]


def until_failed_again(server):
    """Wait until the audit log could not be written several times more."""
    name = b"\ntritium_audit_write_failures_total "
    first = None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        told = server.get("/metrics", service="Metrics Service")[2]
        failures = float(told.partition(name)[2].split()[0])
        first = failures if first is None else first
        if failures > first + 2:
            return
        time.sleep(0.02)
    raise AssertionError("it was not tried again")


def test_a_log_that_can_not_be_one_keeps_the_server_from_starting(folder):
    models = folder / "models"
    ran = command(
        "serve", f"--model-repository={models}", f"--audit-log={folder}/no/audit.jsonl", "--http-port=0"
    )
    assert ran.returncode == 1
    assert f"there is no directory '{folder}/no': make it first" in ran.stdout + ran.stderr


def command(*words):
    run = [sys.executable, "-m", "engine", *map(str, words)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


class TestFullDisk:
    """A server whose audit log is on a small file system of its own."""

    @pytest.fixture
    def small(self, tmp_path):
        folder = tmp_path / "small"
        folder.mkdir()
        disk = folder / "disk"
        disk.mkdir()
        write_model(folder / "models")
        mounting = f'mount -t tmpfs -o size=512k none {disk} && exec "$@"'
        prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounting, "sh")
        able = subprocess.run([*prefix, "true"], capture_output=True, check=False)
        if able.returncode:
            pytest.skip(f"no file system can be mounted here: {able.stderr.decode()[-200:]}")
        flags = (
            f"--model-repository={folder / 'models'}",
            "--model-control-mode=explicit",
            "--load-model=double",
            f"--audit-log={disk}/audit.jsonl",
        )
        with serving(folder, *flags, prefix=prefix) as server:
            server.wait_ready()
            yield server, Path(f"/proc/{server.process.pid}/root{disk}")

    def test_changes_are_refused_inference_goes_on_and_the_end_is_noticed(self, small):
        server, disk = small
        log = disk / "audit.jsonl"
        with suppress(OSError), (disk / "ballast").open("wb", 0) as ballast:
            while True:
                ballast.write(bytes(4096))
        assert shutil.disk_usage(disk).free == 0
        with (
            tritonclient.http.InferenceServerClient(server.address()) as http,
            tritonclient.grpc.InferenceServerClient(server.address("GRPCInferenceService")) as grpc,
        ):
            self.exhaust(http)  # what was kept for outcomes
            with pytest.raises(InferenceServerException) as caught:
                http.unload_model("double")
            assert caught.value.status() == "503"
            assert "the audit log can't be written: No space left on device" in caught.value.message()
            with pytest.raises(InferenceServerException) as caught:
                grpc.unload_model("double")
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            for module, client in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
                assert infer(module, client) == [2.0, 4.0]
                assert client.is_server_ready()
                assert client.get_server_metadata()
            assert b"tritium_audit_writable 0" in server.get("/metrics", service="Metrics Service")[2]
            server.wait_said("audit_unavailable")
            (disk / "ballast").unlink()
            server.wait_said("audit_available")
            http.load_model("double")
        outcomes = [(each.action, each.outcome, each.code) for each in records_in(log)]
        assert ("model_unload", "denied", "UNAVAILABLE") in outcomes
        assert ("model_unload", "done", "") not in outcomes
        loads = [outcome for action, outcome, _ in outcomes if action == "model_load" and outcome != "denied"]
        assert loads.count("asked") == loads.count("done") > 1

    @staticmethod
    def exhaust(client):
        """Load the model until that is refused."""
        for _ in range(500):
            try:
                client.load_model("double")
            except InferenceServerException:
                return
        raise AssertionError("the disk is never full")
