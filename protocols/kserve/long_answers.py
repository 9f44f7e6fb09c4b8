"""Answers whose tensors become long JSON texts, made in slices.

They stand for `responses.encode` and `generate.encode_generated`. An element takes about 0.1 µs, so that a
million of them would hold the loop for too long. The generators yield after every piece of work. Where they
yield a function, that may run in a thread (see `actors.seams.slices`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import Internal, InvalidArgument
from actors.values.requests import InferResponse
from actors.values.specs import ModelSpec
from actors.values.strings import NOWHERE, headers
from actors.values.tensors import Buffer, Tensor, element_count, pack_bytes
from protocols.kserve.classification import Ranking, ranking_of
from protocols.kserve.documents import dump, text
from protocols.kserve.elements import NO_JSON, WRONG_SHAPE, render_numbers, render_packed, render_texts
from protocols.kserve.meanings import OutputPlan
from protocols.kserve.responses import Body, described, parameter_values

Steps = Generator[Callable[[], Any] | None, Any, None]

# Bytes of tensors that are written in one piece.
_LONG: Final = 32 * 1024
_NUMBERS_AT_ONCE: Final = 2048
_STRINGS_AT_ONCE: Final = 512
_TEXT_AT_ONCE: Final = 16 * 1024
# How often strings are written one by one before they are searched again, where a search was not worth it.
_SEARCHES_LEFT_OUT: Final = 8
# Rows of this many elements are put in order in a thread.
_LONG_ROW: Final = 16 * 1024
_CLASSES_AT_ONCE: Final = 256
# Buffers of an answer: few enough for one call of the system, short enough to be made in a millisecond.
_BUFFER: Final = 256 * 1024


def is_long(response: InferResponse, plan: OutputPlan) -> bool:
    """Whether an answer must be made by `encode_long`."""
    named = plan.named
    size = 0
    for tensor in response.outputs:
        choice = None if named is None else named.get(tensor.name)
        if named is None:
            worked = not plan.binary
        else:
            worked = choice is not None and (not choice.binary or choice.classes > 0)
        size += len(tensor.data) if worked else 0
    return size > _LONG


def is_long_generated(response: InferResponse) -> bool:
    """Whether an answer must be made by `encode_long_generated`."""
    return sum(len(tensor.data) for tensor in response.outputs) > _LONG


class _Text:
    """A text that is made piece by piece, in buffers of some length."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self._pieces: list[bytes] = []
        self._pending = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)
        self._pending += len(piece)
        if self._pending >= _BUFFER:
            self.end()

    def end(self) -> None:
        if self._pieces:
            self.buffers.append(b"".join(self._pieces))
            self._pieces = []
            self._pending = 0


def encode_long(
    response: InferResponse, plan: OutputPlan, spec: ModelSpec
) -> Generator[Callable[[], Any] | None, Any, Body]:
    """Do as `responses.encode` does, in slices."""
    head: dict[str, Any] = {"id": text(response.id)} if response.id else {}
    head |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.parameters:
        head["parameters"] = parameter_values(response.parameters)
    written = _Text()
    written.add(dump(head)[:-1] + b',"outputs":[')
    binary: list[Buffer] = []
    comma = b""
    for tensor in response.outputs:
        as_binary = plan.binary
        if plan.named is not None:
            choice = plan.named.get(tensor.name)
            if choice is None:
                continue  # the backend made it, and the client did not ask for it
            if choice.shared:
                written.add(comma + dump(described(tensor)))
                comma = b","
                continue
            as_binary = choice.binary
            if choice.classes:
                tensor = yield from _classified(tensor, choice.classes, spec)  # as it is answered
        output = described(tensor)
        if as_binary:
            output["parameters"] = {"binary_data_size": len(tensor.data)}
            written.add(comma + dump(output))
            binary.append(tensor.data)
        else:
            written.add(comma + dump(output)[:-1] + b',"data":[')
            yield from _render(tensor, written)
            written.add(b"]}")
        comma = b","
    written.add(b"]}")
    written.end()
    binary_size = sum(map(len, binary))
    if not binary_size:
        return Body(written.buffers, written.size, None, borrowed=False)
    return Body([*written.buffers, *binary], written.size + binary_size, written.size, borrowed=True)


def encode_long_generated(
    response: InferResponse,
) -> Generator[Callable[[], Any] | None, Any, list[Buffer]]:
    """Do as `generate.encode_generated` does, in slices, and return the text in buffers."""
    members: dict[str, Any] = {} if response.parameters is None else parameter_values(response.parameters)
    if response.id:
        members["id"] = text(response.id)
    members["model_name"] = response.model_name
    members["model_version"] = str(response.model_version)
    tensors = {tensor.name: tensor for tensor in response.outputs}
    written = _Text()
    before = b"{"
    for key in sorted({**members, **tensors}):
        written.add(before + dump(key) + b":")
        before = b","
        tensor = tensors.get(key)
        if tensor is None:
            written.add(dump(members[key]))
            continue
        alone = element_count(tensor.shape) == 1
        written.add(b"" if alone else b"[")
        yield from _render(tensor, written)
        written.add(b"" if alone else b"]")
    written.add(b"}")
    written.end()
    return written.buffers


def _render(tensor: Tensor, written: _Text) -> Steps:
    """Write the elements of `tensor`, with commas between them. Raises as `elements.render` does."""
    if tensor.datatype is DataType.BYTES:
        yield from _render_strings(tensor, written)
        return
    if tensor.datatype is DataType.FP16 or tensor.datatype is DataType.BF16:
        raise InvalidArgument(NO_JSON.format(tensor.datatype))
    if element_count(tensor.shape) * tensor.datatype.size != len(tensor.data):
        raise Internal(f"Failed to write 'data' field: {WRONG_SHAPE} '{tensor.name}'")
    elements = np.frombuffer(tensor.data, dtype=tensor.datatype.numpy)
    for at in range(0, elements.size, _NUMBERS_AT_ONCE):
        if at:
            written.add(b",")
        written.add(render_numbers(elements[at : at + _NUMBERS_AT_ONCE], tensor.datatype)[1:-1])
        yield None


def _render_strings(tensor: Tensor, written: _Text) -> Steps:
    view = memoryview(tensor.data)
    count = element_count(tensor.shape)
    at = seen = left_out = 0
    comma = b""
    while at < len(view):
        # Most texts are many short strings, which are written a thousand at a time.
        found, end = (NOWHERE, 0) if left_out else headers(view, at, count - seen)
        together = render_packed(view[at : at + end], found) if found.size else None
        if together is not None:
            written.add(comma + together)
            at += end
            seen += found.size
        else:
            left_out = left_out - 1 if left_out else _SEARCHES_LEFT_OUT
            at, some = yield from _render_some_strings(tensor, at, count - seen, comma, written)
            seen += some
        comma = b","
        yield None
    if seen != count:
        raise Internal(f"{WRONG_SHAPE} '{tensor.name}'")


def _render_some_strings(
    tensor: Tensor, at: int, most: int, comma: bytes, written: _Text
) -> Generator[None, None, tuple[int, int]]:
    """Write some strings, at least one. Returns where the next begins, and how many were written.

    Raises Internal where one is cut short, or beyond `most`.
    """
    view = memoryview(tensor.data)
    some: list[bytes] = []
    seen = gathered = 0
    while at < len(view) and len(some) < _STRINGS_AT_ONCE and gathered <= _TEXT_AT_ONCE:
        start = at + 4
        end = start + int.from_bytes(view[at:start], "little")
        seen += 1
        if start > len(view) or end > len(view) or seen > most:
            raise Internal(f"{WRONG_SHAPE} '{tensor.name}'")
        at = end
        if end - start > _TEXT_AT_ONCE:
            if some:
                written.add(comma + render_texts(some)[1:-1])
                comma = b","
            written.add(comma + b'"')
            yield from _render_long_string(view[start:end], written)
            written.add(b'"')
            return at, seen
        some.append(bytes(view[start:end]))
        gathered += end - start
    written.add(comma + render_texts(some)[1:-1])
    return at, seen


def _render_long_string(content: memoryview, written: _Text) -> Generator[None, None, None]:
    at = 0
    while at < len(content):
        end = min(at + _TEXT_AT_ONCE, len(content))
        # A character is not cut: it goes on for three bytes at most.
        whole = end
        while end < len(content) and whole > end - 3 and content[whole] & 0xC0 == 0x80:
            whole -= 1
        written.add(render_texts([bytes(content[at:whole])])[2:-2])
        at = whole
        yield


def _classified(
    output: Tensor, classes: int, spec: ModelSpec
) -> Generator[Callable[[], Any] | None, Any, Tensor]:
    ranking: Ranking = ranking_of(output, classes, spec)
    packed = bytearray()
    for row in ranking.rows:
        best: Sequence[int] = (
            (yield partial(ranking.best, row)) if len(row) > _LONG_ROW else ranking.best(row)
        )
        for at in range(0, len(best), _CLASSES_AT_ONCE):
            packed += pack_bytes(ranking.describe(row, best[at : at + _CLASSES_AT_ONCE]))
            yield None
    return Tensor(output.name, DataType.BYTES, ranking.shape, packed)
