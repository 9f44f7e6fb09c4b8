"""Loads whose instances are placed first: what a refusal says, and what becomes of a placement."""

from dataclasses import replace

import pytest
import trio

from actors.catalog.catalog import ControlMode
from actors.catalog.loading import LoadFailed
from actors.values.errors import Unavailable
from actors.values.specs import InstanceSpec
from tests.support.catalog_doubles import model

OPEN = InstanceSpec(name="m_0", kind="GPU", candidates=(0, 1))


class Placed:
    """Puts every instance on GPU 1, or refuses."""

    def __init__(self):
        self.refusal = ""
        self.befores = []
        self.under_way = []

    async def place(self, spec, before=()):
        await trio.sleep(1)
        self.befores.append([each.device_id for each in before])
        if self.refusal:
            raise Unavailable(self.refusal)
        placed = replace(spec, instances=tuple(replace(each, device_id=1) for each in spec.instances))
        self.under_way.append(placed)
        return placed

    def settled(self, spec):
        self.under_way = [each for each in self.under_way if each is not spec]


async def test_a_version_is_loaded_where_it_was_placed(begin, autojump_clock):
    placing = Placed()
    world = await begin(model("m", instances=(OPEN,)), placing=placing)
    (started,) = world.tree.started
    assert [each.device_id for each in started.spec.instances] == [1]
    assert placing.under_way == []


async def test_a_version_that_may_not_be_placed_is_not_started(begin, autojump_clock):
    placing = Placed()
    placing.refusal = "the GPU is full"
    world = await begin(model("m", instances=(OPEN,)), placing=placing, extra_attempts=1)
    assert world.tree.started == []
    assert len(world.tree.ended) == len(placing.befores) == 2
    assert world.index("m") == [("m", 1, "UNAVAILABLE", "Unavailable: the GPU is full")]
    assert placing.under_way == []


async def test_where_instances_were_is_told_if_there_are_to_be_more(begin, autojump_clock):
    placing = Placed()
    world = await begin(model("m", instances=(OPEN,)), placing=placing, mode=ControlMode.EXPLICIT)
    two = (OPEN, replace(OPEN, name="m_1"))
    world.source.models["m"] = model("m", instances=two)
    await world.catalog.load("m", {})
    assert placing.befores == [[], [1]]
    assert [each.device_id for each in world.tree.scaled[0].instances] == [1, 1]
    placing.refusal = "the GPU is full"
    world.source.models["m"] = model("m", instances=(*two, replace(OPEN, name="m_2")))
    with pytest.raises(LoadFailed, match="the GPU is full"):
        await world.catalog.load("m", {})
    assert len(world.serving("m")[1].spec.instances) == 2
    assert placing.under_way == []
