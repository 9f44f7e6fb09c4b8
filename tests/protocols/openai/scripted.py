"""A language model that answers by a script, behind the OpenAI API on a listener of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from actors.values.errors import TritiumError
from actors.values.generation.facts import LanguageFacts
from actors.values.generation.pieces import (
    STOP,
    Begun,
    Embedding,
    Generated,
    Text,
    TextPiece,
    Tokens,
    TokenUsage,
)
from actors.values.requests import InferResponse
from protocols.openai.app import OpenAiApp
from protocols.openai.options import OpenAiOptions
from tests.protocols.fakes import FakeModel, FakeServer, add_sub, make_spec
from tests.protocols.http import test_http_generate, test_http_listener

Script = Callable[["Scripted", Any], None]


class Scripted(FakeModel):
    """Does with each request what `script` says: it calls `say` and `end`."""

    submitted: list[Any]

    def __init__(self, script: Script, name: str = "tiny") -> None:
        super().__init__(make_spec(name, inputs=[], outputs=[], decoupled=True), self._run)
        self.script = script

    def _run(self, _model: FakeModel, request: Any) -> None:
        self.script(self, request)

    def cancel(self, request: Any) -> None:
        request.cancelled = True
        super().cancel(request)

    def say(self, request: Any, *items: Generated, final: bool = False) -> InferResponse:
        """Give a part of the answer."""
        response = self.respond(request, [])
        response.generated = items
        request.reply.put(response, final=final)
        return response

    def fail(self, request: Any, error: TritiumError) -> None:
        """End the answer with an error."""
        request.reply.put(error, final=True)


def saying(*texts: str, finish: str = STOP, reason: str = "", **more: Any) -> Script:
    """Answer with these texts, a token each, in a part each."""

    def script(model: Scripted, request: Any) -> None:
        model.say(request, Begun(7, **more))
        choices = request.ask.sampling.n * len(request.ask.prompts or (0,))
        for at in range(choices):
            for text in texts:
                model.say(request, TextPiece(at, text, tokens=1))
            model.say(request, TextPiece(at, finish=finish, reason=reason))
        model.say(request, TokenUsage(7, len(texts) * choices, cached=3, reasoning=1), final=True)

    return script


def giving(*parts: Any) -> Script:
    """Answer with these parts; the last of them is the final one."""

    def script(model: Scripted, request: Any) -> None:
        for at, items in enumerate(parts, 1):
            model.say(request, *items, final=at == len(parts))

    return script


def vectors(model: Scripted, request: Any) -> None:
    """Answer each prompt with a vector that begins with its place."""
    dimensions = request.ask.dimensions or 3
    for at in range(len(request.ask.prompts)):
        model.say(request, Embedding(at, [float(at), *[0.1] * (dimensions - 1)]))
    model.say(request, TokenUsage(5, 0), final=True)


def characters(model: Scripted, request: Any) -> None:
    """Take characters for tokens."""
    if request.ask.kind == "detokenize":
        model.say(request, Text("".join(map(chr, request.ask.prompts[0]))), final=True)
        return
    text = request.ask.prompts[0] if request.ask.prompts else request.ask.messages[0]["content"]
    strings = tuple(text) if request.ask.return_token_strs else ()
    model.say(request, Tokens([ord(each) for each in text], strings, 128), final=True)


class FakeLanguages:
    """The language models among those of a server."""

    def __init__(self, facts: dict[str, LanguageFacts]) -> None:
        self.by_name = facts

    def names(self) -> Sequence[str]:
        return list(self.by_name)

    def facts(self, model: str) -> LanguageFacts | None:
        return self.by_name.get(model)


FACTS = LanguageFacts(128, 1_700_000_000, "/models/tiny", {"french": "/adapters/french"})


def add_model() -> FakeModel:
    """Return a model that makes no text."""
    return FakeModel(make_spec("add"), add_sub)


class Served(test_http_generate.Served):
    """The API on a port of its own."""

    app: OpenAiApp
    backend: FakeServer
    languages: FakeLanguages

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"


class Client(test_http_generate.Client):
    async def post(self, path, document, *, version="1.1", headers="", method="POST"):
        import json

        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        head = f"{method} {path} HTTP/{version}\r\nHost: h\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        await self.send(head.encode() + body)


Served.client = Client


@asynccontextmanager
async def serving(*models: FakeModel, patience: float = 20, **options: Any):
    """Serve `models`, all scripted ones among them as language models."""
    backend = FakeServer(models)
    languages = FakeLanguages({each.spec.name: FACTS for each in models if isinstance(each, Scripted)})
    app = OpenAiApp(backend.server, languages, OpenAiOptions(**options))
    with trio.fail_after(patience):
        async with (
            test_http_listener.serve_on_loopback(app, None, served=Served) as served,
            trio.open_nursery() as nursery,
        ):
            served.app, served.backend, served.languages = app, backend, languages
            nursery.start_soon(app.run)
            yield served
            nursery.cancel_scope.cancel()
