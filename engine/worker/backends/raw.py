"""Tensors as bytes in memory, for a backend whose library reads and writes them by itself.

The bytes are those of the protocol: elements in row-major order, each string behind its length in 4 bytes.
Other backends have no need of this: `Batch.stacked` and `Batch.allocate` are arrays over the same memory.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.tensors import Tensor, pack_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.requests import Parameter
    from actors.values.tensors import Array

    Shape = Sequence[int]


class RawInput:
    """One input of all requests, one behind the other from `address` on.

    `shape` is that of all rows together. Where requests differ, or are given apart for another reason, it is
    None, and `parts` has each request's (shape, nbytes). `keep` is what the memory belongs to.
    """

    __slots__ = ("address", "keep", "name", "nbytes", "parts", "shape")

    def __init__(
        self,
        name: str,
        shape: Shape | None,
        parts: Sequence[tuple[Shape, int]] | None,
        address: int,
        nbytes: int,
        keep: Any = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.parts = parts
        self.address = address
        self.nbytes = nbytes
        self.keep = keep


class Room:
    """Memory of a batch that outputs may be written to: `nbytes` from `address` on, seen by `view`."""

    __slots__ = ("address", "nbytes", "offset", "view")

    def __init__(self, address: int, nbytes: int, view: memoryview, offset: int = 0) -> None:
        self.address = address
        self.nbytes = nbytes
        self.view = view
        self.offset = offset  # in the segment

    @classmethod
    def apart(cls, nbytes: int) -> Room:
        """Make one in memory of its own."""
        memory = bytearray(max(1, nbytes))
        return cls(address_of(memory), nbytes, memoryview(memory))


class RawOutput:
    """An output whose bytes lie in the batch's room from `at` on; if that is -1, they are `data`."""

    __slots__ = ("at", "data", "datatype", "name", "nbytes", "shape")

    def __init__(
        self, name: str, datatype: DataType, shape: Shape, nbytes: int, at: int = -1, data: bytes = b""
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.nbytes = nbytes
        self.at = at
        self.data = data

    def array(self, room: Room | None) -> tuple[str, DataType, Array]:
        """Return it as backends give outputs. Raises ValueError if the bytes don't fit the shape."""
        data: Any = self.data
        if self.at >= 0 and room is not None:
            data = room.view[self.at : self.at + self.nbytes]
        if self.datatype is DataType.BYTES:
            return self.name, self.datatype, Tensor(self.name, self.datatype, self.shape, data).as_numpy()
        array = np.frombuffer(data, dtype=self.datatype.numpy).reshape(self.shape)
        return self.name, self.datatype, array


class RawBatch(ABC):
    """A batch as bytes in memory. See the module."""

    plain = False
    """Whether it is known that no request carries anything but inputs, and that all want all outputs."""

    cancel_flags = 0, 0
    """Where in memory there is a byte for each of so many requests, not 0 once its client has gone.

    Not of a decoupled model: its requests last longer.
    """

    @abstractmethod
    def inputs(self) -> Sequence[RawInput]:
        """Return all inputs, valid as long as the arrays of the batch are, if the batch is kept."""

    @abstractmethod
    def room(self, nbytes: int) -> Room:
        """Return memory for so many bytes of outputs; to be asked for once.

        What lies in there is not copied to be sent. The call may wait for the server to grow the memory.
        """

    @abstractmethod
    def respond(self, outputs: Sequence[RawOutput], room: Room) -> None:
        """Answer every request with its rows of stacked outputs, all of which lie in `room`."""

    @abstractmethod
    def respond_to(
        self,
        index: int,
        outputs: Sequence[RawOutput],
        room: Room,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Answer one request, with outputs of which some may lie in `room`."""


def address_of(memory: Any) -> int:
    """Return the address of a writable buffer that is not empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def raw_input(name: str, arrays: Sequence[Array]) -> RawInput:
    """Return one input from the arrays of its requests, as a copy."""
    pieces = [packed(array) for array in arrays]
    memory = bytearray(b"".join(pieces) or b"\0")
    parts = [(array.shape, len(piece)) for array, piece in zip(arrays, pieces)]
    nbytes = sum(nbytes for _, nbytes in parts)
    return RawInput(name, None, parts, address_of(memory), nbytes, memory)


def packed(array: Array) -> bytes:
    """Return an array's bytes as the protocol has them."""
    return pack_bytes(array.ravel().tolist()) if array.dtype == np.object_ else array.tobytes()
