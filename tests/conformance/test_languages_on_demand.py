"""Language models that share memory: loaded by their first request, and evicted for each other."""

import json
import threading

import httpx
import openai
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.llm.echoing import LanguageServer, write_model
from tests.support.llm.engines import tiny_folder
from tests.support.llm.standing import EngineServer, transformers_flags, write_transformers
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

ON_DEMAND = 'parameters { key: "tritium.residency" value { string_value: "on_demand" } }'
FLAGS = ["--exit-on-error=false"]


def metric(server, name, model=""):
    text = httpx.get(f"http://127.0.0.1:{server.openai_port}/metrics", timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("model", "") == model:
                return sample.value
    return 0


@pytest.fixture(scope="module")
def size(tmp_path_factory):
    """Bytes that one of the models takes when it has served."""
    folder = tmp_path_factory.mktemp("alone")
    write_model(folder / "models", "one", config=ON_DEMAND)
    with LanguageServer.standing(folder / "models", *FLAGS, files=folder / "server") as server:
        assert said(server, "one") == "cba"

        async def measured():
            return metric(server, "tritium_model_resident_bytes", "one")

        trio.run(eventually, measured)
        return int(metric(server, "tritium_model_resident_bytes", "one"))


@pytest.fixture
def server(tmp_path, size):
    """A server with three models, and memory for one of them."""
    for name in ("one", "three", "two"):
        adapters = {"own": "own"} if name == "two" else None
        write_model(tmp_path / "models", name, config=ON_DEMAND, adapters=adapters, pace=0.01)
    flags = [*FLAGS, f"--resident-memory-limit={int(size * 1.5)}"]
    with LanguageServer.standing(tmp_path / "models", *flags, files=tmp_path / "server") as server:
        yield server


def client_of(server):
    return openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60)


def said(server, model, prompt="abc"):
    with client_of(server) as client:
        return client.completions.create(model=model, prompt=prompt).choices[0].text


def engines(server):
    return {name for name in ("one", "two", "three") if trio.run(server.parts_of, name, "engine")}


def test_they_are_loaded_by_requests_and_evicted_for_each_other(server):
    """And listed all the time, with the adapters that their files name."""

    def listed():
        with client_of(server) as client:
            return [each.id for each in client.models.list()]

    everything = ["one", "three", "two", "own"]
    assert listed() == everything
    assert not engines(server)
    for model in ("one", "two", "three", "own", "one"):
        assert said(server, model) == ("abc" if model == "own" else "cba")
        assert engines(server) == {"two" if model == "own" else model}
        assert listed() == everything
    evicted = [line["model"] for line in server.logged("model_evicted")]
    assert evicted == ["one", "two", "three", "two"]
    assert metric(server, "tritium_model_loads_on_demand_total", "one") == 2


def test_a_stream_under_way_is_never_evicted(server):
    """What needs its memory waits for its end."""
    order = []
    with client_of(server) as client:
        stream = client.completions.create(model="one", prompt="a" * 100, stream=True)
        text = next(stream).choices[0].text

        def ask():
            assert said(server, "two") == "cba"
            order.append("two")

        waiting = threading.Thread(target=ask)
        waiting.start()
        text += "".join(each.choices[0].text for each in stream)
        order.append("one")
        waiting.join()
    assert text == "a" * 100
    assert order == ["one", "two"]


def test_a_stream_waits_for_the_load_within_its_own_deadline(server):
    """Also one whose model can't be loaded in that time."""
    with httpx.Client(base_url=server.openai_url, timeout=60) as web:
        body = {"model": "one", "prompt": "abc", "deadline": 0.01}
        answer = web.post("/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        lines = web.post("/completions", json={"model": "one", "prompt": "abc", "stream": True}).text
        events = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith("data: {")]
        assert "".join(each["choices"][0]["text"] for each in events) == "cba"


@pytest.mark.long
def test_models_of_transformers_share_memory(tmp_path, tmp_path_factory):
    """The tiny model, twice, with memory for one."""
    weights = tiny_folder(tmp_path_factory)
    for folder, names in (("alone", ["one"]), ("both", ["one", "two"])):
        for name in names:
            write_transformers(tmp_path / folder, name, weights)
            with (tmp_path / folder / name / "config.pbtxt").open("a") as config:
                config.write(ON_DEMAND)
    flags = [*FLAGS, *transformers_flags(weights)]

    def tell(server, model, expected=None):
        with client_of(server) as client:
            answer = client.completions.create(
                model=model, prompt="A letter came in May.", temperature=0, max_tokens=8
            )
        text = answer.choices[0].text
        assert text == expected or expected is None
        return text

    with EngineServer.standing(tmp_path / "alone", *flags, files=tmp_path / "first") as server:
        text = tell(server, "one")

        async def measured():
            return metric(server, "tritium_model_resident_bytes", "one")

        trio.run(eventually, measured)
        size = int(metric(server, "tritium_model_resident_bytes", "one"))
    flags.append(f"--resident-memory-limit={int(size * 1.5)}")
    with EngineServer.standing(tmp_path / "both", *flags, files=tmp_path / "second") as server:
        for model in ("one", "two", "one"):
            tell(server, model, text)
            assert engines(server) == {model}
        assert [line["model"] for line in server.logged("model_evicted")] == ["one", "two"]
