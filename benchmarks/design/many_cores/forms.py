"""What two processes say to each other over a ring: requests and answers, by forms that are told once.

Requests of one client differ in their bytes, and hardly ever in names, datatypes and shapes. So those are a
*form*: told once on each ring, in JSON, and referred to by a number. A frame is then a header of fixed length
and the bytes of the tensors. This prototype carries tensors of fixed size, ids and errors. It carries neither
parameters, sequences nor several parts of an answer; `docs/design/many-cores.md` says how those would travel.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from actors.values.datatypes import BY_PROTOCOL_NAME, DataType
from actors.values.tensors import Tensor


class Kind(IntEnum):
    """The first byte of a frame."""

    FORM = 1
    CALL = 2
    CANCEL = 3
    ANSWER = 4
    FAILURE = 5


_CALL: Final = struct.Struct("<BxHIQ")  # kind, length of the id, form, number of the call
_FAILURE: Final = struct.Struct("<BxHQ")  # kind, length of the code, number; then the code and the text
HEADER: Final = _CALL.size
FORM, CALL, CANCEL, ANSWER, FAILURE = (int(kind) for kind in Kind)  # an IntEnum's comparisons cost more

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """What many requests, or many answers, of one model have in common."""

    model: str
    version: int  # -1: the policy's choice
    outputs: tuple[str, ...]  # that a request asks for
    tensors: tuple[tuple[str, DataType, tuple[int, ...], int], ...]  # name, datatype, shape, bytes
    ends: tuple[int, ...] = field(default=(), compare=False)

    def encode(self, number: int) -> bytes:
        """Return the frame that tells it."""
        tensors = [
            (name, datatype.protocol_name, shape, size) for name, datatype, shape, size in self.tensors
        ]
        document = [number, self.model, self.version, self.outputs, tensors]
        return bytes((FORM,)) + json.dumps(document).encode()

    @staticmethod
    def decode(frame: memoryview) -> tuple[int, Form]:
        """Return its number and the form."""
        number, model, version, outputs, tensors = json.loads(bytes(frame[1:]))
        read = tuple(
            (name, BY_PROTOCOL_NAME[kind], tuple(shape), size) for name, kind, shape, size in tensors
        )
        return number, Form(model, version, tuple(outputs), read)


class Book:
    """The forms that one side has told the other on one ring."""

    def __init__(self, put: Callable[[bytes], bool]) -> None:
        self._put = put
        self._numbers: dict[_Key, int] = {}

    def number(self, model: str, version: int, outputs: Sequence[str], tensors: Sequence[Tensor]) -> int:
        """Return the number of the form of these tensors; -1 where the ring has no room to tell it."""
        key: _Key = (
            model,
            version,
            *outputs,
            *[(t.name, t.datatype, *t.shape, len(t.data)) for t in tensors],
        )
        number = self._numbers.get(key)
        if number is None:
            number = len(self._numbers)
            form = Form(
                model,
                version,
                tuple(outputs),
                tuple((each.name, each.datatype, tuple(each.shape), len(each.data)) for each in tensors),
            )
            if not self._put(form.encode(number)):
                return -1
            self._numbers[key] = number
        return number


def call(kind: int, form: int, number: int, identity: str, tensors: Sequence[Tensor]) -> bytes:
    """Return the frame of a request or an answer."""
    name = identity.encode()
    return b"".join((_CALL.pack(kind, len(name), form, number), name, *[tensor.data for tensor in tensors]))


def read_call(frame: memoryview) -> tuple[int, int, str, bytes]:
    """Return form, number, id, and the bytes of the tensors, copied out of the ring."""
    _, length, form, number = _CALL.unpack_from(frame)
    start = HEADER + length
    return form, number, bytes(frame[HEADER:start]).decode() if length else "", bytes(frame[start:])


def cut(form: Form, data: bytes) -> tuple[Tensor, ...]:
    """Return the tensors of a form over `data`."""
    view = memoryview(data)
    tensors = []
    at = 0
    for name, datatype, shape, size in form.tensors:
        tensors.append(Tensor(name, datatype, shape, view[at : at + size]))
        at += size
    return tuple(tensors)


def cancel(number: int) -> bytes:
    """Return the frame that says that the client of a call has left."""
    return _CALL.pack(CANCEL, 0, 0, number)


def failure(number: int, code: str, text: str) -> bytes:
    """Return the frame of an error."""
    name = code.encode()
    return _FAILURE.pack(FAILURE, len(name), number) + name + text.encode()


def read_failure(frame: memoryview) -> tuple[int, str, str]:
    """Return number, code and text."""
    _, length, number = _FAILURE.unpack_from(frame)
    start = _FAILURE.size + length
    return number, bytes(frame[_FAILURE.size : start]).decode(), bytes(frame[start:]).decode()
