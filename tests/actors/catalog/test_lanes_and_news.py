"""The bounded channels from the watcher to the catalog and from the catalog to a model's lane."""

from typing import Any

import pytest
import trio

from actors.catalog.catalog import ControlMode
from actors.catalog.lane import PLACES, ModelLane
from actors.catalog.loading import Superseded
from actors.catalog.operations import Gone, LookAt, Operation, Unload
from actors.catalog.settling import Change, Changed, Left
from actors.supervision.spec import ChildSpec
from actors.supervision.supervisor import Supervisor
from actors.values.specs import ModelKey
from tests.support.catalog_doubles import World, model
from tests.support.trees import settled

M = ModelKey("m")


class Noted(Operation):
    """An operation that notes that it was carried out."""

    gives_way = True

    def __init__(self, notes, name):
        super().__init__()
        self.notes = notes
        self.name = name

    async def carry_out(self, deployment):
        self.notes.append(self.name)


class OneLane:
    """A lane whose actor has not been started."""

    def __init__(self):
        self.world = World()
        self.over: list[Any] = []
        self.lane = ModelLane(
            M, self.world.around, "m", on_over=lambda: self.over.append(True), on_changed=lambda _: None
        )
        self.notes = []

    async def fill(self):
        for number in range(PLACES):
            await self.lane.send(Noted(self.notes, number))

    def look(self):
        return LookAt(self.world.source, self.world.catalog.parts.ensure, lambda *_: None, changed=True)


@pytest.fixture
def one():
    return OneLane()


async def run(lane, nursery):
    await nursery.start(Supervisor([ChildSpec("m", lane.run)]).serve)
    await settled()


async def test_a_caller_waits_for_a_place_and_operations_keep_their_order(one, nursery, autojump_clock):
    await one.fill()
    nursery.start_soon(one.lane.ask, Noted(one.notes, PLACES))
    await settled()
    assert not one.notes
    await run(one.lane, nursery)
    assert one.notes == list(range(PLACES + 1))
    assert not one.lane.has_work


async def test_a_caller_that_leaves_before_it_has_a_place_leaves_nothing_behind(one, nursery, autojump_clock):
    await one.fill()
    with trio.move_on_after(1):
        await one.lane.ask(Noted(one.notes, "left"))
    await run(one.lane, nursery)
    assert one.notes == list(range(PLACES))


async def test_who_tells_of_a_change_never_waits_and_hears_that_there_is_no_place(one, autojump_clock):
    await one.fill()
    assert not one.lane.tell(one.look())
    assert one.lane.has_work


async def test_one_look_that_waits_stands_for_all(one, autojump_clock):
    looks = [one.look() for _ in range(PLACES + 1)]
    assert all(one.lane.tell(each) for each in looks)


async def test_a_changed_part_is_not_forgotten_where_there_is_no_place(one, nursery, autojump_clock):
    one.lane.deployment.want(model("m", reason="a part is missing"))
    await one.fill()
    one.lane.recheck()
    one.lane.recheck()
    await run(one.lane, nursery)
    assert one.notes == list(range(PLACES))
    assert len(one.world.composed) == 1


@pytest.mark.parametrize("order", [Unload, Gone])
async def test_an_order_to_unload_does_not_wait_for_what_waits(one, nursery, autojump_clock, order):
    waiting = Noted(one.notes, "waits")
    await one.lane.send(waiting)
    await one.lane.send(order())
    assert isinstance(waiting.error, Superseded)
    await run(one.lane, nursery)
    assert not one.notes
    assert bool(one.over) is (order is Gone)


async def test_that_a_model_has_left_is_not_forgotten_where_there_is_no_place(one, nursery, autojump_clock):
    await one.fill()
    assert one.lane.tell(Gone())
    one.lane.recheck()
    await run(one.lane, nursery)
    assert not one.notes
    assert one.over
    assert not one.lane.has_work


@pytest.fixture
async def polled(nursery):
    world = World(model("m", content="a"), mode=ControlMode.POLL)
    world.tree.nursery = nursery
    await nursery.start(world.root.serve)
    await world.catalog.finished.wait()
    return world


async def test_the_catalog_acts_on_what_the_watcher_sends(polled, autojump_clock):
    polled.source.models["m"] = model("m", content="b")
    await polled.catalog.news.send(Changed(M, Change.MODIFIED))
    await trio.sleep(5)
    assert polled.swaps[-1] == ("m", [1])
    assert len(polled.swaps) == 2
    del polled.source.models["m"]
    await polled.catalog.news.send(Left(M))
    await trio.sleep(5)
    assert polled.swaps[-1] == ("m", None)


async def test_news_outlast_a_crash_of_the_catalog(polled, autojump_clock):
    for _ in range(2):  # the second restart is waited for
        polled.root.kill("catalog")
        await settled()
    polled.source.models["m"] = model("m", content="b")
    await polled.catalog.news.send(Changed(M, Change.MODIFIED))
    await settled()
    assert len(polled.swaps) == 1
    await trio.sleep(60)
    assert len(polled.swaps) == 2


async def test_a_change_that_finds_no_place_is_told_again_as_a_change(nursery, autojump_clock):
    world = World(model("m"), mode=ControlMode.EXPLICIT)
    for _ in range(PLACES):
        nursery.start_soon(world.catalog.load, "m", {})
    await settled()
    world.catalog.look_at(M, changed=True)
    assert world.could_not == [("m", True)]
