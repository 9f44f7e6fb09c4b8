"""An ordinary tritonclient.http, called on threads so that a test can make several calls at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import trio
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.survival.server import ServerProcess

_PATIENCE = 60.0


async def ask(server: ServerProcess, ticket: int, model: str = "gated", **options: Any) -> int:
    """Have a gated model serve `ticket`; return what it served. Raises InferenceServerException."""
    return await trio.to_thread.run_sync(partial(_ask, server.url, ticket, model, options))


async def refusal(server: ServerProcess, ticket: int, **options: Any) -> tuple[str, str]:
    """Return the status and the message of the error that `ticket` must get."""
    try:
        served = await ask(server, ticket, **options)
    except InferenceServerException as error:
        return error.status(), error.message()
    raise AssertionError(f"ticket {served} was served")


def _ask(url: str, ticket: int, model: str, options: dict[str, Any]) -> int:
    with tritonclient.http.InferenceServerClient(
        url, network_timeout=_PATIENCE, connection_timeout=_PATIENCE
    ) as client:
        tensor = tritonclient.http.InferInput("TICKET", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[ticket]], np.int32))
        answer = client.infer(model, [tensor], **options)
    return int(answer.as_numpy("SERVED")[0, 0])
