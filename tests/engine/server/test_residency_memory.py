"""What the kernel and the file system say about memory (`engine.server.residency`)."""

import mmap
import os
import subprocess
import sys

import pytest

from engine.server.residency import Memory, bytes_on_disk, memory_available, memory_total, resident_bytes
from engine.settings.forms import SettingsError, to_memory

GIB = 2**30


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "resident"),
    [
        ("smaps_rollup", "55f4-7ffe ---p 00000000 [rollup]\nRss:  900 kB\nPss:  312 kB\n", 312 * 1024),
        ("statm", "5000 250 10 1 0 100 0\n", 250 * os.sysconf("SC_PAGE_SIZE")),
    ],
    ids=["its share of what it shares", "all it has resident, where that is not told"],
)
def test_a_process_takes_what_the_kernel_tells(tmp_path, file, text, resident):
    write(tmp_path / "7" / file, text)
    assert resident_bytes(7, tmp_path) == resident


def test_one_that_has_ended_takes_nothing(tmp_path):
    assert resident_bytes(7, tmp_path) is None


def test_memory_that_a_process_takes_is_seen():
    before = resident_bytes(os.getpid()) or 0
    with mmap.mmap(-1, 16 * 2**20) as taken:
        taken.write(b"\1" * len(taken))
        grown = (resident_bytes(os.getpid()) or 0) - before
    assert 12 * 2**20 < grown < 48 * 2**20


@pytest.fixture
def child():
    """A process that ends when the test says so."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.system
async def test_processes_are_measured_together_and_the_ended_left_out(child):
    sizes = await Memory().of_processes({child.pid, os.getpid()})
    assert sizes.keys() == {child.pid, os.getpid()}
    assert all(size > 0 for size in sizes.values())
    child.communicate(b"\n")
    assert await Memory().of_processes({child.pid}) == {}


async def test_files_are_counted_however_deep_and_what_cannot_be_seen_is_not(tmp_path):
    write(tmp_path / "model.onnx", "x" * 100)
    write(tmp_path / "weights" / "1.bin", "x" * 1000)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert await Memory().of_files(tmp_path) == 1100
    assert bytes_on_disk(tmp_path / "nowhere") == 0


@pytest.fixture
def machine(tmp_path):
    """A /proc and a /sys/fs/cgroup for one test."""
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", "MemTotal:       16777216 kB\nMemFree: 5 kB\n")
    return proc, cgroup


SERVICE = "system.slice/tritium.service"


@pytest.mark.parametrize(
    ("group", "limits", "total"),
    [
        pytest.param("", {}, 16, id="no control groups"),
        pytest.param("0::/", {"memory.max": "max"}, 16, id="no limit"),
        pytest.param("0::/", {"memory.max": 4 * GIB}, 4, id="a lower limit"),
        pytest.param("0::/", {"memory.max": 64 * GIB}, 16, id="a higher limit"),
        pytest.param(
            f"0::/{SERVICE}",
            {f"{SERVICE}/memory.max": "max", "system.slice/memory.max": 8 * GIB},
            8,
            id="the lowest limit on the way up",
        ),
        pytest.param(
            "5:cpu,cpuacct:/box\n4:memory:/box",
            {
                "memory/box/memory.limit_in_bytes": 2 * GIB,
                "memory/memory.limit_in_bytes": 9223372036854771712,
            },
            2,
            id="the first version of control groups",
        ),
    ],
)
def test_a_control_groups_limit_counts_where_it_is_lower(machine, group, limits, total):
    proc, cgroup = machine
    if group:
        write(proc / "self" / "cgroup", f"{group}\n")
    for file, limit in limits.items():
        write(cgroup / file, f"{limit}\n")
    assert memory_total(*machine) == total * GIB


def test_a_machine_that_does_not_tell_its_memory_is_a_mistake(machine):
    proc, cgroup = machine
    write(proc / "meminfo", "MemFree: 5 kB\n")
    with pytest.raises(ValueError, match="no MemTotal"):
        memory_total(proc, cgroup)


@pytest.mark.parametrize(
    ("group", "files", "available"),
    [
        pytest.param("", {}, 8, id="no control groups"),
        pytest.param("0::/", {"memory.max": "max", "memory.current": GIB}, 8, id="no limit"),
        pytest.param(
            f"0::/{SERVICE}",
            {
                f"{SERVICE}/memory.max": 6 * GIB,
                f"{SERVICE}/memory.current": 5 * GIB,
                f"{SERVICE}/memory.stat": f"anon 7\ninactive_file {2 * GIB}\n",
                "system.slice/memory.max": 64 * GIB,
                "system.slice/memory.current": 60 * GIB,
                "system.slice/memory.stat": "anon 7",
            },
            3,
            id="a control group has less left; files that are cached do not count",
        ),
        pytest.param(
            "0::/",
            {"memory.max": GIB, "memory.current": 2 * GIB, "memory.stat": ""},
            0,
            id="a limit that was lowered",
        ),
        pytest.param("0::/", {"memory.max": GIB}, 8, id="a control group that does not tell its use"),
        pytest.param(
            "4:memory:/box",
            {
                "memory/box/memory.limit_in_bytes": 2 * GIB,
                "memory/box/memory.usage_in_bytes": 2 * GIB,
                "memory/box/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\n",
            },
            1,
            id="the first version of control groups",
        ),
    ],
)
def test_what_is_left_is_the_machines_or_a_control_groups_if_that_is_less(machine, group, files, available):
    proc, cgroup = machine
    write(proc / "meminfo", f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    if group:
        write(proc / "self" / "cgroup", f"{group}\n")
    for file, text in files.items():
        write(cgroup / file, f"{text}\n")
    assert memory_available(*machine) == available * GIB


def test_what_is_left_is_not_known_where_the_kernel_does_not_tell(machine, tmp_path):
    assert memory_available(*machine) is None
    assert memory_available(tmp_path / "nowhere") is None


def test_this_machine_has_memory():
    assert (memory_available() or 0) > 0
    assert memory_total() > 2**28


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("8GiB", 8 * GIB),
        ("1.5 GiB", 3 * GIB // 2),
        ("500MB", 500_000_000),
        ("1000000", 1_000_000),
        ("80%", 8 * GIB),
        (" 12.5 % ", 5 * GIB // 4),
        ("100%", 10 * GIB),
    ],
)
def test_a_limit_is_a_size_or_a_share_of_what_there_is(text, limit):
    assert to_memory(text, 10 * GIB, "resident-memory-limit") == limit


@pytest.mark.parametrize("text", ["", "much", "0", "-1", "8 apples", "0%", "101%", "-5%", "nan%", "%", "x%"])
def test_what_is_no_limit_is_refused_with_what_would_be_one(text):
    with pytest.raises(SettingsError) as error:
        to_memory(text, 10 * GIB, "resident-memory-limit")
    assert "resident-memory-limit" in error.value.hint
