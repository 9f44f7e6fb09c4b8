"""The OpenAI API as an application: heads, identities, streams slow, quiet and left, and management."""

# the kernel does part of the work, and has no event to wait for

import errno
import json
from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from actors.values.callers import Action, Peer
from actors.values.errors import Cancelled, Internal, Unavailable
from actors.values.generation.facts import BadAsk, LanguageFacts
from actors.values.generation.pieces import Begun, TextPiece, TokenChance, TokenChances, TokenUsage
from actors.values.marks import ClientMarks
from actors.values.requests import Endings, InferResponse
from actors.values.specs import LanguageServing
from actors.values.tracing.spans import Tracer
from protocols.http.admission import Admitted
from protocols.http.answers import Answer
from protocols.http.origins import OriginPolicy
from protocols.openai.app import OpenAiApp
from protocols.openai.asking import Defaults, level_of
from protocols.openai.options import Area, OpenAiOptions
from protocols.openai.routes import OpenAiRoute, Path, is_health, match
from protocols.transport.sockets import PlainTransport
from tests.protocols.fakes import FakeServer, make_spec
from tests.protocols.openai.scripted import (
    FACTS,
    FakeLanguages,
    Scripted,
    add_model,
    characters,
    giving,
    saying,
    serving,
    vectors,
)
from tests.support.auditing import KeptAuditor
from tests.support.callers import KnownCaller, ListedGate
from tests.support.cores import python_only
from tests.support.traced import Book, names

CHAT = "/v1/chat/completions"
PARTS = 3000  # of a stream that is longer than the sockets' buffers
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


def hold(_model, _request):
    """Answer when the test says so."""


def with_levels(levels, default):
    serving = LanguageServing(priority_levels=levels, default_priority_level=default)
    return replace(make_spec("tiny"), scheduling=serving)


def error_of(answer):
    return json.loads(answer[2])["error"]


def events(body):
    texts = body.decode().split("\n\n")
    assert texts.pop() == ""
    return texts


async def ask(served, path, document=b"", *, headers="", method="POST"):
    async with served.connect() as client:
        await client.post(path, document, headers=headers, method=method)
        return await client.answer()


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


# Paths and heads


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", OpenAiRoute(Path.CHAT)),
        ("/v1/models", OpenAiRoute(Path.MODELS)),
        ("/v1/models/a", OpenAiRoute(Path.MODEL, "a")),
        ("/v1/models/org/a%20b", OpenAiRoute(Path.MODEL, "org/a b")),
        ("/v1/models/org/a/load", OpenAiRoute(Path.LOAD, "org/a")),
        ("/v1/models/a/unload", OpenAiRoute(Path.UNLOAD, "a")),
        ("/v1/models/", None),
        ("/v1/chat", None),
        ("/", None),
    ],
)
def test_paths(path, route):
    assert match(path) == route


def test_paths_of_health_checks():
    assert [is_health(path) for path in (b"/health/ready", b"/health/live", b"/metrics", b"/x")] == [
        True,
        True,
        False,
        False,
    ]


async def test_what_is_not_there():
    async with serving(Scripted(saying("a"))) as served:
        answer = await ask(served, "/v2/models", method="GET")
        assert (answer[0], error_of(answer)["code"]) == (404, "not_found")
        status, fields, _ = answer = await ask(served, CHAT, method="GET")
        assert (status, fields["Allow"], error_of(answer)["code"]) == (405, "POST", "method_not_allowed")
        assert error_of(answer)["message"] == "GET is not for this path: use POST"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Expecting value at byte 0"),
        (b"{", "Expecting property name"),
        (b'{"model":NaN}', "NaN is no number of JSON"),
        (b'{"model":"m","model":"n"}', "has the name 'model' twice"),
        (b"[" * 5000 + b"]" * 5000, "nests more than 64 levels deep"),
        (b'{"model":"\\ud800"}', "surrogate"),
        (b"[]", "has to be a JSON object"),
        (b'{"messages":[]}', "'model' is missing"),
        (b" " * 70_000 + b"{", "the name of a member is missing at byte 70001"),
        (
            b'{"model":"tiny","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 10_000_000),
            "bytes in a string",
        ),
    ],
    ids=lambda value: repr(value[:20]),
)
async def test_bodies_that_say_nothing(body, said):
    model = Scripted(saying("a"))
    async with serving(model) as served:
        status, fields, _ = answer = await ask(served, CHAT, body)
    assert (status, fields["Content-Type"]) == (400, JSON)
    assert error_of(answer)["type"] == "invalid_request_error"
    assert said in error_of(answer)["message"]
    assert model.submitted == []


async def test_a_long_body_is_read_in_slices():
    model = Scripted(saying("a"))
    text = "é" * 500_000
    async with serving(model) as served:
        status, *_ = await ask(served, CHAT, {**HI, "messages": [{"role": "user", "content": text}]})
    assert status == 200
    assert model.submitted[0].ask.messages[0]["content"] == text


async def test_a_body_may_be_too_long():
    async with serving(Scripted(saying("a")), max_input_size=100) as served:
        for size in (101, 300_000):
            status, *_ = answer = await ask(served, CHAT, b" " * size)
            assert status == 413
            assert error_of(answer) == {
                "message": f"Request size of {size} bytes exceeds the maximum allowed input size of 100 "
                "bytes. Use --http-max-input-size to increase the limit.",
                "type": "invalid_request_error",
                "param": None,
                "code": "content_too_large",
            }


async def test_compressed_bodies_are_refused():
    async with serving(Scripted(saying("a"))) as served:
        answer = await ask(served, CHAT, HI, headers="Content-Encoding: gzip\r\n")
    assert (answer[0], error_of(answer)["message"]) == (
        400,
        "Unsupported content-encoding, only 'identity' is supported.",
    )


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("a b", False), ("x" * 200, False)])
async def test_ids_of_requests_are_kept(given, kept):
    async with serving(Scripted(saying("a"))) as served:
        for path, document, method in ((CHAT, HI, "POST"), ("/v1/models", b"", "GET"), ("/nope", b"", "GET")):
            _, fields, _ = await ask(
                served, path, document, headers=f"X-Request-ID: {given}\r\n", method=method
            )
            assert (fields["x-request-id"] == given) is kept
            assert fields["x-request-id"]


async def test_an_id_in_the_body_stands_for_one_in_the_head():
    async with serving(Scripted(saying("a"))) as served:
        _, fields, body = await ask(served, CHAT, {**HI, "request_id": "r1", "stream": True})
        assert (fields["x-request-id"], b'"id":"chatcmpl-r1"' in body) == ("r1", True)
        _, fields, _ = await ask(served, CHAT, {**HI, "request_id": "r1"}, headers="X-Request-ID: r2\r\n")
        assert fields["x-request-id"] == "r2"


async def test_ignored_fields_are_named_as_far_as_a_header_can():
    document = {**HI, "foo": 1, "a,b": 1, "x y": 1, "é": 1, **{f"f{at}": 1 for at in range(40)}}
    async with serving(Scripted(saying("a"))) as served:
        for stream in (False, True):
            _, fields, _ = await ask(served, CHAT, {**document, "stream": stream})
            named, _, more = fields["x-tritium-ignored-fields"].partition(";")
            assert named.startswith("foo, \\xe9, f0, f1")
            assert len(named.split(", ")) == 32
            assert more == " more=12"


# What a request becomes


async def test_what_goes_along_with_an_ask():
    model = Scripted(saying("a"))
    model.spec = with_levels(3, 1)
    async with serving(model, defaults=Defaults(max_tokens=16)) as served:
        await ask(
            served, CHAT, {**HI, "priority": 1, "deadline": 9.0, "prompt_cache_key": "k", "user": "ann"}
        )
        first, *_ = model.submitted
        assert (first.priority, first.affinity, first.parameters) == (2, "k", {"user": "ann"})
        assert first.deadline - first.accepted_at == pytest.approx(9)
        assert first.ask.sampling.max_tokens == 16
        await ask(served, CHAT, {**HI, "prompt_cache_key": "k"}, headers="X-Session-Affinity: t\r\n")
        assert model.submitted.pop().affinity == "t"
        model.marks = ClientMarks(affinity_header="x-session", tenant_parameter="user")
        headers = "X-Session: s\r\ngrpc-timeout: 2S\r\n"
        await ask(
            served, CHAT, {**HI, "deadline": 9, "prompt_cache_key": "k", "user": "ann"}, headers=headers
        )
        await ask(served, CHAT, HI, headers="grpc-timeout: 100m\r\n")
        _, second, third = model.submitted
        assert (second.affinity, second.tenant) == ("s", "ann")
        assert second.deadline - second.accepted_at == pytest.approx(2)
        assert third.deadline - third.accepted_at == pytest.approx(0.1)
        answer = await ask(served, CHAT, HI, headers="grpc-timeout: soon\r\n")
        assert (answer[0], "malformed grpc-timeout 'soon'" in error_of(answer)["message"]) == (400, True)


@pytest.mark.parametrize(("priority", "level"), [(-1, 1), (0, 0), (1, 3), (2, 4)])
def test_priorities_count_from_the_default_level(priority, level):
    """As vLLM has them: a lower number goes earlier, and 0 is usual."""
    assert level_of(priority, with_levels(4, 2)) == level


@pytest.mark.parametrize(
    ("priority", "spec", "said"),
    [
        (-2, with_levels(4, 2), "expected a whole number from -1 to 2, got -2"),
        (3, with_levels(4, 2), "expected a whole number from -1 to 2, got 3"),
        (1, with_levels(1, 1), "'priority' is 1, and the queue of 'tiny' has one level: use 0"),
        (-1, with_levels(0, 0), "'priority' is -1, and the queue of 'tiny' has one level: use 0"),
        (1, make_spec("tiny"), "'priority' is 1, and the queue of 'tiny' has one level: use 0"),
    ],
)
def test_levels_that_there_are_not_are_refused(priority, spec, said):
    with pytest.raises(BadAsk) as refused:
        level_of(priority, spec)
    assert said in refused.value.message
    assert refused.value.param == "priority"


async def test_adapters_may_go_by_their_models_names():
    model = Scripted(saying("a"))
    async with serving(model, separator=":") as served:
        assert (await ask(served, CHAT, {**HI, "model": "tiny:french"}))[0] == 200
        assert model.submitted[0].ask.adapter == "french"
        answer = await ask(served, CHAT, {**HI, "model": "tiny:dutch"})
        assert (answer[0], error_of(answer)["message"]) == (404, "Unknown LoRA: dutch; for model: tiny")
        answer = await ask(served, CHAT, {**HI, "model": "french"})
        assert (answer[0], error_of(answer)["message"]) == (404, "Unknown model: french")
        _, _, body = await ask(served, "/v1/models", method="GET")
        assert [each["id"] for each in json.loads(body)["data"]] == ["tiny", "tiny:french"]


async def test_a_model_that_is_not_ready_says_so():
    async with serving(Scripted(saying("a"))) as served:

        def resolve(name, version=""):
            raise Unavailable(f"Request for unknown model: '{name}' is not ready")

        served.backend.models.resolve = resolve
        answer = await ask(served, CHAT, {**HI, "model": "resting"})
    assert (answer[0], answer[1]["Retry-After"], error_of(answer)["code"]) == (503, "1", "unavailable")


async def test_tokenize_needs_no_model_where_there_is_one():
    async with serving(Scripted(characters)) as served:
        _, _, body = await ask(served, "/tokenize", {"prompt": "hi", "return_token_strs": True})
        assert json.loads(body) == {
            "count": 2,
            "max_model_len": 128,
            "tokens": [104, 105],
            "token_strs": ["h", "i"],
        }
        served.languages.by_name["other"] = LanguageFacts(1)
        answer = await ask(served, "/tokenize", {"prompt": "hi"})
        assert (answer[0], error_of(answer)["message"]) == (400, "'model' is missing: there are tiny, other")


# Streams


async def test_events_that_came_together_are_written_together():
    async with serving(Scripted(saying("a", "b", "c"))) as served, served.connect() as client:
        await client.post(CHAT, {**HI, "stream": True})
        status, fields = await client.head()
        assert (status, fields["Content-Type"], fields["Cache-Control"]) == (200, EVENTS, "no-cache")
        first = await client.chunk()
        assert len(events(first)) == 5
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        # The connection is as good as before.
        await client.post(CHAT, HI)
        assert (await client.answer())[0] == 200


async def test_events_are_written_as_they_come():
    model = Scripted(hold)
    async with serving(model) as served, served.connect() as client:
        await client.post(CHAT, {**HI, "stream": True})
        await until(lambda: model.submitted)
        (request,) = model.submitted
        for text in ("a", "b"):
            model.say(request, Begun(1), TextPiece(0, text))
            if text == "a":
                await client.head()
            assert f'"content":"{text}"'.encode() in await client.chunk()
        model.say(request, TextPiece(0, finish="stop"), TokenUsage(1, 2), final=True)
        assert events(await client.chunk())[-1].endswith('"finish_reason":"stop"}]}')
        assert model.released == 3


async def test_much_at_once_is_written_in_several_pieces():
    pieces = [[Begun(1), *(TextPiece(0, "x" * 4000) for _ in range(9))] for _ in range(12)]
    async with (
        serving(Scripted(giving(*pieces, [TextPiece(0, finish="stop")]))) as served,
        served.connect() as client,
    ):
        await client.post(CHAT, {**HI, "stream": True})
        await client.head()
        sizes = []
        while part := await client.chunk():
            sizes.append(len(part))
        assert len(sizes) > 4
        assert max(sizes) < 64 * 1024 + 9 * 5000


async def test_many_probabilities_come_in_slices():
    chances = [TokenChances(TokenChance(1, "a", -1.0, 1), ())] * 500
    parts = [
        [Begun(1), TextPiece(0, "a" * 500, chances=chances)],
        [TextPiece(0, finish="stop"), TokenUsage(1, 500)],
    ]
    async with serving(Scripted(giving(*parts))) as served:
        for stream in (True, False):
            _, _, body = await ask(served, CHAT, {**HI, "logprobs": True, "stream": stream})
            assert body.count(b'"logprob":-1.0') == 500


async def test_quiet_streams_show_that_they_live(autojump_clock):
    del autojump_clock
    model = Scripted(hold)
    async with serving(model, patience=float("inf")) as served, served.connect() as client:
        began = trio.current_time()
        await client.post(CHAT, {**HI, "stream": True})
        # Before the first token, and between two.
        await client.head()
        assert await client.chunk() == b": keep-alive\n\n"
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)
        assert await client.chunk() == b": keep-alive\n\n"
        assert trio.current_time() - began == pytest.approx(20, abs=0.1)
        (request,) = model.submitted
        await trio.sleep(6)
        model.say(request, Begun(1), TextPiece(0, "a"))
        assert b'"content":"a"' in await client.chunk()
        assert await client.chunk() == b": keep-alive\n\n"
        assert trio.current_time() - began == pytest.approx(36, abs=0.1)
        # The status has been sent, so an error is an event.
        model.fail(request, Internal("it broke"))
        told, done = events(await client.chunk())
        assert json.loads(told.removeprefix("data: "))["error"]["message"] == "it broke"
        assert done == "data: [DONE]"
        assert await client.chunk() == b""
        await trio.sleep(100)


async def test_an_error_takes_nothing_from_what_came_before():
    model = Scripted(hold)
    async with serving(model) as served, served.connect() as client:
        await client.post(CHAT, {**HI, "stream": True})
        await until(lambda: model.submitted)
        (request,) = model.submitted
        model.say(request, Begun(1), TextPiece(0, "a"))
        model.fail(request, Unavailable("the engine died"))
        await client.head()
        body = await client.chunks()
    role, text, error, done = events(body)
    assert '"content":"a"' in text
    assert "the engine died" in error
    assert (role.startswith("data: "), done) == (True, "data: [DONE]")
    assert model.cancelled == []


async def test_an_answer_that_breaks_off_ends_with_an_error():
    async with serving(Scripted(giving([Begun(1), TextPiece(0, "a")]))) as served:
        status, _, body = await ask(served, CHAT, {**HI, "stream": True})
        assert status == 200
        assert "before choice 0 was complete" in events(body)[-2]
        answer = await ask(served, CHAT, HI)
        assert (answer[0], error_of(answer)["code"]) == (500, "internal_error")
    async with serving(Scripted(vectors)) as served:
        answer = await ask(served, "/v1/completions", {"model": "tiny", "prompt": "x", "stream": True})
        assert (answer[0], error_of(answer)["message"]) == (
            500,
            "the model answered a request for text with Embedding",
        )


async def test_a_slow_reader_stalls_its_own_stream():
    credit = 4
    parts = {"slow": 0, "quick": 0}

    def script(model, request):
        name = request.ask.messages[0]["content"]
        under_way = 0

        def more():
            nonlocal under_way
            while under_way < credit and parts[name] < PARTS and not request.cancelled:
                under_way += 1
                parts[name] += 1
                over = parts[name] == PARTS
                response = model.respond(request, [])
                response.generated = [TextPiece(0, "x" * 4000, finish="stop" if over else "")]
                response.on_release(released)
                request.reply.put(response, final=over)

        def released():
            nonlocal under_way
            under_way -= 1
            trio.lowlevel.current_trio_token().run_sync_soon(more)

        more()

    def chat(name):
        return {**HI, "stream": True, "messages": [{"role": "user", "content": name}]}

    model = Scripted(script)
    async with serving(model) as served, served.connect(SO_RCVBUF=4096) as slow, served.connect() as quick:
        await slow.post(CHAT, chat("slow"))
        await served.until(lambda now: now.buffered)
        await quick.post(CHAT, chat("quick"))
        await quick.head()
        assert len(await quick.chunks()) > PARTS * 4000
        assert parts["slow"] < PARTS
        await slow.head()
        assert len(await slow.chunks()) > PARTS * 4000


async def test_a_request_says_how_large_it_is():
    model = Scripted(saying("a"))
    async with serving(model) as served:
        for text in ("b", "b" * 100_000):
            await ask(served, CHAT, {**HI, "messages": [{"role": "user", "content": text}]})
    small, large = (each.nbytes for each in model.submitted)
    assert (large - small, small > 40) == (99_999, True)


async def test_a_plain_piece_is_written_in_the_turn_it_comes_in():
    model = Scripted(hold)
    async with serving(model) as served, served.connect() as client:
        await client.post(CHAT, {**HI, "stream": True})
        await until(lambda: model.submitted)
        (request,) = model.submitted
        model.say(request, Begun(1), TextPiece(0, "a"))
        await client.head()
        assert '"content":"a"' in (await client.chunk()).decode()
        await until(lambda: model.released == 1)
        await trio.testing.wait_all_tasks_blocked()
        model.say(request, TextPiece(0, "b"))
        assert model.released == 2  # there was no other turn
        model.say(request, TextPiece(0, "c"))
        model.say(request, TextPiece(0, finish="stop"), final=True)
        assert model.released == 3
        texts = [json.loads(each[6:])["choices"][0] for each in events(await client.chunks())[:-1]]
    assert [each["delta"].get("content") for each in texts] == ["b", "c", None]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_slow_reader_misses_nothing(version):
    pieces = [f"{number:05}" * 8000 for number in range(100)]
    model = Scripted(hold)
    async with serving(model) as served, served.connect(SO_RCVBUF=4096) as client:
        await client.post(CHAT, {**HI, "stream": True}, version=version)
        await until(lambda: model.submitted)
        (request,) = model.submitted
        model.say(request, Begun(1), TextPiece(0, "-"))
        await until(lambda: model.released == 1)
        await trio.testing.wait_all_tasks_blocked()
        for piece in pieces:
            model.say(request, TextPiece(0, piece))
        assert 1 < model.released < 100  # what the socket took
        model.say(request, TextPiece(0, finish="stop"), final=True)
        await client.head()
        told = events(await (client.chunks() if version == "1.1" else client.receive_all()))
    texts = [json.loads(each[6:])["choices"][0]["delta"].get("content", "") for each in told[:-1]]
    assert "".join(texts) == "-" + "".join(pieces)
    assert model.released == 102


@python_only
async def test_a_write_that_fails_is_no_trouble_of_the_models(monkeypatch):
    """The kernel may be out of memory, say. That raises nothing where the piece came."""
    model = Scripted(hold)

    def fails(*_):
        raise OSError(errno.ENOBUFS, "no buffer space available")

    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with serving(model) as served, served.connect() as client:
            await client.post(CHAT, {**HI, "stream": True})
            await until(lambda: model.submitted)
            (request,) = model.submitted
            model.say(request, Begun(1), TextPiece(0, "a"))
            await until(lambda: model.released == 1)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(PlainTransport, "send", fails)
            model.say(request, TextPiece(0, "b"))
            model.say(request, TextPiece(0, "c"))
            assert model.released == 1  # what raises, does so from here on
            await trio.sleep_forever()
    assert model.released == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begun", [True, False])
async def test_leaving_cancels(stream, begun):
    model = Scripted(hold)
    told = []
    endings = Endings(lambda request, outcome, peer: told.append((request, outcome, peer)))
    async with serving(model, endings=endings) as served:
        async with served.connect() as client:
            await client.post(CHAT, {**HI, "stream": stream})
            await until(lambda: model.submitted)
            (request,) = model.submitted
            if begun:
                model.say(request, Begun(1), TextPiece(0, "a"))
            if begun and stream:
                await client.head()
                await client.chunk()
        await until(lambda: model.cancelled)
        late = model.say(request, TextPiece(0, "b", finish="stop"), final=True)
        assert not late.leased
        await until(lambda: told)
    assert model.cancelled == [request]
    assert model.released == 1 + begun
    assert isinstance(told[0][1], Cancelled)


async def test_a_log_is_told_of_every_end():
    told = []
    endings = Endings(lambda request, outcome, peer: told.append((request.id, type(outcome), peer[:15])))
    async with serving(Scripted(saying("a")), endings=endings) as served:
        for stream in (False, True):
            await ask(served, CHAT, {**HI, "stream": stream}, headers="X-Request-ID: r\r\n")
    assert told == [("r", InferResponse, "ipv4:127.0.0.1:")] * 2


class Everything(Tracer):
    """Traces every request into a book."""

    __slots__ = ("book",)

    def __init__(self):
        super().__init__()
        self.active = True
        self.book = Book()

    def begin(self, request, now, *, parent="", state=""):
        assert parent.startswith("00-")
        return self.book.trace().open(request, now)


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_are_traced(stream):
    tracer = Everything()
    headers = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    async with serving(Scripted(saying("a")), tracer=tracer) as served:
        await ask(served, CHAT, {**HI, "stream": stream}, headers=headers)
        served.backend.model("tiny").script = lambda model, request: model.fail(request, Internal("broke"))
        assert (await ask(served, CHAT, {**HI, "stream": stream}, headers=headers))[0] == 500
        await until(lambda: len(tracer.book.finished) == 2)
    answered, failed = tracer.book.finished
    wanted = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert [name for name in names(answered.moments) if name.startswith("HTTP")] == wanted
    assert failed.requests[0].error == "Internal: broke"


# Who may ask


def callers():
    everything = {(action, model) for action in Action for model in ("", "tiny", "*")}
    return KnownCaller("alice", everything), KnownCaller("bob", {(Action.INFERENCE, "")})


async def test_identities():
    alice, bob = callers()
    gate = ListedGate({b"Bearer alice": alice, b"Bearer bob": bob})
    auditor = KeptAuditor()
    model = Scripted(saying("a"))
    async with serving(model, gate=gate, auditor=auditor) as served:
        status, *_ = await ask(served, CHAT, HI, headers="Authorization: Bearer alice\r\n")
        assert (status, model.submitted[0].caller, alice.running) == (200, alice, 0)
        answer = await ask(served, CHAT, HI, headers="Authorization: Bearer bob\r\n")
        assert (answer[0], error_of(answer)["type"]) == (403, "permission_error")
        answer = await ask(served, CHAT, HI)
        assert (answer[0], error_of(answer)["code"]) == (401, "invalid_api_key")
        assert answer[1]["WWW-Authenticate"].startswith("Bearer")
        answer = await ask(served, CHAT, b" " * 200_000)
        assert answer[0] == 401
        long = {**HI, "messages": [{"role": "user", "content": "x" * 200_000}]}
        assert (await ask(served, CHAT, long, headers="Authorization: Bearer alice\r\n"))[0] == 200
        assert alice.bytes[-1] > 200_000
        async with served.connect() as client:
            body = json.dumps(HI).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alice\r\n"
            await client.send(f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body)
            await client.send(b"\r\n0\r\n\r\n")
            assert (await client.answer())[0] == 200
        _, _, body = await ask(served, "/v1/models", headers="Authorization: Bearer alice\r\n", method="GET")
        assert [each["id"] for each in json.loads(body)["data"]] == ["tiny", "french"]
        answer = await ask(served, "/v1/models/tiny", headers="Authorization: Bearer bob\r\n", method="GET")
        assert answer[0] == 403
    assert auditor.told == [
        ("denied", "inference", "tiny", "bob"),
        ("denied", "inference", "", ""),
        ("denied", "inference", "", ""),
        ("denied", "metadata", "tiny", "bob"),
    ]


async def test_apis_may_be_restricted():
    restricted = {Area.INFERENCE: ("X-Key", "secret"), Area.HEALTH: ("X-Key", "other")}
    async with serving(Scripted(saying("a")), restricted=restricted) as served:
        answer = await ask(served, CHAT, HI)
        assert answer[0] == 401
        assert error_of(answer) == {
            "message": "This API is restricted, expecting header 'X-Key' with valid value",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_auth",
        }
        assert (await ask(served, CHAT, HI, headers="X-Key: secret\r\n"))[0] == 200
        assert (await ask(served, "/health/ready", headers="X-Key: secret\r\n", method="GET"))[0] == 401
        assert (await ask(served, "/v1/models", method="GET"))[0] == 200


async def test_web_pages():
    pages = OriginPolicy(origins=frozenset({"https://good.example"}))
    async with serving(Scripted(saying("a")), pages=pages) as served:
        headers = "Origin: https://bad.example\r\nSec-Fetch-Site: cross-site\r\n"
        answer = await ask(served, CHAT, HI, headers=headers)
        assert (answer[0], error_of(answer)["type"]) == (403, "permission_error")
        headers = "Origin: https://good.example\r\n"
        for stream in (False, True):
            _, fields, _ = await ask(served, CHAT, {**HI, "stream": stream}, headers=headers)
            assert fields["access-control-allow-origin"] == "https://good.example"
        headers += "Access-Control-Request-Method: POST\r\n"
        status, fields, _ = await ask_bodiless(served, CHAT, headers, "OPTIONS")
        assert (status, fields["access-control-allow-methods"]) == (204, "POST")


async def ask_bodiless(served, path, headers, method):
    async with served.connect() as client:
        await client.send(f"{method} {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode())
        return *await client.head(), b""


# Management


async def test_health():
    async with serving() as served:
        health = served.backend.health
        for path in ("/health/ready", "/health/live"):
            assert (await ask(served, path, method="GET"))[0] == 200
        health.is_ready = health.is_live = False
        for path in ("/health/ready", "/health/live"):
            assert (await ask(served, path, method="GET"))[0] == 400
        health.exiting = True
        for path in ("/health/ready", "/health/live"):
            assert (await ask(served, path, method="GET"))[0] == 503


async def test_metrics():
    async def metrics(scope, receive, send):
        assert (scope["method"], scope["path"]) == ("GET", "/metrics")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"up 1\n"})

    async with serving(metrics=metrics) as served:
        assert (await ask(served, "/metrics", method="GET"))[2] == b"up 1\n"
        assert (await ask_bodiless(served, "/metrics", "", "HEAD"))[0] == 200
    async with serving() as served:
        assert (await ask(served, "/metrics", method="GET"))[0] == 404


async def test_models_are_loaded_and_unloaded():
    auditor = KeptAuditor()
    async with serving(Scripted(saying("a")), add_model(), explicit=True, auditor=auditor) as served:
        repository = served.backend.repository
        repository.explicit = True
        answer = await ask(served, "/v1/models/tiny/load")
        assert (answer[0], error_of(answer)["message"]) == (400, "Model 'tiny' is already loaded")
        _, _, body = await ask(served, "/v1/models/other/load", b"{}")
        assert json.loads(body) == {"id": "other", "object": "model"}
        status, _, body = await ask(served, "/v1/models/tiny/unload")
        assert (status, json.loads(body)) == (200, {"status": "success", "model": "tiny"})
        answer = await ask(served, "/v1/models/nope/unload")
        assert (answer[0], error_of(answer)["message"]) == (404, "Unknown model: nope")
        answer = await ask(served, "/v1/models/nope", method="GET")
        assert (answer[0], error_of(answer)["message"]) == (404, "Unknown model: nope")
        answer = await ask(served, "/v1/models/x/load", {"parameters": {}})
        assert "this takes no body" in error_of(answer)["message"]
        served.languages.by_name.clear()

        async def load(name, parameters, *, permit):
            served.languages.by_name[name] = FACTS

        repository.load = load
        _, _, body = await ask(served, "/v1/models/tiny/load")
        assert json.loads(body)["max_model_len"] == 128
        assert repository.loaded == [("other", {})]
        assert repository.unloaded == [("tiny", False)]
    async with serving(Scripted(saying("a"))) as served:
        for action in ("load", "unload"):
            answer = await ask(served, f"/v1/models/tiny/{action}")
            assert (answer[0], error_of(answer)["message"]) == (
                400,
                "Model load/unload requires --model-control-mode=explicit",
            )


# Under a foreign server


class Foreign:
    """Calls the application as a foreign server would."""

    def __init__(self, app):
        self.app = app
        self.leave = trio.Event()

    async def ask(self, method, path, *parts):
        coming = [
            {"type": "http.request", "body": part, "more_body": at < len(parts)}
            for at, part in enumerate(parts or (b"",), 1)
        ]
        sent = []

        async def receive():
            if not coming:
                await self.leave.wait()
                return {"type": "http.disconnect"}
            await trio.lowlevel.checkpoint()
            return coming.pop(0)

        async def send(message):
            await trio.lowlevel.checkpoint()
            sent.append(message)

        size = str(sum(map(len, parts))).encode()
        headers = [(b"content-length", size)] if len(parts) < 2 else [(b"transfer-encoding", b"chunked")]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "headers": headers,
        }
        await self.app(scope, receive, send)
        assert not coming or not parts
        if not sent:
            return None
        start, *bodies = sent
        assert [each.get("more_body", False) for each in bodies] == [True] * (len(bodies) - 1) + [False]
        return start["status"], dict(start["headers"]), b"".join(each["body"] for each in bodies)


def foreign(script):
    model = Scripted(script)
    app = OpenAiApp(
        FakeServer([model]).server, FakeLanguages({"tiny": FACTS}), OpenAiOptions(max_input_size=200)
    )
    return Foreign(app), model


async def test_a_foreign_server_may_serve_it():
    server, _ = foreign(saying("Hel", "lo"))
    status, headers, body = await server.ask("POST", CHAT, json.dumps(HI).encode())
    assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Hello")
    assert headers[b"content-length"] == str(len(body)).encode()
    status, _, body = await server.ask("POST", CHAT, json.dumps({**HI, "stream": True}).encode())
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    for parts in ((b" " * 300,), (b" " * 150, b" " * 150, b" " * 150)):
        status, headers, body = await server.ask("POST", CHAT, *parts)
        assert (status, json.loads(body)["error"]["code"]) == (413, "content_too_large")
        assert headers[b"x-request-id"]
    status, _, body = await server.ask("GET", "/nope")
    assert status == 404


async def test_leaving_a_foreign_server_cancels():
    server, model = foreign(hold)
    async with trio.open_nursery() as nursery:

        async def ask_and_leave():
            assert await server.ask("POST", CHAT, json.dumps(HI).encode()) is None

        nursery.start_soon(ask_and_leave)
        await until(lambda: model.submitted)
        server.leave.set()
    assert model.cancelled == model.submitted


async def test_it_speaks_http_only():
    server, _ = foreign(hold)
    with pytest.raises(RuntimeError, match="not websocket"):
        await server.app({"type": "websocket"}, None, None)


def test_heads_are_judged_before_long_bodies():
    app = OpenAiApp(FakeServer([]).server, FakeLanguages({}), OpenAiOptions(max_input_size=100))
    peer = Peer("192.0.2.1")
    admitted = app.admit(peer, "POST", b"/v1/chat/completions", [], 100)
    assert isinstance(admitted, Admitted)
    assert admitted.most == 100
    assert admitted.too_long(101).status == 413
    for method, path, status in (
        ("POST", b"/v1/chat/completions", 413),
        ("GET", b"/v1/chat/completions", 405),
        ("POST", b"/nope", 404),
    ):
        refused = app.admit(peer, method, path, [(b"x-request-id", b"r")], 101)
        assert isinstance(refused, Answer)
        assert (refused.status, (b"x-request-id", b"r") in refused.headers) == (status, True)
    listed = app.admit(peer, "GET", b"/v1/models", [], 5)
    assert isinstance(listed, Admitted)
    assert not listed.wanted
    loaded = app.admit(peer, "POST", b"/v1/models/m/load", [], 5)
    assert isinstance(loaded, Admitted)
    assert loaded.wanted
