"""Work that can be done step by step: what it is, and how it is done where nothing else waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]
"""Work that stops by `yield`, or by `yield function`.

The function is called in a thread, and its result is sent to the generator.
"""


def at_once(steps: Steps[T]) -> T:
    """Return what `steps` returns, in one piece.

    For work that is known to be short, and where no loop runs.
    """
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None if wanted is None else wanted()
