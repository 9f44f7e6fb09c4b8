"""Shared memory of clients: a registered region, and where in it a tensor lies (contract, shared_memory.md).

Neither server nor workers map a region. A client may shrink, replace or change it at any time, and a page
that has gone would end the process that touches it. So a region is read and written through its descriptor
alone. This is part of the workers' import closure, so it runs on Python 3.9.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence  # compiled, a class looks its fields' types up
from typing import TYPE_CHECKING, NamedTuple

from actors.values.errors import NotFound
from actors.values.native import mypyc_attr
from actors.values.tensors import DevicePlace, DeviceTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.values.datatypes import DataType


class RegionCounts:
    """What was read from regions and written to them, and what failed: tensors and bytes."""

    __slots__ = ("bytes_read", "bytes_written", "reads", "reads_failed", "writes", "writes_failed")

    def __init__(self) -> None:
        self.reads = self.writes = 0
        self.bytes_read = self.bytes_written = 0
        self.reads_failed = self.writes_failed = 0

    def read(self, nbytes: int) -> None:
        """An input of `nbytes` was read."""
        self.reads += 1
        self.bytes_read += nbytes

    def wrote(self, nbytes: int) -> None:
        """An output of `nbytes` was written."""
        self.writes += 1
        self.bytes_written += nbytes


@mypyc_attr(allow_interpreted_subclasses=True)
class Region:
    """One registered region of system shared memory. Equality is identity.

    It begins at byte `offset` of the object that `fileno` is open for, and has `byte_size` bytes. The
    registry closes `fileno` when the region is unregistered and nothing holds it. From then on it is -1.
    One on a GPU has `handle` and `device_id` instead, as a `DevicePlace` has them.

    A request holds its regions until it is answered or its client has left. So code that reads or writes a
    region elsewhere than on the loop's thread holds it itself meanwhile: the number may be another file's
    soon after. It counts in `counts`, on the loop's thread.
    """

    __slots__ = (
        "byte_size",
        "counts",
        "device_id",
        "fileno",
        "handle",
        "key",
        "name",
        "offset",
        "on_end",
        "on_idle",
        "users",
    )

    def __init__(self, name: str, key: str, offset: int, byte_size: int, fileno: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.fileno = fileno
        self.users = 0
        self.counts = RegionCounts()  # the registry replaces it by its own
        self.on_idle: Callable[[], None] | None = None  # set while it waits for its last user
        self.handle = b""
        self.device_id = -1
        # To be told when it has ended: workers that may have its handle open.
        self.on_end: dict[object, Callable[[bytes], None]] = {}

    def hold(self) -> None:
        """Keep it open until `let_go`."""
        self.users += 1

    def let_go(self) -> None:
        """End one `hold`. On the loop's thread only."""
        self.users -= 1
        if not self.users and self.on_idle is not None:
            self.on_idle()


class RegionSlice:
    """`nbytes` bytes of `region`, from byte `at` of its object: within the region when it was made."""

    __slots__ = ("at", "nbytes", "region")

    def __init__(self, region: Region, at: int, nbytes: int) -> None:
        self.region = region
        self.at = at
        self.nbytes = nbytes

    @property
    def place(self) -> DevicePlace | None:
        """Where it lies on a GPU; None in the host's memory."""
        region = self.region
        return DevicePlace(region.handle, region.device_id, self.at, self.nbytes) if region.handle else None


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

    def read(self, start: int, nbytes: int) -> bytes:
        """Return so many of its bytes, from byte `start` on, as they are now; fewer if they are not there."""
        source = self.source
        try:
            return os.pread(source.region.fileno, min(nbytes, source.nbytes - start), source.at + start)
        except OSError:
            return b""


class Held:
    """Keeps the regions of `tensors` open while a thread reads them. Made and ended on the loop's thread."""

    __slots__ = ("_regions",)

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._regions = [each.source.region for each in tensors if isinstance(each, RegionTensor)]
        for region in self._regions:
            region.hold()

    def end(self) -> None:
        """Let them go. Once."""
        for region in self._regions:
            region.let_go()


def device_place(tensor: Tensor) -> DevicePlace | None:
    """Return where a tensor lies on a GPU, and None for one that lies elsewhere or has no bytes."""
    if isinstance(tensor, DeviceTensor):
        place: DevicePlace | None = tensor.place
    else:
        place = tensor.source.place if isinstance(tensor, RegionTensor) else None
    return place if place is not None and place.nbytes else None


class WrittenTensor(Tensor):
    """An output that was written to the client's region: `data` is empty, and nothing is left to be sent."""

    __slots__ = ("_nbytes",)

    def __init__(self, name: str, datatype: DataType, shape: Sequence[int], nbytes: int) -> None:
        super().__init__(name, datatype, shape, b"")
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        """Length of its bytes in the region."""
        return self._nbytes


class RegionPlace(NamedTuple):
    """Where a request says that a tensor lies: the name of a region, and bytes from the region's start on.

    Nothing is checked yet.
    """

    region: str
    offset: int
    nbytes: int


class Staying(NamedTuple):
    """Which inputs a model takes that are still in clients' regions."""

    system: bool = False  # those in system shared memory
    gpu: int = -1  # the GPU whose memory it reads; -1: none
    inputs: frozenset[str] = frozenset()  # those that it reads there


class RegionPlaces:
    """The tensors of one request that lie in regions: an entry for each input, and outputs by their names.

    Decoders remember them, as clients repeat themselves. `found` is what the registry has found the places to
    be. The registry owns it, and knows until when that holds.
    """

    __slots__ = ("found", "inputs", "outputs")

    def __init__(self, inputs: Sequence[RegionPlace | None], outputs: Mapping[str, RegionPlace]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.found: object = None


@mypyc_attr(allow_interpreted_subclasses=True)
class RegionUse(ABC):
    """What one request has of regions. Its frontend ends it when the request is over, however it ends."""

    __slots__ = ()

    @abstractmethod
    def must_read(self, *, stay: Staying) -> bool:
        """Whether inputs have to be read before the model can take the request.

        Strings are read in any case.
        """

    @abstractmethod
    async def read(self, *, stay: Staying) -> None:
        """Replace such inputs of the request by tensors that hold their bytes.

        Raises InvalidArgument for a region that has become too short, and Unavailable where memory is short.
        """

    @abstractmethod
    def end(self) -> None:
        """Hold the regions no longer. Idempotent."""


def cut_off_at(fileno: int, found: int) -> int:
    """Return where an object ends, of which bytes from `found` on are missing, and perhaps more before."""
    try:
        return min(found, os.fstat(fileno).st_size)
    except OSError:  # it has been closed
        return 0


def too_short(region: str, what: str, *, ends: int, needed: int) -> str:
    """Return the text for a region whose object was shrunk: it `ends` where more was `needed`.

    Both are bytes from the start of the object. `what` is the tensor that lies there.
    """
    return (
        f"shared memory region '{region}' has been shrunk since it was registered: its object has {ends}"
        f" bytes, and {what} ends at byte {needed}"
    )


def too_small(output: str, room: int, nbytes: int) -> str:
    """Return the contract's text for an output that does not fit its place in a region."""
    return (
        f"shared memory size specified with the request for output '{output}' ({room} bytes) should be at"
        f" least {nbytes} bytes to hold the results"
    )


def no_region(name: str) -> NotFound:
    """Return the error for a region that is not registered."""
    return NotFound(f"Unable to find shared memory region: '{name}'")
