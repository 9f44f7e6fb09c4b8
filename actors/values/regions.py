"""Shared memory of clients: a registered region, and where in it a tensor lies (contract, shared_memory.md).

The server never maps a region. A client may shrink, replace or change it at any time, and a page that has gone
would end the server. So a region is read and written through its descriptor alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.values.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.values.datatypes import DataType


class Region:
    """One registered region of system shared memory. Equality is identity.

    It begins at byte `offset` of the object that `fileno` is open for, and has `byte_size` bytes. The registry
    closes `fileno` when the region is unregistered and `users`, the requests that hold it, are none.
    """

    __slots__ = ("byte_size", "fileno", "key", "name", "offset", "users")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, fileno: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.fileno = fileno
        self.users = 0


class RegionSlice:
    """`nbytes` bytes of `region`, from byte `at` of its object: within the region when it was made."""

    __slots__ = ("at", "nbytes", "region")

    def __init__(self, region: Region, at: int, nbytes: int) -> None:
        self.region = region
        self.at = at
        self.nbytes = nbytes


class RegionTensor(Tensor):
    """An input whose bytes still lie in a client's region: `data` is empty until they are read."""

    __slots__ = ("source",)

    def __init__(self, name: str, datatype: DataType, shape: Sequence[int], source: RegionSlice) -> None:
        super().__init__(name, datatype, shape, b"")
        self.source = source

    @property
    def nbytes(self) -> int:
        """Length of its bytes in the region."""
        return self.source.nbytes
