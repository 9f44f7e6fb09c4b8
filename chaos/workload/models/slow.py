"""Answers v with v after 20 ms: two instances can do a hundred a second."""

import time
from collections.abc import Sequence
from typing import Any

from conduct import Conduct  # type: ignore[import-not-found]  # lies beside this file in a worker

PACE = 0.02  # seconds


class TritonPythonModel:
    """Of the kind `slow`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Be loaded."""
        self._conduct = Conduct(args, pace=PACE)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer."""
        responses: list[Any] = self._conduct.answered(requests, slowly)
        return responses


def slowly(value: int) -> int:
    """Take one's time."""
    time.sleep(PACE)
    return value
