"""What clients of a language model see when instances of its engine are recycled or scaled down: nothing."""

import re
from functools import partial

import openai
import pytest
import trio

from tests.support.llm.echoing import LONGEST, LanguageServer, saying, write_model
from tests.support.llm.streaming import texts_through
from tests.survival.server import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

TEXT = "The lamp was lit, and Brücke the cat slept 🕯 鮭 é. " * 12
STREAMS = 12
RECYCLE = 'parameters { key: "tritium.recycle" value { string_value: "{\\"requests\\": 10}" } }'
PATIENCE = 'parameters { key: "tritium.drain_timeout" value { string_value: "2" } }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("moves")


@pytest.fixture(scope="module")
def server(folder):
    write_model(folder / "models", "worn", config=RECYCLE, context=LONGEST, pace=0.01)
    write_model(folder / "models", "scaled", config=PATIENCE, context=LONGEST, pace=0.01)
    flags = ["--model-control-mode=explicit", "--load-model=worn", "--load-model=scaled"]
    with LanguageServer.standing(folder / "models", *flags, files=folder / "server") as server:
        yield server


@pytest.fixture
def scale(server, folder):
    """Have the engine of model `scaled` run in so many instances."""

    async def scale(count):
        config = folder / "models" / "scaled" / "config.pbtxt"
        config.write_text(re.sub(r"\[\{ (count: \d )?kind", f"[{{ count: {count} kind", config.read_text()))
        answer = await server.get("/v2/repository/models/scaled/load", method="POST")
        assert answer.status == 200, answer.error
        assert len(await server.parts_of("scaled", "engine")) == count

    return scale


def asked(model, text, **options):
    return {"model": model, "prompt": saying(text), **options}


def test_streams_move_from_an_engine_that_is_recycled(server):
    """Its successor reaches its own ceiling by those, and they move again."""

    async def worn_out():
        await until(lambda: len(server.logged("worker_recycled")) >= 2)

    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    told = texts_through(server, worn_out, *(asked("worn", text) for text in texts))
    assert told == [(text, "stop") for text in texts]
    lines = server.logged("worker_exited")
    assert {line["reason"] for line in lines} == {"recycled"}
    trio.run(partial(server.until_metric_above, STREAMS - 1, "tritium_llm_choices_moved_total", model="worn"))
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0) as client:
        answer = client.completions.create(model="worn", prompt=saying("still"))
    assert answer.choices[0].text == "still"
    assert getattr(answer.choices[0], "tritium", None) is None


@pytest.mark.long
def test_streams_move_from_an_engine_that_is_one_too_many(server, scale):
    trio.run(scale, 2)
    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    told = texts_through(server, partial(scale, 1), *(asked("scaled", text) for text in texts))
    assert told == [(text, "stop") for text in texts]
    moved = partial(server.until_metric_above, 0, "tritium_llm_choices_moved_total", model="scaled")
    trio.run(moved)


@pytest.mark.long
def test_what_can_not_move_has_some_time_and_then_an_error(server, scale):
    """All streams have a seed, which this engine can't follow behind others' tokens."""
    trio.run(scale, 2)
    texts = [f"{number}: {TEXT}" for number in range(8)]
    streams = [asked("scaled", text, seed=1, temperature=1.0) for text in texts]
    told = texts_through(server, partial(scale, 1), *streams)
    assert all(text.startswith(said) for text, (said, _) in zip(texts, told, strict=True))
    failed = [end for _, end in told if end != "stop"]
    assert 0 < len(failed) < len(texts), "some are on the instance that stays"
    assert {error.code for error in failed} == {"unavailable"}
    assert "recycled or scaled down" in failed[0].message
    assert "within the 2 s of 'tritium.drain_timeout'" in failed[0].message
