"""What a SavedModel's file says of its inputs and outputs, read without TensorFlow.

The file is one protocol buffer, and most of it is the graph. A walk over its fields looks at the few that
matter and jumps over the rest, so that it takes no longer for a large graph, and TensorFlow, which takes
seconds to import, is not needed to complete a configuration. Field numbers are those of
`saved_model.proto`, `meta_graph.proto` and `tensor_shape.proto`.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Union

    Shape = Sequence[int] | None
    Value = Union[int, memoryview]

_FILE = "saved_model.pb"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_META_GRAPH = 2  # of SavedModel
_INFO, _TAGS, _SIGNATURES = 1, 4, 5  # of MetaGraphDef, of MetaInfoDef, of MetaGraphDef
_INPUTS, _OUTPUTS = 1, 2  # of SignatureDef
_NAME, _TYPE, _SHAPE, _SPARSE, _COMPOSITE = 1, 2, 3, 4, 5  # of TensorInfo
_DIM, _UNKNOWN_RANK, _SIZE = 2, 3, 1  # of TensorShapeProto, of Dim
_AT_FIRST = ("__saved_model_init_op", "__saved_model_train_op")


class NotASavedModel(Exception):
    """The file can't be read, or is something else; the message says what it looks like."""


class GraphTensor:
    """An input or output of a model.

    `place` is its name in the graph, as in `x:0`; empty if it is more than one tensor. `shape` is None where
    not even the rank is known. `number` is its type's in TensorFlow.
    """

    __slots__ = ("name", "number", "place", "shape")

    def __init__(self, name: str, place: str, number: int, shape: Shape) -> None:
        self.name = name
        self.place = place
        self.number = number
        self.shape = shape


class CallSignature:
    """One way to call a model: what goes in and what comes out, by the names of the signature."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
        self.inputs = inputs
        self.outputs = outputs


class TaggedGraph:
    """One graph of a SavedModel: what it is tagged with, and its signatures by name."""

    __slots__ = ("signatures", "tags")

    def __init__(self, tags: Sequence[str], signatures: Mapping[str, CallSignature]) -> None:
        self.tags = tags
        self.signatures = signatures

    @property
    def callable_by(self) -> list[str]:
        """The names of signatures that answer requests, those for the beginning and for training left out."""
        return sorted(name for name in self.signatures if name not in _AT_FIRST)


def read_graphs(folder: str) -> list[TaggedGraph]:
    """Return the graphs of the SavedModel in a folder. Raises NotASavedModel, and OSError."""
    with open(f"{folder}/{_FILE}", "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file can't be mapped
            raise NotASavedModel("it is empty") from error
    graphs = [_graph(_part(value)) for number, value in _fields(memoryview(mapped)) if number == _META_GRAPH]
    if not graphs:
        raise NotASavedModel("it holds no graph")
    return graphs


def _fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message: number, and value. Raises NotASavedModel where they can't go on."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        size = _SIZES.get(wire, 0)
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif not size:
            raise NotASavedModel(f"it has a field of wire type {wire} at byte {at}")
        if at + size > end:
            raise NotASavedModel(f"it ends {at + size - end} bytes too early")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if at + shift >= len(message):
            raise NotASavedModel("it ends within a number")
        byte = message[at + shift]
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    raise NotASavedModel(f"it has no number at byte {at}")


def _part(value: Value) -> memoryview:
    if isinstance(value, int):
        raise NotASavedModel("it has a number where there should be more")
    return value


def _text(value: Value) -> str:
    return bytes(_part(value)).decode(errors="replace")


def _graph(message: memoryview) -> TaggedGraph:
    tags: list[str] = []
    signatures = {}
    for number, value in _fields(message):
        if number == _INFO:
            tags += [_text(each) for inner, each in _fields(_part(value)) if inner == _TAGS]
        elif number == _SIGNATURES:
            name, signature = _entry(value)
            signatures[name] = _signature(signature)
    return TaggedGraph(tags, signatures)


def _entry(value: Value) -> tuple[str, memoryview]:
    """Return the key and the value of a map's entry."""
    key, content = "", memoryview(b"")
    for number, each in _fields(_part(value)):
        if number == 1:
            key = _text(each)
        elif number == 2:
            content = _part(each)
    return key, content


def _signature(message: memoryview) -> CallSignature:
    sides: dict[int, list[GraphTensor]] = {_INPUTS: [], _OUTPUTS: []}
    for number, value in _fields(message):
        if number in sides:
            sides[number].append(_tensor(*_entry(value)))
    # A map has no order in the file.
    inputs, outputs = (sorted(sides[each], key=lambda tensor: tensor.name) for each in (_INPUTS, _OUTPUTS))
    return CallSignature(inputs, outputs)


def _tensor(name: str, message: memoryview) -> GraphTensor:
    place, kind = "", 0
    shape: Shape = []
    for number, value in _fields(message):
        if number == _NAME:
            place = _text(value)
        elif number == _TYPE and isinstance(value, int):
            kind = value
        elif number == _SHAPE:
            shape = _shape(_part(value))
        elif number in (_SPARSE, _COMPOSITE):
            place = ""
    return GraphTensor(name, place, kind, shape)


def _shape(message: memoryview) -> Shape:
    dims = []
    for number, value in _fields(message):
        if number == _UNKNOWN_RANK and value:
            return None
        if number == _DIM:
            size = 0
            for inner, each in _fields(_part(value)):
                if inner == _SIZE and isinstance(each, int):
                    size = each - (1 << 64) if each >> 63 else each
            dims.append(size)
    return dims
