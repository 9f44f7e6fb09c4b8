"""Frames between the server and a model's text worker: what makes text of tokens, and tokens of text.

They travel on a stream socket, as prompts may be long:

    frame     length of all that follows (4 bytes, little-endian), length of the head (4), head, body
    head      JSON: [kind, …], see below
    body      the bytes that the head counts: token ids as 32-bit integers, or UTF-8

Orders, server to worker. `stream` is a number that the server chooses, and that stands for one request.

    ["open", stream, ask, limits]      body: none. `ask` is `Ask.document()` but for texts longer than `LONG`,
                                       which lie in the body: ["long", n] stands for the next n bytes, and
                                       ["ids", n] for so many token ids of a prompt
    ["tokens", [[stream, choice, count, finish, chances], …]]
                                       body: the ids of all entries, one after the other. `finish` is the
                                       engine's (`stop`, `length` or empty). `chances` is null, or for each
                                       id a list of [id, logprob, rank], the chosen one first
    ["chances", stream, prompt, [chances, …]]
                                       give the tokens of a prompt their texts: for each of them null, or a
                                       list of [id, logprob, rank], its own first
    ["close", stream]                  nothing more is wanted of it
    ["restore", stream, ask, limits, [[choice, count, told, delivered, finish, chances], …]]
                                       as `open`, but there is no answer to it. For each choice so many ids
                                       have been generated (they are the end of the body, one choice after the
                                       other, behind the ask's long texts). Pieces of `told` of them have
                                       been told: the worker goes on as if it had told them itself.
                                       `delivered` is what clients got by them (`actors.wire.delivered`).
                                       `finish` is the engine's; `chances` are those of the ids that were
                                       not told

Reports, worker to server.

    ["ready", facts]                   the tokenizer is loaded: `facts` has `eos` (ids), `vocabulary` (a size)
                                       and `template` (whether there is one)
    ["failed", reason]                 it can't be loaded
    ["opened", stream, [count, …], sampling, more]
                                       body: the ids of each prompt. `sampling` is what the engine is to be
                                       told in place of what the ask says, as far as that differs (a grammar
                                       for tools, stop ids). `more` has `text` if the prompt is to be echoed,
                                       and for TOKENIZE and DETOKENIZE their answer
    ["chances", stream, prompt, [chances, …]]
                                       for each token null, or a list as a piece has it. It comes before the
                                       pieces of tokens that were ordered later
    ["refused", stream, status, message, param]
                                       the ask can't be met: a template that fails, or too many tokens
    ["differs", stream, choice]        what a restored choice is made into is not what was delivered: nothing
                                       more comes of the stream
    ["pieces", [[stream, choice, piece], …]]
                                       `piece` is an object of `TextPiece`'s fields (without `choice`), as far
                                       as they differ from the default. If its `finish` is set and the
                                       engine's was not, the choice has met a stop text: the engine is to be
                                       told
"""

from __future__ import annotations

import json
import struct
from array import array
from typing import TYPE_CHECKING, Any, Final

from actors.wire.frames import FrameError, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.wire.frames import Buffer

LONG: Final = 64 * 1024
"""Texts of more characters travel in the body."""

LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a frame. A longer one is refused once its length is read."""

_LENGTHS = struct.Struct("<II")
LENGTHS_BYTES: Final = _LENGTHS.size
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode(head: Sequence[Any], body: Buffer = b"") -> list[Buffer]:
    """Return the pieces of a frame, to be sent in order."""
    text = _encode(head).encode("utf-8", "surrogatepass")
    return [_LENGTHS.pack(4 + len(text) + len(body), len(text)), text, body]


def lengths(data: Buffer) -> tuple[int, int]:
    """Return the bytes of head and body, of the first `LENGTHS_BYTES` of a frame. Raises FrameError."""
    total, head = _LENGTHS.unpack_from(data)
    if head + 4 > total or total > LARGEST:
        raise FrameError(f"a text frame of {total} bytes with a head of {head}")
    return head, total - 4 - head


def decode_head(data: Buffer) -> list[Any]:
    """Return the head of a frame. Raises FrameError."""
    try:
        head = parse_json(data)
    except ValueError as error:
        raise FrameError(f"a text frame's head is no JSON: {error}") from error
    if not isinstance(head, list) or not head or not isinstance(head[0], str):
        raise FrameError("a text frame's head is no list that begins with its kind")
    return head


def pack_ask(document: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return an ask as its head has it, and its long texts, one after the other, as the body has them."""
    texts: list[bytes] = []
    packed = {key: _packed(value, texts) for key, value in document.items()}
    return packed, b"".join(texts)


def _packed(value: Any, texts: list[bytes]) -> Any:
    if isinstance(value, str):
        if len(value) <= LONG:
            return value
        texts.append(value.encode("utf-8", "surrogatepass"))
        return ["long", len(texts[-1])]
    if isinstance(value, dict):
        return {key: _packed(each, texts) for key, each in value.items()}
    if isinstance(value, array):
        texts.append(value.tobytes())
        return ["ids", len(value)]
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and value[0] in ("long", "list", "ids"):  # it would be taken for one of ours
            return ["list", list(value)]
        return [_packed(each, texts) for each in value]
    return value


def unpack_ask(document: Mapping[str, Any], body: Buffer) -> tuple[dict[str, Any], int]:
    """Return the ask of a head and a body, and how many bytes of the body are its texts.

    Raises FrameError.
    """
    at = [0]
    view = memoryview(body)
    unpacked = {key: _unpacked(value, view, at) for key, value in document.items()}
    return unpacked, at[0]


def _unpacked(value: Any, view: memoryview, at: list[int]) -> Any:
    if isinstance(value, dict):
        return {key: _unpacked(each, view, at) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) == 2 and value[0] == "list" and isinstance(value[1], list):
        return value[1]
    if len(value) == 2 and value[0] == "long" and isinstance(value[1], int):
        start, at[0] = at[0], at[0] + value[1]
        if at[0] > len(view):
            raise FrameError(f"a text that ends at byte {at[0]} of a body of {len(view)}")
        return str(view[start : at[0]], "utf-8", "surrogatepass")
    if len(value) == 2 and value[0] == "ids" and isinstance(value[1], int):
        start, at[0] = at[0], at[0] + 4 * value[1]
        if at[0] > len(view):
            raise FrameError(f"token ids that end at byte {at[0]} of a body of {len(view)}")
        return unpack_ids(view[start : at[0]])
    return [_unpacked(each, view, at) for each in value]


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as a body has them."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(data: Buffer) -> array[int]:
    """Return the token ids of a body. Raises FrameError."""
    if len(data) % 4:
        raise FrameError(f"token ids in {len(data)} bytes")
    ids = array("i")
    ids.frombytes(data)
    return ids
