"""Calls of tools and reasoning in a model's text: however the text is cut, the same is told.

A model says whatever it likes, and its text comes in pieces of any length. An input is a byte that chooses
the format, a byte that seeds the cuts, and the text.
"""

import json
from random import Random
from typing import Any

from engine.worker.text.thinking import MAYBE, OPEN, Thinking
from engine.worker.text.tools.formats import HERMES, JSON, LLAMA3, MARKERS, MISTRAL, NAMED, format_of
from tests.fuzz.mutation import damaged

_FORMATS = (HERMES, LLAMA3, MISTRAL, JSON, NAMED)
_NAMES = ("f", "read_tide")
_PARTS = (
    *MARKERS,
    "<think>",
    "</think>",
    "<tool_",
    "<thi",
    '{"name": "f", "arguments": {"a": [1, "}"]}}',
    '{"name": "f", "parameters": {"a": "\\""}}',
    '[{"name": "f", "arguments": {}}]',
    '{"a": 1}',
    "f",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    "; ",
    ": ",
    " \n",
    "null",
    "-1.5e3",
    "🕯",
    "read_tide",
    "x" * 300,
    "{" * 80,
    '{"name": ',
    '"arguments": ',
)


class ToolCalls:
    """Reads a text at once, by letters and by pieces."""

    name = "tools"
    prefix = "tools"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """Parts of calls in any order, damaged or not."""
        text = "".join(chance.choice(_PARTS) for _ in range(chance.randrange(1, 14)))
        octets = bytes((chance.randrange(20), chance.randrange(256))) + text.encode()
        return octets if chance.random() < 0.6 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare what is told."""
        chosen, seed = (*octets[:2], 0, 0)[:2]
        text = octets[2:].decode("utf-8", "replace")
        cuts = Random(seed)
        parts, at = [], 0
        while at < len(text):
            size = cuts.choice((1, 2, 3, 7, 40))
            parts.append(text[at : at + size])
            at += size
        said = [_thought(chosen, each) for each in ([text], parts, list(text))]
        assert said[0] == said[1] == said[2]
        reasoning, answer = said[0]
        assert len(reasoning) + len(answer) <= len(text)
        name, parallel = _FORMATS[chosen % len(_FORMATS)], bool(chosen // len(_FORMATS) % 2)
        told = [_read(name, parallel, each) for each in ([text], parts, list(text))]
        assert told[0] == told[1] == told[2]
        content, calls = told[0]
        assert all(call.isprintable() or call for call, _ in calls)
        assert parallel or len(calls) <= 1
        assert len(content) <= len(text)
        return f"{name}: {'calls' if calls else 'content'}{', whole' if _whole(calls) else ''}"


def _thought(chosen: int, parts: list[str]) -> tuple[str, str]:
    thinking = Thinking(OPEN if chosen % 2 else MAYBE)
    told = [*map(thinking.feed, parts), thinking.end()]
    return "".join(reasoning for reasoning, _ in told), "".join(answer for _, answer in told)


def _read(name: str, parallel: bool, parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    reader = format_of(name, parallel=parallel, names=_NAMES)
    content = ""
    calls: dict[int, Any] = {}
    for text, deltas in [*map(reader.feed, parts), reader.end()]:
        content += text
        for delta in deltas:
            named, arguments = calls.get(delta.call, (delta.name, ""))
            calls[delta.call] = named, arguments + delta.arguments
    assert list(calls) == list(range(len(calls)))
    assert reader.told.calls >= len(calls)
    return content, list(calls.values())


def _whole(calls: list[tuple[str, str]]) -> bool:
    for _, arguments in calls:
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    return bool(calls)
