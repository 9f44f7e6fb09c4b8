"""Requests to a language model whose engine speaks on cue."""

import gc
from itertools import pairwise
from typing import Any

import pytest
import trio

from actors.generation.generator import ENDED_AT_ONCE
from actors.generation.policy.journal import Journal
from actors.generation.text_line import AT_ONCE
from actors.values.errors import Cancelled, DeadlineExceeded, InvalidArgument, Overloaded, Unavailable
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import DETOKENIZE, TEXT, TOKENIZE, Ask, Sampling
from actors.values.generation.pieces import Begun, Text, TokenChance, TokenChances, Tokens, TokenUsage
from actors.values.specs import LanguageServing, QueuePolicy
from tests.actors.generation.conftest import finish_of, generated, text_of, usage_of
from tests.support.generation_doubles import FakeTextWorker


async def test_a_text_comes_in_pieces_and_ends_with_its_usage(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", max_tokens=10)
    await world.settled()
    run = world.run
    assert world.engine.prompt(run) == "hello"
    assert world.engine.sampling(run)["max_tokens"] == 10
    await world.says(run, "ab", facts={"cached": 3})
    await world.says(run, "c", finish="stop")
    assert generated(request)[0] == Begun(5)
    assert text_of(request) == "abc"
    assert finish_of(request) == [("stop", "")]
    assert usage_of(request) == TokenUsage(5, 3, 3)
    assert request.reply.final
    assert not world.generator.texts


CHANCES = [None, [[105, -0.5, 2], [111, -0.25, 1], [105, -0.5, 2]]]


def named(token, logprob, rank):
    return TokenChance(token, chr(token), logprob, rank, chr(token).encode())


async def test_each_prompt_s_tokens_have_their_texts_before_its_first_piece(begin, autojump_clock):
    world = await begin()
    request = world.submit(Ask(TEXT, prompts=("hi", "ho"), sampling=Sampling(prompt_logprobs=1)))
    await world.settled()
    first, second = world.engine.held
    world.engine.says(first, "a", facts={"prompt_chances": CHANCES})
    world.engine.says(first, "b", finish="stop")
    await world.settled()
    chances = [None, TokenChances(named(105, -0.5, 2), [named(111, -0.25, 1), named(105, -0.5, 2)])]
    begun, *pieces = generated(request)
    assert begun == Begun(2, prompt_chances=chances)
    assert "".join(piece.text for piece in pieces) == "ab"
    await world.says(second, "c", finish="stop", facts={"prompt_chances": CHANCES})
    later = [each for each in generated(request) if isinstance(each, Begun)]
    assert later == [begun, Begun(2, prompt_chances=chances, prompt=1)]


async def test_a_new_text_worker_names_what_the_last_one_did_not(begin, autojump_clock):
    silent = FakeTextWorker()
    world = await begin(workers=[silent])
    request = world.submit(Ask(TEXT, prompts=("hi",), sampling=Sampling(prompt_logprobs=1)))
    await world.settled()
    silent.silent = True
    await world.says(world.run, "a", facts={"prompt_chances": CHANCES})
    assert generated(request) == []
    silent.dies()
    await world.settled_after(2.0)
    begun, piece = generated(request)
    assert begun.prompt_chances[1].chosen.text == "i"
    assert piece.text == "a"


async def test_a_deadline_does_not_wait_for_texts_of_a_prompt(begin, autojump_clock):
    silent = FakeTextWorker()
    world = await begin(workers=[silent])
    ask = Ask(TEXT, prompts=("hi", "ho"), sampling=Sampling(prompt_logprobs=1))
    request = world.submit(ask, deadline=world.start + 5.0)
    await world.settled()
    silent.silent = True
    await world.says(world.engine.held[0], "a", facts={"prompt_chances": CHANCES})
    await world.settled_until(6.0)
    assert [each for each in generated(request) if isinstance(each, Begun)] == [Begun(2), Begun(2, prompt=1)]
    assert [finish_of(request, choice) for choice in (0, 1)] == [[("length", "deadline")]] * 2


async def test_max_tokens_becomes_a_number_once(begin, autojump_clock):
    world = await begin(context=12)
    world.ask("hello")
    await world.settled()
    assert world.engine.sampling(world.run)["max_tokens"] == 7


async def test_a_prompt_without_room_is_refused(begin, autojump_clock):
    world = await begin(context=5)
    request = world.ask("hello")
    await world.settled()
    (error,) = generated(request)
    assert isinstance(error, InvalidArgument)
    assert "maximum context length is 5 tokens" in error.message
    assert not world.engine.held


async def test_a_stop_text_calls_the_engine_off(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", stop=("END",))
    await world.settled()
    run = world.run
    await world.says(run, "abENDcd")
    assert text_of(request) == "ab"
    assert finish_of(request) == [("stop", "END")]
    assert world.engine.cancelled == [run]


async def test_choices_differ_by_their_seed_and_end_apart(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", n=2, seed=7)
    await world.settled()
    first, second = world.engine.held
    assert [world.engine.sampling(run)["seed"] for run in (first, second)] == [7, 8]
    await world.says(second, "x", finish="length")
    assert not request.reply.final
    await world.says(first, "y", finish="stop")
    assert (text_of(request, 0), text_of(request, 1)) == ("y", "x")
    assert usage_of(request) == TokenUsage(5, 2)


async def test_higher_levels_of_the_queue_go_first(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1, priority_levels=3, default_priority_level=2))
    for prompt, level in (("running", 0), ("usual", 0), ("low", 3), ("unknown", 9), ("high", 1)):
        world.ask(prompt, priority=level)
    order = []
    for _ in range(5):
        await world.settled()
        order.append(world.engine.prompt(world.run))
        await world.says(world.run, "a", finish="stop")
    assert order == ["running", "high", "usual", "unknown", "low"]


async def test_a_full_queue_refuses_where_its_policy_says_so(begin, autojump_clock):
    policy = QueuePolicy(max_queue_size=1)
    world = await begin(serving=LanguageServing(streams=1, default_queue_policy=policy))
    world.ask("running")
    await world.settled()
    world.ask("waits")
    with pytest.raises(Overloaded, match="Exceeds maximum queue size"):
        world.ask("refused")


async def test_leaving_cancels_whatever_stage_it_is_in(begin, autojump_clock):
    world = await begin(room=1)
    running, queued = world.ask("a"), world.ask("b")
    await world.settled()
    run = world.run
    world.state.cancel(queued)
    world.state.cancel(running)
    await world.settled()
    assert world.engine.cancelled == [run]
    for request in (running, queued):
        assert isinstance(generated(request)[-1], Cancelled)
    assert generated(running)[-1].message == "Request was cancelled"
    assert not world.generator.texts


async def test_a_deadline_gives_what_there_is(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", deadline=5.0)
    late = world.ask("hello", deadline=5.0)
    await world.settled()
    run = world.engine.held[0]
    await world.says(run, "ab")
    await world.settled_until(6.0)
    assert text_of(request) == "ab"
    assert finish_of(request) == [("length", "deadline")]
    assert isinstance(generated(late)[-1], DeadlineExceeded)
    assert not world.engine.held


async def test_an_adapter_goes_to_the_engine_if_it_has_that(begin, autojump_clock):
    adapter = Adapter("tone", "a/path", "/models/a/path", "1f")
    world = await begin(serving=LanguageServing(adapters=(adapter,)))
    world.engine.told = {"max_adapters": 1}
    known = world.submit(Ask(TEXT, prompts=("hello",), adapter="tone"))
    unknown = world.submit(Ask(TEXT, prompts=("hello",), adapter="key"))
    await world.settled()
    told = {"name": "tone", "path": "/models/a/path", "id": "1f"}
    assert world.engine.sampling(world.run)["adapter"] == told
    assert not generated(known)
    (error,) = generated(unknown)
    assert error.message == "LoRA key is not supported, we currently support ['tone']"


async def test_an_engine_without_room_is_asked_again(begin, autojump_clock):
    world = await begin(room=1)
    requests = [world.ask(each) for each in "abc"]
    for request in requests:
        await world.settled()
        await world.says(world.run, "x", finish="stop")
        assert request.reply.final


async def test_a_text_worker_that_dies_is_replaced_where_it_was(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", stop=("END",))
    await world.settled()
    run = world.run
    await world.says(run, "abE")
    world.workers.made[-1].dies()
    await world.settled()
    world.engine.says(run, "Ncd")  # while there is none
    waiting = world.ask("two")
    await world.settled_until(2.0)
    assert text_of(request) == "abENcd"
    assert len(world.engine.held) == 2
    await world.says(run, "", finish="stop")
    assert usage_of(request) == TokenUsage(5, 6)
    await world.says(world.run, "z", finish="stop")
    assert text_of(waiting) == "z"


async def test_the_engines_error_is_the_answer(begin, autojump_clock):
    world = await begin()
    request = world.ask("hello", n=2)
    await world.settled()
    first, second = world.engine.held
    world.engine.fails(first, Unavailable("the engine died"))
    await world.settled()
    assert generated(request)[-1].message == "the engine died"
    assert world.engine.cancelled == [second]


async def test_what_a_client_does_not_read_is_joined(begin, autojump_clock):
    world = await begin(context=1000)
    request = world.ask("hello")
    await world.settled()
    run = world.run
    for _ in range(200):
        await world.says(run, "x")
    assert len(request.reply.parts) < 64
    for part in list(request.reply.parts):
        part.release()
    await world.says(run, "", finish="stop")
    assert text_of(request) == "x" * 200


async def test_what_comes_after_a_slow_client_has_read_a_little_keeps_its_place(begin, autojump_clock):
    world = await begin(context=1000)
    request = world.ask("hello")
    await world.settled()
    said = "".join(chr(ord("A") + number % 50) for number in range(200))
    for number, letter in enumerate(said):
        await world.says(world.run, letter)
        if number % 7 == 6:
            request.reply.parts[number // 7].release()
    await world.says(world.run, "", finish="stop")
    assert text_of(request) == said


async def test_tokens_and_texts_need_no_engine(begin, autojump_clock):
    world = await begin()
    tokens = world.submit(Ask(TOKENIZE, prompts=("hi",)))
    text = world.submit(Ask(DETOKENIZE, prompts=([104, 105],)))
    await world.settled()
    assert [tuple(each.ids) for each in generated(tokens) if isinstance(each, Tokens)] == [(104, 105)]
    assert generated(text) == [Text("hi")]


async def test_a_refusal_names_the_field(begin, autojump_clock):
    world = await begin()
    request = world.ask("refuse this")
    await world.settled()
    (error,) = generated(request)
    assert (error.message, error.param) == ("it is refused", "prompt")


async def test_a_broken_report_is_the_workers_fault(begin, autojump_clock):
    world = await begin(workers=[FakeTextWorker(silent=True)])
    request = world.ask("hello")
    await world.settled()
    world.workers.made[0].report(["opened", 1, [3], {}, {}], b"1234")
    await world.settled_until(2.0)
    assert len(world.workers.made) == 2
    await world.says(world.run, "x", finish="stop")
    assert text_of(request) == "x"


async def largest_step(look, turns=50):
    """Return by how much a number grows at most while other tasks have two turns of the loop."""
    seen = []
    for _ in range(turns):
        seen.append(look())
        await trio.lowlevel.checkpoint()
    return max(after - before for before, after in pairwise(seen))


async def test_many_pieces_are_told_over_several_turns(begin, autojump_clock):
    world = await begin()
    requests = [world.ask("hello") for _ in range(6 * AT_ONCE)]
    await world.settled()
    await world.settled()
    for run in list(world.engine.held):
        world.engine.says(run, "ab")
    await world.settled()
    pieces = [[number, 0, {"text": "x", "tokens": 1}] for number in range(1, len(requests) + 1)]
    world.workers.made[0].report(["pieces", pieces])
    assert 0 < await largest_step(lambda: sum("x" in text_of(each) for each in requests)) <= 2 * AT_ONCE
    assert {text_of(each) for each in requests} == {"abx"}


async def test_a_new_text_worker_takes_streams_over_in_several_turns(begin, autojump_clock):
    world = await begin()
    requests = [world.ask("hello", n=2) for _ in range(5 * AT_ONCE)]
    await world.settled()
    await world.settled()
    for run in list(world.engine.held):
        world.engine.says(run, "ab")
    await world.settled()
    world.workers.made[0].dies()
    await trio.sleep(1.0)
    assert 0 < await largest_step(lambda: len(world.workers.made[-1].streams)) <= 2 * AT_ONCE
    for run in list(world.engine.held):
        await world.says(run, "c", finish="stop")
    assert [text_of(request) for request in requests] == ["abc"] * len(requests)


async def test_requests_whose_time_is_up_together_end_over_several_turns(begin, autojump_clock):
    world = await begin()
    requests = [world.ask("hello", deadline=5.0) for _ in range(6 * ENDED_AT_ONCE)]
    await trio.sleep(5.0)
    ended = await largest_step(lambda: sum(each.reply.final for each in requests))
    assert 0 < ended <= 2 * ENDED_AT_ONCE
    assert all(each.reply.final for each in requests)


async def test_a_long_list_of_biases_holds_up_no_other(begin, autojump_clock):
    world = await begin()
    biases = {str(number): 1.0 for number in range(4096)}
    requests = [world.ask("hello", logit_bias=biases), world.ask("hello")]
    await world.settled()
    assert world.engine.sampling(world.engine.held[0])["logit_bias"] == biases
    for run in list(world.engine.held):
        await world.says(run, "x", finish="stop")
    assert [text_of(each) for each in requests] == ["x", "x"]


async def test_each_prompt_is_told_of_when_its_own_engine_request_has_begun(begin, autojump_clock):
    """With what the engine says of it, which the first of several can't know of the others."""
    world = await begin()
    sampling = Sampling(n=2, prompt_logprobs=0)
    request = world.submit(Ask(TEXT, prompts=("one", "three"), sampling=sampling, echo=True))
    await world.settled()
    runs = list(world.engine.held)
    told = {0: [None, [[5, -1.0, 1]]], 1: [None, [[7, -2.0, 3]]]}
    for number in (0, 3, 1, 2):
        # The second choice of a prompt finds what the first has computed.
        await world.says(runs[number], "a", facts={"cached": 2 + number, "prompt_chances": told[number // 2]})
    begun: list[Any] = [each for each in generated(request) if isinstance(each, Begun)]
    assert [each.prompt for each in begun] == [0, 1]
    assert [each.prompt_tokens for each in begun] == [3, 5]
    assert [each.prompt_chances[1].chosen.token_id for each in begun] == [5, 7]
    for run in runs:
        await world.says(run, "b", finish="stop")
    assert (usage_of(request).prompt, usage_of(request).cached) == (8, 2 + 4)


async def test_an_answer_that_is_late_tells_of_all_its_prompts(begin, autojump_clock):
    """Also of those whose engine request had not begun."""
    world = await begin()
    request = world.submit(Ask(TEXT, prompts=("one", "three"), echo=True), deadline=world.start + 2.0)
    await world.settled()
    await world.says(world.engine.held[0], "a")
    await world.settled_until(3.0)
    assert [each.prompt for each in generated(request) if isinstance(each, Begun)] == [0, 1]
    assert finish_of(request, 1) == [("length", "deadline")]


def journals():
    gc.collect()
    return sum(type(each) is Journal for each in gc.get_objects())


async def test_nothing_is_kept_of_a_request_that_has_ended_before_its_deadline(begin, autojump_clock):
    world = await begin()
    before = journals()
    request = world.ask("hello", deadline=1000.0)
    await world.settled()
    assert journals() == before + 1
    await world.says(world.run, "x", finish="stop")
    assert text_of(request) == "x"
    for part in request.reply.parts:
        part.release()
    assert journals() == before
