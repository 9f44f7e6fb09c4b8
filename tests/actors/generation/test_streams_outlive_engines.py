"""An engine dies, and what it was saying goes on in another one, or begins again, or says why it can't."""

import pytest
import trio

from actors.generation.generator import STARTED_AT_ONCE
from actors.serving.policy.blame import QUARANTINE_SECONDS
from actors.values.errors import Poisoned, TritiumError, Unavailable
from actors.values.events import Event
from actors.values.generation.asking import TEXT, Ask, Sampling
from actors.values.specs import LanguageServing
from actors.wire.text_frames import pack_ids
from tests.actors.generation.conftest import finish_of, generated, text_of, usage_of


async def test_a_stream_goes_on_behind_what_it_has_said(begin, autojump_clock):
    world = await begin()
    request = world.ask(max_tokens=9, min_tokens=4)
    await world.settled()
    await world.says(world.run, "one ")
    world.engine.dies()
    await world.settled()
    assert world.engine.prompt(world.run) == "helloone "
    told = world.engine.sampling(world.run)
    assert (told["max_tokens"], told["min_tokens"], told["generated"]) == (5, 0, 4)
    await world.says(world.run, "two", finish="stop")
    assert text_of(request) == "one two"
    assert finish_of(request) == [("stop", "")]
    assert usage_of(request) == (5, 7, 0, 0)
    assert (world.generator.counts.again, world.generator.counts.onward) == (0, 1)
    assert world.generator.counts.recomputed_tokens == 9


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_not_sent_begins_again(begin, autojump_clock, stream):
    world = await begin()
    request = world.submit(
        Ask(TEXT, prompts=("hello",), sampling=Sampling(n=2, seed=3, temperature=1.0), stream=stream)
    )
    await world.settled()
    if not stream:
        for run in list(world.engine.held):
            await world.says(run, "lost")
    assert text_of(request) == ""
    world.engine.dies(blamed=False)
    await world.settled()
    first, second = world.engine.held
    assert [world.engine.prompt(run) for run in (first, second)] == ["hello", "hello"]
    assert "generated" not in world.engine.sampling(first)
    await world.says(first, "one", finish="stop")
    await world.says(second, "two", finish="stop")
    assert [text_of(request, choice) for choice in (0, 1)] == ["one", "two"]
    assert usage_of(request) == (5, 6, 0, 0)


async def test_a_choice_that_has_ended_keeps_its_text(begin, autojump_clock):
    world = await begin()
    request = world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(n=2), stream=False))
    await world.settled()
    first, second = world.engine.held
    await world.says(first, "one", finish="stop")
    await world.says(second, "tw")
    world.engine.dies()
    await world.settled()
    await world.says(world.run, "two", finish="stop")
    assert [text_of(request, choice) for choice in (0, 1)] == ["one", "two"]


async def test_what_had_ended_with_its_engine_is_told_so(begin, autojump_clock):
    world = await begin(context=12)
    ended = world.ask(temperature=0.0)
    await world.settled()
    await world.says(world.run, "one\0")  # the tokenizer's end of a text
    world.engine.dies()
    await world.settled()
    assert world.engine.held == []
    assert finish_of(ended) == [("stop", "")]
    full = world.ask()
    await world.settled()
    await world.says(world.run, "seven l")
    world.engine.dies()
    await world.settled()
    assert (text_of(full), finish_of(full)) == ("seven l", [("length", "")])


async def test_a_stream_that_can_not_go_on_says_why(begin, autojump_clock):
    world = await begin()
    request = world.ask(seed=1, temperature=0.5)
    await world.settled()
    await world.says(world.run, "one")
    world.engine.dies()
    await world.settled()
    error = generated(request)[-1]
    assert isinstance(error, Unavailable)
    assert error.message == (
        "[request id: <id_unknown>] the engine died, and another engine would follow its seed from the"
        " beginning"
    )
    world.engine.resumes = ["seeds"]
    request = world.ask(seed=1, temperature=0.5)
    await world.settled()
    await world.says(world.run, "one")
    world.engine.dies()
    await world.settled()
    await world.says(world.run, "!", finish="stop")
    assert text_of(request) == "one!"


async def test_nothing_goes_on_where_that_is_not_wanted(begin, autojump_clock):
    world = await begin(serving=LanguageServing(resume=False))
    request = world.ask()
    await world.settled()
    world.engine.dies()
    await world.settled()
    assert "(tritium.resume)" in generated(request)[-1].message


async def test_waiting_for_another_engine_ends_in_time(begin, autojump_clock):
    world = await begin(room=1)
    request = world.ask()
    await world.settled()
    await world.says(world.run, "one")
    world.engine.dies()
    world.engine.room = 0
    await world.settled_after(59.0)
    assert text_of(request) == "one"
    assert not request.reply.final
    await world.settled_after(2.0)
    error = generated(request)[-1]
    assert "no other took over within 60 s (tritium.resume_within)" in error.message


async def test_the_deadline_counts_meanwhile(begin, autojump_clock):
    world = await begin()
    request = world.ask(deadline=5.0)
    await world.settled()
    await world.says(world.run, "one")
    world.engine.dies()
    world.engine.room = 0
    await world.settled_after(6.0)
    assert (text_of(request), finish_of(request)) == ("one", [("length", "deadline")])


async def test_suspects_begin_again_one_at_a_time_and_the_one_that_kills_is_poisoned(begin, autojump_clock):
    world = await begin()
    old = world.ask("old")
    await world.settled()
    await world.says(world.run, "it says something")
    young, poison = world.ask("young"), world.ask("poison")
    await world.settled()
    world.engine.dies()
    await world.settled()
    # The old one is innocent, as others were in their first steps. Of these, one is on trial.
    assert [world.engine.prompt(run) for run in world.engine.held] == ["oldit says something", "young"]
    new = world.ask("new")
    await world.settled()
    assert len(world.engine.held) == 2, "a trial goes on"
    await world.says(world.engine.held[0], " more")
    await world.says(world.engine.held[1], "ok")
    assert [world.engine.prompt(run) for run in world.engine.held][2:] == ["poison"]
    world.engine.dies()
    await world.settled()
    assert isinstance(generated(poison)[-1], Poisoned)
    assert sorted(world.engine.prompt(run) for run in world.engine.held) == [
        "new",
        "oldit says something more",
        "youngok",
    ]
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert [text_of(each) for each in (old, young, new)] == ["it says something more!", "ok!", "!"]
    assert world.state.statistics.quarantined == 1


async def poisoned(world, prompt="poison"):
    """Ask for something that kills two engines; return the request."""
    request = world.ask(prompt)
    for _ in range(2):
        await world.settled()
        world.engine.dies()
    await world.settled()
    assert isinstance(generated(request)[-1], Poisoned)
    return request


async def test_the_like_of_a_poisonous_request_is_refused_at_once_for_a_while(begin, autojump_clock):
    lines = []
    world = await begin(log=lambda event, **keys: lines.append((event, keys)))
    await poisoned(world)
    with pytest.raises(Poisoned, match="the same inputs are refused for 600 s"):
        world.ask("poison")
    assert world.state.statistics.quarantined == 2
    ((event, keys),) = lines
    assert (event, keys["reason"], keys["seconds"]) == (
        Event.REQUEST_QUARANTINED,
        "the engine died",
        QUARANTINE_SECONDS,
    )
    for innocent in ("poison!", "another"):
        request = world.ask(innocent)
        await world.settled()
        await world.says(world.run, "ok", finish="stop")
        assert text_of(request) == "ok"
    await trio.sleep(QUARANTINE_SECONDS)
    world.ask("poison")
    await world.settled()
    assert world.engine.prompt(world.run) == "poison"


async def test_what_waits_as_its_like_is_found_out_is_refused_in_its_turn(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1))
    first, like, other = world.ask("poison"), world.ask("poison"), world.ask("other")
    for _ in range(2):
        await world.settled()
        world.engine.dies()
    await world.settled()
    assert all(isinstance(generated(each)[-1], Poisoned) for each in (first, like))
    assert world.engine.prompt(world.run) == "other"
    await world.says(world.run, "ok", finish="stop")
    assert text_of(other) == "ok"


async def test_deaths_under_many_streams_quarantine_no_innocent_one(begin, autojump_clock):
    world = await begin()
    requests = [world.ask(f"prompt {number}", max_tokens=90) for number in range(16)]
    await world.settled()
    for death in range(8):
        for _ in range(16):  # they begin again one at a time
            for run in list(world.engine.held):
                await world.says(run, "said ")
            await world.settled()
        if death % 2:
            world.engine.dies(blamed=death % 4 == 1)
        else:
            poison = world.ask(f"poison {death}", max_tokens=90)
            await world.settled()
            world.engine.dies()
            await world.settled()
            while not poison.reply.final:
                for run in list(world.engine.held):
                    if not world.engine.prompt(run).startswith("poison"):
                        await world.says(run, "said ")
                if any(world.engine.prompt(run).startswith("poison") for run in world.engine.held):
                    world.engine.dies()
                await world.settled()
            assert isinstance(generated(poison)[-1], Poisoned)
        await world.settled()
    assert world.state.statistics.quarantined == 4
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert not any(isinstance(part, Poisoned) for each in requests for part in generated(each))
    for number in range(16):
        world.ask(f"prompt {number}")


async def test_a_client_may_leave_while_it_is_on_trial_or_waits_for_that(begin, autojump_clock):
    world = await begin()
    first, second, third = (world.ask(name) for name in ("first", "second", "third"))
    await world.settled()
    world.engine.dies()
    await world.settled()
    assert world.engine.prompt(world.run) == "first"
    world.state.cancel(second)
    world.state.cancel(first)
    await world.settled()
    assert world.engine.prompt(world.run) == "third"
    assert all(isinstance(generated(each)[-1], TritiumError) for each in (first, second))
    await world.says(world.run, "3", finish="stop")
    assert text_of(third) == "3"


async def test_deaths_from_outside_suspect_none_until_they_repeat(begin, autojump_clock):
    world = await begin()
    requests = [world.ask(f"prompt {number}") for number in range(3)]
    await world.settled()
    for _ in range(2):
        world.engine.dies(blamed=False)
        await world.settled()
        assert len(world.engine.held) == 3
    world.engine.dies(blamed=False)
    await world.settled()
    assert len(world.engine.held) == 1
    for _ in range(9):
        world.engine.dies(blamed=False)
        await world.settled()
    assert all("is not tried once more" in generated(each)[-1].message for each in requests)


async def test_what_gets_on_between_deaths_is_tried_again_a_few_times(begin, autojump_clock):
    world = await begin()
    request = world.ask(max_tokens=90)
    await world.settled()
    for _ in range(5):
        await world.says(world.run, "more")
        world.engine.dies()
        await world.settled()
    await world.says(world.run, "more")
    world.engine.dies()
    await world.settled()
    assert "is not tried once more" in generated(request)[-1].message


async def test_an_engine_that_refuses_what_is_resumed(begin, autojump_clock):
    world = await begin()
    request = world.ask()
    await world.settled()
    await world.says(world.run, "one")
    world.engine.refusal = Unavailable("it is full for good")
    world.engine.dies()
    await world.settled()
    assert generated(request)[-1].message == "it is full for good"


async def test_an_answer_does_not_go_on_in_another_model(begin, autojump_clock):
    world = await begin()
    request = world.ask()
    await world.settled()
    await world.says(world.run, "one")
    world.engine.dies()
    await world.settled()
    world.engine.identity = "b"
    await world.says(world.run, "two")
    assert "has loaded other files" in generated(request)[-1].message
    assert text_of(request) == "one"
    assert world.engine.held == []


async def test_many_choices_that_wait_for_their_end_are_joined_now_and_then(begin, autojump_clock):
    world = await begin(context=1000)
    request = world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling(n=40), stream=False))
    await world.settled()
    for _ in range(5):
        for run in world.engine.held:
            await world.says(run, "more ")
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    assert [text_of(request, choice) for choice in range(40)] == ["more " * 5 + "!"] * 40


async def test_what_comes_while_others_are_taken_over_is_submitted_behind_them(begin, autojump_clock):
    """Its prompt is made into ids after the death, and before all others have another engine."""
    world = await begin()
    requests = [world.ask(f"prompt {number}") for number in range(3 * STARTED_AT_ONCE)]
    await world.settled()
    await world.settled()
    (texts,) = world.workers.made
    texts.silent = True
    late = world.ask("late")
    await world.settled()
    texts.silent = False
    world.engine.dies(blamed=False)
    texts.streams[len(requests) + 1] = late.ask.document(), {}
    texts.report(["opened", len(requests) + 1, [4], {}, {}], pack_ids([*map(ord, "late")]))
    await world.settled()
    assert len(world.engine.held) == len(requests) + 1
    for run in list(world.engine.held):
        await world.says(run, "!", finish="stop")
    after = world.ask("after")
    await world.settled()
    await world.says(world.run, "!", finish="stop")
    assert [text_of(each) for each in (*requests, late, after)] == ["!"] * (len(requests) + 2)
