"""Conversations that go on turn by turn, several at a time, with a few system prompts between them."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

_SAID: Final = """\
the lamp storm harbour cat night letter bread window ferry rain stone light road winter garden map copper sail
bell river orchard engine paper shore"""
_WORDS: Final = _SAID.split()
_PATIENCE: Final = 120.0


class Failed(Exception):
    """The server did not answer as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked: `sessions` conversations of `turns` turns each, `clients` at a time."""

    sessions: int
    turns: int
    clients: int
    systems: int = 4  # different system prompts
    system_words: int = 40
    user_words: int = 25
    answer: int = 32  # tokens
    header: bool = False  # tell the server whose turn it is
    seed: int = 1


@dataclass(slots=True)
class Told:
    """Tokens of all prompts, and those of them that an engine had in its cache."""

    prompt: int = 0
    cached: int = 0
    by_turn: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, turn: int, prompt: int, cached: int) -> None:
        """One more answer has come."""
        self.prompt += prompt
        self.cached += cached
        before = self.by_turn.get(turn, (0, 0))
        self.by_turn[turn] = before[0] + prompt, before[1] + cached


class Session:
    """One conversation. It has one turn at a time."""

    def __init__(self, name: str, system: str, chance: random.Random, load: Load) -> None:
        self.name = name
        self._load = load
        self._messages: list[dict[str, str]] = [{"role": "system", "content": system}]
        self._says = [_text(chance, load.user_words) for _ in range(load.turns)]

    def take_turn(self, port: int, model: str, turn: int) -> tuple[int, int]:
        """Say the next thing, and keep the answer. Return the tokens of the prompt, and those cached."""
        self._messages.append({"role": "user", "content": self._says[turn]})
        body: dict[str, Any] = {
            "model": model,
            "messages": self._messages,
            "temperature": 0,
            "max_tokens": self._load.answer,
        }
        if self._load.header:
            body["prompt_cache_key"] = self.name
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
        try:
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            told = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed(f"status {answer.status}: {told}")
        content = told["choices"][0]["message"]["content"] or ""
        self._messages.append({"role": "assistant", "content": content})
        usage = told["usage"]
        return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(words))


def converse(port: int, model: str, load: Load) -> Told:
    """Have all conversations; each round of turns is in an order of its own. Raises Failed."""
    chance = random.Random(load.seed)
    systems = [_text(chance, load.system_words) for _ in range(load.systems)]
    sessions = [
        Session(f"session-{at}", systems[at % load.systems], chance, load) for at in range(load.sessions)
    ]
    told = Told()
    with ThreadPoolExecutor(load.clients) as pool:
        for turn in range(load.turns):
            order: Sequence[Session] = chance.sample(sessions, len(sessions))
            takes = [pool.submit(each.take_turn, port, model, turn) for each in order]
            for each in takes:
                told.add(turn, *each.result())
    return told
