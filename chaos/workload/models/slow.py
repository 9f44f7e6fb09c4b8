"""Answers v with v after 20 ms: two instances can do a hundred a second."""

import time
from collections.abc import Sequence
from typing import Any

from conduct import Conduct  # type: ignore[import-not-found]  # lies beside this file in a worker

PACE = 0.02  # seconds


class TritonPythonModel:
    """Of the kind `slow`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        self._conduct = Conduct(args, pace=PACE)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request of a batch."""
        responses: list[Any] = self._conduct.answered(requests, slowly)
        return responses


def slowly(value: int) -> int:
    """Return the value after `PACE` seconds."""
    time.sleep(PACE)
    return value
