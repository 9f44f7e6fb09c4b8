"""Instances that load for the first time, while others serve, start one after the other."""

import pytest
import trio
import trio.testing

from actors.serving.instances.comeback import TURN, LoadTurns
from actors.serving.standing import InstanceState
from actors.supervision.context import Stopping
from actors.values.specs import InstanceSpec


def instances(count):
    return [InstanceState(InstanceSpec(name=str(number)), str(number)) for number in range(count)]


class Starts:
    """Starts instances as `turns` lets them; `began` is when, by name."""

    def __init__(self, nursery, turns, each_of):
        self.turns = turns
        self.stopping = Stopping()
        self.began = {}
        for each in each_of:
            nursery.start_soon(self._start, each)

    async def _start(self, instance):
        await self.turns.take(instance, self.stopping)
        self.began[instance.spec.name] = trio.current_time()
        await self.turns.expire(instance)

    async def now(self):
        await trio.testing.wait_all_tasks_blocked()
        return len(self.began)


@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
async def test_half_the_cores_are_left_to_those_that_serve(nursery, autojump_clock, cores, at_once):
    starts = Starts(nursery, LoadTurns(cores), instances(10))
    assert await starts.now() == at_once


async def test_the_next_starts_when_one_serves_or_has_died(nursery, autojump_clock):
    them = instances(3)
    starts = Starts(nursery, LoadTurns(2), them)
    for number in range(1, 4):
        assert await starts.now() == number
        for each in them:
            if each.spec.name in starts.began:
                starts.turns.over(each)
    assert set(starts.began.values()) == {trio.current_time()}


async def test_nobody_waits_for_one_that_takes_long(nursery, autojump_clock):
    began = trio.current_time()
    starts = Starts(nursery, LoadTurns(2), instances(3))
    await trio.sleep(10)
    assert sorted(starts.began.values()) == pytest.approx([began, began + TURN, began + 2 * TURN])


async def test_a_turn_that_has_expired_is_not_given_back_twice(nursery, autojump_clock):
    them = instances(3)
    starts = Starts(nursery, LoadTurns(2), them)
    await trio.sleep(1.5 * TURN)
    assert len(starts.began) == 2
    first = min(starts.began, key=lambda name: starts.began[name])
    starts.turns.over(them[int(first)])
    assert await starts.now() == 2


async def test_restarts_wait_for_nobody(nursery, autojump_clock):
    them = instances(3)
    for each in them:
        each.started_once = True
    assert await Starts(nursery, LoadTurns(2), them).now() == 3


@pytest.mark.parametrize(
    "turns", [LoadTurns(2, needed=lambda: False), LoadTurns(0)], ids=["nothing serves", "no cores"]
)
async def test_while_nothing_needs_the_cores_all_start_at_once(nursery, autojump_clock, turns):
    assert await Starts(nursery, turns, instances(5)).now() == 5


async def test_one_that_is_asked_to_stop_waits_no_longer_and_takes_nobodys_turn(nursery, autojump_clock):
    first, second, third = instances(3)
    turns = LoadTurns(2)
    await turns.take(first, Stopping())
    waiting = Starts(nursery, turns, [second])
    assert await waiting.now() == 0
    waiting.stopping.set()
    assert await waiting.now() == 1
    turns.over(first)
    others = Starts(nursery, turns, [third])
    assert await others.now() == 1
