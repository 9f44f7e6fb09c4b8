"""Answers in one piece: what came of a chat or completion, gathered until its end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import orjson

from actors.values.errors import Internal
from actors.values.generation.pieces import Begun, Generated, TextPiece, TokenUsage, ToolDelta
from protocols.openai.asking import AskedFor, Kind
from protocols.openai.envelope import Envelope, ending, id_list, unfinished, usage_object
from protocols.openai.logprobs import CompletionTokens, chat_tokens, prompt_tokens

_AT_ONCE: Final = 64
Steps = Generator[None, None, None]


class _Call:
    """A call of a tool, as far as it has come."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []

    def add(self, delta: ToolDelta) -> None:
        self.id = self.id or delta.id
        self.name = self.name or delta.name
        self.arguments.append(delta.arguments)

    def document(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class _Choice:
    """One choice, as far as it has come."""

    __slots__ = ("calls", "chances", "ids", "last", "reasoning", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, _Call] = {}
        self.ids: list[int] = []
        self.chances: list[bytes] = []
        self.last: TextPiece | None = None

    def add(self, piece: TextPiece) -> None:
        self.texts.append(piece.text)
        if piece.reasoning:
            self.reasoning.append(piece.reasoning)
        for delta in piece.tools:
            self.calls.setdefault(delta.call, _Call()).add(delta)
        self.ids += piece.token_ids
        if piece.finish:
            self.last = piece


class WholeAnswer:
    """Gathers one answer. `take` is given all that comes, and `texts` returns the answer's JSON."""

    def __init__(self, asked: AskedFor, envelope: Envelope) -> None:
        self._asked = asked
        self._envelope = envelope
        self._chat = asked.kind is Kind.CHAT
        self._choices = [_Choice() for _ in range(asked.choices)]
        self._begun: dict[int, Begun] = {}
        self._prompt_logprobs: dict[int, bytes] = {}
        self._tokens: dict[int, CompletionTokens] = {}
        self._usage: TokenUsage | None = None

    def take(self, items: Sequence[Generated]) -> Steps:
        """Take what has come. Yields between steps."""
        for item in items:
            match item:
                case TextPiece():
                    yield from self._piece(item)
                case Begun():
                    self._begun[item.prompt] = item
                    if self._asked.prompt_logprobs:
                        self._prompt_logprobs[item.prompt] = yield from prompt_tokens(item.prompt_chances)
                case TokenUsage():
                    self._usage = item
                case _:
                    raise Internal(f"the model answered a request for text with {type(item).__name__}")

    def _piece(self, piece: TextPiece) -> Steps:
        choice = self._choice(piece.choice)
        choice.add(piece)
        if self._asked.logprobs is None:
            return
        for start in range(0, len(piece.chances), _AT_ONCE):
            some = piece.chances[start : start + _AT_ONCE]
            if self._chat:
                choice.chances.append(chat_tokens(some, self._asked.logprobs, ids=self._asked.ids_as_tokens))
            else:
                tokens = yield from self._tokens_of(piece.choice)
                for each in some:
                    tokens.add(each)
            yield

    def _choice(self, at: int) -> _Choice:
        if not 0 <= at < len(self._choices):
            raise Internal(f"the model answered with choice {at} of {len(self._choices)}")
        return self._choices[at]

    def _tokens_of(self, at: int) -> Generator[None, None, CompletionTokens]:
        tokens = self._tokens.get(at)
        if tokens is None:
            assert self._asked.logprobs is not None, "probabilities were asked for"
            tokens = CompletionTokens(self._asked.logprobs, ids=self._asked.ids_as_tokens)
            self._tokens[at] = tokens
            begun = self._prompt_of(at)
            if self._asked.ask.echo and begun is not None:
                yield from tokens.add_prompt(begun.prompt_chances, begun.prompt_text)
        return tokens

    def _prompt_of(self, choice: int) -> Begun | None:
        return self._begun.get(choice // self._asked.ask.sampling.n)

    def texts(self) -> Generator[None, None, list[bytes]]:
        """Return the answer, in texts that follow each other. Raises Internal if it is not complete."""
        parts = [self._envelope.head("chat.completion" if self._chat else "text_completion"), b'"choices":[']
        for at, choice in enumerate(self._choices):
            if choice.last is None:
                raise unfinished(at)
            parts.append(b"," if at else b"")
            parts += (
                self._chat_choice(at, choice, choice.last)
                if self._chat
                else (yield from self._completion(at, choice, choice.last))
            )
            yield
        usage = self._usage or TokenUsage(
            sum(each.prompt_tokens for each in self._begun.values()),
            sum(len(each.ids) for each in self._choices),
        )
        parts += (b'],"usage":', usage_object(usage))
        if self._chat:
            parts += self._of_prompt(0)
        parts.append(b"}")
        return parts

    def _of_prompt(self, choice: int) -> list[bytes]:
        """Return what is told of a choice's prompt: in a chat's answer, or in the choice of a completion."""
        parts: list[bytes] = []
        begun = self._prompt_of(choice)
        if self._asked.prompt_logprobs:
            told = self._prompt_logprobs.get(choice // self._asked.ask.sampling.n, b"null")
            parts += (b',"prompt_logprobs":', told)
        if self._asked.ask.return_token_ids and begun is not None:
            parts += (b',"prompt_token_ids":', id_list(begun.prompt_ids))
        return parts

    def _chat_choice(self, at: int, choice: _Choice, last: TextPiece) -> list[bytes]:
        content = "".join(choice.texts)
        calls = [call.document() for _, call in sorted(choice.calls.items())]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not content else content,
            "refusal": None,
        }
        if choice.reasoning and self._asked.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if calls:
            message["tool_calls"] = calls
        logprobs = b"null"
        if self._asked.logprobs is not None:
            logprobs = b'{"content":[%b],"refusal":null}' % b",".join(filter(None, choice.chances))
        parts = [b'{"index":%d,"message":' % at, orjson.dumps(message), b',"logprobs":', logprobs, b","]
        return [*parts, ending(last, chat=True), self._ids(choice), b"}"]

    def _completion(self, at: int, choice: _Choice, last: TextPiece) -> Generator[None, None, list[bytes]]:
        text = "".join(choice.texts)
        begun = self._prompt_of(at)
        if self._asked.ask.echo and begun is not None:
            text = begun.prompt_text + text
        logprobs = b"null"
        if self._asked.logprobs is not None:
            logprobs = (yield from self._tokens_of(at)).take()
        parts = [b'{"index":%d,"text":' % at, orjson.dumps(text), b',"logprobs":', logprobs, b","]
        end = ending(last, chat=False)
        return [*parts, end, self._ids(choice), *self._of_prompt(at), b"}"]

    def _ids(self, choice: _Choice) -> bytes:
        return b',"token_ids":' + id_list(choice.ids) if self._asked.ask.return_token_ids else b""
