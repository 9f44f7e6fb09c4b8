"""The `openai` package, unmodified, against the API on a listener of ours."""

import math
import subprocess
from array import array
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import openai
import pytest
import trio

from actors.values.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    Poisoned,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from actors.values.generation.facts import BadAsk
from actors.values.generation.pieces import (
    Begun,
    TextPiece,
    TokenChance,
    TokenChances,
    TokenUsage,
    ToolDelta,
)
from tests.protocols.openai.scripted import Scripted, add_model, characters, giving, saying, serving, vectors

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def failing(error):
    return lambda model, request: model.fail(request, error)


@asynccontextmanager
async def clients(script, **options):
    """Serve a model that answers by `script`; give a call of the synchronous client, and the model."""
    model = Scripted(script)
    async with serving(model, add_model(), **options) as served:
        with openai.OpenAI(base_url=served.url + "/v1", api_key="key", max_retries=0) as client:

            async def call(use):
                return await trio.to_thread.run_sync(partial(use, client))

            yield call, model


async def test_a_chat():
    async with clients(saying("Hel", "lo")) as (call, model):
        answer = await call(
            lambda client: client.chat.completions.create(
                model="tiny", messages=HI, seed=7, stop=["x"], user="ann"
            )
        )
        assert answer.choices[0].message.content == "Hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        assert answer.usage.completion_tokens_details.reasoning_tokens == 1
        assert answer.id.startswith("chatcmpl-")
        (request,) = model.submitted
        assert request.ask.sampling.seed == 7
        assert request.parameters == {"user": "ann"}
        assert model.released == 5
        assert model.cancelled == []


async def test_a_chat_in_events():
    def use(client):
        stream = client.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        return list(stream)

    async with clients(saying("Hel", "lo")) as (call, model):
        *told, last = await call(use)
        assert "".join(each.choices[0].delta.content or "" for each in told) == "Hello"
        assert told[0].choices[0].delta.role == "assistant"
        assert told[-1].choices[0].finish_reason == "stop"
        assert (last.choices, last.usage.total_tokens) == ([], 9)
        assert model.released == 5


async def test_the_packages_own_helper_gathers_a_stream():
    def use(client):
        with client.chat.completions.stream(model="tiny", messages=HI, tools=[TOOL]) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    parts = [
        [Begun(3), TextPiece(0, tools=[ToolDelta(0, "call_1", "add")])],
        [TextPiece(0, tools=[ToolDelta(0, arguments='{"a":')])],
        [TextPiece(0, tools=[ToolDelta(0, arguments="1}")])],
        [TextPiece(0, finish="tool_calls"), TokenUsage(3, 2)],
    ]
    async with clients(giving(*parts)) as (call, _):
        (choice,) = (await call(use)).choices
    assert choice.finish_reason == "tool_calls"
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("call_1", "add", '{"a":1}')


async def test_the_asynchronous_client():
    async def use(url):
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            answer = await client.chat.completions.create(model="tiny", messages=HI, n=2)
            stream: Any = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
            return answer, [each.choices[0].delta.content or "" async for each in stream]

    async with serving(Scripted(saying("a", "b"))) as served:
        # Most programs run it on asyncio, which needs a thread beside our loop.
        answer, texts = await trio.to_thread.run_sync(anyio.run, use, served.url)
    assert [each.message.content for each in answer.choices] == ["ab", "ab"]
    assert "".join(texts) == "ab"


async def test_completions():
    def use(client):
        whole = client.completions.create(model="tiny", prompt=["a", [1, 2]], max_tokens=5)
        told = client.completions.create(model="tiny", prompt="a", stream=True, echo=True)
        return whole, "".join(each.choices[0].text for each in told)

    async with clients(saying("x", "y", prompt_text="a")) as (call, _):
        whole, told = await call(use)
    assert [each.text for each in whole.choices] == ["xy", "xy"]
    assert whole.id.startswith("cmpl-")
    assert told == "axy"


async def test_probabilities():
    chances = [TokenChances(TokenChance(1, "A", -0.5, 1), [TokenChance(1, "A", -0.5, 1)])]
    parts = [[Begun(1), TextPiece(0, "A", chances=chances, finish="length"), TokenUsage(1, 1)]]
    async with clients(giving(*parts)) as (call, _):
        chat = await call(
            lambda client: client.chat.completions.create(
                model="tiny", messages=HI, logprobs=True, top_logprobs=1
            )
        )
        (told,) = chat.choices[0].logprobs.content
        assert (told.token, told.logprob, told.bytes, len(told.top_logprobs)) == ("A", -0.5, [65], 1)
        text = await call(lambda client: client.completions.create(model="tiny", prompt="x", logprobs=1))
        assert text.choices[0].logprobs.top_logprobs == [{"A": -0.5}]


async def test_embeddings_come_as_base64_unless_asked_for_otherwise():
    async with clients(vectors) as (call, model):
        answer = await call(
            lambda client: client.embeddings.create(model="tiny", input=["a", "b"], dimensions=2)
        )
        assert [each.embedding for each in answer.data] == [
            pytest.approx([0.0, 0.1]),
            pytest.approx([1.0, 0.1]),
        ]
        raw = await call(
            lambda client: client.embeddings.create(model="tiny", input=[[1, 2]], encoding_format="float")
        )
        assert raw.data[0].embedding == [0.0, 0.1, 0.1]
        assert [each.ask.prompts for each in model.submitted] == [["a", "b"], [array("i", [1, 2])]]


async def test_models():
    def use(client):
        return client.models.list().data, client.models.retrieve("french"), client.models.retrieve("tiny")

    async with clients(saying("a")) as (call, model):
        listed, adapter, base = await call(use)
        assert [each.id for each in listed] == ["tiny", "french"]
        assert (adapter.parent, adapter.root) == ("tiny", "/adapters/french")
        assert (base.owned_by, base.max_model_len) == ("Triton Inference Server", 128)
        await call(lambda client: client.chat.completions.create(model="french", messages=HI))
        assert (model.submitted[0].model_name, model.submitted[0].ask.adapter) == ("tiny", "french")


async def test_headers():
    def use(client):
        return client.chat.completions.with_raw_response.create(
            model="tiny", messages=HI, extra_body={"foo": 1}, extra_headers={"X-Request-ID": "abc"}
        )

    async with clients(saying("a")) as (call, model):
        answer = await call(use)
        assert answer.headers["x-request-id"] == answer.request_id == "abc"
        assert answer.headers["x-tritium-ignored-fields"] == "foo"
        assert answer.parse().id == "chatcmpl-abc"
        assert model.submitted[0].id == "abc"


@pytest.mark.parametrize(
    ("error", "raised", "status", "code", "again"),
    [
        (InvalidArgument("a"), openai.BadRequestError, 400, "invalid_value", None),
        (BadAsk("a", param="messages", reason="context_length_exceeded"), openai.BadRequestError, 400,
         "context_length_exceeded", None),
        (Unauthenticated("a"), openai.AuthenticationError, 401, "invalid_api_key", None),
        (PermissionDenied("a"), openai.PermissionDeniedError, 403, "permission_denied", None),
        (Poisoned("a"), openai.UnprocessableEntityError, 422, "poisoned", None),
        (TooManyRequests("a", retry_after=3), openai.RateLimitError, 429, "rate_limit_exceeded", "true"),
        (Internal("a"), openai.InternalServerError, 500, "internal_error", None),
        (Overloaded("a", retry_after=3), openai.RateLimitError, 429, "rate_limit_exceeded", "true"),
        (Unavailable("a"), openai.InternalServerError, 503, "unavailable", "true"),
        (Unavailable("a", retry_after=math.inf), openai.InternalServerError, 503, "unavailable", "false"),
        (DeadlineExceeded("a"), openai.InternalServerError, 504, "deadline_exceeded", "false"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_before_the_first_text_have_their_status(error, raised, status, code, again, stream):
    async with clients(failing(error)) as (call, _):
        with pytest.raises(raised) as caught:
            await call(
                lambda client: client.chat.completions.create(model="tiny", messages=HI, stream=stream)
            )
    assert caught.value.status_code == status
    assert caught.value.code == code
    assert caught.value.body["message"] == "a"
    assert caught.value.param == getattr(error, "param", None)
    assert caught.value.response.headers.get("x-should-retry") == again
    assert ("retry-after" in caught.value.response.headers) is (again == "true")


async def test_an_error_behind_the_first_text_is_an_event():
    def script(model, request):
        model.say(request, Begun(1), TextPiece(0, "a"))
        model.fail(request, Unavailable("the engine died"))

    def use(client):
        stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
        texts = [next(stream).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError) as caught:
            next(stream)
        return texts, caught.value

    async with clients(script) as (call, _):
        texts, error = await call(use)
    assert texts == ["", "a"]
    assert (error.message, error.code) == ("the engine died", "unavailable")


async def test_what_is_refused_names_its_field():
    def use(client):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="tiny", messages=HI, temperature=3)
        return caught.value

    async with clients(saying("a")) as (call, model):
        error = await call(use)
        assert (error.param, error.code, error.type) == (
            "temperature",
            "invalid_value",
            "invalid_request_error",
        )
        assert model.submitted == []


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [TooManyRequests, Overloaded])
async def test_retries_are_the_packages_own(refusal):
    calls = []

    def script(model, request):
        calls.append(request)
        if len(calls) == 1:
            model.fail(request, refusal("slowly", retry_after=0.01))
        else:
            saying("a")(model, request)

    async with clients(script) as (call, _):
        answer = await call(
            lambda client: client.with_options(max_retries=1).chat.completions.create(
                model="tiny", messages=HI
            )
        )
    assert answer.choices[0].message.content == "a"
    assert len(calls) == 2


async def test_unknown_models():
    def use(client, name):
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=name, messages=HI)
        return caught.value

    async with clients(saying("a")) as (call, _):
        error = await call(lambda client: use(client, "nope"))
        assert isinstance(error, openai.NotFoundError)
        assert (error.response.json()["error"]["message"], error.code, error.param) == (
            "Unknown model: nope",
            "model_not_found",
            "model",
        )
        error = await call(lambda client: use(client, "add"))
        assert isinstance(error, openai.BadRequestError)
        assert error.response.json()["error"]["message"] == (
            "Model 'add' is no language model: ask for it over the v2 API, at /v2/models/add/infer"
        )


@pytest.mark.system
async def test_curl():
    async with serving(Scripted(saying("Hel", "lo")), Scripted(characters, "letters")) as served:

        async def curl(path, document):
            line = ("curl", "-sSN", "--max-time", "20", served.url + path, "-d", document)
            return (await trio.run_process(line, capture_stdout=True, stderr=subprocess.STDOUT)).stdout

        told = await curl("/v1/completions", '{"model":"tiny","prompt":"x","stream":true}')
        assert told.startswith(b'data: {"id":"cmpl-')
        assert told.endswith(b"\n\ndata: [DONE]\n\n")
        assert b'"tokens":[104,105]' in await curl("/tokenize", '{"model":"letters","prompt":"hi"}')
        assert await curl("/detokenize", '{"model":"letters","tokens":[104,105]}') == b'{"prompt":"hi"}'
