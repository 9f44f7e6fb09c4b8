"""What models do under `guard`, the default sandbox: all that they do without one but what the level is for.

`tests/support/everyday.py` has the deeds. Each is done by a model without a sandbox and by one with the
default, on servers of root and of another user.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trio
import tritonclient.http

from tests.support.everyday import DEEDS
from tests.support.interpreters import OTHERS, shared_interpreter
from tests.support.tiers import mostly_long
from tests.survival.server import ROOT, ServerProcess, until
from tests.survival.test_survival_escapes import ROOTS, server_of

CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ { name: "ASKED" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
OFF = 'parameters { key: "tritium.sandbox" value { string_value: "off" } }'
FREE, GUARDED = "0 0", "1 2"  # NoNewPrivs and Seccomp in /proc/self/status

# What kernels and machines may refuse to everyone, and what only root may do.
ABSENT = {
    "counts its own events",
    "keeps a key",
    "opens a ring",
    "makes namespaces",
    "asks for huge pages",
    "runs code of 32 bits",
}
OF_ROOT = {"changes its root"}

pytestmark = [pytest.mark.slow, pytest.mark.system]


class Everyday:
    """A server of one user with both models."""

    def __init__(self, server, user, base):
        self.server = server
        self.user = user
        self.base = base

    def ask(self, model, **deeds):
        """Have a model do things, each with its arguments; return by name what came of it."""
        with tritonclient.http.InferenceServerClient(self.server.url, network_timeout=120) as client:
            asked = tritonclient.http.InferInput("ASKED", [1], "BYTES")
            asked.set_data_from_numpy(np.array([json.dumps(deeds).encode()], np.object_))
            return json.loads(client.infer(model, [asked]).as_numpy("TOLD")[0])


@pytest.fixture(scope="module", params=mostly_long([ROOTS, OTHERS], ROOTS), ids=["root", "another user"])
def everyday(request):
    if os.geteuid() != 0:
        pytest.skip("only root can start servers of several users")
    user = request.param
    base = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    base.chmod(0o755)
    try:
        for name, more in (("free", OFF), ("guarded", "")):
            folder = base / "models" / name / "1"
            folder.mkdir(parents=True)
            shutil.copy(ROOT / "tests/support/everyday.py", folder / "model.py")
            (folder.parent / "config.pbtxt").write_text(CONFIGURATION + more)
        shutil.copy("/usr/bin/id", base / "id")
        for path in (base, *base.rglob("*")):
            os.chown(path, user, user)
        os.chown(base / "id", 0, 0)
        (base / "id").chmod(0o4755)
        server = server_of(user, shared_interpreter()).start(
            base / "models", base / "log", "--spare-workers=0"
        )
        try:
            trio.run(server.wait_ready)
            yield Everyday(server, user, base)
        finally:
            print(server.last_words())
            server.kill_all()
    finally:
        shutil.rmtree(base)


def test_the_default_is_said_at_the_start_and_is_no_floor(everyday):
    assert [line["sandbox"] for line in everyday.server.logged("server_opened")] == ["guard by default"]
    assert everyday.ask("guarded")[""] == GUARDED
    assert everyday.ask("free")[""] == FREE
    assert not [
        line for line in everyday.server.logged("model_loading") if "sandbox" in line.get("warning", "")
    ]


def test_what_a_model_does_in_the_guard_is_what_it_does_without(everyday):
    deeds: dict[str, list[str]] = {name: [] for name in DEEDS}
    free, guarded = everyday.ask("free", **deeds), everyday.ask("guarded", **deeds)
    del free[""], guarded[""]
    assert guarded == free
    worked = {"done", "65534", "-6"}
    failed = {name for name, told in free.items() if told not in worked}
    assert failed - ABSENT == (OF_ROOT if everyday.user != ROOTS else set()), free


def test_what_the_guard_refuses(everyday):
    deeds: dict[str, list[str]] = {
        "mounts": [],
        "limits a child": [],
        "gains rights by a program": [str(everyday.base / "id")],
    }
    told = everyday.ask("guarded", **deeds)
    assert told["mounts"] == told["limits a child"] == "PermissionError: [Errno 1] Operation not permitted"
    assert told["gains rights by a program"] == str(everyday.user)
    told = everyday.ask("free", **deeds)
    assert told["limits a child"] == "done"
    assert told["gains rights by a program"] == "0"
    if everyday.user == ROOTS:
        assert told["mounts"] == "FileNotFoundError: [Errno 2] No such file or directory"


def test_processes_of_pytorch_add_up_and_share_memory(everyday):
    pytest.importorskip("torch")
    method = "spawn" if everyday.user == ROOTS else "fork"
    for name, arguments in (
        ("adds up over ranks", [method]),
        ("loads by workers", ["file_descriptor"]),
        ("loads by workers", ["file_system"]),
    ):
        told = everyday.ask("guarded", **{name: arguments})
        assert told == {name: "done", "": GUARDED}


def under_a_filter(verdict):
    """Return a class whose servers run under a filter that refuses a sandbox, or ends who asks for it."""

    class Filtered(ServerProcess):
        @staticmethod
        def launch(command, environ, stdout, stderr):
            outer = [sys.executable, str(ROOT / "tests/support/outer_filter.py"), verdict]
            return ServerProcess.launch([*outer, *command], environ, stdout, stderr)

    return Filtered


@pytest.mark.parametrize(
    ("verdict", "flags", "opened"),
    [
        ("refuse", [], "guard by default"),
        pytest.param("refuse", ["--sandbox=guard"], "guard", marks=pytest.mark.long),
        pytest.param("kill", [], "off by default", marks=pytest.mark.long),
    ],
)
def test_where_a_sandbox_can_not_be_entered_models_are_served_without(tmp_path, verdict, flags, opened):
    folder = tmp_path / "models" / "guarded" / "1"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests/support/everyday.py", folder / "model.py")
    (folder.parent / "config.pbtxt").write_text(CONFIGURATION)
    server = under_a_filter(verdict).start(tmp_path / "models", tmp_path / "log", "--spare-workers=0", *flags)
    try:
        trio.run(server.wait_ready)
        told = Everyday(server, ROOTS, tmp_path).ask("guarded", **{"talks over sockets": []})
        assert told["talks over sockets"] == "done"
        trio.run(until, lambda: bool(server.logged("server_ready")))  # lines are written a moment later
        assert [line["sandbox"] for line in server.logged("server_opened")] == [opened]
        level = "warning" if flags else "info"
        lacks = [line for line in server.logged("server_starting") if " lacks " in line.get("warning", "")]
        assert {line["level"] for line in lacks} == {level}
        unconfined = server.logged("worker_unconfined")
        assert [line["level"] for line in unconfined] == ([level] if verdict == "refuse" else [])
        assert all("the filter of system calls" in str(line["missing"]) for line in unconfined)
        assert not server.logged("worker_exited")
    finally:
        print(server.last_words())
        server.kill_all()
