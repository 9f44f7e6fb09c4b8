"""What is told how each request of a listener ended. It may change while the server runs.

Nothing is told by default, and that costs a request one truth test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from actors.values.errors import TritiumError
from actors.values.requests import InferRequest, InferResponse

FinishedHook: TypeAlias = Callable[[InferRequest, InferResponse | TritiumError, str], None]
"""Is told a request, its outcome and the client's address, before the answer's memory is given back."""


class Endings:
    """Holds the hook of one listener: a log's, or None while no log wants to know."""

    __slots__ = ("hook",)

    def __init__(self, hook: FinishedHook | None = None) -> None:
        self.hook: FinishedHook | None = hook
