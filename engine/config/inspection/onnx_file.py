"""Inputs and outputs of an ONNX model, read from its protobuf without ONNX Runtime and without its weights.

Field numbers are those of onnx.proto. Only the main graph counts. An input that an initializer gives a
default to is not asked of clients, so it is no input here, as in ONNX Runtime.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actors.values.datatypes import DataType
from engine.config.inspection.wire import Kind, Port, Ports, Reader, Unloadable, Unreadable, opened, signed

_MOST_PORTS: Final = 10_000
_HIGHEST_RANK: Final = 256
_ORT_FORMAT: Final = b"ORTM"  # in bytes 4 to 8 of what ONNX Runtime itself has saved

# ModelProto, GraphProto, ValueInfoProto, TensorProto, SparseTensorProto
_GRAPH: Final = 7
_INITIALIZER, _INPUT, _OUTPUT, _SPARSE_INITIALIZER = 5, 11, 12, 15
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TENSOR_NAME: Final = 8
_SPARSE_VALUES: Final = 1
# TypeProto and its Tensor, TensorShapeProto and its Dimension
_TENSOR_TYPE: Final = 1
ZIPMAP: Final = "convert a classifier of scikit-learn by to_onnx(…, options={'zipmap': False})"
"""The cure where an output is a sequence, which such a classifier's probabilities are by default."""

_OTHER_TYPES: Final = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse_tensor", 9: "optional"}
_ELEMENT_TYPE, _SHAPE = 1, 2
_DIMENSION: Final = 1
_DIM_VALUE, _DIM_PARAM = 1, 2

# TensorProto.DataType
_DATATYPES: Final = {
    1: ("float", DataType.FP32),
    2: ("uint8", DataType.UINT8),
    3: ("int8", DataType.INT8),
    4: ("uint16", DataType.UINT16),
    5: ("int16", DataType.INT16),
    6: ("int32", DataType.INT32),
    7: ("int64", DataType.INT64),
    8: ("string", DataType.BYTES),
    9: ("bool", DataType.BOOL),
    10: ("float16", DataType.FP16),
    11: ("double", DataType.FP64),
    12: ("uint32", DataType.UINT32),
    13: ("uint64", DataType.UINT64),
    14: ("complex64", None),
    15: ("complex128", None),
    16: ("bfloat16", DataType.BF16),
    17: ("float8e4m3fn", None),
    18: ("float8e4m3fnuz", None),
    19: ("float8e5m2", None),
    20: ("float8e5m2fnuz", None),
    21: ("uint4", None),
    22: ("int4", None),
    23: ("float4e2m1", None),
    24: ("float8e8m0", None),
    25: ("uint2", None),
    26: ("int2", None),
}


@dataclass(slots=True)
class _Value:
    """A ValueInfoProto while it is read. A message that comes in pieces is merged, as protobuf does."""

    name: str = ""
    element_type: int = 0
    other_type: str = ""  # if it is no tensor
    shaped: bool = False
    dims: list[int] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)

    def port(self) -> Port:
        spelling, datatype = _DATATYPES.get(self.element_type, (f"element type {self.element_type}", None))
        if self.other_type:
            spelling, datatype = self.other_type, None
        return Port(
            name=self.name,
            datatype=datatype,
            shape=tuple(self.dims) if self.shaped and not self.other_type else None,
            spelling=spelling,
            symbols=tuple(self.symbols),
        )


def read_onnx(path: Path) -> Ports:
    """Return the inputs and outputs of the model in `path`. Raises Unreadable if it is no ONNX model."""
    with opened(path) as descriptor:
        try:
            if os.pread(descriptor, 8, 0)[4:] == _ORT_FORMAT:
                raise Unreadable("it is in ONNX Runtime's own format")
            return _model(Reader(descriptor))
        except OSError as error:
            raise Unloadable(error.strerror or str(error)) from error


def _model(reader: Reader) -> Ports:
    inputs: list[_Value] = []
    outputs: list[_Value] = []
    defaulted: set[str] = set()
    has_graph = False
    for number, kind, end in reader.fields(reader.size):
        if number == _GRAPH and kind is Kind.LENGTH:
            has_graph = True
            _graph(reader, end, inputs, outputs, defaulted)
    if not has_graph:
        raise Unloadable("there is no graph in it")
    return Ports(
        inputs=tuple(value.port() for value in inputs if value.name not in defaulted),
        outputs=tuple(value.port() for value in outputs),
        defaulted=tuple(value.port() for value in inputs if value.name in defaulted),
    )


def _graph(
    reader: Reader, end: int, inputs: list[_Value], outputs: list[_Value], defaulted: set[str]
) -> None:
    for number, kind, inner in reader.fields(end):
        if kind is not Kind.LENGTH:
            continue
        if number == _INITIALIZER:
            defaulted.add(_tensor_name(reader, inner))
        elif number == _SPARSE_INITIALIZER:
            for sparse, sparse_kind, values in reader.fields(inner):
                if sparse == _SPARSE_VALUES and sparse_kind is Kind.LENGTH:
                    defaulted.add(_tensor_name(reader, values))
        elif number in (_INPUT, _OUTPUT):
            side = inputs if number == _INPUT else outputs
            if len(side) >= _MOST_PORTS:
                raise Unreadable(f"it has more than {_MOST_PORTS} inputs or outputs")
            side.append(_value(reader, inner))


def _tensor_name(reader: Reader, end: int) -> str:
    for number, kind, inner in reader.fields(end):
        if number == _TENSOR_NAME and kind is Kind.LENGTH:
            return reader.text(inner)
    return ""


def _value(reader: Reader, end: int) -> _Value:
    value = _Value()
    for number, kind, inner in reader.fields(end):
        if kind is not Kind.LENGTH:
            continue
        if number == _VALUE_NAME:
            value.name = reader.text(inner)
        elif number == _VALUE_TYPE:
            _type(reader, inner, value)
    return value


def _type(reader: Reader, end: int, value: _Value) -> None:
    for number, kind, inner in reader.fields(end):
        if kind is not Kind.LENGTH:
            continue
        if number == _TENSOR_TYPE:
            value.other_type = ""
            _tensor_type(reader, inner, value)
        elif number in _OTHER_TYPES:
            value.other_type = _OTHER_TYPES[number]


def _tensor_type(reader: Reader, end: int, value: _Value) -> None:
    for number, kind, inner in reader.fields(end):
        if number == _ELEMENT_TYPE and kind is Kind.VARINT:
            value.element_type = inner
        elif number == _SHAPE and kind is Kind.LENGTH:
            value.shaped = True
            for part, part_kind, dimension in reader.fields(inner):
                if part == _DIMENSION and part_kind is Kind.LENGTH:
                    if len(value.dims) >= _HIGHEST_RANK:
                        raise Unreadable(f"'{value.name}' has more than {_HIGHEST_RANK} dimensions")
                    _dimension(reader, dimension, value)


def _dimension(reader: Reader, end: int, value: _Value) -> None:
    size, symbol = -1, ""
    for number, kind, inner in reader.fields(end):
        if number == _DIM_VALUE and kind is Kind.VARINT:
            size, symbol = max(signed(inner), -1), ""
        elif number == _DIM_PARAM and kind is Kind.LENGTH:
            size, symbol = -1, reader.text(inner)
    value.dims.append(size)
    value.symbols.append(symbol)
