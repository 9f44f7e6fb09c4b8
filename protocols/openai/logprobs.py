"""Probabilities of tokens, in the forms of both APIs and in vLLM's.

They are encoded as they come, because an answer may have a million of them. What is told of one token is a
text of some 100 bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import orjson

from actors.values.generation.pieces import TokenChance, TokenChances

LOWEST: Final = -9999.0
"""What is told in place of a probability of zero, as in OpenAI's and vLLM's answers: JSON has no infinity."""

_AT_ONCE: Final = 64


def _logprob(chance: TokenChance) -> float:
    # Also for NaN, which is not greater than anything.
    return max(LOWEST, chance.logprob)


def text_of(chance: TokenChance, *, ids: bool) -> str:
    """Return a token's text, or `token_id:<id>` if `ids`."""
    return f"token_id:{chance.token_id}" if ids else chance.text


def _bytes(chance: TokenChance) -> list[int]:
    return list(chance.data or chance.text.encode("utf-8", "replace"))


def _chat_token(chance: TokenChance, *, ids: bool) -> dict[str, Any]:
    return {"token": text_of(chance, ids=ids), "logprob": _logprob(chance), "bytes": _bytes(chance)}


def chat_tokens(chances: Sequence[TokenChances], alternatives: int, *, ids: bool) -> bytes:
    """Return the elements of `logprobs.content` for some tokens, without the brackets around them."""
    return b",".join(
        orjson.dumps(
            {
                **_chat_token(each.chosen, ids=ids),
                "top_logprobs": [_chat_token(other, ids=ids) for other in each.others[:alternatives]],
            }
        )
        for each in chances
    )


class CompletionTokens:
    """The arrays of a completion's `logprobs`, which grow. `at` is where the next token's text begins."""

    def __init__(self, alternatives: int, *, ids: bool) -> None:
        self.at = 0
        self._alternatives = alternatives
        self._ids = ids
        self._tokens: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._top: list[bytes] = []
        self._offsets: list[bytes] = []

    def add_prompt(self, chances: Sequence[TokenChances | None], text: str) -> Generator[None, None, None]:
        """Add the tokens of a prompt. The first has no probability, and the text that the others leave."""
        for at, each in enumerate(chances):
            if each is None:
                rest = sum(len(one.chosen.text) for one in chances if one is not None)
                self.add(None, text[: max(len(text) - rest, 0)])
            else:
                self.add(each)
            if at % _AT_ONCE == _AT_ONCE - 1:
                yield

    def add(self, each: TokenChances | None, text: str = "") -> None:
        """Add a token. None is one of that `text`, which nothing goes before."""
        if each is None:
            each = TokenChances(TokenChance(-1, text, 0.0, 0), ())
            self._logprobs.append(b"null")
            self._top.append(b"null")
        else:
            shown = [*each.others[: self._alternatives], each.chosen]
            self._logprobs.append(orjson.dumps(_logprob(each.chosen)))
            self._top.append(orjson.dumps({text_of(one, ids=self._ids): _logprob(one) for one in shown}))
        ids = self._ids and each.chosen.token_id >= 0
        self._tokens.append(orjson.dumps(text_of(each.chosen, ids=ids)))
        self._offsets.append(b"%d" % self.at)
        self.at += len(each.chosen.text)

    def take(self) -> bytes:
        """Return the object of what was added since the last time."""
        joined = tuple(b",".join(each) for each in (self._tokens, self._logprobs, self._top, self._offsets))
        for each in (self._tokens, self._logprobs, self._top, self._offsets):
            each.clear()
        return b'{"tokens":[%b],"token_logprobs":[%b],"top_logprobs":[%b],"text_offset":[%b]}' % joined


def prompt_tokens(chances: Sequence[TokenChances | None]) -> Generator[None, None, bytes]:
    """Return vLLM's `prompt_logprobs`: for each token an object by token id, or null for the first."""
    texts: list[bytes] = []
    for at, each in enumerate(chances):
        shown = () if each is None else (*each.others, each.chosen)
        entry = {
            str(one.token_id): {"logprob": _logprob(one), "rank": one.rank, "decoded_token": one.text}
            for one in shown
        }
        texts.append(orjson.dumps(entry or None))
        if at % _AT_ONCE == _AT_ONCE - 1:
            yield
    return b"[%b]" % b",".join(texts)
