"""What a worker and all that it has started take, and how they are ended: real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO, cast

import psutil
import pytest

from engine.processes.family import Family

pytestmark = [pytest.mark.slow, pytest.mark.system]

MANY = """
import sys, threading
ended = threading.Event()
threading.stack_size(65536)
for _ in range(200):
    threading.Thread(target=ended.wait, daemon=True).start()
print(0, flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
child.wait()
print("reaped", flush=True)
sys.stdin.read()
"""
NEXT = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def worker():
    """Start a program in a session of its own; return it and the number that it tells."""
    started: list[subprocess.Popen[str]] = []

    def start(program):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, int(cast("TextIO", process.stdout).readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_of_few_processes_is_taken_in_at_a_glance(worker):
    process, child = worker(PARENT)
    usage: Any = Family(process.pid, "").glance()
    assert usage.processes == 2
    assert usage.memory > psutil.Process(process.pid).memory_info().rss / 10
    os.kill(child, signal.SIGKILL)


def test_one_of_many_threads_is_not_looked_at_on_an_event_loop(worker):
    process, _ = worker(MANY)
    family = Family(process.pid, "")
    assert family.glance() is None
    assert family.usage().processes == 1


@pytest.mark.skipif(not os.access(NEXT, os.W_OK), reason="nobody but root may choose a process id")
def test_who_has_got_the_number_of_one_that_was_to_be_killed_lives_on(worker, monkeypatch):
    process, child = worker(PARENT)
    while age(child) < 5:
        time.sleep(0.01)
    strangers = []
    kill_group = os.killpg

    def meanwhile(group, number):
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "reaped\n"
        strangers.append(successor(child))
        kill_group(group, number)

    monkeypatch.setattr(os, "killpg", meanwhile)
    Family(process.pid, "").kill()
    (stranger,) = strangers
    with stranger:
        if stranger.pid != child:
            pytest.skip("somebody else was given that process id")
        stranger.stdin.close()
        assert stranger.wait() == 0


def age(pid):
    """Return a process's age in ticks, the unit that tells it from a later process with its number."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") - started


def successor(pid):
    """Start a process with this number, unless another one starts at the same moment."""
    NEXT.write_text(str(pid - 1))
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


LEAVES_NO_TRACE = """
import subprocess, sys
child = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True, env={})
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_look_at_a_worker_that_has_died_does_not_forget_whom_it_had_started(worker):
    process, child = worker(LEAVES_NO_TRACE)
    family = Family(process.pid, "mark")
    family.usage()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    family.usage()
    family.glance()
    family.end()
    deadline = time.monotonic() + 30
    # It has got its signal, and the kernel ends it in its own time.
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
