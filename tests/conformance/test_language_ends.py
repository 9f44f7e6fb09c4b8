"""Answers that take longer than an update, an unload or the server's end leaves them: each is told why."""

import os
import signal
from contextlib import contextmanager
from functools import partial

import anyio
import httpx
import pytest
import trio

from tests.support.llm.echoing import LONGEST, LanguageServer, saying, write_model
from tests.support.llm.streaming import BEGUN, Events
from tests.survival.server import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

TEXT = "The lamp was lit, and Brücke the cat slept 🕯 鮭 é. " * 100
STREAMS = 4
RESUME = 'parameters { key: "tritium.resume_within" value { string_value: "2" } }'
PATIENCE = 'parameters { key: "tritium.drain_timeout" value { string_value: "2" } }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ends")


@pytest.fixture(scope="module")
def server(folder):
    for name in ("updated", "unloaded"):
        write_model(folder / "models", name, config=PATIENCE, context=LONGEST, pace=0.005)
    write_model(folder / "models", "gone", config=RESUME, context=LONGEST, pace=0.005, gate=folder / "gate")
    flags = [
        "--openai-keep-alive-secs=0.5",
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in ("updated", "unloaded", "gone")),
    ]
    with LanguageServer.standing(folder / "models", *flags, files=folder / "server") as server:
        yield server


def through(server, model, meanwhile):
    """Have streams and a whole answer under way, and `meanwhile()`, a coroutine of trio's; return them."""
    streams = [Events(server.openai_url, model=model, prompt=saying(TEXT)) for _ in range(STREAMS)]
    whole = []

    async def ask():
        asked = {"model": model, "prompt": saying(TEXT)}
        async with httpx.AsyncClient(timeout=60) as web:
            whole.append(await web.post(f"{server.openai_url}/completions", json=asked))

    async def run():
        async with anyio.create_task_group() as group:
            for stream in streams:
                group.start_soon(stream.reading)
            group.start_soon(ask)
            for stream in streams:
                await stream.begun.wait()
            await anyio.to_thread.run_sync(trio.run, meanwhile)

    anyio.run(run)
    return streams, whole[0]


def check(told, why):
    """Each stream ends with an event and the last one, and the whole answer is a status."""
    streams, whole = told
    for stream in streams:
        assert TEXT.startswith(stream.text)
        assert len(stream.text) > BEGUN
        assert stream.error["code"] == "unavailable"
        assert why in stream.error["message"]
    assert whole.status_code == 503
    assert int(whole.headers["retry-after"]) > 0
    assert why in whole.json()["error"]["message"]


@pytest.mark.long
def test_an_update_moves_no_stream_and_leaves_it_some_time(server, folder):
    async def update():
        config = folder / "models" / "updated" / "config.pbtxt"
        config.write_text(config.read_text().replace('"0.005"', '"0.004"'))
        answer = await server.get("/v2/repository/models/updated/load", method="POST")
        assert answer.status == 200, answer.error

    check(through(server, "updated", update), "within the 2 s of 'tritium.drain_timeout'")


def test_an_unload_leaves_it_some_time(server):
    async def unload():
        answer = await server.get("/v2/repository/models/unloaded/unload", method="POST")
        assert answer.status == 200, answer.error

    check(through(server, "unloaded", unload), "within the 2 s of 'tritium.drain_timeout'")


def test_a_stream_is_shown_to_live_while_it_waits_for_an_engine_and_has_an_error_in_the_end(server, folder):
    gate = folder / "gate"

    async def die():
        gate.touch()  # no other engine can start
        (engine,) = await server.parts_of("gone", "engine")
        os.kill(engine, signal.SIGKILL)

    try:
        streams, _ = told = through(server, "gone", die)
    finally:
        gate.unlink()
    check(told, "no other took over within 2 s (tritium.resume_within)")
    assert all(len(stream.comments) > 1 for stream in streams)
    assert {comment for stream in streams for comment in stream.comments} == {": keep-alive"}


@contextmanager
def alone(folder, *flags):
    """Run a server that is to end by itself."""
    write_model(folder / "models", "paced", context=LONGEST, pace=0.005)
    server = LanguageServer.start(folder / "models", folder / "server", *flags)
    try:
        trio.run(server.wait_ready)
        yield server
    finally:
        server.kill_all()


@pytest.mark.long
def test_the_servers_end_leaves_it_some_time(tmp_path):
    with alone(tmp_path, "--exit-timeout-secs=2") as server:

        async def end():
            server.signal(signal.SIGTERM)

        check(through(server, "paced", end), "within 2 s of its being told to stop (--exit-timeout-secs)")
        trio.run(until, lambda: server.status is not None)


def test_the_servers_end_waits_for_answers_that_end_in_time(tmp_path):
    text = TEXT[:300]
    with alone(tmp_path, "--exit-timeout-secs=30") as server:
        stream = Events(server.openai_url, model="paced", prompt=saying(text))

        def closed():
            return "OpenAI HTTPService" in {line["service"] for line in server.logged("listener_closed")}

        async def run():
            async with anyio.create_task_group() as group:
                group.start_soon(stream.reading)
                await stream.begun.wait()
                server.signal(signal.SIGTERM)
                await anyio.to_thread.run_sync(partial(trio.run, until, closed))
                with pytest.raises(httpx.ConnectError):
                    async with httpx.AsyncClient() as web:
                        await web.get(f"{server.openai_url}/models")

        anyio.run(run)
        assert stream.text == text
        assert stream.error is None
        trio.run(until, lambda: server.status is not None)
        assert server.status == 0
