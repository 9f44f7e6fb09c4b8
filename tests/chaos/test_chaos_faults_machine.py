"""The machine under a real server fails for a moment, under a small load."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from chaos.faults import machine
from chaos.faults.base import NoTarget
from tests.chaos.faults_bench import bench

pytestmark = pytest.mark.system

CLOCK, DISK, STOP = machine.FAULTS


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_a_clock_that_jumps_and_a_machine_that_stands_still_fail_no_request(tmp_path, seed):
    async with bench(tmp_path) as made:
        for fault in (CLOCK, STOP):
            assert await made.trouble(fault, seed) == ""
            await made.until_logged(made.injections[-1])
        assert not made.logged("worker_exited")
    assert {each.code for each in made.failed()} <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}


@pytest.mark.long
async def test_a_full_disk_costs_log_lines_which_are_told_and_nothing_else(tmp_path):
    with machine.own_disk(empty(tmp_path / "probe")) as allowed:
        pass
    if not allowed:
        pytest.skip("this user may not mount a file system")
    async with bench(tmp_path, disk=True) as made:
        assert await made.trouble(DISK) == ""
    log = (tmp_path / "server" / "1.stdout.jsonl").read_text()
    assert "log lines were lost)\n{" in log
    assert not made.failed()


async def test_a_log_that_shares_its_disk_and_is_small_is_no_target(tmp_path):
    with (tmp_path / "log").open("w") as log:
        process = sleeper(stdout=log)
        try:
            stage = SimpleNamespace(server=SimpleNamespace(pid=process.pid), folder=tmp_path)
            with pytest.raises(NoTarget, match="too small for a limit"):
                await DISK.inject(stage, None)
        finally:
            end(process)


def test_a_limit_on_the_size_of_files_is_lifted_from_all_who_have_inherited_it(tmp_path):
    process = sleeper()
    try:
        server = psutil.Process(process.pid)
        before = server.rlimit(psutil.RLIMIT_FSIZE)
        stage = SimpleNamespace(server=SimpleNamespace(pid=process.pid, descendants=lambda: [server]))
        detail, lift = machine.limit(stage, 1234)
        assert "1234 bytes" in detail
        assert server.rlimit(psutil.RLIMIT_FSIZE)[0] == 1234
        lift()
        assert server.rlimit(psutil.RLIMIT_FSIZE) == before
    finally:
        end(process)


def test_what_is_on_a_disk_of_its_own_is_there_afterwards(tmp_path):
    folder = empty(tmp_path / "own")
    with machine.own_disk(folder) as allowed:
        (folder / "log").write_text("line\n")
        assert folder.is_mount() is allowed
    assert (folder / "log").read_text() == "line\n"
    assert not folder.is_mount()
    assert os.listdir(tmp_path) == ["own"]


def empty(folder):
    folder.mkdir()
    return folder


def sleeper(**options):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
