"""Tensors as they travel: a name, a datatype, a shape and one contiguous run of bytes.

Data stays in the protocol's binary layout (little-endian, row-major; contract, http.md section 6.3) from the
socket to the model and back. BYTES stays *packed* (each element a 4-byte little-endian length and that many
bytes) and is decoded only when a backend asks for the elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from actors.values.datatypes import DataType, from_numpy_dtype
from actors.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Array = np.ndarray[Any, Any]

Buffer = Union[bytes, bytearray, memoryview]

# Numpy's arrays had no more dimensions before 2.0, and no framework's tensors have more.
MAX_DIMS = 32


class Tensor:
    """A named tensor over a borrowed buffer.

    `data` is bytes-like, contiguous and one-dimensional in bytes; the maker of the tensor keeps it alive.
    Equality is identity.
    """

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: DataType, shape: Sequence[int], data: Buffer) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"<Tensor {self.name!r} {self.datatype}[{dims}] {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Length of `data` in bytes."""
        return len(self.data)

    def renamed(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor of the same bytes, and of the same kind, with this name and shape."""
        return Tensor(name, self.datatype, shape, self.data)

    def as_numpy(self) -> Array:
        """Return an array of `shape`.

        Fixed-size datatypes give a view on `data` (BF16 as `uint16` bit patterns); BYTES gives an object
        array of `bytes`. Raises InvalidArgument if the data does not fit the shape.
        """
        if self.datatype is DataType.BYTES:
            elements = np.empty(element_count(self.shape), dtype=object)
            elements[:] = unpack_bytes(self.data, self.name, len(elements))
            return elements.reshape(self.shape)
        expected = element_count(self.shape) * self.datatype.size
        if expected != len(self.data):
            raise InvalidArgument(
                f"tensor '{self.name}' of {self.datatype}{list(self.shape)} takes {expected} bytes, got {len(self.data)}"
            )
        return np.frombuffer(self.data, dtype=self.datatype.numpy).reshape(self.shape)

    @classmethod
    def from_numpy(cls, name: str, array: Array, datatype: DataType | None = None) -> Tensor:
        """Return a tensor with the elements of `array`; contiguous little-endian arrays are not copied.

        `datatype` defaults to the one for the array's dtype; give it for BF16 (from `uint16` bit patterns).
        Raises InvalidArgument if no datatype holds such elements.
        """
        datatype = datatype or from_numpy_dtype(array.dtype)
        if datatype is None:
            raise InvalidArgument(f"tensor '{name}': numpy dtype {array.dtype} has no v2 datatype")
        if datatype is DataType.BYTES:
            return cls(name, datatype, array.shape, pack_bytes(array.ravel().tolist()))
        little = np.ascontiguousarray(array, dtype=datatype.numpy)
        return cls(name, datatype, array.shape, little.reshape(-1).view(np.uint8).data)


class Keeper(Protocol):
    """What keeps a place on a GPU as it is, until nothing refers to it any more."""

    @property
    def lost(self) -> bool:
        """Whether the process is gone whose memory it is: what lies there must not be read."""

    @property
    def on_end(self) -> dict[object, Callable[[bytes], None]]:
        """Those who have opened the memory's handle, and what to call when they are to close it."""


class DevicePlace:
    """`nbytes` bytes of a GPU's memory, from byte `at` of an allocation that another process has exported.

    `handle` is the allocation's `cudaIpcMemHandle_t` (64 bytes), `device` the GPU's number as the server and
    its workers count. While `keeper` lives, nothing else is put there.
    """

    __slots__ = ("at", "device", "handle", "keeper", "nbytes")

    def __init__(
        self, handle: bytes, device: int, at: int, nbytes: int, keeper: Keeper | None = None
    ) -> None:
        self.handle = handle
        self.device = device
        self.at = at
        self.nbytes = nbytes
        self.keeper = keeper


class DeviceTensor(Tensor):
    """A tensor that lies on a GPU: `data` is empty, and only a worker with that GPU can read it."""

    __slots__ = ("place",)

    def __init__(self, name: str, datatype: DataType, shape: Sequence[int], place: DevicePlace) -> None:
        super().__init__(name, datatype, shape, b"")
        self.place = place

    @property
    def nbytes(self) -> int:
        """Length of its bytes on the GPU."""
        return self.place.nbytes

    def renamed(self, name: str, shape: Sequence[int]) -> Tensor:
        """See `Tensor.renamed`."""
        return DeviceTensor(name, self.datatype, shape, self.place)


def element_count(shape: Sequence[int]) -> int:
    """Return the product of `shape`; 1 for a scalar."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def pack_bytes(elements: Iterable[object]) -> bytes:
    """Return the packed form of BYTES elements: `bytes` as they are, other values as their `str` in UTF-8."""
    parts: list[bytes] = []
    for element in elements:
        raw = element if isinstance(element, bytes) else str(element).encode()
        parts.append(len(raw).to_bytes(4, "little"))
        parts.append(raw)
    return b"".join(parts)


def unpack_bytes(data: Buffer, name: str, count: int) -> list[bytes]:
    """Return the `count` elements of a packed BYTES tensor `name`.

    Raises InvalidArgument if a length runs past the end or the number of elements differs.
    """
    elements: list[bytes] = []
    view = memoryview(data)
    end = len(view)
    at = 0
    while at < end:
        start = at + 4
        at = start + int.from_bytes(view[at:start], "little")
        if start > end or at > end:
            raise InvalidArgument(f"packed BYTES tensor '{name}' is cut short at element {len(elements)}")
        elements.append(bytes(view[start:at]))
    if len(elements) != count:
        raise InvalidArgument(
            f"packed BYTES tensor '{name}' holds {len(elements)} elements, its shape {count}"
        )
    return elements


def packed_row_bounds(data: Buffer, name: str, rows: int, elements_per_row: int) -> list[int]:
    """Return `rows + 1` byte offsets that cut a packed BYTES tensor into rows of equal element count.

    Raises InvalidArgument if the data holds fewer or more elements than that.
    """
    view = memoryview(data)
    end = len(view)
    at = 0
    bounds = [0]
    for row in range(rows):
        for _ in range(elements_per_row):
            start = at + 4
            at = start + int.from_bytes(view[at:start], "little")
            if at > end or start > end:
                raise InvalidArgument(f"packed BYTES tensor '{name}' is cut short in row {row}")
        bounds.append(at)
    if at != end:
        raise InvalidArgument(f"packed BYTES tensor '{name}' has {end - at} bytes after its last row")
    return bounds
