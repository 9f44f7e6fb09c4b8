"""Children by their path, at any depth, and children that a function names again at each start."""

from typing import Any

import pytest
import trio

from actors.supervision.errors import NoSuchChild
from actors.supervision.spec import Strategy
from actors.supervision.supervisor import Supervisor
from tests.support.trees import Puppet, serving, settled


async def test_a_child_at_any_depth_is_killed_by_its_path_and_restarted_by_its_own_supervisor(autojump_clock):
    leaf, beside, above = Puppet("leaf"), Puppet("beside"), Puppet("above")
    inner = Supervisor([leaf.spec(), beside.spec()])
    async with serving(Supervisor([above.spec(), inner.spec("inner/1")])) as tree:
        await settled(tree.root.kill, "inner/1/leaf")
        assert (leaf.lives, beside.lives, above.lives) == (2, 1, 1)
        assert tree.root.tree().find("inner/1/leaf").restarts == 1


async def test_a_supervisor_that_is_killed_by_its_path_comes_back_with_its_children(autojump_clock):
    leaf = Puppet("leaf")
    async with serving(Supervisor([Supervisor([leaf.spec()]).spec("inner")])) as tree:
        await settled(tree.root.kill, "inner")
        tree.check({"inner": "running", "inner/leaf": "running"})
        assert leaf.lives == 2


async def test_a_name_that_merely_begins_like_another_is_not_mistaken_for_it(autojump_clock):
    one, two = Puppet("leaf"), Puppet("leaf")
    versions = [Supervisor([one.spec()]).spec("m/1"), Supervisor([two.spec()]).spec("m/1@2")]
    async with serving(Supervisor(versions)) as tree:
        await settled(tree.root.kill, "m/1@2/leaf")
        assert (one.lives, two.lives) == (1, 2)


@pytest.mark.parametrize("path", ["nobody", "inner/nobody", "leaf/below", "inne"])
async def test_a_path_at_which_nobody_lives_is_refused_with_the_path(autojump_clock, path):
    inner = Supervisor([Puppet("child").spec()])
    async with serving(Supervisor([Puppet("leaf").spec(), inner.spec("inner")])) as tree:
        with pytest.raises(NoSuchChild, match=path):
            tree.root.kill(path)


async def test_children_that_a_function_names_are_asked_for_at_each_start(autojump_clock):
    first, second = Puppet("first"), Puppet("second")
    standing = [first]
    inner = Supervisor(lambda: [each.spec() for each in standing])
    async with serving(Supervisor([inner.spec("inner")])) as tree:
        standing.append(second)
        await inner.start_child(second.spec())
        await settled(tree.root.kill, "inner")
        tree.check({"inner": "running", "inner/first": "running", "inner/second": "running"})
        assert (first.lives, second.lives) == (2, 2)
        standing.remove(first)
        tree.root.kill("inner")
        await trio.sleep(1)  # a second death in a row is waited for
        assert inner.which_children() == ("second",)


async def test_children_that_a_function_names_are_stopped_together(autojump_clock):
    journal: list[Any] = []
    slow = [Puppet(name, journal=journal, stop_delay=2.0) for name in "ab"]
    inner = Supervisor(lambda: [each.spec(shutdown=5.0) for each in slow], strategy=Strategy.ONE_FOR_ONE)
    async with serving(inner) as tree:
        began = tree.root.tree().since
        tree.root.stop()
    assert autojump_clock.current_time() - began == pytest.approx(2.0)


async def test_a_child_named_by_a_function_that_does_not_start_is_tried_again_and_costs_no_other(
    autojump_clock,
):
    sound, broken = Puppet("sound"), Puppet("broken")
    inner = Supervisor(lambda: [broken.spec(), sound.spec()])
    async with serving(Supervisor([inner.spec("inner")])) as tree:
        broken.fail_starts = 2
        await settled(tree.root.kill, "inner")
        tree.check({"inner": "running", "inner/sound": "running", "inner/broken": "backing_off"})
        await trio.sleep(5)
        tree.check({"inner": "running", "inner/sound": "running", "inner/broken": "running"})
        assert (sound.lives, broken.lives) == (2, 4)


def test_children_that_a_function_names_are_no_group():
    with pytest.raises(ValueError, match="they can't be rest_for_one"):
        Supervisor(list, strategy=Strategy.REST_FOR_ONE)


async def test_names_that_cannot_stand_together_crash_the_supervisor_that_asked_for_them(autojump_clock):
    with pytest.raises(ValueError, match="two children are named 'twin'"):
        await Supervisor(lambda: [Puppet("twin").spec(), Puppet("twin").spec()]).serve()
