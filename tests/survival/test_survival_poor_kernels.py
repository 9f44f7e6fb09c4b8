"""A server whose kernel and surroundings lack all that sandboxes are made of: it serves, and names each part.

A filter of system calls that the server inherits stands for the kernel: it has neither Landlock nor seccomp.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import trio

from chaos.subject.server import Server
from engine.processes.group_plan import why_none
from engine.processes.groups import find
from engine.worker.syscalls import MACHINES
from tests.support.interpreters import ROOT, shared_interpreter, with_these_packages
from tests.survival.server import ServerProcess, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root loses what other users never had"),
    pytest.mark.skipif(os.uname().machine not in MACHINES, reason="its system calls are not known"),
]

# Argument 0 of `prctl` is PR_GET_SECCOMP: EINVAL says that there is no seccomp.
POOR = f"""
import ctypes, os, struct, sys
sys.path.insert(0, {str(ROOT)!r})
from engine.worker.syscalls import numbers
of = numbers(os.uname().machine)
made = [(0x20, 0, 0, 0)]
for name in ("seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"):
    made += [(0x15, 0, 1, of[name]), (0x06, 0, 0, 0x50000 | 38)]
made += [(0x15, 0, 3, of["prctl"]), (0x20, 0, 0, 16), (0x15, 0, 1, 21), (0x06, 0, 0, 0x50000 | 22)]
made += [(0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in made))
program = struct.pack("HP", len(made), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
# Without CAP_SYS_ADMIN, a filter is taken from a process only that gains no privileges.
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

# What it lacks, in the words at start after `--sandbox=strict lacks `, and in the tree.
LACKED = {
    "the filter of system calls: this kernel has no seccomp": "the filter of system calls, and with it",
    "the refusal of files: this kernel has no Landlock": "the refusal of files: this kernel has no Landlock",
    "the refusal of signals to other processes": "the refusal of signals to other processes",
    "the refusal of other processes' memory in /proc": "the refusal of other processes' memory in /proc",
    "a user of its own for each worker: the server runs as root without CAP_SYS_PTRACE": (
        "a user of its own: the server runs as root without CAP_SYS_PTRACE"
    ),
}
if why_none(find()):
    LACKED["a control group for each worker"] = "a control group for each worker"


class OnAPoorKernel(ServerProcess):
    """Started as root without a capability, below the filter."""

    @staticmethod
    def launch(command, environ, stdout, stderr):
        python = shared_interpreter()
        without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
        command = [python, "-c", POOR, *without, python, *command[1:]]
        return Server.launch(command, with_these_packages(environ), stdout, stderr)


@pytest.fixture
def server():
    folder = Path(tempfile.mkdtemp(prefix="tritium-test-"))
    (folder / "models/plain/1").mkdir(parents=True)
    (folder / "models/plain/1/model.py").write_text(MODEL)
    (folder / "models/plain/config.pbtxt").write_text(CONFIGURATION)
    server = OnAPoorKernel.start(folder / "models", folder / "log", "--spare-workers=0", "--sandbox=strict")
    try:
        trio.run(server.wait_ready)
        yield server
    finally:
        print(server.last_words())
        server.kill_all()
        shutil.rmtree(folder)


def test_each_part_that_is_missing_is_named_at_start_in_the_log_and_in_the_tree(server):
    told = "\n".join(line.get("warning", "") for line in server.logged("server_starting"))
    for text in LACKED:
        assert f"--sandbox=strict lacks {text}" in told
    trio.run(until, lambda: bool(server.logged("worker_unconfined")))
    (line,) = server.logged("worker_unconfined")
    (node,) = trio.run(server.instances, "plain")
    drawn = subprocess.run(
        [shared_interpreter(), "-m", "engine", "tree", "--url", server.url],
        capture_output=True,
        text=True,
        env=with_these_packages(os.environ),
        check=True,
    ).stdout
    for text in LACKED.values():
        assert any(each.startswith(text) for each in node["info"]["unconfined"]), text
        assert text in json.dumps(line, ensure_ascii=False)
        assert text in drawn
