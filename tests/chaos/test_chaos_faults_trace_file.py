"""The disk under the trace file is full, under a small load."""

import random

import pytest

from chaos.faults.base import NoTarget
from chaos.faults.trace_file import FAULTS, LOST, file_flags, trace_file
from tests.chaos.faults_bench import bare_stage, bench


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
async def test_a_full_disk_costs_traces_and_no_request_each_time(tmp_path):
    (full,) = FAULTS
    async with bench(tmp_path, *file_flags(tmp_path)) as made:
        for _ in range(2):
            injection = await made.strike(full)
        await made.until_logged(injection)
        assert len(made.logged("traces_lost")) == 2
        assert await made.server.metric(LOST, reason="sink") > 0
        assert await made.server.metric(LOST, reason="queue") == 0
    assert not made.failed()
    assert trace_file(tmp_path).is_symlink()


async def test_a_server_that_writes_no_traces_is_no_target(tmp_path):
    with pytest.raises(NoTarget, match="writes no traces"):
        await FAULTS[0].inject(bare_stage(tmp_path), random.Random(1))
