"""Code of real models that tries to leave its sandbox, on servers of root and of another user.

`tests/support/escapes.py` has the attempts, and the least level at which each must be refused.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trio
import tritonclient.http

from tests.support.escapes import ATTEMPTS
from tests.support.interpreters import OTHERS, shared_interpreter, with_these_packages
from tests.support.tiers import mostly_long
from tests.survival.server import ROOT, ServerProcess

LEVELS = ("off", "guard", "basic", "strict")
ROOTS = 0
REFUSED = {"EPERM", "EACCES", "ENOSYS", "EXDEV", "confined", "nothing gained"}

# What this kernel or machine may refuse to everyone: that a sandbox refuses it may show nothing.
ABSENT = {
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "keyctl",
    "add_key",
    "request_key",
    "listmount",
    "quotactl",
    "overcommit_memory",
    "PR_SET_MM",
    "ioperm",
    "system call of 32 bits",
    "system call of x32",
    "modify_ldt",
    "device file",
    "unshare of the network",
    "fanotify",
    "control groups",
    "core_pattern",
    "socket of AF_ALG",
    "socket of AF_VSOCK",
    "unshare of users",
    "clone into new users",
    "clone3 into new users",
}
LANDLOCK = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)

CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ {{ name: "ASKED" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }} ]
parameters {{ key: "tritium.sandbox" value {{ string_value: "{level}" }} }}
{more}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(LANDLOCK < 6, reason="this kernel's Landlock knows no scopes: Linux 6.12 does"),
]


@pytest.fixture(scope="module")
def interpreter():
    """A Python that workers with another user id can run."""
    if os.geteuid() != 0:
        pytest.skip("only root can start servers of several users")
    return shared_interpreter()


def server_of(user, python):
    """Return a class whose servers run as `user`, with this interpreter and the packages of this one."""

    class OfUser(ServerProcess):
        @staticmethod
        def launch(command, environ, stdout, stderr):
            return subprocess.Popen(
                [python, *command[1:]],
                cwd="/",
                env=with_these_packages(environ),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                user=user,
                group=user,
                extra_groups=[],
                start_new_session=True,
            )

    return OfUser


class Prison:
    """A server with a model in each sandbox, and what these models attack."""

    def __init__(self, base, server, user):
        self.base = base
        self.user = user
        self.server = server

    def ask(self, model, **it):
        """Have a model try; return its answers by the name of the attempt."""
        text = np.array([json.dumps(it).encode()], np.object_)
        with tritonclient.http.InferenceServerClient(self.server.url, network_timeout=120) as client:
            asked = tritonclient.http.InferInput("ASKED", [1], "BYTES")
            asked.set_data_from_numpy(text)
            return json.loads(client.infer(model, [asked]).as_numpy("TOLD")[0])

    def worker(self, model):
        (pid,) = trio.run(self.server.wait_serving, model)
        return pid

    def targets(self, model):
        """Return what the attempts of one model are directed at."""
        base = self.base
        return {
            "server": self.server.pid,
            "sibling": self.worker("sibling"),
            "setuid": str(base / "tools" / "id"),
            "cgroup": "/sys/fs/cgroup/unified/cgroup.procs"
            if os.path.exists("/sys/fs/cgroup/unified")
            else "/sys/fs/cgroup/cgroup.procs",
            "abstract": f"tritium-test-{os.getpid()}",
            "datagrams": f"tritium-test-datagrams-{os.getpid()}",
            "socket": str(base / "tools" / "socket"),
            "library": "libm.so.6",
            "secret": str(base / "models" / "secret"),
            "scratch": str(base / "scratch"),
            "other": str(base / "models" / "sibling"),
            "own": str(base / "models" / model),
        }


def build(base):
    """Make the repository and what is beside it."""
    code = (ROOT / "tests/support/escapes.py").read_text()
    for name in (*LEVELS, "sibling"):
        level = "off" if name == "sibling" else name
        more = ""
        if level == "strict":
            scratch = f'value {{ string_value: "{base / "scratch"}" }}'
            more = f'parameters {{ key: "tritium.sandbox_write" {scratch} }}'
        folder = base / "models" / name / "1"
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "model.py").write_text(code)
        (folder.parent / "config.pbtxt").write_text(CONFIGURATION.format(level=level, more=more))
    (base / "models" / "secret").write_text("secret")
    (base / "models" / "secret").chmod(0o604)
    (base / "scratch").mkdir()
    (base / "tools").mkdir()
    shutil.copy("/usr/bin/id", base / "tools" / "id")


@pytest.fixture(scope="module", params=mostly_long([ROOTS, OTHERS], OTHERS), ids=["root", "another user"])
def prison(request, interpreter):
    user = request.param
    base = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    base.chmod(0o755)
    listeners = []
    try:
        build(base)
        for path in (base, *base.rglob("*")):
            os.chown(path, user, user)
        (base / "scratch").chmod(0o1777)
        os.chown(base / "tools" / "id", 0, 0)
        (base / "tools" / "id").chmod(0o4755)
        for kind, address in (
            (socket.SOCK_STREAM, f"\0tritium-test-{os.getpid()}"),
            (socket.SOCK_DGRAM, f"\0tritium-test-datagrams-{os.getpid()}"),
            (socket.SOCK_STREAM, str(base / "tools" / "socket")),
        ):
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind(address)
            if kind is socket.SOCK_STREAM:
                listener.listen(100)
            listeners.append(listener)
        (base / "tools" / "socket").chmod(0o666)
        kind = server_of(user, interpreter)
        server = kind.start(
            base / "models",
            base / "log",
            "--spare-workers=0",
            "--model-control-mode=explicit",
            "--load-model=*",
        )
        try:
            trio.run(server.wait_ready)
            yield Prison(base, server, user)
        finally:
            print(server.last_words())
            server.kill_all()
    finally:
        for listener in listeners:
            listener.close()
        shutil.rmtree(base)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_each_attempt_is_refused_at_its_level_and_at_all_above(prison, level):
    told = prison.ask(level, **prison.targets(level))
    due = {name for name, (least, _) in ATTEMPTS.items() if LEVELS.index(least) <= LEVELS.index(level)}
    assert {name: told[name] for name in due if told[name] not in REFUSED} == {}


def test_without_a_sandbox_what_is_tried_succeeds(prison):
    told = prison.ask("off", **prison.targets("off"))
    if prison.user == ROOTS:
        refused = {name: told[name] for name in ATTEMPTS if told[name] in REFUSED}
        # There is nothing that root could gain, and no file of the server's is ever open in a worker.
        assert refused.keys() - ABSENT == {"set-user-id program", "open files of the server"}
    else:
        assert told["set-user-id program"] == "root"


def test_where_root_serves_a_strict_worker_has_a_user_of_its_own(prison):
    user, group, others = prison.ask("strict", **prison.targets("strict"))[""].split(" ", 2)
    if prison.user == ROOTS:
        assert 61184 <= int(user) <= 65519
        assert (int(group), others) == (61184, "[]")
    else:
        assert (int(user), int(group)) == (prison.user, prison.user)
    told = [line for line in prison.server.logged("worker_unconfined") if "control group" not in str(line)]
    assert told == []


def test_an_attempt_costs_no_worker(prison):
    before = [prison.worker(level) for level in LEVELS]
    for level in LEVELS[1:]:
        prison.ask(level, **prison.targets(level))
    assert [prison.worker(level) for level in LEVELS] == before
    assert not prison.server.logged("worker_exited")


@pytest.mark.parametrize("level", ["basic", "strict"])
def test_a_confined_model_has_no_code_loaded_in_a_laxer_sandbox(prison, level):
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    tried = {
        "files": {
            "model_name": "fresh",
            "config": '{"backend": "python"}',
            "files": {"file:1/model.py": code},
        },
        "a configuration": {"model_name": level, "config": '{"backend": "python"}'},
        "a laxer model": {"model_name": "sibling"},
        "a laxer model's end": {"model_name": "sibling", "unload": True},
    }
    if level == "strict":
        tried["a model that is less strict"] = {"model_name": "basic"}
        tried["its end"] = {"model_name": "basic", "unload": True}
    told = prison.ask(level, load=tried)
    assert set(told) == set(tried)
    for answer in told.values():
        assert f"model '{level}' runs in a {level} sandbox and may not" in answer
    assert prison.worker("sibling")
