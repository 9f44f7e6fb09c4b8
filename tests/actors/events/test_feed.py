"""The feed in virtual time: followers that keep up, that don't, that come back, and a server that ends."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.events.families import event_blocks
from actors.events.feed import GATHERING, HEARTBEAT, EventFeed, FeedLimits
from actors.events.policy import RingLimits
from actors.seams import faults
from actors.supervision.supervisor import Supervisor
from actors.values.errors import InvalidArgument, Unavailable
from actors.values.events import LOGGED_ONLY, Event, ToldEvent, WantedEvents

BOOT = "3f2a9c1d"
ALL = WantedEvents()


def told(text, *, event=Event.MODEL_READY, model=""):
    return ToldEvent(event=event.value, level="info", model=model, text=str(text).encode())


def texts(portion):
    return [int(each.text) for _, each in portion.events]


@pytest.fixture
async def feed(nursery):
    """A feed whose actor runs in a tree; it keeps 10 events for 2 followers."""
    feed = made()
    supervisor = Supervisor([feed.spec()])
    feed.supervisor = supervisor
    await nursery.start(lambda task_status: supervisor.serve(task_status=task_status))
    return feed


def made():
    return EventFeed(FeedLimits(ring=RingLimits(entries=10, bytes=100_000), followers=2), boot=BOOT)


async def test_a_follower_first_learns_the_id_to_come_back_with(feed, autojump_clock):
    feed.tell(told(1))
    follower = feed.follow(ALL, None)
    first = await follower.take()
    assert (first.events, first.upto, first.gap) == ([], f"{BOOT}-1", False)
    feed.tell(told(2))
    assert texts(await follower.take()) == [2]


async def test_events_of_one_moment_are_one_portion(feed, autojump_clock):
    follower = feed.follow(ALL, None)
    await follower.take()
    began = trio.current_time()
    for number in range(5):
        feed.tell(told(number))
    assert texts(await follower.take()) == [0, 1, 2, 3, 4]
    assert trio.current_time() - began <= GATHERING


async def test_a_burst_wakes_a_waiting_follower_once(feed, autojump_clock):
    follower = feed.follow(ALL, None)
    await follower.take()
    taken = []

    async def follow():
        taken.append(await follower.take())
        taken.append(await follower.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        for number in range(5):
            feed.tell(told(number))
    assert [texts(each) for each in taken] == [[0, 1, 2, 3, 4], []]


async def test_where_nothing_happens_a_follower_learns_that_the_stream_lives(feed, autojump_clock):
    follower = feed.follow(WantedEvents(models=["m"]), None)
    await follower.take()
    began = trio.current_time()
    feed.tell(told(1, model="other"))
    quiet = await follower.take()
    assert (quiet.events, quiet.upto) == ([], f"{BOOT}-1")  # past what it did not want
    assert 0 < trio.current_time() - began <= HEARTBEAT + 2 * GATHERING


async def test_a_slow_follower_holds_up_nothing_and_learns_what_it_missed(feed, autojump_clock):
    slow, quick = feed.follow(ALL, None), feed.follow(ALL, None)
    await slow.take()
    await quick.take()
    for begin in range(0, 30, 10):
        for number in range(begin, begin + 10):
            feed.tell(told(number))
        assert texts(await quick.take()) == [*range(begin, begin + 10)]
    late = await slow.take()
    assert (texts(late), late.gap, late.missed) == ([*range(20, 30)], True, 20)
    assert feed.counts.missed == 20
    feed.tell(told(30))
    assert (await slow.take()).gap is False


async def test_a_client_that_comes_back_goes_on_where_it_was(feed, autojump_clock):
    for number in range(1, 6):
        feed.tell(told(number))
    assert texts(await feed.follow(ALL, f"{BOOT}-3").take()) == [4, 5]
    anew = await feed.follow(ALL, "01234567-3").take()
    assert (texts(anew), anew.gap, anew.missed) == ([1, 2, 3, 4, 5], True, None)


async def test_a_follower_of_what_there_is_ends_with_it(feed, autojump_clock):
    for number in range(3):
        feed.tell(told(number))
    follower = feed.follow(ALL, "", live=False)
    assert texts(await follower.take()) == [0, 1, 2]
    rest = [each async for each in _rest(follower)]
    assert all(not each.events for each in rest)


async def _rest(follower):
    while (portion := await follower.take()) is not None:
        yield portion


async def test_followers_are_bounded_and_a_place_that_is_given_up_is_free(feed):
    first, _second = feed.follow(ALL, None), feed.follow(ALL, None)
    with pytest.raises(Unavailable, match="2 clients follow the events of this server, and no more may"):
        feed.follow(ALL, None)
    assert (feed.counts.followers, feed.counts.refused) == (2, 1)
    first.close()
    first.close()
    assert feed.counts.followers == 1
    feed.follow(ALL, None)
    assert feed.counts.followers == 2


async def test_a_bad_id_takes_no_place(feed):
    with pytest.raises(InvalidArgument):
        feed.follow(ALL, "nonsense")
    assert feed.counts.followers == 0


async def test_a_follower_that_is_closed_while_it_waits_is_at_its_end(feed, autojump_clock):
    follower = feed.follow(ALL, None)
    await follower.take()
    ends = []

    async def follow():
        ends.append(await follower.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        follower.close()
    assert ends == [None]


async def test_draining_ends_the_streams_behind_what_was_told_but_those_that_outlive_it(feed, autojump_clock):
    usual, outliving = feed.follow(ALL, None), feed.follow(ALL, None, outlives_draining=True)
    await usual.take()
    await outliving.take()
    feed.tell(told(1, event=Event.SERVER_DRAINING))
    feed.drain()
    assert texts(await usual.take()) == [1]
    assert await usual.take() is None
    usual.close()
    assert texts(await outliving.take()) == [1]
    feed.tell(told(2))
    assert texts(await outliving.take()) == [2]
    late = feed.follow(ALL, "")
    assert texts(await late.take()) == [1, 2]
    assert await late.take() is None
    feed.tell(told(3, event=Event.SERVER_STOPPED))
    feed.close()
    assert texts(await outliving.take()) == [3]
    assert await outliving.take() is None


async def test_events_are_told_from_threads_as_well(feed, autojump_clock):
    follower = feed.follow(ALL, None)
    await follower.take()
    await trio.to_thread.run_sync(feed.tell, told(7))
    assert texts(await follower.take()) == [7]


def test_events_after_the_loops_end_are_dropped():
    async def make():
        return made()

    feed = trio.run(make)
    feed.tell(told(1))
    assert feed.kept == (0, 0)


async def test_a_crashed_actor_is_restarted_and_nothing_is_lost(feed, autojump_clock):
    follower = feed.follow(ALL, None)
    await follower.take()
    crashes = []

    def crash():
        crashes.append(1)
        if len(crashes) == 1:
            raise RuntimeError("on cue")

    points = faults.Points()
    with faults.given(points):
        points.arm("events.turn", crash)
        feed.tell(told(1))
        assert texts(await follower.take()) == [1]
        await trio.sleep(2 * HEARTBEAT)
        feed.tell(told(2))
        assert texts(await follower.take()) == [2]
    assert len(crashes) > 1
    (child,) = feed.supervisor.tree().children
    assert child.restarts == 1


async def test_the_tree_shows_what_is_kept_and_who_follows(feed, autojump_clock):
    feed.follow(ALL, None)
    for number in range(12):
        feed.tell(told(number))
    await trio.sleep(1)
    (child,) = feed.supervisor.tree().children
    assert (child.name, child.info) == ("events", {"told": 12, "kept": 10, "followers": 1})


async def test_events_are_counted_by_name_those_that_never_came_as_well(feed):
    feed.tell(told(1))
    feed.tell(told(2))
    feed.tell(told(3, event=Event.CHILD_RESTARTED))
    blocks = {block.name: block for block in event_blocks(feed)}
    counted = {each.labels.named["event"]: each.value for each in blocks["tritium_events_total"].series}
    assert counted == {
        event.value: {Event.MODEL_READY: 2, Event.CHILD_RESTARTED: 1}.get(event, 0)
        for event in Event
        if event not in LOGGED_ONLY
    }
    assert [each.value for each in blocks["tritium_event_followers"].series] == [0]
    assert blocks["tritium_events_kept_bytes"].series[0].value > 0
