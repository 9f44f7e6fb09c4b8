"""The owner of a server, as a process of its own and without Ray."""

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from tests.survival.server import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]

# In place of Tritium: takes its flags, answers, and ends as it is told by its flags.
SERVER = """#!{python}
import http.server, os, signal, sys
flags = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
if "fail" in flags:
    sys.exit("can not serve")
def drained(*_):
    open(flags["drained"], "w").write(flags["replica-name"])
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in flags else drained)
class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(flags["http-port"])), Answers).serve_forever()
"""
OWNER = """
import json, sys
from engine.fleet.launching.owner import ServerOwner
from engine.fleet.launching.registry import LaunchedServer, LaunchOrder

def publish(entry):
    print(entry.written(), flush=True)

python, grace, *flags = sys.argv[1:]
order = LaunchOrder(group="g", replicas=1, python=python, grace=float(grace), flags=tuple(flags))
place = lambda: LaunchedServer(name="g-1-0", node="ab", host="127.0.0.1", http_port=0)
owner = ServerOwner(order, "g-1-0", place, publish)
sys.stdin.read()
owner.stop()
"""


class Owned:
    """An owner that runs, and what it publishes."""

    def __init__(self, folder, *flags, grace=20.0):
        server = folder / "server"
        server.write_text(SERVER.format(python=sys.executable))
        server.chmod(0o755)
        self.drained = folder / "drained"
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", OWNER, str(server), str(grace), f"--drained={self.drained}", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )

    def until(self, **wanted):
        """Wait until an entry has these values; return it."""
        assert self.process.stdout
        for line in self.process.stdout:
            entry = json.loads(line)
            if all(entry[key] == value for key, value in wanted.items()):
                return entry
        raise AssertionError("the owner ended")

    def stop(self):
        """Let it stop its server and end; return the exit status."""
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def owned(tmp_path):
    owners = []

    def start(*flags, **options):
        owners.append(Owned(tmp_path, *flags, **options))
        return owners[-1]

    yield start
    for each in owners:
        each.process.kill()
        each.process.communicate()


def wait_gone(pid):
    """Wait for the end of a process that is no child of this one."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(fd, "rb", buffering=0):
        assert select.select([fd], [], [], 20)[0]


def test_a_server_ends_with_its_owner(owned):
    owner = owned()
    pid = owner.until(phase="serving")["pid"]
    owner.process.kill()
    wait_gone(pid)
    assert not owner.drained.exists()


def test_a_server_drains_where_its_owner_stops(owned):
    owner = owned()
    owner.until(phase="serving")
    assert owner.stop() == 0
    assert owner.drained.read_text() == "g-1-0"


def test_a_server_that_does_not_end_in_time_is_killed(owned):
    owner = owned("--deaf=1", grace=0.1)
    pid = owner.until(phase="serving")["pid"]
    assert owner.stop() == 0
    wait_gone(pid)


def test_a_server_that_ends_is_started_again(owned):
    owner = owned()
    first = owner.until(phase="serving")
    os.kill(first["pid"], signal.SIGKILL)
    failed = owner.until(phase="failed")
    assert (failed["failures"], failed["words"]) == (1, "it ended with status -9")
    second = owner.until(phase="serving")
    assert second["boot"] != first["boot"]
    assert owner.stop() == 0


def test_what_a_server_said_as_it_failed_is_published(owned):
    owner = owned("--fail=1")
    assert owner.until(phase="failed", failures=2)["words"] == "can not serve\nit ended with status 1"
    assert owner.stop() == 0


def test_the_owner_imports_nothing_but_the_standard_library_and_its_neighbours():
    code = (
        "import sys; before = set(sys.modules); import engine.fleet.launching.owner;"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(names - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['engine']\n"
