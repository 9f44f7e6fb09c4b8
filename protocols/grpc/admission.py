"""How much one connection may make the server hold: large requests in line, and answers yet to come.

Both are accounts of bytes that decide and never act; the connection obeys. The limit is
`GrpcOptions.connection_bytes` for each. Neither ever refuses a request or answer that is alone, so that the
largest message still passes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_GENERATION: Final = 256


class Grants(Generic[T]):
    """Lets messages beyond the first window come one after the other, in the order in which they asked.

    A message is granted whole or not at all: one that has half come could neither be answered nor given up. A
    grant is given where it fits into the limit together with the grants outstanding. While none is
    outstanding, any size is granted.
    """

    __slots__ = ("_granted", "_limit", "_waiting", "outstanding")

    def __init__(self, limit: int) -> None:
        self.outstanding = 0
        self._limit = limit
        self._granted: dict[T, int] = {}
        self._waiting: OrderedDict[T, int] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait in line."""
        return len(self._waiting)

    def ask(self, holder: T, size: int) -> bool:
        """Ask for `size` bytes; True where they are granted at once, False where `holder` waits in line.

        Raises ValueError where it holds or waits already.
        """
        if holder in self._granted or holder in self._waiting:
            raise ValueError(f"{holder!r} has asked already; it must release first")
        if self._waiting or not self._fits(size):
            self._waiting[holder] = size
            return False
        self._grant(holder, size)
        return True

    def holds(self, holder: T) -> bool:
        """Whether `holder` has been granted what it asked for."""
        return holder in self._granted

    def resize(self, holder: T, size: int) -> list[T]:
        """Note that a grant turned out to need `size` bytes.

        Returns the holders to which this made room for a grant.
        """
        self.outstanding += size - self._granted[holder]
        self._granted[holder] = size
        return self._admitted()

    def release(self, holder: T) -> list[T]:
        """Note that `holder` holds or wants nothing any more.

        Returns the holders that are granted now, in order.
        """
        if self._waiting.pop(holder, None) is None:
            self.outstanding -= self._granted.pop(holder, 0)
        return self._admitted()

    def _fits(self, size: int) -> bool:
        return not self._granted or self.outstanding + size <= self._limit

    def _grant(self, holder: T, size: int) -> None:
        self._granted[holder] = size
        self.outstanding += size

    def _admitted(self) -> list[T]:
        admitted = []
        while self._waiting:
            holder, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                break
            del self._waiting[holder]
            self._grant(holder, size)
            admitted.append(holder)
        return admitted


class LargestLately:
    """The size of the largest answer lately seen, remembered for 256 answers at least, and 512 at most.

    `expected` is that size in bytes, and `first` as long as there was no answer.
    """

    __slots__ = ("_count", "_largest", "_older", "expected")

    def __init__(self, first: int = 0) -> None:
        self.expected = first
        self._largest = -1
        self._older = 0
        self._count = 0

    def saw(self, size: int) -> None:
        """Learn of an answer of `size` bytes."""
        self._count += 1
        if size > self._largest:
            self._largest = size
            self.expected = max(size, self._older)
        if self._count == _GENERATION:
            self._older, self._largest, self._count = self._largest, -1, 0
            self.expected = self._older


class AnswerRoom:
    """Begins no request whose answer might find no room.

    The size of an answer is unknown until it is there. So each in flight is expected to be as large as the
    largest lately seen. A request that is alone may begin whatever its answer may be, unless the waiting
    answers are more than the limit already.
    """

    __slots__ = ("_limit", "_sizes", "in_flight", "pending")

    def __init__(self, limit: int) -> None:
        self.in_flight = 0
        # Bytes of answers that wait for the client; the connection keeps it.
        self.pending = 0
        self._limit = limit
        self._sizes = LargestLately()

    @property
    def expected(self) -> int:
        """How many bytes an answer in flight is expected to have."""
        return self._sizes.expected

    @property
    def open(self) -> bool:
        """Whether one more request may begin."""
        in_flight = self.in_flight
        expected = (in_flight + 1) * self._sizes.expected if in_flight else 0
        return self.pending + expected <= self._limit

    def answered(self, size: int) -> None:
        """Learn that a request in flight got an answer of `size` bytes, or 0 for none."""
        self.in_flight -= 1
        self._sizes.saw(size)
