"""What a scrape, and the tree, tell of a language model."""

from prometheus_client.parser import text_string_to_metric_families

from actors.generation.families import FAMILIES, AdapterUse, CacheSize
from actors.values.families import Labels, blocks
from actors.values.generation.adapters import Adapter
from actors.values.generation.asking import EMBED, TEXT, TOKENIZE, Ask
from actors.values.specs import LanguageServing
from engine.observability.metrics import Exposition


def series(world):
    """Every series that is not 0, but those by engine; by its name and, in parentheses, its bound."""
    told = blocks(FAMILIES, [(Labels({"model": "m"}), world.generator.sample())])
    text = Exposition(lambda: told).text()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    named = {
        each.name.removeprefix("tritium_llm_") + (f"({each.labels['le']})" if "le" in each.labels else ""): (
            each.value
        )
        for each in samples
        if not each.labels.keys() & {"engine", "route"}
    }
    return {name: value for name, value in named.items() if value}


async def test_tokens_and_their_times_are_counted_at_the_end(begin, autojump_clock):
    world = await begin()
    world.ask("hello", max_tokens=10)
    await world.settled()
    assert series(world) == {"requests_waiting": 1}
    run = world.run
    await world.settled_until(0.05)
    await world.says(run, "a", facts={"cached": 3})
    assert series(world) == {"requests_running": 1}
    await world.settled_until(0.25)
    await world.says(run, "bc", finish="stop")
    found = series(world)
    bounds = {name: value for name, value in found.items() if "(" in name}
    assert {name: value for name, value in found.items() if name not in bounds} == {
        "time_to_first_token_seconds_sum": 0.05,
        "time_to_first_token_seconds_count": 1,
        "inter_token_seconds_sum": 0.2,
        "inter_token_seconds_count": 2,
        "request_seconds_sum": 0.25,
        "request_seconds_count": 1,
        "prompt_tokens_total": 5,
        "cached_tokens_total": 3,
        "generated_tokens_total": 3,
    }
    assert bounds["time_to_first_token_seconds_bucket(0.06)"] == 1
    assert "time_to_first_token_seconds_bucket(0.04)" not in bounds
    assert bounds["inter_token_seconds_bucket(0.1)"] == 2
    assert "inter_token_seconds_bucket(0.075)" not in bounds


async def test_sizes_are_counted_where_they_are_asked_for(begin, autojump_clock):
    world = await begin(serving=LanguageServing(vllm_metrics=True))
    assert world.generator.sample().vllm
    world.ask("hello", n=2)
    await world.settled()
    for run in list(world.engine.held):
        await world.says(run, "abc", finish="stop")
    sizes = world.generator.counts.sizes
    assert (sizes.prompt.total, sizes.generated.total, sizes.sequences.total) == (5, 6, 2)
    assert sizes.generated.counts[sizes.generated.bounds.index(10)] == 1
    world.engine.told = {"log_stats": False}
    assert not world.generator.sample().vllm
    assert (await begin()).generator.counts.sizes is None


async def test_adapters_and_the_cache_are_told_as_the_engine_has_them(begin, autojump_clock):
    adapters = tuple(Adapter(name, name, f"/{name}") for name in "ab")
    world = await begin(serving=LanguageServing(adapters=adapters))
    assert (world.generator.sample().adapters, world.generator.sample().cache) == (None, None)
    world.engine.told = {
        "max_adapters": 2,
        "cache": {"block_size": 16, "blocks": 9},
    }
    for adapter in ("a", "b", "b", ""):
        world.submit(Ask(TEXT, prompts=("x",), adapter=adapter))
    await world.settled()
    await world.says(world.engine.held[0], "a")
    assert world.generator.sample().adapters == AdapterUse(2, ["a"], ["b"])
    assert world.generator.sample().cache == CacheSize(16, 9)
    world.engine.told["cache"] = {"block_size": None}
    assert world.generator.sample().cache is None


async def test_who_leaves_and_who_is_late_is_counted(begin, autojump_clock):
    world = await begin()
    gone = world.ask("one")
    world.ask("three", deadline=2.0)
    await world.settled()
    await world.says(world.engine.held[0], "x")
    world.state.cancel(gone)
    await world.settled_until(3.0)
    found = series(world)
    assert (found["requests_cancelled_total"], found["requests_late_total"]) == (1, 1)
    # No token had come of the late one.
    assert (found["prompt_tokens_total"], found["generated_tokens_total"]) == (3, 1)
    assert found["request_seconds_count"] == 1


async def test_prompts_of_embeddings_count_and_tokens_of_tokenize_do_not(begin, autojump_clock):
    world = await begin()
    world.submit(Ask(TOKENIZE, prompts=("hello",)))
    await world.settled()
    assert series(world) == {}
    world.submit(Ask(EMBED, prompts=("hi",)))
    await world.settled()
    world.engine.embeds(world.run, [1.0, 2.0])
    await world.settled()
    found = series(world)
    assert (found["prompt_tokens_total"], found["request_seconds_count"]) == (2, 1)
    assert "time_to_first_token_seconds_count" not in found


async def test_streams_that_a_new_text_worker_took_over_are_counted(begin, autojump_clock):
    world = await begin()
    world.ask("hello")
    await world.settled()
    await world.says(world.run, "a")
    assert "streams_restored_total" not in series(world)
    world.workers.made[-1].dies()
    await world.settled_until(2.0)
    assert series(world)["streams_restored_total"] == 1
    assert world.texts_told["restored"] == 1


async def test_the_tree_shows_who_runs_and_who_waits(begin, autojump_clock):
    world = await begin()
    assert (world.told["running"], world.told["waiting"]) == (0, 0)
    world.ask("hello")
    await world.settled_until(1.5)
    assert (world.told["running"], world.told["waiting"]) == (0, 1)
    run = world.run
    await world.says(run, "a")
    await world.settled_until(3.0)
    assert (world.told["running"], world.told["waiting"]) == (1, 0)
    await world.says(run, "", finish="stop")
    assert (world.told["running"], world.told["waiting"]) == (0, 0)
