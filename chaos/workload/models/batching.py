"""Answers v with 3 v + 1: no other row's answer is right."""

from collections.abc import Sequence
from typing import Any

from conduct import Conduct  # type: ignore[import-not-found]  # lies beside this file in a worker


class TritonPythonModel:
    """Of the kind `batching`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        self._conduct = Conduct(args)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each row."""
        responses: list[Any] = self._conduct.answered(requests, lambda value: 3 * value + 1)
        return responses
