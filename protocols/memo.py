"""A memory for what clients repeat, within a bound of bytes that no client can move."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MEANINGS_BYTES: Final = 8 * 1024 * 1024
"""Bytes that the meanings of requests may take, for each protocol."""

MEANING_FACTOR: Final = 24
"""Bytes in memory for one byte of a request's text, at the worst.

The worst are parameters with names and values of a byte or two.
"""

_ENTRY: Final = 128
"""Bytes that an entry takes beside what it is charged with.

They are its place in the table, and the headers of its objects.
"""


class Memo(dict[K, V]):
    """A dictionary for look-ups, which only `remember` fills.

    It holds `most` entries and `most_bytes` bytes. Once either is used up, everything is forgotten. Entries
    that clients repeat come back at once; entries that a client made up to fill the memo do not.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        super().__init__()
        self._most = most
        self._most_bytes = most_bytes
        self.charged = 0  # estimated bytes of all entries

    def remember(self, key: K, value: V, size: int) -> bool:
        """Keep `value`, where `key` and it need `size` bytes at the most.

        Returns False where that alone is over the bound.
        """
        size += _ENTRY
        if size > self._most_bytes:
            return False
        if len(self) >= self._most or self.charged + size > self._most_bytes:
            self.forget()
        self.charged += size
        self[key] = value
        return True

    def forget(self) -> None:
        """Forget everything."""
        self.clear()
        self.charged = 0
