"""What a load request's JSON says (contract, http.md section 4): a configuration, and files as base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from actors.values.errors import Internal, InvalidArgument
from actors.values.versions import LOADED_VERSIONS
from protocols.kserve.caps import check_parameters
from protocols.kserve.documents import encode_text, misfit
from protocols.kserve.long_texts import MAX_STRING, LongString

TEXTS: Final = frozenset(("config", LOADED_VERSIONS))
"""The parameters of a load that are text."""

_JOINED_AT_ONCE: Final = 16
_PIECE: Final = 256 * 1024
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64: Final = bytes(set(range(256)) - set(_ALPHABET))


def parameters_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member `parameters` of a request's object, empty where there is none. Raises Internal."""
    if "parameters" not in document:
        return {}
    parameters = document["parameters"]
    if type(parameters) is not dict:
        raise Internal("Unable to parse 'parameters': attempt to get members for non-object")
    return parameters


Step = Callable[[], Any] | None


def load_parameters(document: Mapping[str, Any]) -> Generator[Step, Any, dict[str, object]]:
    """Return the parameters of a load: `config` and `tritium.versions` as text, `file:<path>` as bytes.

    Yields between slices of work. Raises Internal and InvalidArgument.
    """
    given = parameters_of(document)
    check_parameters(len(given))
    loaded: dict[str, object] = {}
    for key, value in given.items():
        if key not in TEXTS and not key.startswith("file:"):
            raise Internal("unexpected error on creating Triton parameter")
        if type(value) is not str and type(value) is not LongString:
            raise misfit(given, key, "string")
        if key not in TEXTS:
            loaded[key] = yield from _lenient_base64(value)
        elif type(value) is LongString:
            raise InvalidArgument(f"'{key}' has {value.size} bytes, and may have {MAX_STRING} at most")
        else:
            loaded[key] = value
    return loaded


def _lenient_base64(text: str | LongString) -> Generator[Step, Any, bytes]:
    """Return the bytes that base64 text holds, skipping characters that are not base64."""
    pieces: Iterable[bytes]
    pieces = text.pieces() if isinstance(text, LongString) else _pieces_of(encode_text(text))
    parts: list[bytes] = []
    left = b""
    for piece in pieces:
        significant = left + piece.translate(None, _NOT_BASE64)
        whole = len(significant) // 4 * 4
        parts.append(base64.b64decode(significant[:whole]))
        left = significant[whole:]
        yield None
    if len(left) > 1:
        parts.append(base64.b64decode(left + b"=" * (4 - len(left))))
    # Joining long ones lets go of the GIL.
    joined: bytes = b"".join(parts) if len(parts) < _JOINED_AT_ONCE else (yield partial(b"".join, parts))
    return joined


def _pieces_of(encoded: bytes) -> Iterator[bytes]:
    return (encoded[at : at + _PIECE] for at in range(0, len(encoded), _PIECE))
