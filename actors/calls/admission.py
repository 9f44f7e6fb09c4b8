"""Which model a worker's call is for, and on behalf of which requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.serving.asks import Asker
from actors.serving.instances.batches import InFlight
from actors.values.callers import Action
from actors.values.errors import TritiumError, Unavailable, Unsupported
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import ModelSpec
from actors.wire.call_fields import CallFields
from actors.wire.call_frames import WHOLE_BATCH
from actors.wire.frames import FrameError


class Permit(Protocol):
    """Judges what models ask for."""

    def __call__(self, spec: ModelSpec, action: Action, model: str, namespace: str | None = None, /) -> None:
        """Raise PermissionDenied where the model of `spec` may not do `action` with `model`.

        For `namespace` see `actors.values.callers.Caller.may`.
        """


class Resolver(Protocol):
    """Finds the model to call: `actors.calls.callees`."""

    def resolve(self, name: str, version: str = "", *, namespace: str = "") -> ServedModel:
        """Return the model of that name. Raises TritiumError."""


def callee_of(fields: CallFields, callees: Resolver, namespace: str) -> ServedModel:
    """Return the callee, or raise with the texts of contract/python_backend.md section 7."""
    name = fields.model
    version = "" if fields.version == -1 else str(fields.version)
    begin = f"Model {name} - Error when running inference: "
    try:
        model = callees.resolve(name, version, namespace=namespace)
    except Unavailable as error:
        why = f"Failed for execute the inference request. Model '{name}' is not ready."
        raise Unavailable(begin + why) from error
    except TritiumError as error:
        raise TritiumError.of(error.code, begin + error.message) from error
    if model.spec.decoupled and not fields.decoupled:
        raise Unsupported(
            f"{begin}Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
            "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
            "decoupled models.'"
        )
    return model


def parents_of(
    origin: tuple[int, int] | None, worker: Asker
) -> tuple[InFlight | None, Sequence[InferRequest]]:
    """Return the batch and the requests that a call says it belongs to.

    They may be over; that is no mistake. Raises FrameError for a request that the batch does not have.
    """
    if origin is None:
        return None, ()
    batch = worker.outstanding.get(origin[0]) or worker.open.get(origin[0])
    if batch is None:
        return None, ()
    if origin[1] == WHOLE_BATCH:
        return batch, [each for each in batch.requests if not each.padding]
    if origin[1] >= len(batch.requests):
        raise FrameError(f"a call on behalf of request {origin[1]} of a batch of {len(batch.requests)}")
    return batch, (batch.requests[origin[1]],)
