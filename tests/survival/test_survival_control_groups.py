"""Strict models whose workers have control groups of their own, by root and by a user who was given one."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trio
import tritonclient.http
from tritonclient.utils import InferenceServerException

from chaos.subject.server import Server
from engine.processes.group_plan import why_none
from engine.processes.groups import find
from tests.support.interpreters import OTHERS, shared_interpreter, with_these_packages
from tests.survival.server import ServerProcess, until

WHY_NOT = "only root can start servers of several users" if os.geteuid() != 0 else why_none(find())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no control groups: {WHY_NOT}"),
]

MODEL = """
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def bomb():
    threading.stack_size(64 * 1024)
    end, started = threading.Event(), 0
    try:
        while started < 10_000:
            threading.Thread(target=end.wait).start()
            started += 1
    except RuntimeError:
        pass
    end.set()
    return started

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        (text,) = pb_utils.get_input_tensor_by_name(request, "ASKED").as_numpy().ravel()
        told = ""
        if text == b"group":
            told = open("/proc/self/cgroup").read()
        elif text == b"fill":
            held = b"x" * (600 * 1024 * 1024)
        elif text == b"bomb":
            told = str(bomb())
        elif text == b"leave":
            os.fork() or time.sleep(1000)
        told = np.array([told.encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)])
"""
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ { name: "ASKED" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "tritium.sandbox" value { string_value: "strict" } }
parameters { key: "tritium.memory_limit_mb" value { string_value: "256" } }
parameters { key: "tritium.retry" value { string_value: "never" } }
"""


class Site:
    """A control group for a server of one user, and its models."""

    def __init__(self, folder, group, user):
        self.folder = folder
        self.group = group
        self.user = user

    @contextlib.contextmanager
    def serving(self):
        python, group, user = shared_interpreter(), self.group, str(self.user)

        class InGroup(ServerProcess):
            @staticmethod
            def launch(command, environ, stdout, stderr):
                # A group that was divided takes processes no more.
                leaf = group / "tritium-server"
                place = str(leaf if leaf.exists() else group)
                enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', place]
                become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
                command = [*enter, *(become if user != "0" else []), python, *command[1:]]
                return Server.launch(command, with_these_packages(environ), stdout, stderr)

        server = InGroup.start(
            self.folder / "models", Path(tempfile.mkdtemp(dir=self.folder)), "--spare-workers=0"
        )
        try:
            trio.run(server.wait_ready)
            yield server
        finally:
            print(server.last_words())
            server.kill_all()

    def homes(self):
        return list(self.group.glob("tritium-workers-*"))


@pytest.fixture(params=[0, OTHERS], ids=["root", "another user"])
def site(request):
    user = request.param
    folder = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    found = find()
    assert found is not None
    group = Path(found.path) / f"test-{folder.name}"
    (folder / "models/strict/1").mkdir(parents=True)
    (folder / "models/strict/1/model.py").write_text(MODEL)
    (folder / "models/strict/config.pbtxt").write_text(CONFIGURATION)
    folder.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
    (group.parent / "cgroup.subtree_control").write_text("+memory +pids")
    group.mkdir()
    for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
        os.chown(path, user, user)
    try:
        yield Site(folder, group, user)
    finally:
        (group / "cgroup.kill").write_text("1")
        trio.run(until, lambda: "populated 0" in (group / "cgroup.events").read_text())
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        group.rmdir()
        shutil.rmtree(folder)


def ask(server, text):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=120) as client:
        asked = tritonclient.http.InferInput("ASKED", [1], "BYTES")
        asked.set_data_from_numpy(np.array([text.encode()], np.object_))
        return client.infer("strict", [asked]).as_numpy("TOLD")[0].decode()


def test_memory_and_processes_are_bounded_by_the_kernel_and_a_dead_servers_groups_are_removed(site):
    with site.serving() as server:
        assert "/tritium-workers-" in ask(server, "group")
        assert f"{site.group}/tritium-server".endswith(
            Path(f"/proc/{server.pid}/cgroup").read_text().strip().partition("::")[2].rpartition("/")[2]
        )
        assert not [
            line for line in server.logged("worker_unconfined") if "control group" in json.dumps(line)
        ]
        assert 3000 < int(ask(server, "bomb")) < 4096
        with pytest.raises(InferenceServerException, match="256 MiB are its limit"):
            ask(server, "fill")
        trio.run(server.wait_serving, "strict")
        assert "/tritium-workers-" in ask(server, "group")
        (exited,) = server.logged("worker_exited")
        assert exited["reason"] == "oom"
        (home,) = site.homes()
        assert len([path for path in home.iterdir() if path.is_dir()]) == 1
        assert ask(server, "leave") == ""
        trio.run(server.stop, signal.SIGKILL)
        assert site.homes() == [home]
    with site.serving() as server:
        assert "/tritium-workers-" in ask(server, "group")
        trio.run(until, lambda: home not in site.homes())
        trio.run(server.stop)
        assert site.homes() == []
