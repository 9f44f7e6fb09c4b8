"""Clients of the `openai` package, as it is, that ask for one answer after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import openai
import trio

from benchmarks.llm_deaths.findings import Right, Stream, sure_of
from benchmarks.llm_deaths.subject import MODEL

PATIENCE: Final = 300.0
"""Seconds for an answer, the start of another engine included."""

_USAGE: Final[Any] = {"include_usage": True}

Clock = Callable[[], float]


class Clients:
    """They share what is asked, and write down what comes."""

    def __init__(self, url: str, prompts: Sequence[str], clock: Clock) -> None:
        """`clock` gives seconds since the run began."""
        self.streams: list[Stream] = []
        self.done = False
        self._url = url
        self._prompts = prompts
        self._clock = clock
        self._turns = itertools.count()

    def _client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self._url, api_key="none", timeout=PATIENCE)

    def _messages(self, number: int) -> Any:
        return [{"role": "user", "content": self._prompts[number]}]

    async def rights(self, *, chances: bool) -> Mapping[int, Right]:
        """Return what each prompt is answered with, asked without any kill.

        `chances`: ask for the probabilities of tokens, too.
        """
        found: dict[int, Right] = {}
        async with self._client() as client, trio.open_nursery() as nursery:
            for number in range(len(self._prompts)):
                nursery.start_soon(self._right, client, number, chances, found)
        return found

    async def _right(
        self, client: openai.AsyncOpenAI, number: int, chances: bool, found: dict[int, Right]
    ) -> None:
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if chances else {}
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=self._messages(number),
            temperature=0,
            **options,
        )
        [choice] = answer.choices
        text, told = choice.message.content or "", choice.logprobs
        sure = len(text)
        if told is not None and told.content:
            sure = sure_of(
                [(each.token, [top.logprob for top in each.top_logprobs]) for each in told.content]
            )
        assert answer.usage is not None, "it is always told"
        found[number] = Right(text, answer.usage.completion_tokens, sure)

    async def ask_on(self, *, streamed: bool) -> None:
        """Be one client until `done`."""
        async with self._client() as client:
            while not self.done:
                stream = Stream(next(self._turns) % len(self._prompts), self._clock(), streamed=streamed)
                self.streams.append(stream)
                try:
                    await (self._read(client, stream) if streamed else self._wait(client, stream))
                except openai.APIError as error:
                    stream.error = f"{error.code or type(error).__name__}: {_told(error)}"

    async def _read(self, client: openai.AsyncOpenAI, stream: Stream) -> None:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=self._messages(stream.prompt),
            temperature=0,
            stream=True,
            stream_options=_USAGE,
        )
        async for chunk in answer:
            for choice in chunk.choices:
                if choice.delta.content:
                    stream.texts.append((self._clock(), choice.delta.content))
                if choice.finish_reason:
                    stream.finish = choice.finish_reason
                    stream.attempts = _attempts(choice)
            if chunk.usage is not None:
                stream.tokens = chunk.usage.completion_tokens

    async def _wait(self, client: openai.AsyncOpenAI, stream: Stream) -> None:
        answer = await client.chat.completions.create(
            model=MODEL, messages=self._messages(stream.prompt), temperature=0
        )
        [choice] = answer.choices
        stream.texts.append((self._clock(), choice.message.content or ""))
        stream.finish, stream.attempts = choice.finish_reason, _attempts(choice)
        stream.tokens = -1 if answer.usage is None else answer.usage.completion_tokens


def _attempts(choice: Any) -> int:
    return int((getattr(choice, "tritium", None) or {}).get("attempts", 1))


def _told(error: openai.APIError) -> str:
    """Return the message without what differs from one request to the next."""
    words = str(error.message)
    return words.partition("] ")[2] or words
