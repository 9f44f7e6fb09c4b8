"""Which framework's protocol buffer a file is, told by the first fields at its top.

The walk fetches a few hundred bytes of each field and jumps over the rest. It ends after some dozens of
fields, whatever the file says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.repository.bare.policy.formats import (
    CAFFE,
    COREML,
    DALI,
    GRAPH_DEF,
    ONNX,
    PADDLE,
    SAVED_MODEL,
    ModelFormat,
)

_MOST_FIELDS: Final = 64
_LOOKED_AT: Final = 320  # bytes of a field's content
_LONGEST_VARINT: Final = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}

# ModelProto of onnx.proto: ir_version, … graph, opset_import, metadata_props, training_info, functions,
# configuration
_ONNX_FIELDS: Final = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
_ONNX_GRAPH, _ONNX_OPSETS = 7, 8
# The first byte of a GraphProto: tags of node, name, initializer, doc_string, input, output, value_info,
# quantization_annotation, sparse_initializer and, in two bytes, metadata_props.
_IN_GRAPH: Final = frozenset((0x0A, 0x12, 0x2A, 0x52, 0x5A, 0x62, 0x6A, 0x72, 0x7A, 0x82))
_NEWEST_IR: Final = 100
# A NodeDef of TensorFlow: its name, and its operation.
_NODE: Final = re.compile(rb"\n[\x01-\xff].*?\x12[\x01-\x7f][A-Za-z_]\w", re.DOTALL)
# A BlockDesc of PaddlePaddle: `idx` 0 and its parent.
_BLOCK: Final = re.compile(rb"\x08\x00\x10")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its number, its wire type, its value or its length, and how its content begins."""

    number: int
    wire: int
    value: int
    start: bytes = b""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The first fields of a file. `sound` if they are followed by more fields or by the end.

    `cut` if the last one goes on behind the end of the file.
    """

    fields: tuple[Field, ...]
    sound: bool
    cut: bool = False


def skeleton(read: Callable[[int, int], bytes], size: int) -> Skeleton:
    """Walk over a file of `size` bytes; `read(offset, count)` returns at most so many of them."""
    fields: list[Field] = []
    position = 0
    while position < size and len(fields) < _MOST_FIELDS:
        window = read(position, 2 * _LONGEST_VARINT + _LOOKED_AT)
        tag, at = _varint(window, 0)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29 or wire not in (_VARINT, _FIXED64, _LENGTH, _FIXED32):
            return Skeleton(tuple(fields), sound=False)
        if wire in _SIZES:
            value, after = _SIZES[wire], at + _SIZES[wire]
        else:
            value, at = _varint(window, at)
            if value < 0:
                return Skeleton(tuple(fields), sound=False)
            after = at + value if wire == _LENGTH else at
        start = window[at : at + min(value, _LOOKED_AT)] if wire == _LENGTH else b""
        fields.append(Field(number, wire, value, start))
        position += after
    return Skeleton(tuple(fields), sound=position <= size, cut=position > size)


def _varint(window: bytes, at: int) -> tuple[int, int]:
    """Return a varint and where it ends; -1 if there is none."""
    result = 0
    for count, byte in enumerate(window[at : at + _LONGEST_VARINT]):
        result |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return result, at + count + 1
    return -1, at


def recognise_message(found: Skeleton) -> tuple[ModelFormat | None, bool]:
    """Return what the file is, and whether it is cut short."""
    if not (found.sound or found.cut) or not found.fields:
        return None, False
    kinds = {(field.number, field.wire) for field in found.fields}
    numbers = {field.number for field in found.fields}
    first = found.fields[0]
    # Cases, those with the surest marks first. ONNX: a graph. Caffe: layers, in field 100. Core ML: a
    # version, a description, and the model in a field from 200 on. SavedModel: version 1 and graphs. DALI:
    # two counts and operators. PaddlePaddle and GraphDef begin with what they repeat: blocks, nodes.
    if _is_onnx(found, numbers):
        return ONNX, found.cut
    if (100, _LENGTH) in kinds and numbers <= {1, 2, 3, 4, 5, 6, 7, 8, 100}:
        return CAFFE, found.cut
    if first.wire == _VARINT and first.number == 1 and (2, _LENGTH) in kinds:
        if any(200 <= number < 4096 for number in numbers):
            return COREML, found.cut
        meta = next(field for field in found.fields if (field.number, field.wire) == (2, _LENGTH))
        if first.value == 1 and numbers == {1, 2} and meta.start[:1] in (b"\n", b"\x12"):
            return SAVED_MODEL, found.cut
    if [(field.number, field.wire) for field in found.fields[:2]] == [(1, _VARINT), (2, _VARINT)]:
        operators = [field for field in found.fields if (field.number, field.wire) == (3, _LENGTH)]
        if operators and operators[0].start[:1] == b"\n" and max(numbers) <= 32:
            return DALI, found.cut
    if (first.number, first.wire) == (1, _LENGTH):
        if _BLOCK.match(first.start) and numbers <= {1, 2, 3, 4, 5}:
            return PADDLE, found.cut
        if _NODE.match(first.start) and numbers <= {1, 2, 3, 4, 5}:
            return GRAPH_DEF, found.cut
    return None, False


def _is_onnx(found: Skeleton, numbers: set[int]) -> bool:
    graphs = [field for field in found.fields if (field.number, field.wire) == (_ONNX_GRAPH, _LENGTH)]
    versions = [field for field in found.fields if (field.number, field.wire) == (1, _VARINT)]
    return (
        numbers <= _ONNX_FIELDS
        and bool(graphs)
        and bool(versions)
        and 0 < versions[0].value < _NEWEST_IR
        and graphs[0].start[:1] != b""
        and graphs[0].start[0] in _IN_GRAPH
        and (found.cut or _ONNX_OPSETS in numbers)
    )
