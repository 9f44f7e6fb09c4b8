"""Answers that are no text of a model: vectors, tokens, and which models there are."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import orjson

from actors.values.errors import Internal
from actors.values.generation.facts import LanguageFacts
from actors.values.generation.pieces import Begun, Embedding, Generated, Text, Tokens, TokenUsage
from protocols.openai.asking import AskedFor
from protocols.openai.envelope import Envelope

OWNER = "Triton Inference Server"
"""What Triton's frontend says of every model, and clients may compare."""


class VectorAnswer:
    """Gathers the vectors of one request."""

    def __init__(self, asked: AskedFor, envelope: Envelope) -> None:
        self._asked = asked
        self._envelope = envelope
        self._vectors: dict[int, bytes] = {}
        self._prompt_tokens = 0
        self._usage: TokenUsage | None = None

    def take(self, items: Sequence[Generated]) -> Generator[None, None, None]:
        """Take what has come. Yields after each vector."""
        for item in items:
            match item:
                case Embedding():
                    self._vectors[item.prompt] = _vector(item.values, base64=self._asked.base64)
                    yield
                case Begun():
                    self._prompt_tokens += item.prompt_tokens
                case TokenUsage():
                    self._usage = item
                case _:
                    raise Internal(f"the model answered a request for vectors with {type(item).__name__}")

    def texts(self) -> Generator[None, None, list[bytes]]:
        """Return the answer, in texts that follow each other. Raises Internal if a vector is missing."""
        wanted = len(self._asked.ask.prompts)
        missing = [at for at in range(wanted) if at not in self._vectors]
        if missing:
            raise Internal(f"the model gave no vector for input {missing[0]} of {wanted}")
        parts = [b'{"id":%b,"object":"list","created":%d,"model":%b,"data":[' % self._facts()]
        for at in range(wanted):
            parts += (b'%b{"object":"embedding","index":%d,"embedding":' % (b"," if at else b"", at),)
            parts += (self._vectors[at], b"}")
        used = self._prompt_tokens if self._usage is None else self._usage.prompt
        parts.append(b'],"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (used, used))
        yield
        return parts

    def _facts(self) -> tuple[bytes, int, bytes]:
        return orjson.dumps(self._envelope.id), self._envelope.created, orjson.dumps(self._envelope.model)


def _vector(values: Sequence[float], *, base64: bool) -> bytes:
    if not base64:
        return orjson.dumps(list(values))
    floats = array("f", values)
    if sys.byteorder != "little":  # pragma: no cover: no machine of that kind runs the tests
        floats.byteswap()
    return b'"%b"' % b64encode(floats)


class TokenAnswer:
    """Gathers the answer to a request for tokens, or for their text."""

    def __init__(self, asked: AskedFor) -> None:
        self._asked = asked
        self._document: dict[str, Any] | None = None

    def take(self, items: Sequence[Generated]) -> Generator[None, None, None]:
        """Take what has come."""
        for item in items:
            match item:
                case Tokens():
                    self._document = {
                        "count": len(item.ids),
                        "max_model_len": item.longest,
                        "tokens": list(item.ids),
                        "token_strs": list(item.strings) if self._asked.ask.return_token_strs else None,
                    }
                case Text():
                    self._document = {"prompt": item.text}
                case Begun() | TokenUsage():
                    pass
                case _:
                    raise Internal(f"the model answered a request for tokens with {type(item).__name__}")
            yield

    def texts(self) -> Generator[None, None, list[bytes]]:
        """Return the answer. Raises Internal if the model gave none."""
        if self._document is None:
            raise Internal("the model gave no tokens")
        yield
        return [orjson.dumps(self._document)]


Adapters = Iterable[tuple[str, str]]
"""The names by which clients ask for a model's adapters, and what each was loaded from."""


def model_object(
    name: str, facts: LanguageFacts, *, parent: str | None = None, root: str = ""
) -> dict[str, Any]:
    """Return a model as lists have it; with a `parent` it is an adapter of that one."""
    return {
        "id": name,
        "object": "model",
        "created": facts.created,
        "owned_by": OWNER,
        "root": root or facts.root or name,
        "parent": parent,
        "max_model_len": facts.longest or None,
        "permission": [],
    }


def model_list(models: Iterable[tuple[str, LanguageFacts, Adapters]]) -> list[dict[str, Any]]:
    """Return all models, each followed by its adapters."""
    listed: list[dict[str, Any]] = []
    for name, facts, adapters in models:
        listed.append(model_object(name, facts))
        listed += (model_object(each, facts, parent=name, root=root) for each, root in adapters)
    return listed
