"""Decoupled: answers v with v, v + 1, …, as many parts as the request asks for."""

import threading
from collections.abc import Sequence
from typing import Any

# This module exists in workers only.
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# This module lies beside this file.
from conduct import Conduct, answering, poison_of, refused, value_of  # type: ignore[import-not-found]

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Of the kind `stream`.

    A thread sends each answer, so that a client that does not read holds up no other client.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        self._conduct = Conduct(args)

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin to answer."""
        batch = self._conduct.begin(requests)
        for request in requests:
            sending = (batch, request, request.get_response_sender())
            threading.Thread(target=send, args=sending, daemon=True).start()


def send(batch: Any, request: Any, sender: Any) -> None:
    """Send all parts, unless the client leaves.

    A poisoned request does its harm when half of them are sent.
    """
    value, parts = value_of(request), value_of(request, "PARTS")
    try:
        for index in range(parts):
            if index == parts // 2:
                batch.do(poison_of(request))
            if sender.is_cancelled():
                break
            sender.send(answering(value + index, [1]))
    except Exception as error:  # noqa: BLE001  # there is no execute any more that could raise it
        sender.send(refused(error), flags=FINAL)
        return
    batch.executed(request)
    sender.send(flags=FINAL)
