"""Processes of repository agents that do what they should not, as a thread of the server sees it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.processes.agents.declared import Wanted
from engine.processes.agents.process import AgentFailed, AgentProcess

pytestmark = pytest.mark.system

WITHIN = 2.0
SERVER = """
import os, sys
from pathlib import Path
from engine.processes.agents.declared import Wanted
from engine.processes.agents.process import AgentProcess

folder = Path(sys.argv[1])
AgentProcess(
    Wanted("busy", {}), str(folder / "agent.py"), model="m", config={}, environ=dict(os.environ), memory=0,
    printed=lambda _, line: print(line, flush=True),
).act("LOAD", folder, 3600.0)
"""


@pytest.fixture
def agent(tmp_path):
    made = []

    def make(*load, printed=lambda _agent, _line: None):
        lines = ["from tritium import agents", "class Agent(agents.Agent):", "    def load(self):"]
        (tmp_path / "agent.py").write_text("\n".join([*lines, *(f"        {line}" for line in load)]))
        made.append(
            AgentProcess(
                Wanted("busy", {}),
                str(tmp_path / "agent.py"),
                model="m",
                config={},
                environ=dict(os.environ),
                memory=0,
                printed=printed,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_one_that_prints_without_a_pause_is_ended_in_time_and_does_not_flood_the_log(agent, tmp_path):
    lines = []

    def printed(_, line):
        lines.append(line)
        time.sleep(0.0005)  # the log is slower than the agent, so that there is always more to read

    busy = agent("while True: print('x', flush=True)", printed=printed)
    with pytest.raises(
        AgentFailed, match=r"did not end LOAD within 2 s and was ended \(--repoagent-timeout\)"
    ):
        busy.act("LOAD", tmp_path, WITHIN)
    assert set(lines[:-1]) == {"x"}
    assert len(lines) < 2100
    assert lines[-1].endswith(" more lines were printed and are not in the log)")


def test_each_action_may_print_as_much(agent, tmp_path):
    lines = []
    busy = agent("for _ in range(3000): print('y' * 20)", printed=lambda _, line: lines.append(line))
    for _ in range(2):
        assert busy.act("LOAD", tmp_path, 60.0) == tmp_path
        assert (lines.pop(), len(lines)) == ("(1740 more lines were printed and are not in the log)", 1260)
        lines.clear()


@pytest.mark.long
def test_one_that_asks_for_folders_without_a_pause_is_ended_in_time(agent, tmp_path):
    busy = agent("while True: self.model.release(self.model.acquire())")
    with pytest.raises(AgentFailed, match="did not end LOAD within 2 s"):
        busy.act("LOAD", tmp_path, WITHIN)


def test_one_that_writes_nonsense_to_the_socket_is_ended(agent, tmp_path):
    busy = agent(
        "import gc, socket, time",
        "for each in gc.get_objects():",
        "    if isinstance(each, socket.socket): each.sendall(b'[' * 100_000 + b'\\n')",
        "time.sleep(3600)",
    )
    with pytest.raises(AgentFailed, match="wrote to the server's socket in LOAD"):
        busy.act("LOAD", tmp_path, 60.0)
    assert busy.killed


def test_where_the_server_is_killed_neither_processes_nor_folders_are_left(tmp_path):
    (tmp_path / "agent.py").write_text(
        "import subprocess, time\n"
        "from tritium import agents\n"
        "class Agent(agents.Agent):\n"
        "    def load(self):\n"
        "        folder = self.model.acquire()\n"
        "        (folder / 'plain').write_text('secret')\n"
        "        child = subprocess.Popen(['sleep', '3600'])\n"
        "        print(child.pid, folder, flush=True)\n"
        "        time.sleep(3600)\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    child, folder = server.stdout.readline().split()
    assert (Path(folder) / "plain").read_text() == "secret"
    server.kill()
    server.wait()
    server.stdout.close()
    deadline = time.monotonic() + 30
    while Path(folder).parent.exists() or runs(child):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
