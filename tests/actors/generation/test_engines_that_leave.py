"""An engine's instance is to end, and what it was saying goes on in another one."""

import pytest
import trio

from actors.generation.moving import LAST_STEP, LOOK_EVERY, MOST_MOVING
from actors.generation.policy.placement import USUAL
from actors.values.errors import Cancelled, TritiumError, Unavailable
from actors.values.generation.asking import TEXT, Ask, Sampling
from tests.actors.generation.conftest import finish_of, generated, text_of, usage_of
from tests.support.generation_doubles import SeveralEngines


@pytest.fixture
async def leave(begin):
    """Begin a version, and have all that its engine holds leave; `gone` is set when that is over."""

    class Leave:
        def __init__(self, world):
            self.world = world
            self.gone = trio.Event()

        async def __call__(self):
            instance = self.world.engine.leaves()
            self.world.nursery.start_soon(self._vacate, instance)
            await self.world.settled()

        async def _vacate(self, instance):
            await self.world.generator.moves.vacate(instance)
            self.gone.set()

    async def make(**options):
        world = await begin(**options)
        return world, Leave(world)

    return make


def prompts(world):
    """What the engine holds and was not told to end."""
    return [world.engine.prompt(run) for run in world.engine.held if run not in world.engine.cancelled]


async def test_a_stream_goes_on_elsewhere_behind_the_last_word_of_its_engine(leave, autojump_clock):
    world, leaves = await leave()
    request = world.ask(max_tokens=12)
    await world.settled()
    run = world.run
    await world.says(run, "one ")
    await leaves()
    assert world.engine.cancelled == [run]
    assert prompts(world) == []
    await world.says(run, "two ")
    world.engine.ends(run, "3")
    await world.settled()
    assert leaves.gone.is_set()
    assert prompts(world) == ["helloone two 3"]
    told = world.engine.sampling(world.run)
    assert (told["max_tokens"], told["generated"]) == (3, 9)
    await world.says(world.run, "!", finish="stop")
    assert text_of(request) == "one two 3!"
    assert usage_of(request) == (5, 10, 0, 0)
    assert [each.attempts for each in generated(request) if getattr(each, "finish", "")] == [2]
    counts = world.generator.counts
    assert (counts.moved, counts.again, counts.onward, counts.recomputed_tokens) == (1, 0, 0, 14)


async def test_a_few_move_at_once_and_new_work_waits_for_none(leave, autojump_clock):
    world, leaves = await leave()
    requests = [world.ask(f"prompt {number}") for number in range(3 * MOST_MOVING)]
    await world.settled()
    first = list(world.engine.held)
    for run in first:
        await world.says(run, "one")
    await leaves()
    assert world.engine.cancelled == first[:MOST_MOVING]
    new = world.ask("new")
    await world.settled()
    assert "new" in prompts(world)
    for run in first[:MOST_MOVING]:
        world.engine.ends(run)
    await world.settled()
    assert len(world.engine.cancelled) == MOST_MOVING, "those have not got on yet"
    while set(first) & set(world.engine.held):
        for run in list(world.engine.held):
            if run in world.engine.cancelled:
                world.engine.ends(run)
            elif run not in first:
                await world.says(run, "+")
        await world.settled()
        moving = [run for run in world.engine.cancelled if run in world.engine.held]
        assert len(moving) <= MOST_MOVING
    assert leaves.gone.is_set()
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert {text_of(each).replace("+", "") for each in requests} == {"one!"}
    assert text_of(new).endswith("!")
    assert world.generator.counts.moved == len(requests)


async def test_what_was_broken_off_is_no_answer_of_usual_length(leave, autojump_clock):
    world, leaves = await leave()
    for _ in range(2):
        world.ask()
    await world.settled()
    first, second = world.engine.held
    await world.says(first, "one")
    await leaves()  # the second begins again
    for run in (first, second):
        world.engine.ends(run)
    await world.settled()
    assert prompts(world) == ["hello", "helloone"]
    assert world.generator.line.placement.usual == USUAL
    for run in list(world.engine.held):
        await world.says(run, "x" * 10, finish="stop")
    assert 120.0 < world.generator.line.placement.usual < USUAL


async def test_one_that_ends_before_it_hears_of_it_has_ended(leave, autojump_clock):
    world, leaves = await leave()
    request = world.ask()
    await world.settled()
    run = world.run
    await world.says(run, "one")
    await leaves()
    await world.says(run, " two", finish="stop")
    assert (text_of(request), finish_of(request)) == ("one two", [("stop", "")])
    assert leaves.gone.is_set()
    assert world.generator.counts.moved == 0
    assert world.engine.held == []


async def test_one_whose_last_id_was_its_end_has_ended(leave, autojump_clock):
    world, leaves = await leave()
    request = world.ask(max_tokens=3)
    await world.settled()
    run = world.run
    await world.says(run, "on")
    await leaves()
    world.engine.ends(run, "e")
    await world.settled()
    assert (text_of(request), finish_of(request)) == ("one", [("length", "")])
    assert world.engine.held == []


async def test_what_can_not_go_on_elsewhere_ends_where_it_is(leave, autojump_clock):
    world, leaves = await leave()
    seeded = world.ask("seeded", seed=1, temperature=1.0)
    free = world.ask("free")
    await world.settled()
    stays, goes = world.engine.held
    await world.says(stays, "one")
    await world.says(goes, "one")
    await leaves()
    assert world.engine.cancelled == [goes]
    world.engine.ends(goes)
    await world.settled_after(20.0)
    assert not leaves.gone.is_set()
    await world.says(stays, " two", finish="stop")
    assert leaves.gone.is_set()
    assert text_of(seeded) == "one two"
    await world.says(world.run, "!", finish="stop")
    assert text_of(free) == "one!"


async def test_it_has_as_long_as_a_version_that_is_replaced(leave, autojump_clock):
    world, leaves = await leave(drain_timeout=7.0)
    request = world.ask(seed=1, temperature=1.0)
    await world.settled()
    run = world.run
    await world.says(run, "one")
    await leaves()
    await world.settled_after(6.5)
    assert not request.reply.final
    await world.settled_after(1.0)
    error = generated(request)[-1]
    assert isinstance(error, Unavailable)
    assert error.message == (
        "[request id: <id_unknown>] its engine was recycled or scaled down, another engine would follow its"
        " seed from the beginning, and it did not end within the 7 s of 'tritium.drain_timeout' after that"
    )
    assert world.engine.cancelled == [run]
    assert not leaves.gone.is_set()
    world.engine.ends(run)
    await world.settled()
    assert leaves.gone.is_set()


async def test_an_engine_that_does_not_end_what_it_is_told_to_is_not_waited_for(leave, autojump_clock):
    world, leaves = await leave(drain_timeout=7.0)
    world.ask()
    await world.settled()
    await world.says(world.run, "one")
    await leaves()
    await world.settled_after(7.0 + LAST_STEP + 1.0)
    assert leaves.gone.is_set()
    world.engine.dies(blamed=False)
    await world.settled()
    assert prompts(world) == ["helloone"]


async def test_what_was_not_sent_moves_whatever_it_is(leave, autojump_clock):
    world, leaves = await leave()
    seeded = world.submit(
        Ask(TEXT, prompts=("seeded",), sampling=Sampling(seed=1, temperature=1.0), stream=False)
    )
    plain = world.submit(Ask(TEXT, prompts=("plain",), stream=False))
    await world.settled()
    first, second = world.engine.held
    await world.says(first, "one")
    await world.says(second, "one")
    await leaves()
    assert world.engine.cancelled == [first, second]
    assert prompts(world) == ["seeded"], "it begins again, and needs no last word"
    await world.says(first, " lost")
    world.engine.ends(first)
    world.engine.ends(second)
    await world.settled()
    assert prompts(world) == ["seeded", "plainone"], "none of it is lost"
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert (text_of(seeded), text_of(plain)) == ("!", "one!")


async def test_where_no_other_engine_lives_it_is_waited_for(leave, autojump_clock):
    world, leaves = await leave(drain_timeout=7.0)
    world.engine.alone = True
    requests = [world.ask("first"), world.ask("second")]
    await world.settled()
    first, second = world.engine.held
    for run in (first, second):
        await world.says(run, "one")
    await leaves()
    await world.settled_after(2.0)
    assert world.engine.cancelled == []
    world.engine.alone = False
    await world.settled_after(1.0)
    assert world.engine.cancelled == [first, second]
    for run in (first, second):
        world.engine.ends(run)
    await world.settled()
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert [text_of(each) for each in requests] == ["one!", "one!"]


async def test_at_the_end_of_its_time_all_leave_whether_there_is_another_or_not(leave, autojump_clock):
    world, leaves = await leave(drain_timeout=7.0)
    world.engine.alone = True
    request = world.ask()
    await world.settled()
    run = world.run
    await world.says(run, "one")
    await leaves()
    await world.settled_after(8.0)
    world.engine.ends(run)
    await world.settled()
    assert leaves.gone.is_set()
    assert prompts(world) == ["helloone"]
    await world.says(world.run, "!", finish="stop")
    assert text_of(request) == "one!"


async def test_it_does_not_move_to_another_model(leave, autojump_clock):
    world, leaves = await leave(drain_timeout=7.0)
    world.ask()
    await world.settled()
    await world.says(world.run, "one")
    world.engine.identity = "b"
    await leaves()
    await world.settled_after(6.0)
    assert world.engine.cancelled == []


async def test_clients_may_leave_meanwhile_and_deadlines_pass(leave, autojump_clock):
    world, leaves = await leave()
    leaver, late, moved = world.ask("leaver"), world.ask("late", deadline=3.0), world.ask("moved")
    await world.settled()
    first = list(world.engine.held)
    for run in first:
        await world.says(run, "one")
    await leaves()
    world.state.cancel(leaver)
    await world.settled_after(4.0)
    for run in first:
        world.engine.ends(run, "two")
    await world.settled()
    assert isinstance(generated(leaver)[-1], Cancelled)
    assert (text_of(late), finish_of(late)) == ("one", [("length", "deadline")])
    assert prompts(world) == ["movedonetwo"]
    await world.says(world.run, "!", finish="stop")
    assert text_of(moved) == "onetwo!"
    assert leaves.gone.is_set()


async def test_an_engine_that_dies_as_it_leaves_is_taken_over(leave, autojump_clock):
    world, leaves = await leave()
    requests = [world.ask(f"prompt {number}") for number in range(2 * MOST_MOVING)]
    await world.settled()
    for run in list(world.engine.held):
        await world.says(run, "one")
    await leaves()
    world.engine.dies(blamed=False)
    await world.settled()
    assert leaves.gone.is_set()
    assert sorted(prompts(world)) == sorted(f"prompt {number}one" for number in range(2 * MOST_MOVING))
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert {text_of(each) for each in requests} == {"one!"}


async def test_what_an_engine_refuses_meanwhile_is_told(leave, autojump_clock):
    world, leaves = await leave()
    failing, waiting = world.ask("failing"), world.ask("waiting")
    await world.settled()
    first, second = world.engine.held
    for run in (first, second):
        await world.says(run, "one")
    await leaves()
    world.engine.fails(first, TritiumError("it can't"))
    world.engine.fails(second, Cancelled(""))
    await world.settled()
    assert generated(failing)[-1].message == "it can't"
    assert prompts(world) == ["waitingone"], "its instance had not begun with it"
    await world.says(world.run, "!", finish="stop")
    assert text_of(waiting) == "one!"


async def test_while_a_suspect_is_on_trial_nothing_moves(leave, autojump_clock):
    world, leaves = await leave()
    world.ask("suspect")
    await world.settled()
    world.engine.dies()
    await world.settled()
    trial = world.run
    world.engine.held.clear()
    other = world.ask("other")
    await world.settled()
    assert world.engine.held == []
    world.engine.held.append(trial)
    await leaves()
    assert world.engine.cancelled == []
    await world.says(trial, "ok")
    assert world.engine.cancelled == [trial]
    assert prompts(world) == ["other"]
    assert not other.reply.final


async def test_none_leaves_before_another_engine_has_room_and_then_it_goes_first(begin, autojump_clock):
    engine = SeveralEngines("ab", blocks=6)
    world = await begin(engine=engine, drain_timeout=300.0)
    one, other = (world.ask(each * 8, max_tokens=16) for each in "12")
    await world.settled()
    leaving, stays = engine.held
    for run in (leaving, stays):
        await world.says(run, "+" * 5, facts={"cached": 0})
    world.nursery.start_soon(world.generator.moves.vacate, engine.ends_instance("a"))
    new = world.ask("new", max_tokens=8)
    await world.settled_after(100.0)
    assert engine.cancelled == []
    assert engine.held == [leaving, stays]
    await world.says(leaving, "still ")
    await world.says(stays, "x", finish="stop")
    await world.settled_after(LOOK_EVERY)
    assert engine.cancelled == [leaving]
    engine.ends(leaving)
    await world.settled_after(LOOK_EVERY)
    assert engine.held_by("b")[0] == "1" * 8 + "+" * 5 + "still "
    for _ in range(2):
        await world.says(engine.held[0], "there", finish="stop", facts={"cached": 0})
        await world.settled_after(LOOK_EVERY)
    assert [text_of(each) for each in (one, other, new)] == ["+++++still there", "+++++x", "there"]
