"""Calls that a test makes in tasks of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from actors.values.errors import TritiumError


def outcome_of(
    nursery: trio.Nursery, function: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any
) -> list[Any]:
    """Call a function in a task of its own. The list gets what it returns, or the error for a client."""
    outcome: list[Any] = []

    async def call() -> None:
        try:
            outcome.append(await partial(function, *arguments, **options)())
        except TritiumError as error:
            outcome.append(error)

    nursery.start_soon(call)
    return outcome
