"""What clients of a language model see when its processes stand still, or die of what is asked."""

import os
import signal
from functools import partial

import openai
import pytest
import trio

from tests.support.language_backends import POISON, SLEEPER
from tests.support.llm.echoing import LONGEST, LanguageServer, saying, write_model
from tests.support.llm.streaming import texts_through
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

TEXT = "The lamp was lit, and Brücke the cat slept 🕯 鮭 é. " * 10
STREAMS = 4
WITHIN = 1.0  # seconds of silence that are a hang


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hangs")


@pytest.fixture(scope="module")
def stall(folder):
    """A file: while it is there, the engine of model `paced` stands still."""
    return folder / "stall"


@pytest.fixture(scope="module")
def server(folder, stall):
    told = {"context": LONGEST, "tritium.hang_within": WITHIN}
    write_model(folder / "models", "paced", pace=0.01, stall=stall, **told)
    write_model(folder / "models", "idle", stall=stall, **told, **{"tritium.probe_interval": 0.5})
    write_model(folder / "models", "gated", gate=folder / "gate")
    flags = ["--model-control-mode=explicit", "--load-model=paced", "--load-model=idle"]
    with LanguageServer.standing(folder / "models", *flags, files=folder / "server") as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client:
        yield client


async def replaced(server, model, part, old):
    """Wait until other processes have taken the place of these."""

    async def others():
        now = await server.parts_of(model, part)
        return bool(now) and not set(now) & {*old, None}

    await eventually(others)


def test_every_text_goes_on_when_its_engine_stands_still(server, stall):
    async def stands_still():
        old = await server.parts_of("paced", "engine")
        stall.touch()
        try:
            await replaced(server, "paced", "engine", old)
        finally:
            stall.unlink()

    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    asked = [{"model": "paced", "prompt": saying(text)} for text in texts]
    assert texts_through(server, stands_still, *asked) == [(text, "stop") for text in texts]
    exited = [line for line in server.logged("worker_exited") if line["actor"].startswith("models/paced/")]
    hung = [line for line in exited if line["reason"] == "hang"]
    assert "no token and no step within 1 s" in hung[0]["detail"]
    counted = partial(server.metric, "tritium_worker_deaths_total", model="paced", reason="hang")
    assert trio.run(counted) == len(hung)


@pytest.mark.long
@pytest.mark.parametrize("part", [pytest.param("texts", marks=pytest.mark.long), "engine"])
def test_every_text_goes_on_when_a_process_is_stopped_from_outside(server, part):
    async def is_stopped():
        old = await server.parts_of("paced", part)
        for pid in old:
            os.kill(pid, signal.SIGSTOP)
        await replaced(server, "paced", part, old)

    texts = [f"{number}: {TEXT}" for number in range(STREAMS)]
    asked = [{"model": "paced", "prompt": saying(text)} for text in texts]
    assert texts_through(server, is_stopped, *asked) == [(text, "stop") for text in texts]


@pytest.mark.parametrize("first", [POISON, pytest.param(SLEEPER, marks=pytest.mark.long)])
def test_what_kills_or_stops_two_engines_is_refused_from_then_on(server, client, first):
    asked = {"model": "paced", "prompt": [first, 70, 71], "max_tokens": 5}

    async def meanwhile():
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await trio.to_thread.run_sync(partial(client.completions.create, **asked))
        assert caught.value.code == "poisoned"
        assert "for the second time under this request" in caught.value.message

    texts = [f"{number}: {TEXT}" for number in range(2)]
    others = [{"model": "paced", "prompt": saying(text)} for text in texts]
    assert texts_through(server, meanwhile, *others) == [(text, "stop") for text in texts]
    old = trio.run(server.parts_of, "paced", "engine")
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.completions.create(**asked)
    assert "is quarantined" in caught.value.message
    assert trio.run(server.parts_of, "paced", "engine") == old
    answer = client.completions.create(model="paced", prompt=saying(texts[0]))
    assert answer.choices[0].text == texts[0], "innocent"
    assert len(server.logged("request_quarantined")) >= 1


def test_an_idle_engine_that_stands_still_is_replaced_and_meanwhile_the_server_is_not_ready(server, stall):
    async def ready():
        return (await server.get("/v2/health/ready")).status == 200

    async def not_ready():
        return not await ready()

    async def stands_still():
        await eventually(ready)
        old = await server.parts_of("idle", "engine")
        stall.touch()
        try:
            await eventually(not_ready)
            await replaced(server, "idle", "engine", old)
        finally:
            stall.unlink()
        await eventually(ready)

    trio.run(stands_still)
    failed = [each for line in server.logged("readiness_changed") for each in line["failed"]]
    assert any("idle" in each for each in failed)


def test_what_a_load_is_busy_with_is_shown(server, folder):
    gate = folder / "gate"

    async def shown():
        progress = (await server.index())["gated"].get("progress", {})
        return progress.get("phase") == "waiting at the gate" and progress["phase_seconds"] >= 0

    async def load():
        gate.touch()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(server.get, "/v2/repository/models/gated/load", method="POST"))
                await eventually(shown)
                gate.unlink()
        finally:
            gate.unlink(missing_ok=True)
        assert (await server.index())["gated"]["state"] == "READY"

    trio.run(load)
    (line,) = server.logged("worker_loading")
    assert (line["model"], line["phase"]) == ("gated", "waiting at the gate")
