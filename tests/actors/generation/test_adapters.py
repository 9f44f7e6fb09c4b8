"""How an engine has the LoRA adapters that requests name."""

import pytest
import trio

from actors.generation.loading_adapters import load_ahead
from actors.values.errors import InvalidArgument, NotFound, Unavailable, WorkerLost
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import EMBED, TEXT, Ask
from actors.values.generation.facts import NoSuchAdapter
from actors.values.specs import LanguageServing
from tests.actors.generation.conftest import generated, text_of
from tests.support.generation_doubles import FakeEngine
from tests.support.model_doubles import make_spec


def adapter(name, root=""):
    return Adapter(name, root or name, f"/{root or name}", "1f")


TONE, KEY = adapter("tone"), adapter("key")


async def test_an_answer_keeps_its_adapter_when_that_goes(begin, autojump_clock):
    """Also in an engine that takes it over. What comes later is refused."""
    world = await begin(serving=LanguageServing(adapters=(TONE,)))
    world.engine.told = {"max_adapters": 1}
    request = world.submit(Ask(TEXT, prompts=("hello",), adapter="tone"))
    await world.settled()
    await world.says(world.run, "one ")
    world.generator.adapters.unload("tone")
    late = world.submit(Ask(TEXT, prompts=("hello",), adapter="tone"))
    world.engine.dies()
    await world.settled()
    assert world.engine.sampling(world.run)["adapter"] == TONE.told
    await world.says(world.run, "two", finish="stop")
    assert text_of(request) == "one two"
    (error,) = generated(late)
    assert isinstance(error, NoSuchAdapter)


async def test_vectors_may_be_an_adapters(begin, autojump_clock):
    world = await begin(serving=LanguageServing(adapters=(TONE,)))
    world.engine.told = {"max_adapters": 1}
    world.submit(Ask(EMBED, prompts=("hello",), adapter="tone"))
    await world.settled()
    assert world.engine.sampling(world.run) == {"embed": True, "dimensions": None, "adapter": TONE.told}


async def test_a_load_is_over_when_an_engine_has_the_adapter(nursery, autojump_clock):
    engine, loaded = FakeEngine(), []

    async def load():
        await load_ahead(engine, make_spec(), TONE)
        loaded.append(True)

    nursery.start_soon(load)
    await trio.testing.wait_all_tasks_blocked()
    (request,) = engine.held
    assert engine.sampling(request) == {"load_adapter": TONE.told}
    assert not loaded
    engine.gives(request, [], finish="stop")
    await trio.testing.wait_all_tasks_blocked()
    assert loaded


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidArgument("its rank is 64"), InvalidArgument),
        (WorkerLost("", how="the engine died", blamed=True), Unavailable),
    ],
)
async def test_a_load_that_fails_is_told(nursery, autojump_clock, error, told):
    engine = FakeEngine()

    async def fail():
        await trio.testing.wait_all_tasks_blocked()
        engine.fails(engine.held[0], error)

    nursery.start_soon(fail)
    with pytest.raises(told, match=r"rank is 64|'tone' was not loaded: the engine died"):
        await load_ahead(engine, make_spec(), TONE)


async def test_a_client_that_leaves_calls_its_load_off(autojump_clock):
    engine = FakeEngine()
    with trio.move_on_after(1):
        await load_ahead(engine, make_spec(), TONE)
    assert len(engine.cancelled) == 1


def test_an_unknown_adapter_is_not_found():
    assert issubclass(NoSuchAdapter, NotFound)
