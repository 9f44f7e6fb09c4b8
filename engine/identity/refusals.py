"""How many requests were refused, by identity and code. Bounded, since names may come from tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from actors.values.errors import TritiumError

MOST_COUNTS: Final = 4096
"""Pairs of a name and a code that are counted by themselves. Beyond them the name is `other`."""


class Refusals:
    """Counts requests that were refused. `tell` is told of each: the identity's name, and the error."""

    def __init__(self, tell: Callable[[str, TritiumError], None] = lambda _name, _error: None) -> None:
        self.counts: dict[tuple[str, str], int] = {}  # by identity and code
        self._tell = tell

    def __call__(self, name: str, error: TritiumError) -> None:
        """Count and tell a refusal. `name` is empty for credentials that are not good."""
        key = (name, error.code.name.lower())
        if key not in self.counts and len(self.counts) >= MOST_COUNTS:
            key = ("other", key[1])
        self.counts[key] = self.counts.get(key, 0) + 1
        self._tell(name, error)
