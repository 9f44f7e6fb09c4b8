"""Language models whose engines sleep when others need their memory, on a real server."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.test_languages_on_demand import client_of, metric, said
from tests.support.llm.echoing import LanguageServer, write_model
from tests.survival.server import eventually, until

pytestmark = [pytest.mark.slow, pytest.mark.system]

WEIGHTS, CACHE = 100, 60
MIB = 1024 * 1024
FLAGS = ["--exit-on-error=false"]


def config(level):
    return "\n".join(
        f'parameters {{ key: "tritium.{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (("residency", "on_demand"), ("sleep", level), ("drain_timeout", 10))
    )


def write(repository, name, level, **options):
    write_model(repository, name, config=config(level), weights=WEIGHTS, cache=CACHE, **options)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Bytes that a model takes beside weights and cache: its processes."""
    folder = tmp_path_factory.mktemp("alone")
    write(folder / "models", "one", 2)
    with LanguageServer.standing(folder / "models", *FLAGS, files=folder / "server") as server:
        assert said(server, "one") == "cba"

        async def measured():
            return metric(server, "tritium_model_resident_bytes", "one")

        trio.run(eventually, measured)
        return int(metric(server, "tritium_model_resident_bytes", "one")) - (WEIGHTS + CACHE) * MIB


@pytest.fixture
def serve(tmp_path, base):
    """Serve models whose engines sleep at a level, with `room` MiB beside their processes."""

    def serve(room, *names, level=2, ends=False, **options):
        """`ends`: the server ends before the test does."""
        for name in names:
            write(tmp_path / "models", name, level, **options)
        flags = [*FLAGS, f"--resident-memory-limit={len(names) * base + room * MIB}"]
        if ends:
            return ending(tmp_path / "models", *flags, files=tmp_path / "server")
        return LanguageServer.standing(tmp_path / "models", *flags, files=tmp_path / "server")

    return serve


@contextmanager
def ending(repository, *flags, files):
    server = LanguageServer.start(repository, files, *flags)
    try:
        trio.run(server.wait_ready)
        yield server
    finally:
        server.kill_all()


def sleep_state(server, model):
    text = httpx.get(f"http://127.0.0.1:{server.openai_port}/metrics", timeout=30).text
    told = [
        sample.labels["sleep_state"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tritium_llm_engine_sleep_state"
        and sample.labels["model"] == model
        and sample.value
    ]
    return told[0] if told else ""


def pids(server, *names):
    return {name: trio.run(server.parts_of, name, "engine") for name in names}


def test_models_that_take_turns_keep_their_processes(serve):
    """Also where clients ask for both at once; and the server and its models count as ready all the time."""
    with serve(200, "one", "two") as server:
        for name in ("one", "two"):
            assert said(server, name) == "cba"
        before = pids(server, "one", "two")
        for name in ("one", "two", "one", "two"):
            assert said(server, name) == "cba"
        # The last answer may come before the last line.
        for event, times in (("model_slept", 5), ("model_woken", 4)):
            trio.run(until, lambda event=event, times=times: len(server.logged(event)) == times)
        slept = server.logged("model_slept")
        assert [line["model"] for line in slept] == ["one", "two", "one", "two", "one"]
        assert all(line["freed_bytes"] > 0.9 * (WEIGHTS + CACHE) * MIB for line in slept)
        assert [line["model"] for line in server.logged("model_woken")] == ["one", "two", "one", "two"]
        assert metric(server, "tritium_model_asleep", "one") == 1
        assert metric(server, "tritium_model_sleeps_total", "one") == 3
        assert metric(server, "tritium_sleeper_wake_seconds_count", "two") == 2
        for name in ("one", "two"):
            assert httpx.get(f"http://{server.url}/v2/models/{name}/ready", timeout=30).status_code == 200
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda number: said(server, ("one", "two")[number % 2]), range(16)))
        assert answers == ["cba"] * 16
        assert all(line["reason"] != "memory is over the budget" for line in server.logged("model_slept"))
        assert pids(server, "one", "two") == before
        assert server.logged("model_evicted") == []


@pytest.mark.long
def test_weights_that_stay_leave_less_room(serve):
    """At the first level the cache alone is given up; where that is not enough, the sleeper is evicted."""
    with serve(WEIGHTS + CACHE + 40, "one", "two", level=1) as server:
        for name in ("one", "two", "one"):
            assert said(server, name) == "cba"
        assert [line["model"] for line in server.logged("model_evicted")] == ["one", "two"]


@pytest.mark.long
def test_an_engine_that_dies_asleep_is_put_to_sleep_again(serve):
    """And serves when it is asked."""
    with serve(200, "one", "two") as server:
        for name in ("one", "two"):
            assert said(server, name) == "cba"
        (dead,) = pids(server, "one")["one"]
        os.kill(dead, signal.SIGKILL)

        async def again():
            (pid,) = await server.parts_of("one", "engine")
            return pid not in (None, dead) and sleep_state(server, "one") == "discard_all"

        trio.run(eventually, again)
        assert said(server, "one") == "cba"
        assert server.logged("model_evicted") == []


@pytest.mark.long
def test_what_waits_for_a_sleeper_is_answered_as_the_server_ends(serve):
    """There is no room while a stream is under way, and then the server drains."""
    with serve(200, "one", "two", ends=True, pace=0.01) as server:
        for name in ("one", "two"):
            assert said(server, name) == "cba"
        with client_of(server) as client, ThreadPoolExecutor(2) as clients:
            stream = client.completions.create(model="two", prompt="a" * 300, stream=True)
            text = next(stream).choices[0].text
            waiting = clients.submit(said, server, "one")

            async def waits():
                return metric(server, "tritium_wake_waiting_requests", "one") == 1

            trio.run(eventually, waits)
            server.signal(signal.SIGTERM)
            assert text + "".join(each.choices[0].text for each in stream) == "a" * 300
            assert waiting.result() == "cba"
        trio.run(until, lambda: server.status is not None)
        assert server.status == 0
