"""The collector of traces is away, under a small load."""

import random

import pytest

from chaos.faults.base import NoTarget
from chaos.faults.collector import FAULTS, SPANS, reserved_port
from tests.chaos.faults_bench import bare_stage, bench


@pytest.mark.long
@pytest.mark.system
@pytest.mark.slow
async def test_a_collector_that_is_away_costs_spans_and_no_request(tmp_path):
    with reserved_port() as port:
        async with bench(tmp_path, collector=port) as made:
            for fault in FAULTS:
                assert await made.trouble(fault) == ""
            assert await made.server.metric(SPANS, outcome="exported") == 0
            assert made.logged("traces_not_exported")
    assert not made.failed()


async def test_a_server_that_exports_nothing_is_no_target():
    with pytest.raises(NoTarget, match="can't export traces"):
        await FAULTS[0].inject(bare_stage(), random.Random(1))
