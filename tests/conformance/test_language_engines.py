"""Real engines behind a whole server, asked by clients of others. What the tiny model says can be checked.

The same tests run over each engine. That of vLLM is in the long tier (`python -m tests.long languages`).
"""

import json
import os
import re
import signal
from functools import partial

import anyio
import httpx
import numpy as np
import openai
import pytest
import trio
import tritonclient.grpc

from tests.support.environments import VLLM
from tests.support.llm import tiny
from tests.support.llm.engines import tiny_folder
from tests.support.llm.standing import (
    START,
    EngineServer,
    transformers_flags,
    write_adapter,
    write_transformers,
    write_vllm,
)
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

LINES = tiny.lines()
MANY = {"n": 64, "max_tokens": 900, "temperature": 1.0, "extra_body": {"ignore_eos": True}}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Ålesund", "Bergen"]}, "small": {"type": "boolean"}},
    "required": ["city", "small"],
    "additionalProperties": False,
}
CHOICES = ["yes", 'no "q"']


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The tiny model's folder, which is trained once for all tests."""
    pytest.importorskip("transformers", reason="needs the package 'transformers' (extra llm)")
    return tiny_folder(tmp_path_factory)


@pytest.fixture(scope="module", params=["transformers", pytest.param("vllm", marks=pytest.mark.long)])
def engine(request):
    if request.param == "vllm" and not VLLM.named:
        pytest.skip(f"{VLLM.variable} names no environment that has vLLM")
    return request.param


@pytest.fixture(scope="module")
def adapted(weights, tmp_path_factory):
    """The folders of an adapter, and of the model that it makes of the tiny one."""
    return write_adapter(tmp_path_factory.mktemp("adapted"), weights, seed=7)


@pytest.fixture(scope="module")
def server(engine, weights, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp(engine)
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    if engine == "transformers":
        write_transformers(folder / "models", "tide", weights)
        flags += transformers_flags(weights)
    else:
        adapter, _ = request.getfixturevalue("adapted")
        write_vllm(folder / "models", "tide", weights, adapters={"rough": adapter})
        write_vllm(folder / "models", "vectors", weights, runner="pooling", convert="embed")
    with EngineServer.standing(folder / "models", *flags, files=folder / "server") as server:
        server.repository = folder / "models"
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=START) as client:
        yield client


@pytest.fixture
def web(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.openai_port}", timeout=START) as web:
        yield web


def chat(text):
    return [{"role": "user", "content": text.rstrip("\n")}]


def tokens(web, text):
    """Return how many tokens a text has."""
    asked = {"model": "tide", "prompt": text, "add_special_tokens": False}
    return web.post("/tokenize", json=asked).json()["count"]


# -- texts


def test_each_line_is_gone_on_with(client, web):
    for line, said in enumerate(LINES):
        if line % 2:
            talk = client.chat.completions.create(model="tide", messages=chat(said), temperature=0)
            assert talk.choices[0].message.content == tiny.after(line)
            assert talk.choices[0].finish_reason == "stop"
        else:
            text = client.completions.create(model="tide", prompt=said, temperature=0)
            assert text.choices[0].text == tiny.after(line)
            # The token that ended it counts, too.
            assert text.usage.completion_tokens == tokens(web, tiny.after(line)) + 1
            assert text.usage.prompt_tokens == tokens(web, said)


def test_many_streams_at_once_say_the_same(server):
    told = {}

    async def read(client, number):
        line = number % len(LINES)
        asked = {"model": "tide", "messages": chat(LINES[line]), "temperature": 0, "stream": True}
        options = {"include_usage": True, "continuous_usage_stats": True}
        text, counts = "", []
        async for chunk in await client.chat.completions.create(**asked, stream_options=options):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            counts.append(chunk.usage.completion_tokens)
        told[number] = text == tiny.after(line), counts == sorted(counts), counts[-1] == counts[-2]

    async def run():
        async with (
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", timeout=START) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(32):
                group.start_soon(read, client, number)

    anyio.run(run)
    assert told == dict.fromkeys(range(32), (True, True, True))


def test_a_seed_says_the_same_again_and_choices_differ(client):
    def texts(seed):
        asked = {"messages": chat(LINES[0]), "max_tokens": 20, "temperature": 2.0, "n": 3, "seed": seed}
        return [
            each.message.content for each in client.chat.completions.create(model="tide", **asked).choices
        ]

    first, again, other = texts(1), texts(1), texts(2)
    assert first == again != other
    assert len(set(first)) == 3


def test_bad_words_do_not_come(client):
    asked = {"model": "tide", "prompt": LINES[2], "temperature": 0, "max_tokens": 12}
    word = max(re.findall("[a-z]+", client.completions.create(**asked).choices[0].text), key=len)
    without = client.completions.create(**asked, extra_body={"bad_words": [word]}).choices[0].text
    assert without
    assert word not in without


def test_chances_of_tokens(client, web):
    asked = {"model": "tide", "max_tokens": 3, "temperature": 0}
    talk = client.chat.completions.create(
        **asked, messages=chat(LINES[0]), logprobs=True, top_logprobs=2
    ).choices[0]
    told = talk.logprobs.content
    assert "".join(each.token for each in told) == talk.message.content
    assert tiny.after(0).startswith(talk.message.content)
    for each in told:
        assert -0.1 < each.logprob <= 0
        assert each.top_logprobs[0].token == each.token
        assert each.top_logprobs[1].logprob < -2
    text = client.completions.create(**asked, prompt=LINES[0], logprobs=2).choices[0]
    assert text.logprobs.tokens == [each.token for each in told]
    assert text.logprobs.token_logprobs[0] == pytest.approx(told[0].logprob, abs=0.05)
    assert [len(each) for each in text.logprobs.top_logprobs] == [2, 2, 2]


def test_chances_of_a_prompt(client, engine):
    asked = {
        "model": "tide",
        "prompt": LINES[0],
        "echo": True,
        "logprobs": 1,
        "max_tokens": 2,
        "temperature": 0,
    }
    if engine == "transformers":
        with pytest.raises(openai.BadRequestError, match="use backend 'vllm'"):
            client.completions.create(**asked)
        return
    choice = client.completions.create(**asked).choices[0]
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert choice.text.startswith(LINES[0])
    assert [
        choice.text.index(token, at) for token, at in zip(told.tokens, told.text_offset, strict=True)
    ] == (told.text_offset)
    assert all(told.tokens)
    assert told.token_logprobs[0] is None
    assert all(token in top for token, top in zip(told.tokens[1:], told.top_logprobs[1:], strict=True))


# -- tools


def argued(stream):
    """Return the calls of a stream, their arguments joined, and its end."""
    calls: dict[int, dict[str, str]] = {}
    finish, parts = "", 0
    for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or ():
            call = calls.setdefault(
                delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""}
            )
            call["arguments"] += delta.function.arguments or ""
            parts += 1
        finish = chunk.choices[0].finish_reason or finish
    return list(calls.values()), finish, parts


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "read_tide"}}, "stop"),
    ],
    ids=["auto", "required", "named"],
)
def test_a_tool_is_called(client, choice, finish):
    asked = {
        "model": "tide",
        "messages": chat(tiny.QUESTION),
        "tools": tiny.TOOLS,
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert (call.function.name, whole.finish_reason) == ("read_tide", finish)
    assert json.loads(call.function.arguments)["tide"] in ("low", "high")
    (streamed,), end, parts = argued(client.chat.completions.create(**asked, stream=True))
    assert (streamed["name"], streamed["arguments"]) == ("read_tide", call.function.arguments)
    assert end == finish
    assert parts > 1
    if choice != "auto":
        return
    assert json.loads(call.function.arguments) == {"tide": "low"}
    turn = [
        *asked["messages"],
        whole.message,
        {"role": "tool", "content": tiny.RESULT, "tool_call_id": call.id},
    ]
    assert (
        client.chat.completions.create(**{**asked, "messages": turn}).choices[0].message.content
        == tiny.ANSWER
    )


def test_no_tool_is_called_where_none_is_to_be(client):
    asked = {"messages": chat(tiny.QUESTION), "tools": tiny.TOOLS, "tool_choice": "none", "temperature": 0}
    message = client.chat.completions.create(model="tide", **asked).choices[0].message
    assert message.content == tiny.CALL
    assert not message.tool_calls


# -- structured outputs


@pytest.mark.parametrize("heat", [0.0, 1.5])
@pytest.mark.parametrize(
    ("how", "keeps"),
    [
        ({"json": SCHEMA}, lambda text: json.loads(text)["city"] in ("Ålesund", "Bergen")),
        ({"regex": "[a-c]{3}-[0-9]x"}, partial(re.fullmatch, "[a-c]{3}-[0-9]x")),
        ({"choice": CHOICES}, CHOICES.__contains__),
        ({"grammar": 'root ::= "a" [0-9] "z"'}, partial(re.fullmatch, "a[0-9]z")),
    ],
    ids=["json", "regex", "choice", "grammar"],
)
def test_what_is_asked_of_the_form_is_kept_to(client, how, keeps, heat):
    answer = client.chat.completions.create(
        model="tide",
        messages=chat(LINES[1]),
        temperature=heat,
        seed=3,
        max_tokens=200,
        extra_body={"structured_outputs": how},
    ).choices[0]
    assert answer.finish_reason == "stop"
    assert keeps(answer.message.content)


def test_a_schema_of_openai_s_is_kept_to_and_streamed(client):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    stream = client.chat.completions.create(
        model="tide", messages=chat(LINES[1]), response_format=form, stream=True, max_tokens=200
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert set(json.loads(text)) == {"city", "small"}


@pytest.mark.parametrize("how", [{"regex": "(a"}, {"json": {"type": "nonsense"}}, {"grammar": "nonsense"}])
def test_a_form_that_can_t_be_read_is_refused(client, how):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="tide", messages=chat("hi"), max_tokens=9, extra_body={"structured_outputs": how}
        )
    assert len(refused.value.message) > 30


# -- embeddings and adapters


def test_vectors(client, engine):
    model = "tide" if engine == "transformers" else "vectors"
    texts = [LINES[0], LINES[1], LINES[0]]
    answer = client.embeddings.create(model=model, input=texts)
    first, other, again = (np.array(each.embedding) for each in answer.data)
    assert first == pytest.approx(again, abs=1e-4)
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-3)
    assert first @ other < 0.999
    plain = client.embeddings.create(model=model, input=texts[1], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(other, abs=1e-4)


def test_a_model_of_another_kind_is_refused(client, engine):
    if engine == "transformers":
        pytest.skip("one engine of transformers does both")
    with pytest.raises(openai.BadRequestError, match="does not support 'embed'"):
        client.embeddings.create(model="tide", input="a")
    with pytest.raises(openai.BadRequestError, match="does not support 'generate'"):
        client.completions.create(model="vectors", prompt="a")


def test_an_adapter_says_what_the_merged_model_says(server, engine, weights, request):
    if engine == "transformers":
        pytest.skip("transformers has no adapters here")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights)
    merged = AutoModelForCausalLM.from_pretrained(request.getfixturevalue("adapted")[1])
    ids = tokenizer(LINES[2], return_tensors="pt", add_special_tokens=False)
    said = merged.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :]
    expected = tokenizer.decode(said, skip_special_tokens=True)
    assert expected != tiny.after(2)[: len(expected)]
    sampling = {"temperature": 0, "max_tokens": 12, "lora_name": "rough"}
    assert triton_stream(server, LINES[2], sampling)[0] == expected
    with pytest.raises(
        tritonclient.grpc.InferenceServerException, match="we currently support \\['rough'\\]"
    ):
        triton_stream(server, LINES[2], {"lora_name": "none"})


# -- the v2 API


def triton_stream(server, text, sampling, *, stream=True):
    """Return the texts of an answer, joined, and how many parts had one, by Triton's own client."""
    values = {
        "text_input": np.array([text.encode()], object),
        "stream": np.array([stream]),
        "sampling_parameters": np.array([json.dumps(sampling).encode()], object),
        "exclude_input_in_output": np.array([True]),
    }
    inputs = []
    for name, value in values.items():
        datatype = "BYTES" if value.dtype == object else "BOOL"
        inputs.append(tritonclient.grpc.InferInput(name, [1], datatype))
        inputs[-1].set_data_from_numpy(value)
    parts = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: parts.append((result, error)))
        client.async_stream_infer("tide", inputs, enable_empty_final_response=True)
        client.stop_stream()  # once all has come
    for _, error in parts:
        if error is not None:
            raise error
    texts = [result.as_numpy("text_output") for result, _ in parts]
    told = [each[0].decode() for each in texts if each is not None]
    return "".join(told), len([each for each in told if each])


def test_triton_s_client_reads_the_same(server):
    greedy = {"temperature": 0}
    text, parts = triton_stream(server, LINES[5], greedy)
    assert text == tiny.after(5)
    assert parts > 10
    assert triton_stream(server, LINES[5], greedy, stream=False) == (tiny.after(5), 1)


def test_the_generate_extension_reads_the_same(server):
    asked = {"text_input": LINES[9], "stream": True, "temperature": 0}
    url = f"http://{server.url}/v2/models/tide/generate_stream"
    with httpx.stream("POST", url, json=asked, timeout=START) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == tiny.after(9)


# -- those that leave, and processes that die


def gauge(server, name):
    """Return a gauge of the engine of `tide`."""
    return server.metric(f"tritium_llm_{name}", model="tide")


def test_one_that_leaves_frees_the_cache(server, client):
    before = trio.run(server.metric, "tritium_llm_requests_cancelled_total")

    async def busy():
        running, used = (
            await gauge(server, "engine_requests_running"),
            await gauge(server, "cache_usage_ratio"),
        )
        return running == 8 and used > 0

    async def free():
        names = ("engine_requests_running", "engine_requests_waiting", "cache_usage_ratio")
        return [await gauge(server, name) for name in names] == [0, 0, 0]

    with client.completions.create(model="tide", prompt=LINES[0], stream=True, **MANY) as stream:
        next(iter(stream))
        trio.run(eventually, busy)
    trio.run(eventually, free)
    assert trio.run(server.metric, "tritium_llm_requests_cancelled_total") == before + 1
    answer = client.completions.create(model="tide", prompt=LINES[11], temperature=0)
    assert answer.choices[0].text == tiny.after(11)


def test_an_engine_that_is_killed_starts_again(server, client):
    texts = trio.run(server.parts_of, "tide", "texts")
    (old,) = trio.run(server.parts_of, "tide", "engine")
    with client.completions.create(model="tide", prompt=LINES[0], stream=True, **MANY) as stream:
        next(iter(stream))
        os.kill(old, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="64 choices does not go on in another engine") as told:
            list(stream)
    assert told.value.code == "unavailable"
    # This one waits for the next engine.
    answer = client.completions.create(model="tide", prompt=LINES[12], temperature=0)
    assert answer.choices[0].text == tiny.after(12)
    assert trio.run(server.parts_of, "tide", "engine") != [old]
    assert trio.run(server.parts_of, "tide", "texts") == texts
    assert len(server.logged("worker_exited")) == 1


@pytest.mark.long
def test_streams_outlive_their_engine(server):
    """All 32 texts are those without the kill, in float32 and by greedy choice."""
    (old,) = trio.run(server.parts_of, "tide", "engine")
    told = {}

    async def read(client, number, begun):
        text = ""
        asked = {"model": "tide", "messages": chat(LINES[number % len(LINES)]), "temperature": 0}
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if text:
                begun.set()
        told[number] = text == tiny.after(number % len(LINES))

    async def run():
        begun = [anyio.Event() for _ in range(32)]
        async with (
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", timeout=START) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(32):
                group.start_soon(read, client, number, begun[number])
            await begun[0].wait()
            os.kill(old, signal.SIGKILL)

    anyio.run(run)
    assert told == dict.fromkeys(range(32), True)
    assert trio.run(server.parts_of, "tide", "engine") != [old]


@pytest.mark.long
def test_streams_move_between_instances_of_their_engine(server, engine):
    """Two instances become one while they generate. All texts are those that stay where they are."""
    if engine == "vllm":
        pytest.skip("two of vLLM's engines beside each other take minutes to load")
    config = server.repository / "tide" / "config.pbtxt"
    before = config.read_text()

    async def scale(count):
        config.write_text(f"{before}\ninstance_group [{{ count: {count} kind: KIND_CPU }}]\n")
        answer = await server.get("/v2/repository/models/tide/load", method="POST")
        assert answer.status == 200, answer.error
        assert len(await server.parts_of("tide", "engine")) == count

    greedy = [{"messages": chat(LINES[number % 8]), "temperature": 0} for number in range(12)]
    # Drawn by seed and position.
    drawn = [{"messages": chat(LINES[0]), "temperature": 1.5, "seed": seed} for seed in range(4)]
    asked = greedy + [{**each, "max_tokens": 120} for each in drawn]
    told = {}

    async def read(client, number, begun):
        text = ""
        async for chunk in await client.chat.completions.create(model="tide", **asked[number], stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if text:
                begun.set()
        told[number] = text

    async def run(meanwhile):
        begun = [anyio.Event() for _ in asked]
        async with (
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", timeout=START) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(len(asked)):
                group.start_soon(read, client, number, begun[number])
            for event in begun:
                await event.wait()
            await anyio.to_thread.run_sync(trio.run, meanwhile)
        return dict(told)

    trio.run(scale, 2)
    moved = partial(server.metric, "tritium_llm_choices_moved_total", model="tide")
    alone = anyio.run(run, partial(trio.sleep, 0))
    assert trio.run(moved) == 0
    assert anyio.run(run, partial(scale, 1)) == alone
    assert trio.run(moved) > 0
    assert [alone[number] for number in range(12)] == [tiny.after(number % 8) for number in range(12)]
