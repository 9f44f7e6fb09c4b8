"""The generate extension on the native listener, over models that a test holds in its hand."""

# ruff: noqa: ASYNC110  # the kernel does part of the work, and has no event to wait for

import json
import re
from contextlib import asynccontextmanager
from itertools import count

import numpy as np
import pytest
import trio

from actors.values.callers import Action
from actors.values.datatypes import DataType
from actors.values.errors import Cancelled, Internal, InvalidArgument, Unavailable
from actors.values.requests import Endings, InferResponse
from protocols.http.app import V2App
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeModel, FakeServer, fail, hold, identity, make_spec, tensor
from tests.protocols.http import test_http_listener
from tests.support.callers import KnownCaller, ListedGate

EVENTS = "text/event-stream; charset=utf-8"
NOT_ONE = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)
TEXT = ("text_input", DataType.BYTES, (1,))
OUT = ("text_output", DataType.BYTES, (1,))


class Cancellable(FakeModel):
    def cancel(self, request):
        request.cancelled = True
        super().cancel(request)


def text_model(name, execute, *, decoupled=True):
    return Cancellable(make_spec(name, inputs=[TEXT], outputs=[OUT], decoupled=decoupled), execute)


class Given:
    """A decoupled model's answers in the making: at most `credit` of them are not released."""

    def __init__(self, texts, credit):
        self.texts = iter(texts)
        self.credit = credit
        self.out = 0
        self.most = 0
        self.made = 0

    def execute(self, model, request):
        while self.out < self.credit and not request.cancelled:
            text = next(self.texts, None)
            if text is None:
                if not request.answered:
                    request.answered = True
                    request.reply.put(model.respond(request, []), final=True)
                return
            response = say(model, request, text)
            self.out += 1
            self.made += 1
            self.most = max(self.most, self.out)
            response.on_release(lambda: self.released(model, request))
            request.reply.put(response, final=False)

    def released(self, model, request):
        self.out -= 1
        trio.lowlevel.current_trio_token().run_sync_soon(self.execute, model, request)


def say(model, request, text, **parameters):
    return model.respond(request, [tensor("text_output", np.array([[text]], object))], **parameters)


def at_once(*parts):
    """Return an `execute` that puts `parts`, texts and errors, and the end behind them."""

    def execute(model, request):
        for part in parts:
            request.reply.put(say(model, request, part) if isinstance(part, str) else part, final=False)
        request.reply.put(model.respond(request, []), final=True)

    return execute


def with_the_end(*parts):
    """The same, with the end on the last part."""

    def execute(model, request):
        for place, part in enumerate(parts, 1):
            part = say(model, request, part) if isinstance(part, str) else part
            request.reply.put(part, final=place == len(parts))

    return execute


class Client(test_http_listener.Client):
    async def post(self, path, document, *, version="1.1", headers="", method="POST"):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        head = f"{method} /v2/models/{path} HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        await self.send(head.encode() + body)

    async def until(self, mark):
        while mark not in self.pending:
            part = await self.socket.recv(65536)
            assert part, f"closed after {self.pending!r}"
            self.pending += part
        taken, _, self.pending = self.pending.partition(mark)
        return taken

    async def head(self):
        line, *lines = (await self.until(b"\r\n\r\n")).decode().split("\r\n")
        return int(line.split()[1]), dict(field.split(": ", 1) for field in lines)

    async def chunk(self):
        data = await self.receive(int(await self.until(b"\r\n"), 16))
        assert await self.receive(2) == b"\r\n"
        return data

    async def chunks(self):
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def answer(self):
        status, fields = await self.head()
        if "Transfer-Encoding" in fields or "transfer-encoding" in fields:
            return status, fields, await self.chunks()
        return status, fields, await self.receive(int(fields["Content-Length"]))


class Served(test_http_listener.Served):
    client = Client

    async def ask(self, path, document, **options):
        async with self.connect() as client:
            await client.post(path, document, **options)
            return await client.answer()


@asynccontextmanager
async def serving(*models, **options):
    """Serve `models`. Afterwards none may have kept memory."""
    app = V2App(FakeServer(models).server, options=V2Options(**options))
    with trio.fail_after(20):
        async with test_http_listener.serve_on_loopback(app, None, served=Served) as served:
            yield served


def events(body):
    assert body == b"" or body.endswith(b"\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in body.decode().split("\n\n")[:-1]]


def texts(body):
    return [each.get("text_output", each) for each in events(body)]


def echo_model(name="echo"):
    return text_model(name, identity, decoupled=False)


# One response


async def test_a_response_is_one_json_object_in_chunks():
    model = echo_model()
    async with serving(model) as served:
        status, fields, body = await served.ask("echo/generate", {"text_input": "hé", "id": "r1", "n": 1})
    assert (status, fields["Content-Type"]) == (200, "application/json")
    assert fields["transfer-encoding"] == "chunked"
    assert body == '{"id":"r1","model_name":"echo","model_version":"1","text_output":"hé"}'.encode()
    assert model.submitted[0].parameters == {"id": "r1", "n": 1}
    assert model.released == 1


async def test_a_version_may_be_named():
    async with serving(echo_model()) as served:
        assert (await served.ask("echo/versions/1/generate", {"text_input": "a"}))[0] == 200
        assert await_error(await served.ask("echo/versions/2/generate", {"text_input": "a"})) == (
            404,
            "Request for unknown model: 'echo' version 2 is not found",
        )
        assert await_error(await served.ask("nope/generate_stream", {})) == (
            404,
            "Request for unknown model: 'nope' is not found",
        )


def await_error(answer):
    status, fields, body = answer
    assert fields["Content-Type"] == "application/json"
    return status, json.loads(body)["error"]


@pytest.mark.parametrize("execute", [at_once("a"), with_the_end("a")])
async def test_a_decoupled_model_may_answer_generate_once(execute):
    async with serving(text_model("llm", execute)) as served:
        status, _, body = await served.ask("llm/generate", {"text_input": "x"})
    assert (status, json.loads(body)["text_output"]) == (200, "a")


@pytest.mark.parametrize("execute", [at_once(), at_once("a", "b"), with_the_end("a", "b", "c")])
async def test_none_or_several_responses_are_too_few_or_too_many_for_generate(execute):
    model = text_model("llm", execute)
    async with serving(model) as served:
        status, fields, body = await served.ask("llm/generate", {"text_input": "x"})
    assert (status, fields["Content-Type"], body) == (200, "application/json", NOT_ONE)


async def test_generate_does_not_wait_for_the_end_of_what_it_can_not_answer_with():
    given = Given((str(number) for number in count()), 3)
    model = text_model("llm", given.execute)
    async with serving(model) as served:
        assert (await served.ask("llm/generate", {"text_input": "x"}))[2] == NOT_ONE
    assert model.cancelled == model.submitted


async def test_a_refusal_of_the_model_is_an_error_like_that_of_infer():
    async with serving(text_model("full", fail, decoupled=False)) as served:
        for endpoint in ("generate", "generate_stream"):
            status, _, body = await served.ask(f"full/{endpoint}", {"text_input": "x"})
            assert status == 503
            assert b'{"error":"Exceeds maximum queue size"}' in body


async def test_what_can_not_be_encoded_is_an_error():
    spec = make_spec("half", inputs=[TEXT], outputs=[("Y", DataType.FP16, (1,))])
    model = FakeModel(
        spec, lambda model, request: model.respond(request, [tensor("Y", np.array([1], np.float16))])
    )
    message = "sending FP16 data via JSON is not supported. Please use the binary data format for output"
    async with serving(model) as served:
        assert await_error(await served.ask("half/generate", {"text_input": "x"})) == (400, message)
        status, fields, body = await served.ask("half/generate_stream", {"text_input": "x"})
        assert (status, fields["Content-Type"], events(body)) == (400, EVENTS, [{"error": message}])
    assert model.released == 2


# Several


async def test_each_response_is_an_event():
    model = text_model("llm", at_once("a", "hé\n", "", "𝄞"))
    async with serving(model) as served:
        status, fields, body = await served.ask("llm/generate_stream", {"text_input": "x", "id": "7"})
    assert (status, fields["Content-Type"], fields["transfer-encoding"]) == (200, EVENTS, "chunked")
    assert body.startswith(
        b'data: {"id":"7","model_name":"llm","model_version":"1","text_output":"a"}\n\ndata: {'
    )
    assert texts(body) == ["a", "hé\n", "", "𝄞"]
    assert model.released == 5


async def test_a_model_that_is_not_decoupled_streams_its_only_response():
    async with serving(echo_model()) as served:
        status, fields, body = await served.ask("echo/generate_stream", {"text_input": "a"})
    assert (status, fields["Content-Type"], texts(body)) == (200, EVENTS, ["a"])


async def test_a_stream_without_responses_is_empty():
    async with serving(text_model("llm", at_once())) as served:
        status, fields, body = await served.ask("llm/generate_stream", {"text_input": "x"})
    assert (status, fields["Content-Type"], body) == (200, EVENTS, b"")


async def test_events_come_as_the_model_has_them():
    model = text_model("llm", hold)
    async with serving(model) as served, served.connect() as client:
        await client.post("llm/generate_stream", {"text_input": "x"})
        while not model.submitted:
            await trio.lowlevel.checkpoint()
        (request,) = model.submitted
        for number in range(3):
            request.reply.put(say(model, request, f"{number}"), final=False)
            if not number:
                assert (await client.head())[0] == 200
            assert texts(await client.chunk()) == [f"{number}"]
            while model.released <= number:
                await trio.lowlevel.checkpoint()
        request.reply.put(model.respond(request, []), final=True)
        assert await client.chunk() == b""


async def test_the_connection_is_kept_after_a_stream():
    async with serving(text_model("llm", at_once("a", "b"))) as served, served.connect() as client:
        for _ in range(3):
            await client.post("llm/generate_stream", {"text_input": "x"})
            assert texts((await client.answer())[2]) == ["a", "b"]
        await client.post("llm/generate", b"")
        assert (await client.answer())[0] == 500
        await client.post("llm/generate_stream", {"text_input": "x"})
        assert texts((await client.answer())[2]) == ["a", "b"]


@pytest.mark.parametrize("headers", ["", "Connection: keep-alive\r\n"])
@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(headers, endpoint):
    async with serving(text_model("llm", at_once("a"))) as served, served.connect() as client:
        await client.post(f"llm/{endpoint}", {"text_input": "x"}, version="1.0", headers=headers)
        status, fields = await client.head()
        assert (status, fields["Connection"]) == (200, "close")
        assert "transfer-encoding" not in fields
        body = await client.receive_all()
    document = json.loads(body) if endpoint == "generate" else events(body)[0]
    assert document["text_output"] == "a"


# Errors


async def test_the_first_response_decides_the_status():
    model = text_model("llm", with_the_end(InvalidArgument("no")))
    async with serving(model) as served:
        status, fields, body = await served.ask("llm/generate_stream", {"text_input": "x"})
        assert (status, fields["Content-Type"], body) == (400, EVENTS, b'data: {"error":"no"}\n\n')
        assert await_error(await served.ask("llm/generate", {"text_input": "x"})) == (400, "no")


async def test_a_client_that_has_to_wait_is_told_how_long():
    model = text_model("llm", with_the_end(Unavailable("full", retry_after=2.2)))
    async with serving(model) as served:
        for endpoint in ("generate", "generate_stream"):
            status, fields, _ = await served.ask(f"llm/{endpoint}", {"text_input": "x"})
            assert status == 503
            assert int({key.lower(): value for key, value in fields.items()}["retry-after"]) >= 2


async def test_an_error_behind_the_first_event_is_an_event():
    model = text_model("llm", at_once("a", Internal('it "broke"'), "b"))
    async with serving(model) as served:
        status, _, body = await served.ask("llm/generate_stream", {"text_input": "x"})
    assert (status, texts(body)) == (200, ["a", {"error": 'it "broke"'}, "b"])


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
async def test_what_is_wrong_with_a_request_is_an_ordinary_error(endpoint):
    async with serving(echo_model()) as served:
        for document, status, message in (
            (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
            ({"text_input": 1}, 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
            ({"text_input": "a", "x": []}, 400, "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ):  # fmt: skip
            assert await_error(await served.ask(f"echo/{endpoint}", document)) == (status, message)


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
async def test_other_methods_and_compressed_bodies_are_refused(endpoint):
    async with serving(echo_model()) as served:
        for method in ("GET", "PUT"):
            answer = await served.ask(f"echo/{endpoint}", b"", method=method)
            assert await_error(answer) == (405, "Method Not Allowed")
        async with served.connect() as client:
            await client.post(f"echo/{endpoint}", b"", method="HEAD")
            assert (await client.head())[0] == 405
        answer = await served.ask(f"echo/{endpoint}", b"", headers="Content-Encoding: gzip\r\n")
        assert await_error(answer) == (400, "Unsupported content-encoding, only 'identity' is supported.")
        answer = await served.ask(
            f"echo/{endpoint}",
            {"text_input": "a"},
            headers="Content-Encoding: identity\r\nAccept-Encoding: gzip\r\n",
        )
        assert answer[0] == 200
        assert not {"content-encoding", "Content-Encoding"} & answer[1].keys()


async def test_generate_belongs_to_the_inference_api():
    async with serving(echo_model(), restricted={Action.INFERENCE: ("key", "value")}) as served:
        for endpoint in ("generate", "generate_stream"):
            answer = await served.ask(f"echo/{endpoint}", {"text_input": "a"})
            assert await_error(answer) == (403, "This API is restricted, expecting header 'key'")
            answer = await served.ask(f"echo/{endpoint}", {"text_input": "a"}, headers="key: value\r\n")
            assert answer[0] == 200


async def test_a_generated_answer_is_its_callers():
    alice = KnownCaller("alice", {(Action.INFERENCE, "echo")})
    model = echo_model()
    async with serving(model, gate=ListedGate({b"Bearer a": alice})) as served:
        for endpoint in ("generate", "generate_stream"):
            status, fields, _ = await served.ask(f"echo/{endpoint}", {"text_input": "a"})
            assert (status, fields["WWW-Authenticate"]) == (401, 'Bearer realm="tritium"')
            answer = await served.ask(
                f"echo/{endpoint}", {"text_input": "a"}, headers="Authorization: Bearer a\r\n"
            )
            assert (answer[0], alice.running) == (200, 0)
        alice.most = 0
        answer = await served.ask("echo/generate", {"text_input": "a"}, headers="Authorization: Bearer a\r\n")
        assert await_error(answer) == (429, "alice has 0 under way")
    assert [request.caller for request in model.submitted] == [alice, alice]


async def test_headers_are_not_forwarded_and_timing_is_told():
    model = echo_model()
    options = {"header_forward_pattern": re.compile("x-"), "server_timing": True}
    async with serving(model, **options) as served:
        answer = await served.ask("echo/generate", {"text_input": "a"}, headers="x-a: b\r\n")
    assert model.submitted[0].parameters is None
    assert answer[1]["Server-Timing"].startswith("queue;dur=1.000")


async def test_it_is_told_what_came_of_each_request():
    told = []

    def finished(request, outcome, _):
        told.append((request.id, type(outcome)))

    models = [
        text_model("llm", at_once("a", "b")),
        text_model("bad", with_the_end("a", InvalidArgument("no"))),
        text_model("full", with_the_end(Unavailable("no"))),
    ]
    async with serving(*models, endings=Endings(finished)) as served:
        for path, expected in (
            ("llm/generate_stream", InferResponse),
            ("llm/generate", Internal),
            ("bad/generate_stream", InvalidArgument),
            ("full/generate", Unavailable),
        ):
            await served.ask(path, {"text_input": "x", "id": path})
            assert told == [(path, expected)]
            told.clear()


# Clients that leave, and clients that don't read


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
async def test_a_client_that_leaves_cancels_its_request(endpoint):
    told = []
    model = text_model("llm", hold)
    async with serving(model, endings=Endings(lambda _, outcome, __: told.append(outcome))) as served:
        async with served.connect() as client:
            await client.post(f"llm/{endpoint}", {"text_input": "x"})
            while not model.submitted:
                await trio.lowlevel.checkpoint()
            (request,) = model.submitted
            if endpoint == "generate_stream":
                request.reply.put(say(model, request, "a"), final=False)
                await client.head()
        while not told:
            await trio.lowlevel.checkpoint()
        assert model.cancelled == [request]
        assert isinstance(told[0], Cancelled)
        request.reply.put(say(model, request, "late"), final=True)
    assert model.released == 1 + (endpoint == "generate_stream")


@pytest.mark.slow
async def test_a_model_waits_for_a_client_that_does_not_read():
    given = Given(("x" * 10_000 for _ in range(2000)), 4)
    model = text_model("llm", given.execute)
    async with serving(model) as served, served.connect() as client:
        await client.post("llm/generate_stream", {"text_input": "x"})
        before = -1
        while before != given.made or not given.made:  # until what is on the way has filled up
            before = given.made
            await trio.sleep(0.1)
        assert given.most == 4
        assert given.made < 1900
        assert served.listener.statistics().buffered <= 4 * 11_000
        await client.head()
        assert len(texts(await client.chunks())) == 2000
    assert given.out == 0


async def test_a_client_that_leaves_while_it_does_not_read_cancels_its_request():
    given = Given(("x" * 10_000 for _ in count()), 4)
    model = text_model("llm", given.execute)
    async with serving(model) as served:
        async with served.connect(SO_RCVBUF=4096) as client:
            await client.post("llm/generate_stream", {"text_input": "x"})
            while not served.listener.statistics().buffered:
                await trio.sleep(0.01)
        while not model.cancelled:
            await trio.lowlevel.checkpoint()
        while given.out:
            await trio.lowlevel.checkpoint()


async def test_a_great_many_events_come_through_in_order():
    given = Given(map(str, range(4_000)), 64)
    async with serving(text_model("llm", given.execute)) as served:
        _, _, body = await served.ask("llm/generate_stream", {"text_input": "x"})
    assert texts(body) == list(map(str, range(4_000)))
    assert given.out == 0


async def test_streams_do_not_hold_each_other_up():
    given = Given((f"{number}" for number in count()), 8)
    endless, short = text_model("endless", given.execute), text_model("short", at_once("a"))
    async with serving(endless, short) as served, served.connect() as client:
        await client.post("endless/generate_stream", {"text_input": "x"})
        await client.head()
        for _ in range(20):
            assert texts((await served.ask("short/generate_stream", {"text_input": "x"}))[2]) == ["a"]


async def test_a_server_that_stops_lets_go_of_a_stream():
    model = text_model("llm", hold)
    async with serving(model) as served, served.connect() as client:
        await client.post("llm/generate_stream", {"text_input": "x"})
        while not model.submitted:
            await trio.lowlevel.checkpoint()
    assert model.cancelled == model.submitted


# Infer


async def test_infer_is_not_for_decoupled_models():
    async with serving(text_model("llm", hold)) as served:
        assert await_error(await served.ask("llm/infer", b"{}")) == (
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        )
