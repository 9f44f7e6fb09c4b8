"""LoRA adapters that come and go while their model serves, by API and by file; the engine is a stand-in."""

import json
import os
import signal

import httpx
import openai
import pytest
import trio

from tests.support.llm.echoing import LanguageServer, write_adapter, write_model
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where models, adapters and the server's files are."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def folder(place):
    """The folder that adapters are loaded from."""
    folder = place / "lora"
    write_adapter(folder / "twice", times=2)
    write_adapter(folder / "bad", refuse="rank 64 is more than max_lora_rank 16")
    write_adapter(place / "elsewhere", times=9)
    (folder / "link").symlink_to(place / "elsewhere")
    return folder


@pytest.fixture(scope="module")
def server(place, folder):
    """A server under explicit control."""
    write_adapter(place / "models" / "tide" / "1" / "own", times=1)
    write_model(place / "models", "tide", adapters={"own": "own"}, pace=0.01)
    write_model(place / "models", "plain")
    flags = [
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--backend-config=backwards,lora_folders=/nowhere:{folder}",
    ]
    with LanguageServer.standing(place / "models", *flags, files=place / "server") as server:
        yield server


@pytest.fixture
def web(server):
    with httpx.Client(base_url=server.openai_url, timeout=60) as web:
        yield web


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client:
        yield client


def load(web, name, path, **more):
    answer = web.post("/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})
    return answer.status_code, answer.text if answer.status_code == 200 else answer.json()["error"]["message"]


def unload(web, name):
    answer = web.post("/unload_lora_adapter", json={"lora_name": name})
    return answer.status_code, answer.text if answer.status_code == 200 else answer.json()["error"]["message"]


def listed(client):
    return [each.id for each in client.models.list()]


def said(client, model, prompt="abc"):
    return client.completions.create(model=model, prompt=prompt).choices[0].text


def test_an_adapter_comes_and_goes_by_api(web, client):
    """In vLLM's words; it is listed as a model with a parent."""
    added = "Success: LoRA adapter 'double' added successfully."
    assert load(web, "double", "twice") == (200, added)
    assert "double" in listed(client)
    card = client.models.retrieve("double").model_dump()
    assert (card["parent"], card["root"]) == ("tide", "twice")
    assert said(client, "double") == "abcabc"
    status, text = load(web, "double", "twice")
    assert (status, "has already been loaded. If you want to load the adapter in place" in text) == (
        400,
        True,
    )
    assert load(web, "double", "twice", load_inplace=True) == (200, added)
    assert unload(web, "double") == (200, "Success: LoRA adapter 'double' removed successfully.")
    assert "double" not in listed(client)
    with pytest.raises(openai.NotFoundError) as refused:
        said(client, "double")
    assert refused.value.code == "model_not_found"
    assert unload(web, "double") == (404, "The lora adapter 'double' cannot be found.")


def test_an_adapter_of_the_file_can_be_unloaded_and_replaced(web, client, folder):
    assert said(client, "own") == "abc"
    assert unload(web, "own")[0] == 200
    assert "own" not in listed(client)
    assert load(web, "own", folder / "twice")[0] == 200
    assert said(client, "own") == "abcabc"


def test_a_running_stream_ends_with_the_adapter_it_began_with(web, client):
    assert load(web, "leaving", "twice")[0] == 200
    stream = client.completions.create(model="leaving", prompt="abcdefgh", stream=True)
    got = [next(stream).choices[0].text]
    assert unload(web, "leaving")[0] == 200
    got += [each.choices[0].text for each in stream]
    assert "".join(got) == "abcdefgh" * 2


def test_what_can_not_be_loaded_is_told(web, client, place, folder):
    """Where adapters may be is told with a path that is elsewhere, also if only a link leads there."""
    for path in (place / "elsewhere", "../elsewhere", "link", "/", folder):
        status, text = load(web, "x", path)
        assert (status, str(folder) in text) == (400, True), path
    assert load(web, "x", "none") == (404, "Loading lora x failed: No adapter found for none")
    assert load(web, "x", "bad") == (400, "rank 64 is more than max_lora_rank 16")
    assert load(web, "tide", "twice") == (
        400,
        "The lora adapter 'tide' conflicts with a served base model.",
    )
    assert load(web, "x", "twice", model="plain") == (400, "LoRA feature is not enabled.")
    assert "x" not in listed(client)


def test_one_that_has_changed_is_another(web, client, folder):
    """Files are looked at when an adapter is loaded, and compared by the engine that loads them later."""
    write_adapter(folder / "moving", times=1)
    assert load(web, "moving", "moving")[0] == 200
    write_adapter(folder / "moving", times=3)
    assert said(client, "moving") == "abc"
    assert load(web, "moving", "moving", load_inplace=True)[0] == 200
    assert said(client, "moving") == "abcabcabc"


def test_an_engine_that_starts_again_has_them(server, web, client):
    """Each request brings its own."""
    load(web, "lasting", "twice")

    async def kill_engine():
        (pid,) = await server.parts_of("tide", "engine")
        os.kill(pid, signal.SIGKILL)

        async def another():
            now = await server.parts_of("tide", "engine")
            return now and now != [pid]

        await eventually(another)

    trio.run(kill_engine)
    assert said(client, "lasting") == "abcabc"
    assert "lasting" in listed(client)


def test_a_load_of_the_model_reads_the_file_again(server, web, client, place):
    """And does not load the engine again, where nothing else has changed. The file's new word counts."""
    file = place / "models" / "tide" / "1" / "multi_lora.json"
    load(web, "own", "twice", load_inplace=True)
    load(web, "kept", "twice")
    engine = trio.run(server.parts_of, "tide", "engine")
    file.write_text(json.dumps({"own": "./own", "more": "own"}))
    assert httpx.post(f"http://{server.url}/v2/repository/models/tide/load", timeout=60).status_code == 200
    assert {"own", "more", "kept"} < set(listed(client))
    assert said(client, "own") == "abc"
    file.write_text("{")
    answer = httpx.post(f"http://{server.url}/v2/repository/models/tide/load", timeout=60)
    assert answer.status_code != 200
    assert "multi_lora.json" in answer.json()["error"]
    assert said(client, "more") == "abc"
    assert trio.run(server.parts_of, "tide", "engine") == engine


@pytest.mark.long
def test_a_watched_file_is_followed(place, tmp_path, folder):
    """In poll mode, by the same engine. One that can't be read changes nothing, and is told."""
    repository = tmp_path / "models"
    write_adapter(repository / "tide" / "1" / "one", times=1)
    write_model(repository, "tide", adapters={"one": "one"})
    file = repository / "tide" / "1" / "multi_lora.json"
    flags = ["--model-control-mode=poll", "--repository-poll-secs=0.1"]
    with (
        LanguageServer.standing(repository, *flags, files=tmp_path / "server") as server,
        openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client,
        httpx.Client(base_url=server.openai_url, timeout=60) as web,
    ):
        engine = trio.run(server.parts_of, "tide", "engine")
        write_adapter(repository / "tide" / "1" / "two", times=2)
        file.write_text(json.dumps({"one": "one", "two": "two", "far": str(folder / "twice")}))

        async def until_listed(*names):
            async def are():
                return listed(client) == ["tide", *names]

            await eventually(are)

        trio.run(until_listed, "one", "two", "far")
        assert (said(client, "two"), said(client, "far")) == ("abcabc", "abcabc")
        file.write_text('{"one": 3}')

        async def told():
            failures = [line for line in server.logged("model_load_failed") if "multi_lora.json" in str(line)]
            return failures and "adapter 'one' must have the path of its folder" in str(failures[-1])

        trio.run(eventually, told)
        assert said(client, "one") == "abc"
        write_adapter(repository / "tide" / "1" / "two", times=3)
        file.write_text(json.dumps({"two": "two"}))
        trio.run(until_listed, "two")
        assert said(client, "two") == "abcabcabc"
        assert trio.run(server.parts_of, "tide", "engine") == engine
        status, text = load(web, "x", "twice")
        assert (status, "--model-control-mode=explicit" in text) == (400, True)
        changes = server.logged("adapters_changed")
        assert (changes[0]["loaded"], changes[-1]["unloaded"]) == (["far", "two"], ["far", "one"])
