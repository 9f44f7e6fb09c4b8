"""Decoupled: answers v with v, v + 1, …, as many parts as the request asks for."""

import threading
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # there is one in workers only
from conduct import Conduct, answering, poison_of, refused, value_of  # type: ignore[import-not-found]  # lies beside this file

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Of the kind `stream`. A thread sends each answer, so that a client who does not read holds up nobody else."""

    def initialize(self, args: dict[str, str]) -> None:
        """Be loaded."""
        self._conduct = Conduct(args)

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin to answer."""
        batch = self._conduct.begin(requests)
        for request in requests:
            sending = (batch, request, request.get_response_sender())
            threading.Thread(target=send, args=sending, daemon=True).start()


def send(batch: Any, request: Any, sender: Any) -> None:
    """Send all parts, unless the client leaves. A poisoned request does its harm when half of them are sent."""
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
