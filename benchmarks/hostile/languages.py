"""What an attacker sends to language models over the OpenAI API: one request each. Pure.

`NARROW` has the context of a common model. `WIDE` has room for more tokens than a request may have, so that
nothing is refused for its length alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.hostile.inputs import MIB, Hostile, catalog

NARROW: Final = "narrow"
WIDE: Final = "wide"
CONTEXTS: Final[Mapping[str, int]] = {NARROW: 4096, WIDE: 4 * MIB}

_CHAT: Final = "/v1/chat/completions"
_TEXT: Final = "/v1/completions"
_ASKED: Final = [{"role": "user", "content": "tell me"}]
_SHORT: Final = {"max_tokens": 2}


def _json(path: str, **members: Any) -> bytes:
    told: dict[str, Any] = {"model": NARROW}
    if path == _CHAT:
        told = {**told, "messages": _ASKED, **_SHORT}
    return json.dumps({**told, **members}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _input(name: str, body: Callable[[], bytes], path: str = _CHAT) -> Hostile:
    return Hostile(name=f"language: {name}", body=body, path=path, openai=True)


def _chat(name: str, **members: Callable[[], Any] | Any) -> Hostile:
    return _input(name, partial(_made, _CHAT, members))


def _text(name: str, **members: Callable[[], Any] | Any) -> Hostile:
    return _input(name, partial(_made, _TEXT, members), _TEXT)


def _made(path: str, members: Mapping[str, Any]) -> bytes:
    return _json(path, **{key: value() if callable(value) else value for key, value in members.items()})


def _spliced(path: str, raw: bytes, count: int = 1) -> bytes:
    """Return a request with `raw`, which need not be JSON, so many times behind its last member."""
    return _json(path)[:-1] + raw * count + b"}"


def _says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _texts() -> Iterator[Hostile]:
    for name, text in (
        ("letters", "a"),
        ("words", "it was "),
        ("spaces", " "),
        ("line ends", "\n"),
        ("combining accents", "\u0301"),
        ("zero-width joiners", "\u200d"),
        ("overrides from right to left", "\u202e"),
        ("emoji", "\U0001f56f"),
        ("special tokens", "<|user|>"),
    ):
        count = 3_900_000 // len(text.encode())
        yield _chat(f"3.9 MB of {name}", messages=partial(lambda one, many: _says(one * many), text, count))
    yield _chat("10 M letters", messages=lambda: _says("a" * 10_000_000))
    yield _chat("3.9 M letters of which the last are kept", messages=lambda: _says("a" * 3_900_000),
                truncate_prompt_tokens=-1)  # fmt: skip
    yield _chat("3.9 M letters that there is room for", model=WIDE, messages=lambda: _says("a" * 3_900_000))
    yield _chat("100 messages of 60 KB", model=WIDE, messages=lambda: _says("it was " * 8_700) * 100)
    yield _chat("100 messages of 80 KB", model=WIDE, messages=lambda: _says("it was " * 11_600) * 100)
    yield _chat("6,000 messages", model=WIDE, messages=lambda: _says("tell me") * 6_000)
    yield _chat("100,000 messages", messages=lambda: _says("tell me") * 100_000)
    nul = partial(_spliced, _CHAT, b',"user":"x","suffix":"' + b"\\u0000" * 600_000 + b'"')
    yield _input("600,000 NULs", nul)
    half = b',"user":"' + b"\\ud800" * 600_000 + b'"'
    yield _input("600,000 half surrogates", partial(_spliced, _CHAT, half))
    yield _input(
        "4 MB that are no UTF-8", partial(_spliced, _CHAT, b',"user":"' + b"\xff" * 4_000_000 + b'"')
    )
    yield _input("a message that is no UTF-8", partial(_spliced, _CHAT, b',"user":"\xed\xa0\x80"'))


def _ids() -> Iterator[Hostile]:
    yield _text("1 M token ids", prompt=lambda: [7] * 1_000_000)
    yield _text("1 M token ids of which the last are kept", prompt=lambda: [7] * 1_000_000,
                truncate_prompt_tokens=100, max_tokens=2)  # fmt: skip
    yield _text(
        "1 M token ids that there is room for", model=WIDE, prompt=lambda: [7] * 1_000_000, max_tokens=2
    )
    yield _text("1 M token ids, and then -1", prompt=lambda: [*[7] * 1_000_000, -1])
    yield _text("token ids beyond the vocabulary", prompt=lambda: [2**31 - 1] * 4_000)
    yield _text("20,000 floats for token ids", prompt=lambda: [7.5] * 20_000)
    yield _text("1,000 prompts of 1,000 token ids", prompt=lambda: [[7] * 1_000] * 1_000, max_tokens=1)
    yield _text("1,024 prompts", prompt=lambda: ["tell me"] * 1_024, max_tokens=2)
    yield _text("8 prompts with 128 choices", prompt=lambda: ["tell me"] * 8, n=128, max_tokens=2)
    yield _text("1,024 prompts with 128 choices", prompt=lambda: ["tell me"] * 1_024, n=128)
    yield _text("8 prompts with 128 choices and 4,096 biases", prompt=lambda: ["tell me"] * 8, n=128,
                max_tokens=1, logit_bias=lambda: {str(number): 1 for number in range(4096)})  # fmt: skip
    yield _text("8 prompts with 128 choices and a schema of 3 MB", prompt=lambda: ["tell me"] * 8, n=128,
                structured_outputs=lambda: {"json": {"const": "x" * 3_000_000}})  # fmt: skip
    yield _text("128 choices of 300 tokens, with probabilities", prompt="tell me", n=128, max_tokens=300,
                ignore_eos=True, logprobs=5)  # fmt: skip
    yield _text("128 choices of 300 tokens, as a stream", prompt="tell me", n=128, max_tokens=300,
                ignore_eos=True, stream=True)  # fmt: skip
    yield _text(
        "an echo of 3.9 M letters", model=WIDE, prompt=lambda: "a" * 3_900_000, echo=True, max_tokens=1
    )
    other = {"path": "/tokenize"}
    yield _input("260,000 tokens and their texts", partial(_made, "/tokenize", {
        "model": WIDE, "prompt": lambda: "it was " * 37_000, "return_token_strs": True,
    }), **other)  # fmt: skip
    yield _input("the text of 1 M token ids", partial(_made, "/detokenize", {
        "tokens": lambda: [70] * 1_000_000}), "/detokenize")  # fmt: skip
    yield _input("1,024 texts to embed", partial(_made, "/v1/embeddings", {
        "input": lambda: ["tell me"] * 1_024}), "/v1/embeddings")  # fmt: skip


def _deep(levels: int) -> Any:
    found: Any = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"p": found}}
    return found


def _tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


def _tools() -> Iterator[Hostile]:
    deep = b'{"type":"function","function":{"name":"f","parameters":' + b'{"p":' * 1_000_000
    yield _input("a tool a million levels deep", partial(_spliced, _CHAT, b',"tools":[' + deep))
    yield _chat("a tool 28 levels deep", tools=[_tool("f", _deep(28))])
    yield _chat("a tool of 6,000 properties", model=WIDE, tools=lambda: [_tool("f", _properties(6_000))])
    yield _chat("a tool of 10,000 properties", tools=lambda: [_tool("f", _properties(10_000))])
    yield _chat("a tool of 6,000 properties that has to be called", model=WIDE,
                tools=lambda: [_tool("f", _properties(6_000))], tool_choice="required")  # fmt: skip
    yield _chat("100,000 tools", tools=lambda: [_tool(f"f{number}", {}) for number in range(100_000)])
    yield _chat(
        "128 tools", model=WIDE, tools=lambda: [_tool(f"f{number}", _properties(40)) for number in range(128)]
    )
    schema = (
        b',"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":'
        + b'{"items":' * 1_000_000
    )
    yield _input("a schema a million levels deep", partial(_spliced, _CHAT, schema))
    yield _chat("128 choices by a schema of 3 MB", n=128, response_format=lambda: {
        "type": "json_schema", "json_schema": {"name": "s", "schema": {"const": "x" * 3_000_000}},
    })  # fmt: skip
    for name, pattern in (
        ("that backtracks", "(a+)+" * 20 + "b"),
        ("of a billion repeats", "a{1000000000}"),
        ("of nested repeats", "((a{1,99}){1,99}){1,99}"),
    ):
        yield _chat(f"a regular expression {name}", structured_outputs={"regex": pattern})
    yield _chat("a regular expression of 4 MB", structured_outputs=lambda: {"regex": "a" * 4_000_000})
    yield _chat(
        "6,000 values for the template",
        chat_template_kwargs=lambda: {"k": {f"k{n}": n for n in range(6_000)}},
    )
    yield _chat("60 texts of 60 KB for the template", chat_template_kwargs=lambda: {
        f"k{number}": "x" * 60_000 for number in range(60)})  # fmt: skip
    yield _chat(
        "100,000 names for the template", chat_template_kwargs=lambda: {f"k{n}": n for n in range(100_000)}
    )


def _fields() -> Iterator[Hostile]:
    yield _chat("100,000 stop texts", stop=lambda: [f"s{number}" for number in range(100_000)])
    yield _chat("64 stop texts of 1,024 letters", stop=lambda: [f"{number:04}" * 256 for number in range(64)])
    yield _chat("4,096 biases", logit_bias=lambda: {str(number): 1 for number in range(4096)})
    yield _chat("a million biases", logit_bias=lambda: {str(number): 1 for number in range(1_000_000)})
    yield _chat("a bias for a token of 3 M digits", logit_bias=lambda: {"9" * 3_000_000: 1})
    yield _chat("16,384 ids that are allowed", allowed_token_ids=lambda: list(range(16_384)))
    yield _chat("1,024 words that are not", bad_words=lambda: [f"word {number}" for number in range(1_024)])
    unknown = lambda count: {f"unknown{number}": 1 for number in range(count)}  # noqa: E731
    yield _input("19,000 unknown fields", lambda: _json(_CHAT, **unknown(19_000)))
    yield _input("a million unknown fields", lambda: _json(_CHAT, **unknown(1_000_000)))
    yield _input("4,000 unknown fields in each of 4 messages", lambda: _json(
        _CHAT, messages=[{**_ASKED[0], **unknown(4_000)}] * 4))  # fmt: skip
    yield _input("a member twice", partial(_spliced, _CHAT, b',"model":"wide"'))
    yield _input("a member a million times", partial(_spliced, _CHAT, b',"user":"a"', 1_000_000))
    for name, number in (
        ("a seed of 5 M digits", b"1" * 5_000_000),
        ("a seed of 399 digits", b"1" * 399),
        ("a temperature of 5 M digits", b"0." + b"1" * 5_000_000),
        ("an exponent of 5 M digits", b"1e" + b"9" * 5_000_000),
        ("NaN", b"NaN"),
        ("60 MB of blanks", b" " * 60_000_000 + b"1"),
        ("30 M lists deep", b"[" * 30_000_000),
        ("15 M ones", b"[" + b"1," * 15_000_000 + b"1]"),
        ("20 M empty objects", b"[" + b"{}," * 20_000_000 + b"1]"),
        ("60 MB of quotes", b'"' * 60_000_000),
    ):
        yield _input(name, partial(_spliced, _CHAT, b',"seed":' + number))
    yield _chat("a model's name of 3 MB", model=lambda: "m" * 3_000_000)
    yield _input("a path of 60 KB", lambda: _json(_CHAT), "/v1/models/" + "m" * 60_000)


def language_catalog() -> Sequence[Hostile]:
    """Return all inputs to language models."""
    return [each for part in (_texts, _ids, _tools, _fields) for each in part()]


def everything() -> Sequence[Hostile]:
    """Return all inputs there are."""
    return [*catalog(), *language_catalog()]
