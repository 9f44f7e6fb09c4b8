"""What answers of both APIs have around their choices, and what they have in common in a choice."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from actors.values.errors import Internal
from actors.values.generation.pieces import (
    LENGTH,
    STOP,
    TOOL_CALLS,
    Begun,
    Embedding,
    Generated,
    TextPiece,
    TokenUsage,
)

PREFIXES: Final = {"chat": "chatcmpl-", "completions": "cmpl-", "embeddings": "embd-"}
"""From an endpoint to what the ids of its answers begin with."""

_FEW: Final = 64
_FINISHES: Final = frozenset({STOP, LENGTH, TOOL_CALLS})


class Envelope(NamedTuple):
    """The facts of one answer. `model` is as the client named it; `created` is seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str = ""

    def head(self, kind: str) -> bytes:
        """Return the beginning of an object of that `kind`, up to its members of its own."""
        members = orjson.dumps(
            {
                "id": self.id,
                "object": kind,
                "created": self.created,
                "model": self.model,
                "system_fingerprint": self.fingerprint or None,
            }
        )
        return members[:-1] + b","


def fingerprint(server: str, model: str, version: int) -> str:
    """Return what tells clients that the same server serves the same version of a model."""
    return (
        "fp_"
        + blake2b(f"{server}/{model}/{version}".encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    )


def usage_object(usage: TokenUsage) -> bytes:
    """Return what a request has used."""
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}'
        % (usage.prompt, usage.completion, usage.prompt + usage.completion, usage.cached, usage.reasoning)
    )


def ending(last: TextPiece, *, chat: bool) -> bytes:
    """Return the members of a choice that say why it ended, whose reason is one that clients know.

    The rest is told beside it: in vLLM's `stop_reason` the text that ended a choice, and in a member of ours
    why it is cut short, and how many engines it took if one was not enough.
    """
    more: dict[str, Any] = {}
    own: dict[str, Any] = {}
    finish, reason = last.finish, last.reason
    if finish not in _FINISHES:
        finish, reason = STOP, finish
        own["reason"] = reason
    elif finish == STOP and reason:
        more["stop_reason"] = reason
    elif reason:
        own["reason"] = reason
    if last.attempts > 1:
        own["attempts"] = last.attempts
    if own:
        more["tritium"] = own
    if finish == TOOL_CALLS and not chat:
        finish = STOP
    return orjson.dumps({"finish_reason": finish, **more})[1:-1]


def is_long(items: Sequence[Generated]) -> bool:
    """Whether to encode `items` is more than some tenths of a millisecond of work."""
    count = 0
    for item in items:
        match item:
            case TextPiece():
                count += len(item.chances)
            case Begun():
                count += len(item.prompt_chances)
            case Embedding():
                count += _FEW // 4
    return count > _FEW


def id_list(ids: Sequence[int]) -> bytes:
    """Return token ids."""
    return orjson.dumps(list(ids))


def unfinished(choice: int) -> Internal:
    """Return the error for an answer that ends before one of its choices has."""
    return Internal(f"the model ended its answer before choice {choice} was complete")
