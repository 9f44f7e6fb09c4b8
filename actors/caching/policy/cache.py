"""The response cache's decisions: which requests are equal, what is kept of an answer, and what is evicted.

A key stands for everything an answer may depend on. Triton's key leaves out shapes, datatypes, requested
outputs and parameters (contract, scheduling.md section 8), so one client may be given the answer to another
client's different request. Here they are part of the key, and so are the sources of the model version. The
key is a cryptographic digest, because a client that could make two requests collide could choose another
client's answer.

Nothing here waits or looks at a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor

if TYPE_CHECKING:
    from actors.values.datatypes import DataType

KEY_SIZE: Final = 32
"""Bytes of a key."""

# Of keys. Under another format, entries that were kept before are not found.
_FORMAT: Final = 1

ENTRY_OVERHEAD: Final = 512
"""Bytes that an entry counts beside its outputs' data: its key, its place, and the objects that hold them."""

OUTPUT_OVERHEAD: Final = 256
"""The same for each output."""


class KeyMaker:
    """Makes the keys of one model version's requests.

    Inputs count by name, whatever their order, with datatype, shape and bytes; requested outputs by name.
    Custom parameters and the correlation id with its flags count, because a model may look at them. The
    request's id, priority and timeouts don't, because they only say how to serve it.
    """

    __slots__ = ("_begun",)

    def __init__(self, spec: ModelSpec) -> None:
        made_from = (
            _FORMAT,
            spec.namespace,
            spec.name,
            spec.version,
            spec.content,
            spec.config_json,
            sorted(spec.settings.items()),
            spec.runtime.digest,
        )
        self._begun = blake2b(repr(made_from).encode(), digest_size=KEY_SIZE)

    def key(self, request: InferRequest) -> bytes:
        """Return the key of a validated `request`.

        Takes about 1 µs for each KiB of inputs; lets other threads run meanwhile.
        """
        inputs = request.inputs if len(request.inputs) < 2 else sorted(request.inputs, key=_name)
        head = (
            sorted(request.requested_outputs),
            [(each.name, each.datatype.number, tuple(each.shape), len(each.data)) for each in inputs],
            sorted(request.parameters.items()) if request.parameters else None,
            (request.correlation_id, request.flags),
        )
        digest = self._begun.copy()
        # The text of plain values is unambiguous, and says where each input's data ends.
        digest.update(repr(head).encode())
        for each in inputs:
            digest.update(each.data)
        return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name


@dataclass(frozen=True, slots=True, eq=False)
class KeptOutput:
    """One output of an answer. `data` is a private copy, as `actors.values.tensors.Tensor` has it."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class KeptAnswer:
    """The kept part of an answer: its outputs. Response parameters are not kept (contract, section 8).

    `nbytes` is its size in a cache.
    """

    outputs: tuple[KeptOutput, ...]
    nbytes: int

    def tensors(self) -> list[Tensor]:
        """Return tensors over the outputs, for one more answer."""
        return [Tensor(kept.name, kept.datatype, kept.shape, kept.data) for kept in self.outputs]


def entry_size(outputs: Sequence[Tensor | KeptOutput]) -> int:
    """Return the size of an entry of these outputs in a cache, in bytes."""
    return ENTRY_OVERHEAD + sum(OUTPUT_OVERHEAD + len(each.name) + len(each.data) for each in outputs)


def copy_of(response: InferResponse) -> KeptAnswer:
    """Return a copy of a response's outputs that shares no memory with them. Raises MemoryError."""
    outputs = tuple(
        KeptOutput(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in response.outputs
    )
    return KeptAnswer(outputs, entry_size(outputs))


def too_large(nbytes: int, capacity: int) -> str:
    """Return the contract's text for an entry that does not fit even into an empty cache."""
    return f"Requested byte_size: {nbytes} is greater than total cache size: {capacity}"


@dataclass(slots=True)
class CacheCounts:
    """What a cache has done. Durations are seconds; `lookups` is hits and misses."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_seconds: float = 0.0
    insertion_seconds: float = 0.0

    @property
    def lookups(self) -> int:
        """How many look-ups there were."""
        return self.hits + self.misses


class LruCache:
    """Entries by key, up to `capacity` bytes. The least recently used are evicted first.

    Looking up and inserting count as use.
    """

    __slots__ = ("_entries", "capacity", "counts", "nbytes")

    def __init__(self, capacity: int) -> None:
        """Raise ValueError if nothing fits in `capacity` bytes."""
        if capacity <= 0:
            raise ValueError(f"a cache takes 1 byte or more, got {capacity}")
        self.capacity = capacity
        self.nbytes = 0
        self.counts = CacheCounts()
        self._entries: OrderedDict[bytes, KeptAnswer] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._entries)

    @property
    def utilization(self) -> float:
        """The share of the capacity that is taken, from 0 to 1."""
        return self.nbytes / self.capacity

    def fits(self, nbytes: int) -> bool:
        """Whether an entry of this size could be held at all."""
        return nbytes <= self.capacity

    def lookup(self, key: bytes) -> KeptAnswer | None:
        """Return the entry held for `key`, and count the look-up."""
        entry = self._entries.get(key)
        if entry is None:
            self.counts.misses += 1
            return None
        self._entries.move_to_end(key)
        self.counts.hits += 1
        return entry

    def insert(self, key: bytes, entry: KeptAnswer) -> None:
        """Hold `entry` in place of the former entry of `key`. Raises ValueError if it does not fit."""
        if not self.fits(entry.nbytes):
            raise ValueError(too_large(entry.nbytes, self.capacity))
        before = self._entries.pop(key, None)
        if before is not None:
            self.nbytes -= before.nbytes
        while self.nbytes + entry.nbytes > self.capacity:
            _, evicted = self._entries.popitem(last=False)
            self.nbytes -= evicted.nbytes
            self.counts.evictions += 1
        self._entries[key] = entry
        self.nbytes += entry.nbytes

    def contents(self) -> Mapping[bytes, int]:
        """Return the size of each entry by key, the least recently used first."""
        return {key: entry.nbytes for key, entry in self._entries.items()}
