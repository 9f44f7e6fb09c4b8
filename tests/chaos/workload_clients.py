"""An ordinary tritonclient that asks what an `Invoke` says.

The calls run on threads, so that a test can have several at once.
"""

from __future__ import annotations

from functools import partial
from queue import Queue
from typing import Any

import numpy as np
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from chaos.record.records import Invoke
from chaos.workload import answers
from tests.survival.server import ServerProcess

PATIENCE = 60.0


def invoke(model: str, value: int, **rest: Any) -> Invoke:
    """Return a request of the ordinary load, except for what is given."""
    given = {"t": 0.0, "n": 1, "id": f"{model}/{value}", "protocol": "http", "phase": "calm", **rest}
    return Invoke(model=model, value=value, **given)


async def ask(server: ServerProcess, invoked: Invoke) -> tuple[int, ...]:
    """Return the values of the answer. Raises InferenceServerException."""
    if answers.kind_of(invoked.model) == "stream":
        asked = _ask_stream
    else:
        asked = _ask_http if invoked.protocol == "http" else _ask_grpc
    return await trio.to_thread.run_sync(partial(asked, server, invoked))


async def refusal(server: ServerProcess, invoked: Invoke) -> InferenceServerException:
    """Return the error that it has to be answered with."""
    try:
        values = await ask(server, invoked)
    except InferenceServerException as error:
        return error
    raise AssertionError(f"{invoked} was answered {values}")


def _ask_http(server: ServerProcess, invoked: Invoke) -> tuple[int, ...]:
    with tritonclient.http.InferenceServerClient(
        server.url, network_timeout=PATIENCE, connection_timeout=PATIENCE
    ) as client:
        result = client.infer(invoked.model, _inputs(tritonclient.http, invoked), **_options(invoked))
        return _values(invoked, result)


def _ask_grpc(server: ServerProcess, invoked: Invoke) -> tuple[int, ...]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        result = client.infer(
            invoked.model, _inputs(tritonclient.grpc, invoked), client_timeout=PATIENCE, **_options(invoked)
        )
        return _values(invoked, result)


def _ask_stream(server: ServerProcess, invoked: Invoke) -> tuple[int, ...]:
    """Raises with the values that came before the error as the exception's `values`."""
    parts: Queue[tuple[Any, InferenceServerException | None]] = Queue()
    values: tuple[int, ...] = ()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: parts.put((result, error)))
        client.async_stream_infer(
            invoked.model,
            _inputs(tritonclient.grpc, invoked),
            enable_empty_final_response=True,
            **_options(invoked),
        )
        while True:
            result, error = parts.get(timeout=PATIENCE)
            if error is not None:
                error.values = values
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                return values
            values += _values(invoked, result)


def _inputs(client: Any, invoked: Invoke) -> list[Any]:
    made = []
    for name, array in answers.inputs(invoked).items():
        tensor = client.InferInput(name, array.shape, "BYTES" if array.dtype == object else "INT32")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def _options(invoked: Invoke) -> dict[str, Any]:
    sequence = {
        "sequence_id": invoked.sequence,
        "sequence_start": invoked.start,
        "sequence_end": invoked.end,
    }
    return {"request_id": invoked.id, **(sequence if invoked.sequence else {})}


def _values(invoked: Invoke, result: Any) -> tuple[int, ...]:
    names = answers.OUTPUTS[answers.kind_of(invoked.model)]
    outputs: dict[str, np.ndarray[Any, Any]] = {
        name: array for name in names if (array := result.as_numpy(name)) is not None
    }
    return tuple(answers.values(invoked.model, outputs))
