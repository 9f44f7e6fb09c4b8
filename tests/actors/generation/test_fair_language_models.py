"""Shares in tokens and promised times, in a language model's version whose engine speaks on cue."""

from collections import Counter

import pytest
import trio

from actors.values.errors import DeadlineExceeded, Overloaded, Poisoned
from actors.values.generation.asking import EMBED, TEXT, TOKENIZE, Ask, Sampling
from actors.values.specs import Fairness, LanguageServing, QueuePolicy, Slo
from tests.actors.generation.conftest import generated

# Shares

FAIR = Fairness(tenant_parameter="user", weights={"gold": 3.0, "free": 1.0})


async def test_a_version_gives_tokens_by_weights(begin, autojump_clock):
    """`free` asks for answers ten times as long, and gets a third of the tokens."""
    world = await begin(serving=LanguageServing(streams=1), fairness=FAIR, context=2000)
    length = {"gold": 20, "free": 200}
    for _ in range(120):
        for tenant in length:
            world.ask("hello", tenant=tenant, max_tokens=length[tenant])
    answered: Counter[str] = Counter()
    while answered.total() < 100:
        await world.settled()
        run = world.run
        tenant = run.reply.parent.tenant
        for at in range(length[tenant]):
            world.engine.says(run, "x", finish="length" if at == length[tenant] - 1 else "")
        answered[tenant] += 1
    await world.settled()
    shares = world.state.queue.shares()
    used = {tenant: sum(shares[tenant].tokens.values()) for tenant in length}
    assert used["gold"] / 3 == pytest.approx(used["free"], abs=205 + 205 / 3)
    assert shares["gold"].share == pytest.approx(0.75, abs=0.06)
    assert answered["free"] >= 3


async def test_what_is_cancelled_costs_what_it_used(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1), fairness=FAIR)
    first = world.ask("hello", tenant="gold", max_tokens=50)
    await world.settled()
    world.ask("queued", tenant="free")
    await world.says(world.run, "abc")
    world.state.cancel(first)
    await world.settled()
    assert world.state.queue.shares()["gold"].tokens == {"prompt": 5, "generated": 3}


async def test_what_is_refused_for_its_like_costs_a_turn_and_no_tokens(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1), fairness=FAIR)
    first = world.ask("poison", tenant="free", max_tokens=100)
    await world.settled()
    like = world.ask("poison", tenant="free", max_tokens=100)
    world.ask("next", tenant="free", max_tokens=10)
    for number in range(9):
        world.ask(f"gold {number}", tenant="gold", max_tokens=10)
    for _ in range(2):
        world.engine.dies()
        await world.settled()
    assert all(isinstance(generated(each)[-1], Poisoned) for each in (first, like))
    order = []
    for _ in range(4):
        order.append(world.engine.prompt(world.run))
        await world.says(world.run, "x", finish="stop")
    assert "next" in order


async def test_a_resumed_answer_is_charged_once(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1), fairness=FAIR)
    world.ask("hello", tenant="gold", max_tokens=50)
    await world.settled()
    await world.says(world.run, "abc")
    world.engine.dies(blamed=False)
    await world.settled()
    await world.says(world.run, "de", finish="stop")
    assert world.state.queue.shares()["gold"].tokens == {"prompt": 5, "generated": 5}


async def test_a_tenant_with_too_many_waiting_is_told_that_it_is_the_load(begin, autojump_clock):
    """The OpenAI API says 429 for it."""
    fairness = Fairness(tenant_parameter="user", max_queued=1, refuses=True)
    world = await begin(serving=LanguageServing(streams=1), fairness=fairness)
    world.ask("hello", tenant="gold")
    await world.settled()
    world.ask("hello", tenant="gold")
    with pytest.raises(Overloaded, match="1 requests of tenant 'gold' wait already") as refusal:
        world.ask("hello", tenant="gold")
    assert refusal.value.retry_after == 1.0


async def test_what_is_refused_costs_nothing(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=1), fairness=FAIR)
    world.ask("refuse", tenant="gold")
    world.submit(Ask(TEXT, prompts=("a",), adapter="none"), tenant="free")
    await world.settled()
    shares = world.state.queue.shares()
    assert [sum(shares[tenant].tokens.values()) for tenant in ("gold", "free")] == [0, 0]
    assert not world.generator.is_busy


# Promises


async def answered(world, request, tokens=20, *, after=0.1):
    """Have the engine answer a request that it holds: the first token comes in a while."""
    await world.settled_after(after)
    (run,) = [run for run in world.engine.held if run.reply.parent is request]
    for at in range(tokens):
        world.engine.says(run, "x", finish="length" if at == tokens - 1 else "")
    await world.settled()


def refused(world):
    """Ask until a request is refused; return the refusal."""
    for _ in range(20):
        try:
            world.ask("x" * 20)
        except Overloaded as refusal:
            return refusal
    raise AssertionError("nothing is refused")


async def test_a_version_refuses_what_can_not_begin_in_time(begin, autojump_clock):
    world = await begin(serving=LanguageServing(streams=2), slo=Slo(ttft=1.0))
    requests = [world.ask("x" * 20) for _ in range(8)]
    for request in requests[:6]:
        await answered(world, request, after=0.25)
    refusal = refused(world)
    assert "the first token would take about" in refusal.message
    assert refusal.retry_after >= 1.0
    document = world.state.describe_statistics()["tritium"]["slo"]
    assert document["refusing"]
    assert document["refused"]["ttft"] == 1


async def test_a_version_refuses_streams_that_would_slow_the_others(begin, autojump_clock):
    world = await begin(slo=Slo(itl=0.05))
    for _ in range(4):
        world.ask("hello")
    await world.settled()
    for _ in range(40):
        await trio.sleep(0.045)
        for run in world.engine.held:
            world.engine.says(run, "x")
    await world.settled()
    world.ask("one more")
    await world.settled()
    for _ in range(40):
        await trio.sleep(0.055)
        for run in world.engine.held:
            world.engine.says(run, "x")
    await world.settled()
    with pytest.raises(Overloaded, match="would pass between two tokens"):
        world.ask("too many")
    assert len(world.engine.held) == 5


async def test_what_needs_no_engine_is_never_refused(begin, autojump_clock):
    world = await begin(slo=Slo(ttft=0.001), serving=LanguageServing(streams=1))
    embeds = world.submit(Ask(EMBED, prompts=("hello",)))
    requests = [world.ask("hello") for _ in range(4)]
    await world.settled()
    world.engine.embeds(world.run, [1.0])
    await world.settled()
    assert embeds.reply.final
    for request in requests[:2]:
        await answered(world, request, after=0.25)
    with pytest.raises(Overloaded):
        world.ask("hello")
    tokens = world.submit(Ask(TOKENIZE, prompts=("hello",)))
    for request in requests[2:]:
        await answered(world, request)
    assert tokens.reply.final
    assert not world.generator.is_busy


async def test_what_ends_before_its_first_token_is_forgotten(begin, autojump_clock):
    policy = QueuePolicy(default_timeout=2.0)
    world = await begin(slo=Slo(), serving=LanguageServing(streams=1, default_queue_policy=policy))
    world.ask("hello")
    waits = world.ask("waits")
    late = world.ask("late", deadline=1.0)
    await world.settled_until(1.5)
    assert isinstance(generated(late)[-1], DeadlineExceeded)
    await world.settled_until(3.0)
    assert waits.reply.final
    await world.says(world.run, "x", finish="stop")
    assert world.state.promise.ahead(1.0, 9) == 0.0


async def test_versions_without_promises_and_shares_have_no_meters(begin, autojump_clock):
    world = await begin()
    world.submit(Ask(TEXT, prompts=("hello",), sampling=Sampling()))
    await world.settled()
    assert world.state.stages == ()
    assert world.state.promise is None
