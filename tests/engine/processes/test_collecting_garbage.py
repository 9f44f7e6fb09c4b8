"""When garbage is collected in full, and what becomes of young waste meanwhile."""

import gc
import weakref

import pytest
import trio

from engine.processes.collecting import PERIOD, CollectionPolicy, FullCollection, collect_garbage

POLICY = CollectionPolicy(every=60.0, longest=0.010, at_last=3600.0)
LAST = FullCollection(at=100.0, blocks=1_000_000, cost=1e-7)
FEW = 50_000  # blocks that take 5 ms


class Cycle:
    """Waste that only the collector frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize(
    ("blocks", "after", "due"),
    [
        (FEW, 59.0, False),
        (FEW, 60.0, True),
        (2_000_000, 60.0, False),
        (2_000_000, 3599.0, False),
        (2_000_000, 3600.0, True),
        (1_100_000, 3600.0, False),
    ],
)
def test_a_full_collection_waits_while_it_would_be_long(blocks, after, due):
    assert POLICY.due(blocks, LAST, LAST.at + after) is due


@pytest.fixture
async def collecting(autojump_clock):
    before = gc.get_threshold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_garbage, CollectionPolicy(every=60.0, longest=1e9))
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()
    assert gc.get_threshold() == before


async def test_young_waste_is_gone_soon(autojump_clock, collecting):
    waste = weakref.ref(Cycle())
    await trio.sleep(2 * PERIOD)
    assert waste() is None


async def test_old_waste_is_gone_with_the_next_full_collection(autojump_clock, collecting):
    old = Cycle()
    await trio.sleep(2 * PERIOD)
    waste = weakref.ref(old)
    del old
    await trio.sleep(2 * PERIOD)
    assert waste() is not None
    await trio.sleep(60)
    assert waste() is None


async def test_the_interpreter_begins_no_full_collection_itself(collecting):
    full = gc.get_stats()[2]["collections"]
    kept: list[list[int]] = [[] for _ in range(300_000)]
    assert gc.get_stats()[2]["collections"] == full
    assert len(kept) == 300_000
