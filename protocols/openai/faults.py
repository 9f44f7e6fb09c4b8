"""Errors as the OpenAI API tells them: `{"error": {"message", "type", "param", "code"}}`.

The status is that of `protocols.status`, but for a server that has too much to do: clients of this API know
429 for that, and 503 for one that does not serve. The `openai` package picks its exception by the status, and
shows the rest. `code` is a text, as OpenAI's is; vLLM's is the status as a number.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from actors.values.errors import (
    NEVER,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Overloaded,
    TooManyRequests,
    TritiumError,
    Unavailable,
    Unsupported,
)
from actors.values.generation.facts import BadAsk, NoSuchAdapter, TextDiffers
from protocols.openai.fields import CHAT, COMPLETIONS, EMBEDDINGS
from protocols.status import http_status, retry_seconds

Field = tuple[bytes, bytes]

_INVALID: Final = "invalid_request_error"
_FAILED: Final = "server_error"

# From the code of an error to its type and code there.
WORDS: Final = {
    ErrorCode.UNKNOWN: (_INVALID, "unknown"),
    ErrorCode.INTERNAL: (_FAILED, "internal_error"),
    ErrorCode.NOT_FOUND: (_INVALID, "not_found"),
    ErrorCode.INVALID_ARG: (_INVALID, "invalid_value"),
    ErrorCode.UNAVAILABLE: (_FAILED, "unavailable"),
    ErrorCode.UNSUPPORTED: (_INVALID, "unsupported"),
    ErrorCode.ALREADY_EXISTS: (_INVALID, "already_exists"),
    ErrorCode.CANCELLED: (_INVALID, "cancelled"),
    ErrorCode.DEADLINE_EXCEEDED: (_FAILED, "deadline_exceeded"),
    ErrorCode.POISONED: (_INVALID, "poisoned"),
    ErrorCode.UNAUTHENTICATED: ("authentication_error", "invalid_api_key"),
    ErrorCode.PERMISSION_DENIED: ("permission_error", "permission_denied"),
    ErrorCode.RESOURCE_EXHAUSTED: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorCode.TAKEN_OVER: (_INVALID, "taken_over"),
    ErrorCode.OTHER_REPLICA: (_INVALID, "other_replica"),
}


class UnknownModel(NotFound):
    """The client named a model, or an adapter, that there is not."""


class NoLanguageModel(InvalidArgument):
    """The client named a model that makes no text."""


def error_object(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """Return the JSON text of an error."""
    return _dumped({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _dumped(document: object) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # a text with half a surrogate pair, such as a file name that is not UTF-8
        return orjson.dumps(_cleaned(document))


def _cleaned(value: object) -> object:
    if type(value) is dict:
        return {name: _cleaned(each) for name, each in value.items()}
    return value.encode("utf-8", "replace").decode() if type(value) is str else value


def status_of(error: TritiumError) -> int:
    """Return the HTTP status that tells a client of `error`."""
    return http_status(_code_of(error))


def _code_of(error: TritiumError) -> ErrorCode:
    return ErrorCode.RESOURCE_EXHAUSTED if isinstance(error, Overloaded) else error.code


def told(error: TritiumError) -> bytes:
    """Return the JSON text that tells a client of `error`."""
    kind, code = WORDS[_code_of(error)]
    param = _named(error)
    match error:
        case BadAsk():
            param, code = error.param or None, error.reason or code
        case TextDiffers():
            code = "text_differs"
        case UnknownModel() | NoSuchAdapter():
            param, code = "model", "model_not_found"
        case NoLanguageModel():
            param, code = "model", "model_not_supported"
    return error_object(error.message, kind, code, param)


def _named(error: TritiumError) -> str | None:
    """Return the field that an engine refuses: its text begins with the name, as all our texts do."""
    found = _NAME.match(error.message) if isinstance(error, InvalidArgument | Unsupported) else None
    return found[1] if found is not None and found[1] in _FIELDS else None


_NAME: Final = re.compile(r"'([a-z_]+)'")
_FIELDS: Final = frozenset((*CHAT, *COMPLETIONS, *EMBEDDINGS))


def event(error: TritiumError) -> bytes:
    """Return the events that end a stream with `error`."""
    return b"data: %b\n\ndata: [DONE]\n\n" % told(error)


def retry_fields(error: TritiumError) -> list[Field]:
    """Return the header fields that say whether and when to try again, of an error that says so.

    The `openai` package tries again after most errors of the server, unless `x-should-retry` is false.
    """
    seconds = retry_seconds(error)
    if seconds:
        return [(b"retry-after", b"%d" % seconds), (b"x-should-retry", b"true")]
    never = isinstance(error, Unavailable | TooManyRequests) and error.retry_after == NEVER
    if never or http_status(error.code) in _POINTLESS:
        return [(b"x-should-retry", b"false")]
    return []


# The client would try these again, with the same result: what is not offered, and a time that is up.
_POINTLESS: Final = frozenset({501, 504})
