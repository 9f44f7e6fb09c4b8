"""Answers in events: each piece of a chat or completion as a server-sent event.

Most events differ from the one before in a text only. So what stands before and behind it is made once for
each choice, and a plain event is a text between two others.

The first events of a chat name the role. They come with the engine's first output, so that an error that
comes before still has a status of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Final

import orjson

from actors.seams.steps import at_once
from actors.values.errors import Internal
from actors.values.generation.pieces import Begun, Generated, TextPiece, TokenUsage, ToolDelta
from protocols.openai.asking import AskedFor, Kind
from protocols.openai.envelope import Envelope, ending, id_list, is_long, unfinished, usage_object
from protocols.openai.logprobs import CompletionTokens, chat_tokens

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

_FEW: Final = 64
_NO_FINISH: Final = b'"finish_reason":null'
Steps = Generator[None, None, None]


class _Choice:
    """What of a stream belongs to one choice."""

    __slots__ = ("before", "finished", "head", "tokens")

    def __init__(self, head: bytes, before: bytes) -> None:
        self.head = head  # an event up to the choice's own members
        self.before = before  # a plain event up to its text
        self.tokens = 0
        self.finished = False


class Chunks(ABC):
    """The events of one answer."""

    chat: ClassVar[bool]
    _object: ClassVar[str]
    _before: ClassVar[bytes]
    _after: ClassVar[bytes]

    def __init__(self, asked: AskedFor, envelope: Envelope) -> None:
        self._asked = asked
        streaming = asked.streaming
        self._continuous = streaming.continuous
        head = b"data: " + envelope.head(self._object)
        self._outer = head
        self._choices = [
            _Choice(start, start + self._before)
            for start in (head + b'"choices":[{"index":%d,' % at for at in range(asked.choices))
        ]
        self._tail = b'}],"usage":null}\n\n' if streaming.usage else b"}]}\n\n"
        self._behind = self._after + self._tail
        self._begun: dict[int, Begun] = {}
        self._prompt_tokens = 0
        self._started = False
        self._usage: TokenUsage | None = None
        # Whether a piece that has a text alone is an event that has a text alone.
        self._plain = not self._continuous

    def take(self, items: Sequence[Generated], events: list[bytes]) -> bool:
        """Append to `events` what tells of `items`, one after the other, while that is short work.

        Returns whether it was. If not, `take_long` has to be asked, and nothing has happened.
        """
        plain = self.plain(items)
        if plain:
            events.append(plain)
            return True
        if is_long(items):
            return False
        at_once(self.take_long(items, events))
        return True

    def plain(self, items: Sequence[Generated]) -> bytes:
        """Return the event of a piece that is a text alone, as most are. Empty: there is more to it."""
        if len(items) != 1:
            return b""
        piece = items[0]
        if type(piece) is not TextPiece or not self._is_plain(piece):
            return b""
        choice = self._choices[piece.choice]
        choice.tokens += piece.tokens
        return choice.before + orjson.dumps(piece.text) + self._behind

    def _is_plain(self, piece: TextPiece) -> bool:
        return (
            self._started
            and self._plain
            and piece.text != ""
            and not (piece.finish or piece.reasoning or piece.tools or piece.chances or piece.token_ids)
            and 0 <= piece.choice < len(self._choices)
        )

    def take_long(self, items: Sequence[Generated], events: list[bytes]) -> Steps:
        """Do as `take`. Yields between steps."""
        for item in items:
            match item:
                case TextPiece():
                    if not 0 <= item.choice < len(self._choices):
                        raise Internal(
                            f"the model answered with choice {item.choice} of {len(self._choices)}"
                        )
                    if not self._started:
                        self._started = True
                        events += self._first_events()
                    yield from self._piece(item, self._choices[item.choice], events)
                case Begun():
                    self._begun[item.prompt] = item
                    self._prompt_tokens += item.prompt_tokens
                    yield from self._prompt(item)
                case TokenUsage():
                    self._usage = item
                case _:
                    raise Internal(f"the model answered a request for text with {type(item).__name__}")

    def end(self) -> bytes:
        """Return the last events. Raises Internal if a choice is not complete."""
        for at, choice in enumerate(self._choices):
            if not choice.finished:
                raise unfinished(at)
        if not self._asked.streaming.usage:
            return DONE
        usage = self._usage or TokenUsage(self._prompt_tokens, sum(choice.tokens for choice in self._choices))
        return self._outer + b'"choices":[],"usage":' + usage_object(usage) + b"}\n\n" + DONE

    def _close(self, choice: _Choice) -> bytes:
        if not self._continuous:
            return self._tail
        return b'}],"usage":' + usage_object(TokenUsage(self._prompt_tokens, choice.tokens)) + b"}\n\n"

    def _event(
        self, choice: _Choice, members: bytes, piece: TextPiece | None = None, logprobs: bytes = b"null"
    ) -> bytes:
        finish = _NO_FINISH
        ids = b""
        if piece is not None:
            if piece.finish:
                finish = ending(piece, chat=self.chat)
            if self._asked.ask.return_token_ids:
                ids = b',"token_ids":' + id_list(piece.token_ids)
        return b"".join(
            (choice.head, members, b',"logprobs":', logprobs, b",", finish, ids, self._close(choice))
        )

    def _prompt_ids(self, choice: int) -> bytes:
        begun = self._begun.get(choice // self._asked.ask.sampling.n)
        if begun is None or not self._asked.ask.return_token_ids:
            return b""
        return b'"prompt_token_ids":' + id_list(begun.prompt_ids) + b","

    @abstractmethod
    def _first_events(self) -> list[bytes]:
        """Return what goes before the first piece."""

    @abstractmethod
    def _prompt(self, begun: Begun) -> Steps:
        """Take what is known of a prompt."""

    @abstractmethod
    def _piece(self, piece: TextPiece, choice: _Choice, events: list[bytes]) -> Steps:
        """Append the events of a piece."""


class ChatChunks(Chunks):
    """The events of a chat."""

    chat = True
    _object = "chat.completion.chunk"
    _before = b'"delta":{"content":'
    _after = b'},"logprobs":null,"finish_reason":null'

    def _first_events(self) -> list[bytes]:
        delta = b'"delta":{"role":"assistant","content":""}'
        return [self._event(choice, self._prompt_ids(at) + delta) for at, choice in enumerate(self._choices)]

    def _prompt(self, begun: Begun) -> Steps:
        yield from ()

    def _piece(self, piece: TextPiece, choice: _Choice, events: list[bytes]) -> Steps:
        choice.tokens += piece.tokens
        choice.finished = choice.finished or bool(piece.finish)
        delta: dict[str, Any] = {}
        if piece.text:
            delta["content"] = piece.text
        if piece.reasoning and self._asked.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.tools:
            delta["tool_calls"] = [_tool_call(each) for each in piece.tools]
        logprobs = b"null"
        if self._asked.logprobs is not None and piece.chances:
            told: list[bytes] = []
            for start in range(0, len(piece.chances), _FEW):
                some = piece.chances[start : start + _FEW]
                told.append(chat_tokens(some, self._asked.logprobs, ids=self._asked.ids_as_tokens))
                yield
            logprobs = b'{"content":[%b],"refusal":null}' % b",".join(told)
        if delta or piece.finish or piece.token_ids or logprobs != b"null":
            events.append(self._event(choice, b'"delta":' + orjson.dumps(delta), piece, logprobs))


def _tool_call(delta: ToolDelta) -> dict[str, Any]:
    call: dict[str, Any] = {"index": delta.call}
    function: dict[str, Any] = {}
    if delta.id or delta.name:
        call |= {"id": delta.id, "type": "function"}
        function["name"] = delta.name
    function["arguments"] = delta.arguments
    return {**call, "function": function}


class CompletionChunks(Chunks):
    """The events of completions."""

    chat = False
    _object = "text_completion"
    _before = b'"text":'
    _after = b',"logprobs":null,"finish_reason":null'

    def __init__(self, asked: AskedFor, envelope: Envelope) -> None:
        super().__init__(asked, envelope)
        self._tokens: dict[int, CompletionTokens] = {}
        self._opened: set[int] = set()  # choices that have had an event
        self._echoed: dict[
            int, tuple[bytes, int]
        ] = {}  # by prompt: its probabilities, and where its text ends
        # A choice may begin with its prompt.
        self._plain = self._plain and not asked.ask.echo and not asked.ask.return_token_ids

    def _first_events(self) -> list[bytes]:
        return []

    def _prompt(self, begun: Begun) -> Steps:
        if not self._asked.ask.echo:
            return
        told, end = b"null", len(begun.prompt_text)
        if self._asked.logprobs is not None:
            tokens = CompletionTokens(self._asked.logprobs, ids=self._asked.ids_as_tokens)
            yield from tokens.add_prompt(begun.prompt_chances, begun.prompt_text)
            told = tokens.take()
        self._echoed[begun.prompt] = told, end

    def _piece(self, piece: TextPiece, choice: _Choice, events: list[bytes]) -> Steps:
        at = piece.choice
        if at not in self._opened:
            self._opened.add(at)
            self._open(at, choice, events)
        choice.tokens += piece.tokens
        choice.finished = choice.finished or bool(piece.finish)
        logprobs = b"null"
        if self._asked.logprobs is not None and piece.chances:
            tokens = self._tokens_of(at)
            for place, each in enumerate(piece.chances):
                tokens.add(each)
                if place % _FEW == _FEW - 1:
                    yield
            logprobs = tokens.take()
        if piece.text or piece.finish or piece.token_ids or logprobs != b"null":
            events.append(self._event(choice, self._before + orjson.dumps(piece.text), piece, logprobs))

    def _open(self, at: int, choice: _Choice, events: list[bytes]) -> None:
        """Append the event that a choice begins with, if its prompt is to be told."""
        begun = self._begun.get(at // self._asked.ask.sampling.n)
        ids = self._prompt_ids(at)
        if begun is None or not (ids or self._asked.ask.echo):
            return
        text = begun.prompt_text if self._asked.ask.echo else ""
        told, _ = self._echoed.get(begun.prompt, (b"null", 0))
        events.append(self._event(choice, ids + self._before + orjson.dumps(text), None, told))

    def _tokens_of(self, at: int) -> CompletionTokens:
        tokens = self._tokens.get(at)
        if tokens is None:
            assert self._asked.logprobs is not None, "probabilities were asked for"
            tokens = self._tokens[at] = CompletionTokens(self._asked.logprobs, ids=self._asked.ids_as_tokens)
            _, tokens.at = self._echoed.get(at // self._asked.ask.sampling.n, (b"", 0))
        return tokens


def chunks(asked: AskedFor, envelope: Envelope) -> Chunks:
    """Return the maker of the events of an answer."""
    return ChatChunks(asked, envelope) if asked.kind is Kind.CHAT else CompletionChunks(asked, envelope)
