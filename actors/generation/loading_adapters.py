"""Has an engine load an adapter ahead of the first request for it, which shows whether it can.

That is a request without ids, whose `sampling` has the adapter under `LOAD_ADAPTER`. One instance of the
engine takes it; the others load the adapter for the first request that brings it.
"""

from __future__ import annotations

import json
from typing import Final

import trio

from actors.generation.engine import Engine
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError, Unavailable, WorkerLost
from actors.values.generation.adapters import Adapter
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import ModelSpec
from actors.values.tensors import Tensor, pack_bytes

LOAD_ADAPTER: Final = "load_adapter"
"""The key of an engine's `sampling` that has the adapter to load."""


async def load_ahead(engine: Engine, spec: ModelSpec, adapter: Adapter) -> None:
    """Return once an instance of the engine of version `spec` has the adapter.

    Raises TritiumError if it can't be loaded.
    """
    outcome = _Outcome()
    told = json.dumps({LOAD_ADAPTER: adapter.told}).encode()
    request = InferRequest(
        model_name=spec.name,
        requested_version=spec.version,
        inputs=[
            Tensor("input_ids", DataType.INT32, (0,), b""),
            Tensor("sampling", DataType.BYTES, (1,), pack_bytes((told,))),
        ],
        reply=outcome,
        accepted_at=trio.current_time(),
    )
    try:
        await engine.submit(request)
        await outcome.came.wait()
    except trio.Cancelled:
        engine.cancel(request)
        raise
    match outcome.error:
        case WorkerLost() as lost:
            raise Unavailable(f"LoRA adapter '{adapter.name}' was not loaded: {lost.how}")
        case TritiumError() as error:
            raise error


class _Outcome(ReplyPort):
    """Where the engine answers."""

    def __init__(self) -> None:
        self.came = trio.Event()
        self.error: TritiumError | None = None

    def put(self, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `ReplyPort`."""
        if isinstance(part, TritiumError):
            self.error = part
        else:
            part.release()
        if final:
            self.came.set()
