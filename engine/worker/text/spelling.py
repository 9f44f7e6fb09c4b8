"""The bytes that each token stands for, by the decoder that a tokenizer declares. Pure.

Tokenizers of language models spell bytes in two ways. Byte-level ones (GPT-2, Llama 3, Qwen, DeepSeek) have a
character for each byte. Those made by SentencePiece (Llama 2, Mistral, Gemma) write spaces as `▁`, and bytes
that are no whole character as `<0xE3>`. In both the text of some ids is what their bytes are in UTF-8, so a
table of bytes decodes them; bytes that are no UTF-8 are replaced as `tokenizers` does for byte-level ones.
For any other decoder there is no table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BYTE_LEVEL: Final = "bytes"
SPACED: Final = "spaced"
OTHER: Final = "other"

_SPACE: Final = "▁"
_FALLBACK: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SIMPLE: Final = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


class Spelling(NamedTuple):
    """How tokens are spelt."""

    kind: str = OTHER
    fallback: bool = False  # whether `<0xE3>` is a byte
    dropped: int = 0
    """Of the spaces that a text begins with, how many are not part of it; -1: all of its first token."""


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling:
    """Return how the `decoder` of a tokenizer.json says that tokens are spelt."""
    steps = list(_steps(decoder))
    kinds = [str(step.get("type")) for step in steps]
    if "ByteLevel" in kinds:
        # Others beside it are of no known model.
        return Spelling(BYTE_LEVEL) if set(kinds) <= {"ByteLevel", "Fuse"} else Spelling()
    if not steps or not set(kinds) <= _SIMPLE:
        return Spelling()
    dropped = 0
    spaced = False
    for step in steps:
        if step["type"] == "Metaspace":
            if step.get("replacement", _SPACE) != _SPACE:
                return Spelling()
            spaced = True
            dropped = -1 if step.get("prepend_scheme", "always") != "never" else 0
        elif step["type"] == "Replace":
            if step.get("pattern") != {"String": _SPACE} or step.get("content") != " ":
                return Spelling()
            spaced = True
        elif step["type"] == "Strip":
            if step.get("content") != " " or step.get("stop") or "Fuse" not in kinds:
                return Spelling()
            dropped = int(step.get("start", 0))
    return Spelling(SPACED, "ByteFallback" in kinds, dropped) if spaced else Spelling()


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for each in decoder.get("decoders") or ():
            yield from _steps(each)
    else:
        yield decoder


def _alphabet() -> dict[str, int]:
    """Return the byte of each character of byte-level tokens: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return {**letters, **{chr(256 + place): byte for place, byte in enumerate(others)}}


_BYTES: Final = _alphabet()


def bytes_of(token: str, spelling: Spelling) -> bytes:
    """Return the bytes that a token stands for. `spelling` isn't `OTHER`."""
    if spelling.kind == BYTE_LEVEL:
        try:
            return bytes([_BYTES[letter] for letter in token])
        except KeyError:  # as an added token may have
            return token.encode("utf-8", "replace")
    if spelling.fallback and len(token) == 6:
        found = _FALLBACK.fullmatch(token)
        if found is not None:
            return bytes((int(found[1], 16),))
    return token.replace(_SPACE, " ").encode("utf-8", "replace")
