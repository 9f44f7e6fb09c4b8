"""Adds up the values of a sequence, which it remembers by the row that is the sequence's slot."""

from collections.abc import Sequence
from functools import partial
from typing import Any

# This module exists in workers only.
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]
from conduct import Conduct, value_of  # type: ignore[import-not-found]  # lies beside this file in a worker


class TritonPythonModel:
    """Of the kind `counter`. Row i of a batch is slot i; rows where nothing is ready are padding."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        self._conduct = Conduct(args)
        self._sums: dict[int, int] = {}

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Add to the sums, and answer with them."""
        ready = [bool(value_of(each, "READY")) for each in requests]
        batch = self._conduct.begin(
            [each for each, is_ready in zip(requests, ready, strict=True) if is_ready]
        )
        responses = [
            batch.response(each, partial(self._added, slot, each))
            if is_ready
            else pb_utils.InferenceResponse([])
            for slot, (each, is_ready) in enumerate(zip(requests, ready, strict=True))
        ]
        batch.end()
        return responses

    def _added(self, slot: int, request: Any) -> int:
        before = 0 if value_of(request, "START") else self._sums[slot]
        self._sums[slot] = before + value_of(request)
        return self._sums[slot]
