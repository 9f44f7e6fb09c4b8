"""Two real engines of one model: where conversations go, and what waits while both have no room."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest
import trio

from tests.support.llm import tiny
from tests.support.llm.engines import tiny_folder
from tests.support.llm.standing import START, EngineServer, transformers_flags, write_transformers
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

BLOCK = 32
TWO = "instance_group [{ kind: KIND_CPU count: 2 }]\n"
ONE_THREAD = 'parameters { key: "tritium.threads" value { string_value: "1" } }\n'
SESSIONS = 4
ENGINES = ("tide_0_0", "tide_0_1")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("transformers", reason="needs the package 'transformers' (extra llm)")
    weights, folder = tiny_folder(tmp_path_factory), tmp_path_factory.mktemp("placement")
    write_transformers(
        folder / "models", "tide", weights, config=TWO + ONE_THREAD, num_blocks=64, block_size=BLOCK
    )
    with EngineServer.standing(
        folder / "models", *transformers_flags(weights), files=folder / "server"
    ) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=START) as client:
        yield client


def take_turn(client, talk, said):
    """Say something; return the usage."""
    talk.append({"role": "user", "content": said})
    answer = client.chat.completions.create(model="tide", messages=talk, temperature=0, max_tokens=8)
    talk.append({"role": "assistant", "content": answer.choices[0].message.content})
    return answer.usage


async def both_die(server):
    """Kill both engines, and wait until nothing is thought to be known by the next ones."""
    for pid in await server.parts_of("tide", "engine"):
        os.kill(pid, signal.SIGKILL)
    for engine in ENGINES:
        await server.until_metric(0, "tritium_llm_engine_known_blocks", model="tide", engine=engine)
    await eventually(server.is_ready, within=START)


@pytest.mark.long
def test_conversations_go_on_where_they_were_and_elsewhere_when_that_engine_has_died(client, server):
    talks = [
        [{"role": "system", "content": f"{number}: {tiny.lines()[number]}" * 4}] for number in range(SESSIONS)
    ]
    before = [take_turn(client, talk, "one") for talk in talks]
    for said in ("two", "three"):
        usages = [take_turn(client, talk, said) for talk in talks]
        for earlier, usage in zip(before, usages, strict=True):
            whole = earlier.prompt_tokens // BLOCK * BLOCK
            assert usage.prompt_tokens_details.cached_tokens >= whole > 0
        before = usages

    found = partial(server.metric, "tritium_llm_routed_runs_total", model="tide", route="prefix")
    assert trio.run(found) >= 1
    trio.run(both_die, server)
    assert take_turn(client, talks[0], "four").prompt_tokens_details.cached_tokens == 0


@pytest.mark.long
def test_more_than_both_have_room_for_waits_and_is_answered(client, server):
    """Each answer may take a fifth of a cache, and two dozen are asked for at once."""
    prompts = [f"{number}: {tiny.PAGE[:1000]}" for number in range(24)]

    def ask(prompt):
        return client.completions.create(
            model="tide", prompt=prompt, temperature=0, max_tokens=40, extra_body={"ignore_eos": True}
        )

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts))
    assert {answer.choices[0].finish_reason for answer in answers} == {"length"}
    assert {answer.usage.completion_tokens for answer in answers} == {40}
    trio.run(partial(server.until_metric, 0, "tritium_llm_runs_in_line", model="tide"))
    for name in ("runs", "queued_prompt_tokens", "held_blocks"):
        for engine in ENGINES:
            trio.run(
                partial(server.until_metric, 0, f"tritium_llm_engine_{name}", model="tide", engine=engine)
            )
