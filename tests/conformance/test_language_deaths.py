"""What clients of a language model see when its processes die, when it can't be loaded, and when it goes."""

import json
import os
import signal
from functools import partial

import anyio
import httpx
import openai
import psutil
import pytest
import trio

from tests.support.llm.echoing import LONGEST, LanguageServer, saying, write_model
from tests.support.llm.streaming import texts_through
from tests.survival.server import eventually, until

pytestmark = [pytest.mark.slow, pytest.mark.system]

STREAMS = 6
TEXT = "The lamp was lit, and Brücke the cat slept 🕯 鮭 é. " * 10
UNHEALTHY = "Model is unavailable due to unhealthy vLLM engine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deaths")


@pytest.fixture(scope="module")
def gate(folder):
    """A file: while it is there, the engine of model `checked` can't start."""
    return folder / "gate"


@pytest.fixture(scope="module")
def server(folder, gate):
    for name in ("paced", "other", "respelt"):
        write_model(folder / "models", name, context=LONGEST, pace=0.01)
    write_model(folder / "models", "counted", context=LONGEST, pace=0.01, steps=folder / "steps")
    check = 'parameters { key: "ENABLE_VLLM_HEALTH_CHECK" value { string_value: "true" } }'
    write_model(folder / "models", "checked", config=check, gate=gate)
    spoilt = write_model(folder / "models", "spoilt")
    (spoilt / "1" / "tokenizer.json").write_text('{"model": {"type": "none"}}')
    write_model(folder / "models", "going", context=LONGEST, pace=0.005)
    flags = [
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in ("paced", "other", "counted", "respelt", "going", "checked")),
    ]
    with LanguageServer.standing(folder / "models", *flags, files=folder / "server") as server:
        yield server


@pytest.fixture
def configure(server, folder):
    """Change something in a model's configuration, and have the server load it anew."""

    async def configure(model, old, new):
        config = folder / "models" / model / "config.pbtxt"
        text = config.read_text()
        assert old in text
        config.write_text(text.replace(old, new))
        answer = await server.get(f"/v2/repository/models/{model}/load", method="POST")
        assert answer.status == 200, answer.error

    return configure


@pytest.fixture
def stream(server):
    """Run streams, and something in their midst; give what each client read, or the error it met."""
    return partial(texts_through, server)


async def kill(server, model, part):
    old = await server.parts_of(model, part)
    assert old
    for pid in old:
        os.kill(pid, signal.SIGKILL)


def test_no_character_is_lost_when_the_text_worker_dies(server, stream):
    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    told = stream(
        partial(kill, server, "paced", "texts"),
        *({"model": "paced", "prompt": saying(text)} for text in texts),
    )
    assert told == [(text, "stop") for text in texts]


@pytest.mark.long
def test_a_text_worker_with_another_tokenizer_garbles_no_text(server, stream, folder):
    """The tokenizer's file has changed since the stream began: two letters have each other's ids."""
    path = folder / "models" / "respelt" / "1" / "tokenizer.json"
    before = path.read_text()
    tokenizer = json.loads(before)
    words = tokenizer["model"]["vocab"]
    words["a"], words["e"] = words["e"], words["a"]

    async def change():
        path.write_text(json.dumps(tokenizer))
        await kill(server, "respelt", "texts")

    streams = [{"model": "respelt", "prompt": saying(each)} for each in (TEXT, "xyz" * 300)]
    (text, error), (other, finish) = stream(change, *streams)
    assert TEXT.startswith(text)
    assert isinstance(error, openai.APIError)
    assert error.code == "text_differs"
    assert "another text of choice 0 than was sent" in error.message
    assert (other, finish) == ("xyz" * 300, "stop"), "its letters are the same"
    path.write_text(before)
    trio.run(kill, server, "respelt", "texts")
    with openai.OpenAI(base_url=server.openai_url, api_key="key") as client:
        assert client.completions.create(model="respelt", prompt=saying("ae")).choices[0].text == "ae"


def test_every_text_goes_on_when_its_engine_dies(server, stream):
    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    asked = [{"model": "paced", "prompt": saying(text)} for text in texts]
    others = [{"model": "other", "prompt": saying(TEXT)} for _ in range(4)]
    text_workers = trio.run(server.parts_of, "paced", "texts")
    told = stream(partial(kill, server, "paced", "engine"), *asked, *others)
    assert told == [(text, "stop") for text in [*texts, *[TEXT] * 4]]
    assert trio.run(server.parts_of, "paced", "texts") == text_workers


@pytest.mark.long
def test_tokens_that_lay_in_the_socket_of_the_dead_count_as_generated(server, stream, folder):
    """The server stands still while the engine goes on, and then dies."""
    steps, seen = folder / "steps", []

    async def die_unheard():
        (engine,) = await server.parts_of("counted", "engine")
        seen.append(steps.stat().st_size)
        server.signal(signal.SIGSTOP)
        try:
            await until(lambda: steps.stat().st_size > seen[0] + 50)
            os.kill(engine, signal.SIGKILL)
            await until(lambda: psutil.Process(engine).status() == psutil.STATUS_ZOMBIE)
        finally:
            server.signal(signal.SIGCONT)

    asked = {"model": "counted", "prompt": saying(TEXT)}
    told = stream(die_unheard, asked)
    assert told == [(TEXT, "stop")]
    recomputed = trio.run(partial(server.metric, "tritium_llm_recomputed_tokens_total", model="counted"))
    assert recomputed - len(asked["prompt"]) > seen[0] + 8, "what the window had room for came, too"


@pytest.mark.long
def test_an_answer_that_is_taken_whole_begins_again_whatever_it_is(server):
    """With a seed, and two choices: neither could go on behind what was sent."""
    asked = {"model": "paced", "prompt": saying(TEXT), "seed": 1, "temperature": 1.0, "n": 2}

    async def run():
        async with (
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", max_retries=0) as client,
            anyio.create_task_group() as group,
        ):
            told = []

            async def ask():
                told.append(await client.completions.create(**asked))

            group.start_soon(ask)
            await anyio.to_thread.run_sync(trio.run, begun)
            await anyio.to_thread.run_sync(trio.run, partial(kill, server, "paced", "engine"))
        return told[0]

    async def begun():
        metric = "tritium_llm_requests_running"
        await server.until_metric_above(0.0, metric, model="paced", version="1")

    answer = anyio.run(run)
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    assert [choice.tritium for choice in answer.choices] == [{"attempts": 2}] * 2


def test_an_answer_that_can_not_go_on_says_so_on_its_stream(server, stream):
    asked = {"model": "paced", "prompt": saying(TEXT), "seed": 1, "temperature": 1.0}
    ((text, error),) = stream(partial(kill, server, "paced", "engine"), asked)
    assert TEXT.startswith(text)
    assert isinstance(error, openai.APIError)
    assert error.code == "unavailable"
    assert "another engine would follow its seed from the beginning" in error.message

    async def serves():
        return (await server.get("/v2/models/paced/ready")).status == 200

    trio.run(eventually, serves)
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0) as client:
        answer = client.completions.create(model="paced", prompt=saying("again"))
    assert answer.choices[0].text == "again"


def test_an_engine_that_is_down_is_told_where_that_is_asked_for(server, gate):
    """By ENABLE_VLLM_HEALTH_CHECK, in the words of Triton's vLLM backend; but it is started again."""

    async def dies_and_comes_back():
        async with httpx.AsyncClient(base_url=f"http://{server.url}", timeout=2) as web:

            async def says(status, expected):
                try:
                    answer = await web.post("/v2/models/checked/generate", json={"text_input": "abc"})
                except httpx.TimeoutException:  # the worker that died had been sent it
                    return False
                return answer.status_code == status and answer.json().get("error") == expected

            assert await says(200, None)
            gate.touch()
            await kill(server, "checked", "engine")
            await eventually(partial(says, 503, UNHEALTHY))
            gate.unlink()
            await eventually(partial(says, 200, None))

    trio.run(dies_and_comes_back)


def test_a_tokenizer_that_is_none_fails_the_load_with_its_reason(server):
    answer = trio.run(lambda: server.get("/v2/repository/models/spoilt/load", method="POST"))
    assert answer.status == 400
    assert "tokenizer" in answer.error
    assert "tokenizer" in trio.run(server.index)["spoilt"]["reason"]


@pytest.mark.long
def test_an_unload_waits_for_what_runs(server, stream):
    async def unload():
        await server.get("/v2/repository/models/going/unload", method="POST")

    texts = [f"{number}: {TEXT}" for number in range(4)]
    told = stream(unload, *({"model": "going", "prompt": saying(text)} for text in texts))
    assert told == [(text, "stop") for text in texts]

    async def gone():
        return (await server.index())["going"] == {
            "name": "going",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": "unloaded",
        }

    trio.run(eventually, gone)
    assert trio.run(server.parts_of, "going", "engine") == trio.run(server.parts_of, "going", "texts") == []


def test_an_update_leaves_its_streams_to_the_version_that_has_them(server, stream, configure):
    texts = [f"{number}: {TEXT}" for number in range(4)]
    update = partial(configure, "other", '"0.01"', '"0.009"')
    told = stream(update, *({"model": "other", "prompt": saying(text)} for text in texts))
    assert told == [(text, "stop") for text in texts]
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0) as client:
        answer = client.completions.create(model="other", prompt=saying("anew"))
    assert answer.choices[0].text == "anew"


@pytest.mark.long
def test_an_engine_that_is_scaled_goes_on_with_its_streams(server, stream, configure):
    texts = [f"{number}: {TEXT}" for number in range(4)]
    scale = partial(configure, "paced", "[{ kind", "[{ count: 2 kind")
    told = stream(scale, *({"model": "paced", "prompt": saying(text)} for text in texts))
    assert told == [(text, "stop") for text in texts]
    assert len(trio.run(server.parts_of, "paced", "engine")) == 2
    (line,) = server.logged("model_scaled")
    assert (line["before"], line["instances"]) == (1, 2)
