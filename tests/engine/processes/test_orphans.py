"""What process 1 reaps, shown by a process that adopts orphans as process 1 does."""

import ctypes
import os
import subprocess
import time

import pytest

from engine.processes.family import Family, ended_children
from engine.processes.orphans import Orphans

pytestmark = pytest.mark.system

SUBREAPER = 36


@pytest.fixture(autouse=True)
def _adopts():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(SUBREAPER, 0, 0, 0, 0)


def ended(pid):
    """Wait until a child has ended; it stays to be reaped."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if pid in {each.pid for each in ended_children()}:
            return
        os.sched_yield()
    raise AssertionError(f"{pid} never became an ended child of this process")


def orphan():
    """Return the number of an ended process whose parent, which was ours, has gone."""
    theirs, ours = os.pipe()
    leaves = ["sh", "-c", "exec 3<&0; cat <&3 >/dev/null & echo $!"]
    said = subprocess.run(leaves, stdin=theirs, stdout=subprocess.PIPE, check=True).stdout
    for end in (theirs, ours):
        os.close(end)
    ended(int(said))
    return int(said)


def test_an_orphan_is_reaped_by_the_second_look():
    orphans, pid = Orphans(), orphan()
    assert orphans.reap() == 0
    assert pid in {each.pid for each in ended_children()}
    assert orphans.reap() == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert orphans.reap() == 0


def test_the_first_process_of_a_family_is_left_to_those_who_started_it():
    orphans = Orphans()
    process = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    family = Family(process.pid, "no mark")
    ended(process.pid)
    assert [orphans.reap() for _ in range(3)] == [0, 0, 0]
    assert process.wait() == 7
    del family


def test_a_number_is_not_held_once_its_family_is_gone():
    orphans, pid = Orphans(), orphan()
    family = Family(pid, "no mark")
    assert [orphans.reap() for _ in range(2)] == [0, 0]
    del family
    assert [orphans.reap() for _ in range(2)] == [0, 1]
