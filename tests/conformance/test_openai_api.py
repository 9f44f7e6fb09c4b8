"""The OpenAI API over real sockets: the `openai` package, curl and bare sockets ask models of known texts."""

import json
import socket
import subprocess
from contextlib import closing
from functools import partial

import anyio
import httpx
import openai
import pytest
import trio

from tests.support.llm.echoing import LONGEST, LanguageServer, ids_of, saying, write_model

pytestmark = [pytest.mark.slow, pytest.mark.system]

WORDS = "The lamp was lit, and Brücke the cat slept 🕯 鮭 é"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
ENDLESS = {"ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("languages")
    write_model(folder / "models", "echo")
    write_model(folder / "models", "single", room=1, context=LONGEST, pace=0.002)
    write_model(folder / "models", "quiet", pace=1)
    write_model(folder / "models", "looping", template=LOOP)
    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
    streams = 'parameters { key: "tritium.streams" value { string_value: "1" } }'
    write_model(folder / "models", "narrow", context=LONGEST, pace=0.002, config=queue + streams)
    promise = 'parameters { key: "tritium.slo" value { string_value: "{\\"ttft\\": 30}" } }\n'
    users = '{\\"tenant\\": {\\"parameter\\": \\"user\\"}}'
    shares = f'parameters {{ key: "tritium.fairness" value {{ string_value: "{users}" }} }}'
    write_model(folder / "models", "promising", pace=0.2, config=promise + shares)
    flag = "--openai-keep-alive-secs=0.2"
    with LanguageServer.standing(folder / "models", flag, files=folder / "server") as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.openai_url, api_key="key", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def web(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.openai_port}", timeout=60) as web:
        yield web


def chat(text):
    return [{"role": "user", "content": text}]


def test_a_chat(client):
    answer = client.chat.completions.create(model="echo", messages=chat("hello"))
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 5)
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


def test_a_text_whose_characters_have_several_tokens(client):
    asked = {"model": "echo", "prompt": saying(WORDS)}
    whole = client.completions.create(**asked)
    stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = stream
    assert whole.choices[0].text == WORDS
    assert "".join(chunk.choices[0].text for chunk in chunks) == WORDS
    assert "\ufffd" not in "".join(chunk.choices[0].text for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage == whole.usage
    assert last.usage.completion_tokens == len(ids_of(WORDS))


@pytest.mark.parametrize("stream", [False, True])
def test_choices_and_stop_texts(client, stream):
    answer = client.chat.completions.create(
        model="echo", messages=chat("one, two, three"), n=3, stop=["zzz", ", th"], stream=stream
    )
    if stream:
        texts, ends = ["", "", ""], ["", "", ""]
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
    else:
        texts = [choice.message.content for choice in answer.choices]
        ends = [choice.finish_reason for choice in answer.choices]
    assert texts == ["one, two"] * 3
    assert ends == ["stop"] * 3


def test_a_limit_of_tokens(client):
    answer = client.chat.completions.create(model="echo", messages=chat("hello"), max_completion_tokens=3)
    assert answer.choices[0].message.content == "hel"
    assert answer.choices[0].finish_reason == "length"


def test_chances_of_both_apis(client):
    talk = client.chat.completions.create(model="echo", messages=chat("abc"), logprobs=True, top_logprobs=2)
    content = talk.choices[0].logprobs.content
    assert [each.token for each in content] == ["a", "b", "c"]
    assert [each.bytes for each in content] == [[97], [98], [99]]
    assert [(each.token, each.logprob) for each in content[0].top_logprobs] == [("a", -0.5), ("b", -1.0)]
    text = client.completions.create(model="echo", prompt=saying("abc"), logprobs=2)
    told = text.choices[0].logprobs
    assert told.tokens == ["a", "b", "c"]
    assert told.token_logprobs == [-0.5] * 3
    assert told.text_offset == [0, 1, 2]
    assert told.top_logprobs[0] == {"a": -0.5, "b": -1.0}


def test_calls_of_tools(client):
    text = f"Well. {CALL}\n{CALL}"
    message = client.chat.completions.create(model="echo", messages=chat(text), tools=TOOLS).choices[0]
    assert message.finish_reason == "tool_calls"
    assert message.message.content == "Well."
    calls = message.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("add", {"a": 1, "b": [2, 3]})
    ] * 2
    assert len({call.id for call in calls}) == 2


def test_calls_of_tools_in_events(client):
    text = f"Well. {CALL}\n{CALL}"
    with client.chat.completions.stream(model="echo", messages=chat(text), tools=TOOLS) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(deltas) > 4  # arguments come as they are generated
    assert final.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in final.message.tool_calls] == [
        {"a": 1, "b": [2, 3]}
    ] * 2


def test_embeddings_in_both_forms(client):
    answers = [
        client.embeddings.create(model="echo", input=["a", "abc"], encoding_format=form)
        for form in ("float", openai.omit)  # the package asks for base64 itself, and reads it
    ]
    for answer in answers:
        assert [each.embedding for each in answer.data] == [[2.0, 1.0], [4.0, 1.0]]
        assert answer.usage.prompt_tokens == 6
    raw = client.embeddings.create(model="echo", input="a", encoding_format="base64").data[0].embedding
    assert raw == "AAAAQAAAgD8="


def test_models_and_tokens(client, web):
    served = ["echo", "looping", "narrow", "promising", "quiet", "single"]
    assert [model.id for model in client.models.list()] == served
    assert client.models.retrieve("echo").max_model_len == 100_000
    told = web.post("/tokenize", json={"model": "echo", "prompt": "hé", "return_token_strs": True}).json()
    assert told == {
        "count": 4,
        "max_model_len": 100_000,
        "tokens": [0, *ids_of("hé")],
        "token_strs": ["<|begin|>", "h", "Ã", "©"],
    }
    back = web.post("/detokenize", json={"model": "echo", "tokens": ids_of(WORDS)})
    assert back.json() == {"prompt": WORDS}


def test_errors_have_their_types(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="none", messages=chat("hi"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="echo", messages=chat("hi"), temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="echo", prompt=[7] * 100_001)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="this engine enforces no grammar"):
        client.chat.completions.create(
            model="echo", messages=chat("hi"), response_format={"type": "json_object"}
        )


def test_headers(client):
    answer = client.chat.completions.with_raw_response.create(
        model="echo",
        messages=chat("hi"),
        extra_body={"shoe_size": 46},
        extra_headers={"x-request-id": "mine"},
    )
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-tritium-ignored-fields"] == "shoe_size"
    assert answer.parse().choices[0].message.content == "hi"


def test_many_at_once_by_the_asynchronous_client(server):
    texts = [f"{number}: {WORDS}" for number in range(24)]
    told = [""] * len(texts)

    async def read(client, number):
        asked = {"model": "echo", "prompt": saying(texts[number])}
        async for chunk in await client.completions.create(**asked, stream=True):
            told[number] += chunk.choices[0].text

    async def run():
        async with (
            openai.AsyncOpenAI(base_url=server.openai_url, api_key="key", max_retries=0) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(len(texts)):
                group.start_soon(read, client, number)

    anyio.run(run)
    assert told == texts


def test_curl(server):
    body = json.dumps({"model": "echo", "messages": chat("hi"), "stream": True})
    command = ["curl", "-sN", f"{server.openai_url}/chat/completions", "-d", body]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split(
        "\n\n"
    )
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [event["choices"][0]["delta"].get("content") for event in events][:3] == ["", "h", "i"]


# -- those that leave, are late, or do not read. Model `single` runs one request at a time, and some never
# end.


def begun(server, *, stream, wait=True, model="single", **more):
    """Ask for a text without an end, on a bare socket, and `wait` until it has begun."""
    body = json.dumps({"model": model, "prompt": "x", "stream": stream, **ENDLESS, **more}).encode()
    connection = socket.create_connection(("127.0.0.1", server.openai_port), timeout=60)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    if wait:
        assert b"200 OK" in connection.recv(64)
    return connection


def served(client):
    """Have `single` serve, which it can't do while another request runs."""
    answer = client.completions.create(model="single", prompt=saying("ok"))
    assert answer.choices[0].text == "ok"


def test_one_that_leaves_frees_the_engine(server, client):
    begun(server, stream=True).close()
    served(client)
    with pytest.raises(openai.APITimeoutError):  # this one waits for a whole answer
        client.with_options(timeout=1.0).completions.create(model="single", prompt="x", extra_body=ENDLESS)
    served(client)


def test_one_that_leaves_while_queued_is_never_begun(server, client):
    with closing(begun(server, stream=True)):
        for stream in (False, True):
            begun(server, stream=stream, wait=False).close()
    served(client)


def test_a_deadline_gives_what_there_is(client):
    answer = client.completions.create(model="single", prompt="x", extra_body={**ENDLESS, "deadline": 1.0})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].tritium == {"reason": "deadline"}
    assert answer.usage.completion_tokens > 0
    served(client)


def test_a_deadline_in_the_queue_is_an_error(server, client):
    with closing(begun(server, stream=True)), pytest.raises(openai.APIStatusError) as late:
        client.completions.create(model="single", prompt="x", extra_body={"deadline": 0.2})
    assert late.value.status_code == 504
    served(client)


def test_a_full_queue_has_clients_try_again(server, client):
    with closing(begun(server, stream=True, model="narrow")):
        with closing(begun(server, stream=True, model="narrow", wait=False)):
            trio.run(partial(server.until_metric, 1, "tritium_queue_depth", model="narrow"))
            with pytest.raises(openai.RateLimitError) as full:
                client.completions.create(model="narrow", prompt=saying("ok"))
            assert (full.value.code, full.value.type) == ("rate_limit_exceeded", "rate_limit_error")
            assert int(full.value.response.headers["retry-after"]) >= 1
            body = {"text_input": "x", "stream": False}
            refused = httpx.post(f"http://{server.url}/v2/models/narrow/generate", json=body, timeout=60)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
    answer = client.with_options(max_retries=5).completions.create(model="narrow", prompt=saying("ok"))
    assert answer.choices[0].text == "ok"


@pytest.mark.long
def test_a_deadline_before_the_first_token_is_refused_early(client):
    """The next request after one that took longer: once a second one is let in, to see whether that lasts."""
    refusals = []
    for _ in range(20):
        client.completions.create(model="promising", prompt=saying("ok"))
        with pytest.raises(openai.APIStatusError) as late:
            client.completions.create(model="promising", prompt=saying("ok"), extra_body={"deadline": 0.1})
        if late.value.status_code == 429:
            refusals.append(late.value)
            break
        assert late.value.status_code == 504
    (refusal,) = refusals
    assert isinstance(refusal, openai.RateLimitError)
    assert "the first token would take about" in refusal.message
    assert int(refusal.response.headers["retry-after"]) >= 1


@pytest.mark.long
def test_tokens_of_tenants_are_told(server, client):
    for user, text in (("ann", "hello"), ("bob", "hi")):
        client.completions.create(model="promising", prompt=saying(text), user=user)
    statistics = httpx.get(f"http://{server.url}/v2/models/promising/stats", timeout=60).json()
    (version,) = statistics["model_stats"]
    tenants = version["tritium"]["tenants"]
    assert tenants["ann"]["tokens"] == {"prompt": 6, "generated": 5}
    assert tenants["bob"]["tokens"]["generated"] == 2
    assert version["tritium"]["slo"]["times"]["ttft"]["promised"] == 30.0


@pytest.mark.long
def test_one_that_does_not_read_stalls_itself_only(server, client):
    body = json.dumps({"model": "echo", "prompt": saying("z" * 40_000), "stream": True}).encode()
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", server.openai_port))
        stalled.settimeout(60)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        stalled.sendall(head % len(body) + body)
        for _ in range(3):
            stream = client.completions.create(model="echo", prompt=saying("y" * 10_000), stream=True)
            assert "".join(chunk.choices[0].text for chunk in stream) == "y" * 10_000
        text = b"".join(iter(lambda: stalled.recv(65536), b""))
    said = "".join(
        json.loads(line)["choices"][0]["text"]
        for line in (each.removeprefix(b"data: ") for each in text.split(b"\n"))
        if line.startswith(b"{")
    )
    assert said == "z" * 40_000
    assert text.count(b"data: {") < 40_000  # what it left unread was joined


def test_a_quiet_stream_says_that_it_lives(server):
    body = {"model": "quiet", "prompt": saying("a"), "stream": True}
    with httpx.stream("POST", f"{server.openai_url}/completions", json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert ": keep-alive" in lines
    assert lines[-1] == "data: [DONE]"


# -- hostile


@pytest.mark.parametrize(
    ("path", "make", "says"),
    [
        ("chat/completions", lambda: {"messages": chat("x" * 10_000_000)}, "bytes"),
        ("completions", lambda: {"prompt": "x" * 4_000_000}, "maximum context length is"),
        ("chat/completions", lambda: {"messages": chat("a"), "stop": ["s"] * 100_000}, "values"),
        ("completions", lambda: {"prompt": "a", "stop": ["s"] * 65}, "stop"),
    ],
)
def test_what_is_too_long_is_refused(web, path, make, says):
    answer = web.post(f"/v1/{path}", json={"model": "echo", **make()})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_what_is_too_deep_is_refused(web):
    deep = '{"a":' * 10_000 + "1" + "}" * 10_000
    tool = json.dumps({"type": "function", "function": {"name": "f", "parameters": 0}})
    body = json.dumps({"model": "echo", "messages": chat("a"), "tools": [0]})
    body = body.replace("[0]", f"[{tool}]").replace('"parameters": 0', f'"parameters": {deep}')
    answer = web.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert "level" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x01\x7f",
        "e\u0301\u200d\u202e",
        "👩‍👩‍👧‍👦🏴‍☠️",
        "\U0010ffff\ufeff\uffff",
        "<|end|>",
        "{{ 7 * 7 }}",
    ],
)
def test_any_unicode_comes_back(client, web, text):
    answer = client.completions.create(
        model="echo", prompt=saying(text), extra_body={"skip_special_tokens": False}
    )
    assert answer.choices[0].text == ("" if text == "<|end|>" else text)
    ids = web.post("/tokenize", json={"model": "echo", "prompt": text, "add_special_tokens": False}).json()
    back = web.post("/detokenize", json={"model": "echo", "tokens": ids["tokens"]}).json()
    assert back["prompt"] == text


def test_half_a_surrogate_pair_is_refused(web):
    answer = web.post("/v1/completions", content=rb'{"model": "echo", "prompt": "\ud83d"}')
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.long
def test_a_template_that_loops_holds_nobody_up(server, client):
    with pytest.raises(openai.BadRequestError, match="chat template did not end within 1 s"):
        client.chat.completions.create(model="looping", messages=chat("hi"))
    assert client.completions.create(model="looping", prompt=saying("ok")).choices[0].text == "ok"


@pytest.mark.long
def test_long_lists_of_tokens_are_taken(client):
    biases = {str(number): 1 for number in range(4096)}
    answer = client.completions.create(model="echo", prompt=saying("ok"), logit_bias=biases)
    assert answer.choices[0].text == "ok"
    more = {"allowed_token_ids": list(range(16_384))}
    answer = client.completions.create(model="echo", prompt=saying("ok"), n=8, extra_body=more)
    assert [each.text for each in answer.choices] == ["ok"] * 8
    ids = [7] * 900_000
    answer = client.completions.create(
        model="echo", prompt=ids, max_tokens=1, extra_body={"truncate_prompt_tokens": 100}
    )
    assert answer.usage.prompt_tokens == 100
