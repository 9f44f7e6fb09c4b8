"""Waits that take turns: a function is called in the place of a task."""

import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from protocols.transport.readiness import DIRECT, Readiness


class Turns:
    """One connection's turns: what each reads, and what it returns."""

    def __init__(self, waits, ours, theirs):
        self.waits = waits
        self.ours = ours
        self.theirs = theirs
        self.read = []
        self.enough = True  # what turns return
        self.ended = 0

    def turn(self):
        try:
            self.read.append(self.ours.recv(100))
        except BlockingIOError:
            self.read.append(None)
        return self.enough

    async def wait(self):
        try:
            await self.waits.turns(self.turn)
        finally:
            self.ended += 1


@asynccontextmanager
async def connected(place):
    """Yield a nursery, and the turns of the connection that came as number `place`."""
    readiness = Readiness(turns=True)
    pairs = [socket.socketpair() for _ in range(place + 1)]
    for ours, _ in pairs:
        ours.setblocking(False)
    waits = [readiness.waits(ours) for ours, _ in pairs][-1]
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.run)
            yield nursery, Turns(waits, *pairs[-1])
            nursery.cancel_scope.cancel()
    waits.end()
    for pair in pairs:
        for each in pair:
            each.close()
    readiness.close()


@pytest.fixture(params=[0, DIRECT], ids=["oldest", "one of a crowd"])
async def scene(request):
    async with connected(request.param) as (nursery, turns):
        yield nursery, turns


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_turns_are_taken_until_one_is_not_enough(scene):
    nursery, turns = scene
    nursery.start_soon(turns.wait)
    for number in range(3):
        turns.theirs.send(b"%d" % number)
        await until(lambda: len(turns.read) > number)  # noqa: B023
    assert (turns.read, turns.ended) == ([b"0", b"1", b"2"], 0)
    turns.enough = False
    turns.theirs.send(b"3")
    await until(lambda: turns.ended)
    turns.theirs.send(b"4")
    await trio.testing.wait_all_tasks_blocked()
    assert turns.read == [b"0", b"1", b"2", b"3"]


async def test_what_came_while_no_turns_were_taken_is_told(scene):
    nursery, turns = scene
    for number, (first, second) in enumerate(((b"0", b"1"), (b"2", b"3"))):
        turns.theirs.send(first)
        turns.enough = True
        nursery.start_soon(turns.wait)
        await until(lambda: first in turns.read)  # noqa: B023
        turns.enough = False
        turns.theirs.send(second)
        await until(lambda: turns.ended > number)  # noqa: B023
    assert turns.read == [b"0", b"1", b"2", b"3"]


async def test_an_end_that_comes_with_the_last_bytes_is_told_too(scene):
    nursery, turns = scene
    turns.theirs.send(b"last")
    turns.theirs.close()
    nursery.start_soon(turns.wait)
    await until(lambda: len(turns.read) >= 2)
    assert turns.read[:2] == [b"last", b""]


@pytest.mark.parametrize("first", [b"", b"first"], ids=["before any turn", "after a turn"])
async def test_a_task_that_waits_for_turns_is_roused(scene, first):
    nursery, turns = scene
    roused = []

    async def wait():
        with pytest.raises(trio.ClosedResourceError):
            await turns.wait()
        roused.append(True)

    nursery.start_soon(wait)
    if first:
        turns.theirs.send(first)
        await until(lambda: turns.read)
    await trio.testing.wait_all_tasks_blocked()
    turns.waits.rouse()
    await until(lambda: roused)


async def test_a_turn_may_rouse_its_own_task(scene):
    nursery, turns = scene
    turn, roused = turns.turn, []

    def turn_and_rouse():
        turns.waits.rouse()
        return turn()

    async def wait():
        try:
            await turns.wait()
        except trio.ClosedResourceError:
            roused.append(True)

    nursery.start_soon(wait)
    turns.theirs.send(b"1")
    await until(lambda: turns.read)
    turns.turn = turn_and_rouse
    turns.enough = False
    turns.theirs.send(b"2")
    await until(lambda: turns.ended)
    assert turns.read == [b"1", b"2"]


async def test_a_cancelled_wait_takes_no_more_turns(scene):
    _, turns = scene
    async with trio.open_nursery() as inner:
        inner.start_soon(turns.wait)
        turns.theirs.send(b"1")
        await until(lambda: turns.read)
        await trio.testing.wait_all_tasks_blocked()
        inner.cancel_scope.cancel()
    turns.theirs.send(b"2")
    await trio.testing.wait_all_tasks_blocked()
    assert turns.read == [b"1"]
