"""The machine under a real server fails for a moment, under a small load."""

import random
from types import SimpleNamespace

import psutil
import pytest
import trio

from chaos.faults import machine
from chaos.faults.base import NoTarget
from tests.chaos.faults_bench import bare_stage, bench

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
    log = tmp_path / "server" / "1.stdout.jsonl"
    async with bench(tmp_path, "--log-requests=true") as made:
        with trio.fail_after(120):
            while log.stat().st_size < 1 << 20:  # noqa: ASYNC110 (another process writes it)
                await trio.sleep(0.5)
        assert await made.trouble(DISK) == ""
        assert made.logged("log_lines_lost")
    assert not made.failed()


async def test_a_small_log_is_no_target_and_a_limit_is_lifted_from_all_who_have_it(tmp_path):
    with (tmp_path / "log").open("w") as log:
        process = await trio.lowlevel.open_process(["sleep", "60"], stdout=log)
    try:
        server = psutil.Process(process.pid)
        before = server.rlimit(psutil.RLIMIT_FSIZE)
        stage = bare_stage(server=SimpleNamespace(pid=process.pid, descendants=lambda: [server]))
        with pytest.raises(NoTarget, match="too small for a limit"):
            await DISK.inject(stage, random.Random(1))
        lift = machine.limit(stage, 1234)
        assert server.rlimit(psutil.RLIMIT_FSIZE)[0] == 1234
        lift()
        assert server.rlimit(psutil.RLIMIT_FSIZE) == before
    finally:
        process.kill()
        await process.wait()
