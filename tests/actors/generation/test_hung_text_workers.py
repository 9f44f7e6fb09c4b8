"""Text workers that do nothing with what they were given, in virtual time."""

from tests.actors.generation.conftest import text_of
from tests.support.generation_doubles import FakeTextWorker


async def test_a_text_worker_that_says_nothing_is_replaced_and_its_streams_go_on(begin, autojump_clock):
    first = FakeTextWorker()
    world = await begin(workers=[first], hang_within=20.0)
    request = world.ask()
    await world.settled()
    await world.says(world.run, "one ")
    first.silent = True
    await world.says(world.run, "two ")
    await world.settled_after(19.0)
    assert (text_of(request), len(world.workers.made)) == ("one ", 1)
    assert "ping" in first.orders
    await world.settled_after(5.0)
    assert len(world.workers.made) == 2
    assert text_of(request) == "one two "
    await world.says(world.run, "three", finish="stop")
    assert text_of(request) == "one two three"
    (trouble,) = world.text_troubles
    assert "no sign of life for 20 s" in str(trouble)


async def test_a_text_worker_that_has_nothing_to_tell_is_asked_for_a_sign_and_lives(begin, autojump_clock):
    world = await begin(hang_within=20.0)
    request = world.ask()
    await world.settled()
    await world.settled_after(1000.0)
    assert world.workers.made[0].orders.count("ping") > 10
    await world.says(world.run, "one", finish="stop")
    assert text_of(request) == "one"
    world.workers.made[0].orders.clear()
    await world.settled_after(1000.0)
    assert (world.workers.made[0].orders, world.text_troubles) == ([], []), "without streams it is left alone"


async def test_a_text_worker_may_be_silent_for_ever_where_that_is_said(begin, autojump_clock):
    world = await begin(workers=[FakeTextWorker(silent=True)])
    world.ask()
    await world.settled_after(10_000.0)
    assert len(world.workers.made) == 1
