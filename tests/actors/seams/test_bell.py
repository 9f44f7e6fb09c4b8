"""A bell loses no ring, for any number of listening tasks and whatever they do meanwhile."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.seams.bell import Bell


@pytest.fixture
async def bell():
    return Bell()


async def test_a_ring_wakes_all_who_wait(bell, nursery):
    woken = []

    async def listen(name):
        await bell.next_ring()
        woken.append(name)

    for name in "abc":
        nursery.start_soon(listen, name)
    await wait_all_tasks_blocked()
    assert woken == []
    bell.ring()
    await wait_all_tasks_blocked()
    assert sorted(woken) == ["a", "b", "c"]


async def test_rings_while_a_task_is_busy_end_its_next_wait_once(bell, autojump_clock):
    heard = 0
    for _ in range(3):
        bell.ring()
    heard = await bell.wait(heard)
    assert heard == 3
    with trio.move_on_after(1) as scope:
        await bell.wait(heard)
    assert scope.cancelled_caught


async def test_each_task_hears_for_itself(bell):
    bell.ring()
    assert [await bell.wait(), await bell.wait()] == [1, 1]


async def test_a_wait_gives_others_a_turn_even_where_it_has_rung(bell):
    bell.ring()
    with trio.CancelScope() as scope:
        scope.cancel()
        await bell.wait()
    assert scope.cancelled_caught
