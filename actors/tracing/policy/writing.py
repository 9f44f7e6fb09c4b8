"""Finished traces as the objects of Triton's trace file (contract, observability.md section 3.2)."""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from actors.values.datatypes import DataType
from actors.values.tracing.spans import (
    COMPUTE_END,
    COMPUTE_INPUT_END,
    COMPUTE_OUTPUT_START,
    COMPUTE_START,
    WORKER_DIED,
)
from actors.values.tracing.traces import FinishedTrace, Moment, TracedRequest, TracedTensor

_AT_ONCE: Final = 1024  # elements put into words in one call, which holds the interpreter lock
ESCAPED_AT_ONCE: Final = 64 * 1024
"""Characters put into JSON in one call, which holds the lock for 0.1 ms; 5 MiB at once take 13 ms."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)  # the name of a moment that needs no escapes
_BYTES_AT_ONCE: Final = 16 * 1024  # of a string, as well
_DECODER: Final = codecs.getincrementaldecoder("utf-8")
_LENGTH: Final = struct.Struct("<I")


def objects_of(trace: FinishedTrace) -> Iterator[str]:
    """Yield the objects of a trace, as JSON, those of one request together.

    The frontend's moments are among those of the client's own request.
    """
    for request in trace.requests:
        yield _header(request)
        moments = [*request.moments, *_computed(request)]
        if not request.parent_id:
            moments += trace.moments
        for moment in sorted(moments, key=lambda each: each.ns):
            name = moment.name if _PLAIN.fullmatch(moment.name) else json.dumps(moment.name)[1:-1]
            yield f'{{"id":{request.id},"timestamps":[{{"name":"{name}","ns":{moment.ns}}}]}}'
        for tensor in request.tensors:
            yield _tensor(request.id, tensor)


def _header(request: TracedRequest) -> str:
    header: dict[str, object] = {
        "id": request.id,
        "model_name": request.model_name,
        "model_version": request.model_version,
    }
    if request.request_id:
        header["request_id"] = request.request_id
    if request.parent_id:
        header["parent_id"] = request.parent_id
    return _json(header)


def _computed(request: TracedRequest) -> Iterator[Moment]:
    """Yield the moments of the execution that gave the answer, and of the deaths before it."""
    for each in request.executions:
        if each.reason and each.ended_ns is not None:
            yield Moment(WORKER_DIED, each.ended_ns)
    yield from _own(request)
    compute = request.compute
    if compute is None:
        return
    for name, ns in (
        (COMPUTE_START, compute.started_ns),
        (COMPUTE_INPUT_END, compute.input_end_ns),
        (COMPUTE_OUTPUT_START, compute.output_start_ns),
        (COMPUTE_END, compute.ended_ns),
    ):
        if ns is not None:
            yield Moment(name, ns)


def _own(request: TracedRequest) -> Iterator[Moment]:
    """Yield what the model has told of itself; a span of its own is two activities, as in Triton."""
    for each in request.own:
        if each.id:
            yield Moment(f"{each.name}_START", each.start_ns)
            yield Moment(f"{each.name}_END", each.end_ns)
        else:
            yield Moment(each.name, each.start_ns)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tensor(number: int, tensor: TracedTensor) -> str:
    head = _json({"id": number, "activity": tensor.activity})[:-1]
    name = _json(tensor.name)
    data = "" if tensor.data is None else _escaped(in_words(tensor.datatype, tensor.data))
    shape = ",".join(map(str, tensor.shape))
    return (
        f'{head},"tensor":{{"name":{name},"data":"{data}","shape":"{shape}","dtype":"{tensor.datatype}"}}}}'
    )


def _escaped(text: str) -> str:
    """Return what stands between the quotes of `text` in JSON, made in pieces."""
    return "".join(
        _json(text[at : at + ESCAPED_AT_ONCE])[1:-1] for at in range(0, len(text), ESCAPED_AT_ONCE)
    )


def in_words(datatype: DataType, data: bytes) -> str:
    """Return the elements of a tensor as a trace file has them: with commas between; strings in quotes."""
    if datatype is DataType.BYTES:
        return ",".join(_strings(data))
    values = np.frombuffer(data, datatype.numpy)
    if datatype is DataType.BF16:  # the upper half of a float
        values = (values.astype("<u4") << 16).view("<f4")
    elif datatype is DataType.BOOL:
        values = values.astype("u1")
    # As C++ writes floats, with six digits.
    word: Callable[[object], str] = "{:g}".format if values.dtype.kind == "f" else str
    return ",".join(
        ",".join(map(word, values[at : at + _AT_ONCE].tolist())) for at in range(0, len(values), _AT_ONCE)
    )


def _strings(data: bytes) -> Iterator[str]:
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length <= _BYTES_AT_ONCE:
            yield '"' + data[at : at + length].decode("utf-8", "backslashreplace") + '"'
        else:
            yield '"' + "".join(_decoded(data, at, min(at + length, len(data)))) + '"'
        at += length


def _decoded(data: bytes, start: int, end: int) -> Iterator[str]:
    """Yield a string in pieces: where it is no text, each byte takes its time."""
    decoder = _DECODER("backslashreplace")
    for at in range(start, end, _BYTES_AT_ONCE):
        yield decoder.decode(data[at : min(at + _BYTES_AT_ONCE, end)])
    yield decoder.decode(b"", final=True)
