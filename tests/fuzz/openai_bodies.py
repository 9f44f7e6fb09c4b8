"""Bodies of the OpenAI API: the readers of short and of long texts agree, and all that is asked is checked.

An input is a byte that chooses the endpoint, and the body.
"""

import json
from random import Random
from typing import Any

from actors.seams.steps import at_once
from actors.values.generation.asking import Ask
from actors.values.generation.facts import BadAsk
from actors.wire.text_frames import pack_ask, unpack_ask
from protocols.openai.asking import Defaults, Kind, read
from protocols.openai.documents import LongDocument, parse
from protocols.openai.fields import CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, TOKENIZE
from tests.fuzz.mutation import damaged

_KINDS = tuple(Kind)
_FIELDS = {
    Kind.CHAT: CHAT,
    Kind.COMPLETIONS: COMPLETIONS,
    Kind.EMBEDDINGS: EMBEDDINGS,
    Kind.TOKENIZE: TOKENIZE,
    Kind.DETOKENIZE: DETOKENIZE,
}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 0.5, -0.0, 1e308, "", "x", "\0", "e\u0301\u202e", "7"),
    *([], {}, [1, 2], [1.5], [[1], "a"], ["a", None], {"a": 1}, {"5": 100}, {"-1": 0}, [[]], [{}]),
    [{"role": "user", "content": "x"}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "tool", "content": [{"type": "text", "text": "y"}], "tool_call_id": 1}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    {"type": "function", "function": {"name": "f"}},
    {"type": "json_schema", "json_schema": {"schema": {"items": [1]}}},
    {"regex": "(a+)+"},
    {"json": {"x": [{}]}, "choice": ["a"]},
    {"include_usage": True},
)
_RAW = (
    b"NaN",
    b"1e999",
    b"-0",
    b"01",
    b"1" * 30,
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b"\xff",
    b"[" * 70,
    b'"\\u0000"',
)


class OpenAiBodies:
    """Reads bodies twice, and asks with what comes of them."""

    name = "openai"
    prefix = "openai"

    def generate(self, chance: Random, corpus: list[bytes]) -> bytes:
        """A request of known fields with odd values, damaged or not."""
        number = chance.randrange(len(_KINDS))
        fields = list(_FIELDS[_KINDS[number]])
        told: dict[str, Any] = {"model": "m"}
        told.update((chance.choice(fields), chance.choice(_VALUES)) for _ in range(chance.randrange(6)))
        if chance.random() < 0.6:
            told.update({"messages": _VALUES[27], "prompt": "x", "input": ["x"], "tokens": [1]})
        text = json.dumps(told, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        if chance.random() < 0.3:
            text = text.replace(b": 1", b": " + chance.choice(_RAW), 1)
        octets = bytes((number,)) + text
        return octets if chance.random() < 0.5 else damaged(octets, chance, corpus)

    def check(self, octets: bytes) -> str:
        """Compare both readers, and read what is asked."""
        kind, body = _KINDS[(octets or b"\0")[0] % len(_KINDS)], octets[1:]
        short, long = _either(lambda: parse(body)), _either(lambda: at_once(LongDocument(body).value()))
        assert isinstance(short, BadAsk) == isinstance(long, BadAsk), f"{short!r} and {long!r}"
        if isinstance(short, BadAsk):
            return "no JSON"
        assert repr(short) == repr(long)
        asked = _either(lambda: at_once(read(kind, short, Defaults())))
        if isinstance(asked, BadAsk):
            assert asked.message
            assert asked.reason
            return "refused"
        document = asked.ask.document()
        packed, texts = pack_ask(document)
        through = json.loads(json.dumps(packed).encode())
        told, size = unpack_ask(through, texts)
        assert size == len(texts)
        again = Ask.of(told)
        assert again.kind == asked.ask.kind
        assert len(again.prompts) == len(asked.ask.prompts)
        return f"{kind.value} is asked"


def _either(reading: Any) -> Any:
    try:
        return reading()
    except BadAsk as error:
        return error
