"""What is remembered of requests under which workers died or hung. Pure.

A request that killed a worker is *quarantined*: the same inputs are refused for a while. One that ran while a
worker died of an unknown cause is *accused*: its like runs in a batch of its own, and is acquitted when it
has its answer. One that *hung* is quarantined the second time.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Generator, Mapping
from hashlib import blake2b
from itertools import count
from typing import Final, NamedTuple

from actors.seams.steps import at_once
from actors.values.generation.asking import GenerationRequest
from actors.values.generation.likeness import pieces_asked, sample_asked, size_asked
from actors.values.regions import RegionTensor, device_place
from actors.values.requests import InferRequest
from actors.values.tensors import Tensor

QUARANTINE_SECONDS: Final = 600.0

# Fingerprints; a batch that killed its worker has one for each request.
_ACCUSED: Final = 4096

HASHED_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of inputs that are hashed on the event loop: some 5 ms."""

_PIECE: Final = 128 * 1024  # bytes of a client's region that are read at once
_STEP: Final = 1024 * 1024  # bytes that are hashed in one step of `hashing`

# In place of what lies on a GPU, which is not read: such a request is like no other one.
_unread: Final = count()


class Fingerprint(NamedTuple):
    """Identifies a request's inputs: two requests have the same one if their inputs are equal."""

    quick: int
    digest: bytes


def fingerprint_of(request: InferRequest) -> Fingerprint:
    """Return the fingerprint of all inputs. Some 1 ms for each MiB."""
    return at_once(hashing(request))


def hashing(request: InferRequest) -> Generator[None, None, Fingerprint]:
    """Make the fingerprint of all inputs in steps of a MiB, which hold no GIL. Yields between two of them."""
    return Fingerprint(_quick_key(request), (yield from _digest(request)))


class Quarantine:
    """Remembers the inputs of refused requests for `ttl` seconds, so that sending one again kills no worker.

    It checks in two steps. A quick key of names, shapes, sizes and a few bytes of each input tells nearly all
    innocent requests apart for a microsecond or two. Only a request that has the quick key of a refused one
    is hashed whole. An empty quarantine is false and costs nothing. It never holds more than `capacity`
    fingerprints: a new one then replaces the oldest.
    """

    def __init__(self, ttl: float, *, capacity: int = 256) -> None:
        self._ttl = ttl
        self._capacity = capacity
        self._by_digest: OrderedDict[bytes, tuple[float, int]] = OrderedDict()  # oldest first
        self._quick: Counter[int] = Counter()
        self.added_at = -math.inf  # when something was last added

    def __len__(self) -> int:
        """How many fingerprints are held; expired ones leave at the next `add` or `match`."""
        return len(self._by_digest)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def add(self, request: InferRequest, now: float, mark: Fingerprint | None = None) -> None:
        """Remember `request` until `now + ttl`. `mark` is its fingerprint, if the caller has it."""
        self._forget_expired(now)
        quick, digest = fingerprint_of(request) if mark is None else mark
        self.added_at = now
        if digest in self._by_digest:
            self._forget(digest)
        elif len(self._by_digest) >= self._capacity:
            self._forget(next(iter(self._by_digest)))
        self._by_digest[digest] = (now + self._ttl, quick)
        self._quick[quick] += 1

    def match(self, request: InferRequest, now: float) -> bool:
        """Whether the fingerprint of `request` is held. It is made, and noted in `request`, if need be."""
        if not self.may_hold(request, now):
            return False
        if not isinstance(request.fingerprint, Fingerprint):
            request.fingerprint = fingerprint_of(request)
        return request.fingerprint.digest in self._by_digest

    def may_hold(self, request: InferRequest, now: float) -> bool:
        """Whether the quick key of `request` is held."""
        if not self._by_digest:
            return False
        self._forget_expired(now)
        mark = request.fingerprint
        return (mark.quick if isinstance(mark, Fingerprint) else _quick_key(request)) in self._quick

    def holds(self, mark: Fingerprint, now: float) -> bool:
        """Whether this fingerprint is held."""
        self._forget_expired(now)
        return mark.digest in self._by_digest

    def discard(self, mark: Fingerprint) -> None:
        """Forget a fingerprint, if it is held."""
        if mark.digest in self._by_digest:
            self._forget(mark.digest)

    def _forget_expired(self, now: float) -> None:
        while self._by_digest:
            digest, (expires, _) = next(iter(self._by_digest.items()))
            if expires > now:
                break
            self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        _, quick = self._by_digest.pop(digest)
        self._quick[quick] -= 1
        if not self._quick[quick]:
            del self._quick[quick]


class Blame:
    """The memory of one model version."""

    def __init__(self) -> None:
        self.clean = True  # no request is quarantined or accused
        self.quarantine = Quarantine(QUARANTINE_SECONDS)
        self.accused = Quarantine(QUARANTINE_SECONDS, capacity=_ACCUSED)  # requests that ran as a worker died
        self._hung = Quarantine(QUARANTINE_SECONDS)  # requests that hung once, perhaps by bad luck

    def look(self) -> None:
        """Forget what was long ago, so that `clean` is right again."""
        self.clean = not (self.quarantine or self.accused)

    def must_hash(self, request: InferRequest, now: float) -> bool:
        """Whether the inputs of `request` have to be hashed, and are too long for the event loop.

        Then note the result of `hashing` in `request`.
        """
        if self.clean or request.fingerprint is not None:
            return False
        asked = size_asked(request.ask) if isinstance(request, GenerationRequest) else 0
        if asked + sum(tensor.nbytes for tensor in request.inputs) <= HASHED_AT_ONCE:
            return False
        return self.quarantine.may_hold(request, now) or self.accused.may_hold(request, now)

    def known(
        self, marks: Mapping[InferRequest, Fingerprint], now: float
    ) -> Mapping[InferRequest, Fingerprint]:
        """Return those of `marks` under which a worker has died before."""
        return {request: mark for request, mark in marks.items() if self.accused.holds(mark, now)}

    def recognise(self, request: InferRequest, now: float) -> None:
        """If `request` is accused, have it run in a batch of its own.

        So it harms no other request, and if the worker dies again, the culprit is known for certain.
        """
        if self.accused.match(request, now):
            request.batch_key = object()

    def acquit(self, request: InferRequest) -> None:
        """The accused `request` has its answer, and its worker lives."""
        if isinstance(request.fingerprint, Fingerprint):
            self.accused.discard(request.fingerprint)
            request.fingerprint = None

    def accuse(self, request: InferRequest, now: float, mark: Fingerprint) -> None:
        """Have requests like `request` run alone."""
        self.accused.add(request, now, mark)
        self.clean = False

    def convict(self, request: InferRequest, now: float, mark: Fingerprint | None) -> None:
        """Quarantine `request`."""
        self.quarantine.add(request, now, mark)
        self.clean = False

    def hung(self, request: InferRequest, now: float, mark: Fingerprint | None) -> bool:
        """Remember a request that hung; return whether it is quarantined for that.

        A request is not run again after a hang, so a second hang comes from a request with the same inputs.
        """
        again = self._hung.match(request, now) if mark is None else self._hung.holds(mark, now)
        if not again:
            self._hung.add(request, now, mark)
            return False
        self.convict(request, now, mark)
        return True


def _quick_key(request: InferRequest) -> int:
    """Return a hash that equal requests share, and different ones seldom: sizes, and samples of the bytes."""
    parts: list[object] = []
    if isinstance(request, GenerationRequest):
        parts += sample_asked(request.ask)
    for tensor in sorted(request.inputs, key=_name):
        size = tensor.nbytes
        if device_place(tensor) is not None:
            samples: tuple[object, ...] = (next(_unread),)
        elif isinstance(tensor, RegionTensor):
            samples = tensor.read(0, 16), tensor.read(size // 2, 16), tensor.read(max(0, size - 16), 16)
        else:
            data = tensor.data
            samples = bytes(data[:16]), bytes(data[size // 2 : size // 2 + 16]), bytes(data[-16:])
        parts.append((tensor.name, tuple(tensor.shape), size, samples))
    return hash(tuple(parts))


def _digest(request: InferRequest) -> Generator[None, None, bytes]:
    """Hash all inputs: names, datatypes, shapes and contents, in any order of inputs. Yields at each step."""
    fingerprint = blake2b(digest_size=16)
    if isinstance(request, GenerationRequest):
        size = 0
        for piece in pieces_asked(request.ask):
            fingerprint.update(piece)
            size += len(piece)
            if size >= _STEP:
                size = 0
                yield
    for tensor in sorted(request.inputs, key=_name):
        head = repr((tensor.name, str(tensor.datatype), tuple(tensor.shape), tensor.nbytes))
        fingerprint.update(head.encode())
        if device_place(tensor) is not None:
            fingerprint.update(b"%d" % next(_unread))
        elif isinstance(tensor, RegionTensor):
            for start in range(0, tensor.nbytes, _PIECE):
                fingerprint.update(tensor.read(start, _PIECE))
                if not (start + _PIECE) % _STEP:
                    yield
        else:
            data = memoryview(tensor.data)
            for start in range(0, len(data), _STEP):
                fingerprint.update(data[start : start + _STEP])
                yield
    return fingerprint.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name
