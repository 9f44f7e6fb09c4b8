"""What a request asks a language model, as the bytes by which it is told from others. Pure.

Two asks are equal if they ask for the same; how the client wants to be told does not count.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from actors.values.generation.asking import Ask

_TELLING: Final = frozenset({"stream", "return_token_ids", "return_token_strs"})
_IDS_AT_ONCE: Final = 65_536
_SAMPLE: Final = 16


def size_asked(ask: Ask) -> int:
    """Return about how many bytes `pieces_asked` gives."""
    return sum(map(_size, (*ask.prompts, *(ask.messages or ()), ask.tools)))


def sample_asked(ask: Ask) -> tuple[object, ...]:
    """Return what equal asks share, and different ones seldom: sizes, and samples of prompts."""
    messages = ask.messages or ()
    last = messages[-1].get("content") if messages else None
    return (ask.kind, ask.adapter, len(messages), *map(_sample, (*ask.prompts[:4], last)))


def pieces_asked(ask: Ask) -> Iterator[bytes]:
    """Yield all of it, in pieces. Each text is one piece."""
    for name, value in zip(ask._fields, ask, strict=True):
        if name not in _TELLING:
            yield from _pieces(value)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if _are_ids(value):
        return 8 * len(value)
    return sum(map(_size, value)) if isinstance(value, Sequence) else 8


def _are_ids(value: Any) -> bool:
    """Whether these are token ids, by the first."""
    return isinstance(value, (array, list, tuple)) and len(value) > 0 and type(value[0]) is int


def _sample(prompt: Any) -> object:
    if isinstance(prompt, str):
        return len(prompt), prompt[:_SAMPLE], prompt[-_SAMPLE:]
    return (len(prompt), *prompt[:_SAMPLE], *prompt[-_SAMPLE:]) if _are_ids(prompt) else None


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        told = value.encode("utf-8", "surrogatepass")
        yield b"t%d:" % len(told)
        yield told
    elif isinstance(value, Mapping):
        yield b"m%d:" % len(value)
        for key in sorted(value):
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif isinstance(value, (Sequence, array)):
        yield b"l%d:" % len(value)
        for at in range(0, len(value), _IDS_AT_ONCE):
            yield from _items(value[at : at + _IDS_AT_ONCE])
    else:
        yield b"v" + repr(value).encode() + b":"


def _items(values: Sequence[Any]) -> Iterator[bytes]:
    try:
        ids = array("q", values)
    except (TypeError, OverflowError):  # not token ids alone
        for each in values:
            yield from _pieces(each)
    else:
        yield b"i" + ids.tobytes()
