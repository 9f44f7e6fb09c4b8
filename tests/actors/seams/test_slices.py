"""Long work comes in slices, shares one turn, and makes way for short batches."""

import threading
from typing import Any

import pytest
import trio

from actors.seams import slices
from actors.seams.slices import REST_SECONDS, Pace, in_slices, in_threads, passing
from actors.seams.steps import at_once


@pytest.fixture
async def short_slices():
    """Each step takes a turn of its own, on any machine."""
    slices.give(Pace(slice=0.0, unrested=0.0))


def counting(done, name, steps):
    for _ in range(steps):
        done.append(name)
        yield None
    return name


async def test_long_work_alone_never_rests(short_slices, autojump_clock):
    assert await in_slices(counting([], "long", 100)) == "long"
    assert trio.current_time() == 0


async def test_long_work_rests_once_for_short_batches_that_have_passed(short_slices, autojump_clock):
    done = []

    def work():
        for step in range(6):
            if step in {2, 4}:
                passing.batches += 3
            done.append(trio.current_time())
            yield None

    await in_slices(work())
    assert done == pytest.approx([0, 0, 0, REST_SECONDS, REST_SECONDS, 2 * REST_SECONDS])


async def test_work_that_is_not_very_long_never_rests(short_slices, autojump_clock):
    slices.give(Pace(slice=0.0, unrested=60.0))
    await in_slices(counting([], "before", 1))
    passing.batches += 1
    await in_slices(counting([], "long", 3))
    assert trio.current_time() == 0


async def test_while_one_rests_no_other_long_work_goes_on(short_slices, autojump_clock):
    """Long works share the core that the short batch is to have."""
    done: list[Any] = []
    await in_slices(counting([], "before", 1))
    passing.batches += 1
    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(in_slices, counting(done, name, 3))
        await trio.sleep(REST_SECONDS / 2)
        assert done == []
    assert sorted(done) == ["a", "a", "a", "b", "b", "b"]
    assert trio.current_time() == pytest.approx(REST_SECONDS)


async def test_long_works_take_turns(short_slices):
    done: list[Any] = []
    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(in_slices, counting(done, name, 3))
    assert done in (list("ababab"), list("bababa"))


async def test_work_whose_caller_leaves_is_closed(short_slices):
    closed: list[Any] = []

    def work():
        try:
            while True:
                scope.cancel()
                yield None
        finally:
            closed.append(True)

    with trio.CancelScope() as scope:
        await in_slices(work())
    assert closed == [True]


async def test_work_whose_caller_leaves_as_its_turn_comes_gives_no_result(short_slices):
    """Its caller would go on without a checkpoint, and give a model what no client waits for."""
    scopes = [trio.CancelScope() for _ in range(2)]
    ended: list[int] = []

    async def caller(own):
        with scopes[own]:
            await in_slices(counting([], "work", 1))
            ended.append(own)
            scopes[1 - own].cancel()  # which has just been given the turn

    async with trio.open_nursery() as nursery:
        for own in range(2):
            nursery.start_soon(caller, own)
    assert len(ended) == 1


def naming_threads():
    names = []
    for _ in range(3):
        names.append(threading.get_ident())
        yield None
    return names


async def test_steps_in_threads_leave_the_loop_alone(short_slices):
    names = await in_slices(in_threads(naming_threads()))
    assert len(names) == 3
    assert threading.get_ident() not in names


def test_steps_for_threads_can_be_done_at_once():
    assert at_once(in_threads(naming_threads())) == [threading.get_ident()] * 3


async def test_what_a_step_in_a_thread_raises_is_raised(short_slices):
    def work():
        yield None
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await in_slices(in_threads(work()))
