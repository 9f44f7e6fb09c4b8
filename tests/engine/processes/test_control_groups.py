"""Control groups of strict workers: when a server may make some, what they hold, and how they end."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from actors.values.confinement import Confinement, Sandbox
from engine.processes.group_plan import (
    NO_GROUP,
    TASKS,
    Found,
    GroupLimits,
    Mount,
    group_of,
    is_populated,
    limits_of,
    mounted,
    oom_kills,
    reached_limit,
    why_none,
)
from engine.processes.groups import Gate, Groups, find

WHOLE = Found(
    path="/sys/fs/cgroup/unit",
    controllers=frozenset({"cpu", "memory", "pids"}),
    enabled=frozenset(),
    is_root=False,
    writable=True,
    delegated=True,
    other=None,
)
MIB = 1024 * 1024

# -- the plan


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"controllers": frozenset({"cpu"})}, "'/sys/fs/cgroup/unit' has no controller for memory and pids"),
        ({"controllers": frozenset({"memory"})}, "has no controller for pids"),
        ({"delegated": False}, "is the service manager's: Delegate=memory pids"),
        ({"writable": False}, "is not for this server to write: Delegate=memory pids without Protect"),
        ({"other": 7}, "process 7, which is not the server's, is in '/sys/fs/cgroup/unit' too"),
        ({"is_root": True}, ""),
        ({"other": 7, "enabled": frozenset({"memory", "pids"})}, ""),
        ({"other": 7, "enabled": frozenset({"memory"})}, "process 7"),
    ],
)
def test_a_group_is_divided_only_if_it_was_handed_over(change, why):
    told = why_none(replace(WHOLE, **change))
    assert told == why if not why else why in told


def test_without_the_hierarchy_there_is_no_group():
    assert "version 2" in why_none(None)


@pytest.mark.parametrize(
    ("mountinfo", "found"),
    [
        (
            "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw",
            Mount("/sys/fs/cgroup", "/", True),
        ),
        ("30 24 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw", Mount("/sys/fs/cgroup", "/", False)),
        (
            "30 24 0:26 /docker/1 /a\\040b rw shared:1 master:2 - cgroup2 c rw",
            Mount("/a b", "/docker/1", True),
        ),
        ("30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\nx", None),
        ("", None),
    ],
)
def test_the_hierarchy_is_found_where_it_is_mounted(mountinfo, found):
    assert mounted(mountinfo) == found


@pytest.mark.parametrize(
    ("cgroup", "root", "directory"),
    [
        ("9:memory:/m\n0::/\n", "/", "/mnt"),
        ("0::/system.slice/tritium.service\n", "/", "/mnt/system.slice/tritium.service"),
        ("0::/system.slice/tritium.service/tritium-server\n", "/", "/mnt/system.slice/tritium.service"),
        ("0::/docker/1/a\n", "/docker/1", "/mnt/a"),
        ("0::/docker/1\n", "/docker/1", "/mnt"),
        ("0::/docker/12\n", "/docker/1", None),
        ("0::/../other\n", "/", None),
        ("9:memory:/m\n", "/", None),
    ],
)
def test_the_servers_group_is_found_below_the_mount(cgroup, root, directory):
    assert group_of(cgroup, Mount("/mnt", root, True)) == directory


@pytest.mark.parametrize("level", Sandbox)
def test_only_strict_workers_have_groups(level):
    limits = limits_of(Confinement(sandbox=level, memory=5 * MIB, processes=3))
    assert limits == (GroupLimits(5 * MIB, TASKS + 3) if level is Sandbox.STRICT else None)


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        (
            GroupLimits(5, 9),
            {"memory.max": "5", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "9"},
        ),
        (GroupLimits(0, 0), {"memory.oom.group": "1", "pids.max": "max"}),
    ],
)
def test_limits_are_what_is_written_to_a_groups_files(limits, files):
    assert dict(limits.files()) == files


def test_what_the_kernel_tells_of_a_group_is_read():
    assert oom_kills("low 0\noom 2\noom_kill 3\n") == 3
    assert oom_kills("") == 0
    assert reached_limit("oom 2\noom_kill 3\n")
    assert not reached_limit("oom 0\noom_kill 3\n")
    assert is_populated("populated 1\nfrozen 0\n")
    assert not is_populated("populated 0\nfrozen 0\n")


# -- on a folder that stands for a group: its files are written, and nothing obeys them


@pytest.fixture
def fake(tmp_path):
    """Groups in a folder, and the folder."""
    found = replace(WHOLE, path=str(tmp_path), is_root=True)
    return Groups(lambda: found, shutil.rmtree), tmp_path


def own_group():
    """Return the directory of this process's control group."""
    found = find()
    assert found is not None
    return Path(found.path)


def homes(folder):
    return list(folder.glob("tritium-workers-*"))


def test_each_worker_has_a_group_with_its_limits_below_one_of_its_server(fake):
    groups, folder = fake
    first, second = groups.make(GroupLimits(5 * MIB, 9)), groups.make(GroupLimits(0, 9))
    assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids"
    (home,) = homes(folder)
    assert (home / "cgroup.subtree_control").read_text() == "+memory +pids"
    made = sorted(path for path in home.iterdir() if path.is_dir())
    assert sorted((path / "memory.max").exists() for path in made) == [False, True]
    first.add(12345)
    assert sorted((path / "cgroup.procs").exists() for path in made) == [False, True]
    first.end()
    assert homes(folder) == [home]
    second.end()
    assert homes(folder) == []
    groups.make(GroupLimits(0, 9)).end()
    assert homes(folder) == []


def test_a_group_that_has_gone_by_itself_is_ended_without_a_word(fake):
    groups, folder = fake
    group = groups.make(GroupLimits(0, 9))
    (home,) = homes(folder)
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    group.end()
    assert homes(folder) == []


def test_what_a_dead_server_left_is_removed_and_what_a_living_one_has_is_not(fake):
    groups, folder = fake
    living = groups.make(GroupLimits(0, 9))
    (folder / "tritium-workers-left" / "worker").mkdir(parents=True)
    (folder / "another").mkdir()
    other = Groups(lambda: replace(WHOLE, path=str(folder)), shutil.rmtree)
    other.sweep()
    assert len(homes(folder)) == 1
    assert (folder / "another").exists()
    living.end()
    assert homes(folder) == []


def test_nothing_is_touched_in_a_group_that_was_not_handed_over(tmp_path):
    found = replace(WHOLE, path=str(tmp_path), writable=False)
    (tmp_path / "tritium-workers-left").mkdir()
    groups = Groups(lambda: found, shutil.rmtree)
    groups.sweep()
    assert "is not for this server to write" in groups.why_none()
    with pytest.raises(OSError, match="is not for this server to write"):
        groups.make(GroupLimits(0, 9))
    assert os.listdir(tmp_path) == ["tritium-workers-left"]


def test_a_gate_opens_once_the_worker_is_in_its_group(fake):
    groups, folder = fake
    gate = Gate(groups, GroupLimits(0, 9))
    group = gate.open_for(12345)
    with open(os.dup(gate.descriptor)) as read:
        gate.close()
        assert json.loads(read.read()) == []
    (told,) = homes(folder)[0].glob("*/cgroup.procs")
    assert told.read_text() == "12345"
    assert group is not None
    group.end()


def test_a_gate_opens_without_a_group_and_says_why(tmp_path):
    gate = Gate(Groups(lambda: None), GroupLimits(0, 9))
    assert gate.open_for(12345) is None
    with open(os.dup(gate.descriptor)) as read:
        gate.close()
        (told,) = json.loads(read.read())
    assert told.startswith(f"{NO_GROUP}: there is no hierarchy")


def standing_for_a_group(folder):
    """Make a /proc and a group that it tells of, in a folder."""
    group, proc = folder / "group", folder / "proc"
    group.mkdir()
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(f"1 1 0:1 / {group} rw - cgroup2 c rw\n")
    (proc / "self/cgroup").write_text("0::/\n")
    (group / "cgroup.type").write_text("domain\n")
    return group, proc


def test_processes_that_descend_from_this_one_are_told_from_others(tmp_path):
    group, proc = standing_for_a_group(tmp_path)
    for pid, parent in ((7000001, os.getpid()), (7000002, 7000001), (7000003, 1)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0\n")
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n7000001\n7000002\n7000003\n")
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.subtree_control").write_text("")
    found = find(proc, booted=tmp_path / "nowhere")
    assert found is not None
    (group / "cgroup.type").unlink()
    uppermost = find(proc, booted=tmp_path / "nowhere")
    assert uppermost == replace(found, is_root=True, other=None)
    assert found == replace(WHOLE, path=str(group), other=7000003)


def test_a_process_that_may_not_be_looked_at_is_anothers_and_one_that_has_gone_is_not(tmp_path):
    group, proc = standing_for_a_group(tmp_path)
    (group / "cgroup.procs").write_text("7000001\n7000002\n")
    found = find(proc, booted=tmp_path / "nowhere")
    assert found is not None
    assert found.other is None
    (proc / "7000002" / "stat").mkdir(parents=True)  # can't be read
    found = find(proc, booted=tmp_path / "nowhere")
    assert found is not None
    assert found.other == 7000002


def test_names_of_mounts_and_groups_may_be_any_bytes(tmp_path):
    group, proc = standing_for_a_group(tmp_path)
    mounts = proc / "self/mountinfo"
    mounts.write_bytes(b"2 1 0:2 / /mnt/caf\xe9 rw - ext4 /dev/sda rw\n" + mounts.read_bytes())
    (proc / "self/cgroup").write_bytes(b"9:name=caf\xe9:/\n0::/caf\xe9\n")
    own = os.fsencode(group) + b"/caf\xe9"
    os.mkdir(own)
    with open(own + b"/cgroup.controllers", "wb") as file:
        file.write(b"memory pids")
    found = find(proc, booted=tmp_path / "nowhere")
    assert found is not None
    assert os.fsencode(found.path) == own
    assert found.controllers == {"memory", "pids"}


@pytest.mark.skipif(os.geteuid() != 0, reason="what another user may write was handed over to it")
@pytest.mark.parametrize(("mark", "delegated"), [(b"1", True), (b"0", False), (None, False)])
def test_where_systemd_runs_the_machine_roots_group_must_bear_its_mark(tmp_path, mark, delegated):
    (tmp_path / "self").mkdir()
    (tmp_path / "unit").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"1 1 0:1 / {tmp_path} rw - cgroup2 c rw\n")
    (tmp_path / "self/cgroup").write_text("0::/unit\n")
    if mark is not None:
        try:
            os.setxattr(tmp_path, "trusted.delegate", mark)
        except OSError:
            pytest.skip("this file system has no such attributes")
    found = find(tmp_path, booted=tmp_path)
    assert found is not None
    assert found.delegated is delegated


# -- on a control group of the kernel's


WHY_NOT = why_none(find())
real = pytest.mark.skipif(bool(WHY_NOT), reason=f"no control groups: {WHY_NOT}")


@pytest.fixture
def group_of_limits():
    """Make a control group; it is ended with all that is in it."""
    with contextlib.ExitStack() as made:

        def make(limits):
            group = Groups().make(limits)
            made.callback(group.end)
            return group

        yield make
    assert homes(own_group()) == []


def started_in(group, code):
    """Start a Python that runs `code` once it is in a group."""
    process = subprocess.Popen(["python3", "-c", f"input()\n{code}"], stdin=subprocess.PIPE)
    group.add(process.pid)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    return process


@real
@pytest.mark.system
def test_the_kernel_kills_what_exceeds_its_memory_and_the_group_tells_it(group_of_limits):
    group = group_of_limits(GroupLimits(64 * MIB, 50))
    assert group.oom_kills() == 0
    assert started_in(group, f"held = b'x' * {256 * MIB}").wait() == -signal.SIGKILL
    assert group.oom_kills() > 0
    assert group.reached() == 64 * MIB


@real
@pytest.mark.system
def test_the_kernel_bounds_a_fork_bomb_and_the_groups_end_is_its_end(group_of_limits):
    group = group_of_limits(GroupLimits(0, 20))
    bomb = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
    process = started_in(group, bomb)
    (home,) = homes(own_group())
    (events,) = home.glob("*/pids.events")
    while "max 0" in events.read_text():
        os.sched_yield()
    assert len((events.parent / "cgroup.procs").read_text().split()) <= 20
    group.end()
    assert process.wait() == -signal.SIGKILL
    assert not events.exists()
