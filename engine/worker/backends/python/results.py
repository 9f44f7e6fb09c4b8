"""What `execute` returned, checked and made into answers (contract, python_backend.md section 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from engine.worker.backends.python.exchange import ServedRequest
from engine.worker.backends.python.responses import InferenceResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.worker.backends.base import Batch, BatchRequest
    from engine.worker.backends.python.replies import BatchReplies


class Wrong(Exception):
    """The model broke a rule of `execute`. The message is the contract's."""


def checked(
    returned: Any, requests: Sequence[ServedRequest], replies: BatchReplies
) -> Sequence[InferenceResponse | None]:
    """Return one response, or None, for each request.

    Raises Wrong for anything that `execute` must not return.
    """
    if returned is None and (replies.any_sender() or any(request.rescheduled for request in requests)):
        return [None] * len(requests)
    if not isinstance(returned, list):
        raise Wrong(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise Wrong(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
            f" InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if response is not None and not isinstance(response, InferenceResponse):
            raise Wrong(not_a_response(response))
    return returned


def not_a_response(value: object) -> str:
    """Return the text for an element that is no response."""
    return (
        "Expected an 'InferenceResponse' object in the execute function return list, found type"
        f" '{type(value)}'."
    )


def not_none(value: object) -> str:
    """Return the text for an element in the place of a rescheduled request, spelt as in the contract."""
    return (
        "Expected a None object in the execute function return list for reschduled request, found type"
        f" '{type(value)}'."
    )


def respond_together(batch: Batch, responses: Sequence[InferenceResponse | None]) -> bool:
    """Answer a whole batch at once, if its responses differ only in their values.

    Returns False if nothing has happened. There is one copy into the output memory for each output, instead
    of one for each output of each request, and one description for the server to read.
    """
    if len(responses) == 1:
        return _respond_alone(batch.requests[0], responses[0])
    everything = []
    for response in responses:
        if response is None or not response.plain:
            return False
        everything.append(response.as_outputs())
    count = len(everything[0])
    for outputs in everything:
        if len(outputs) != count:
            return False
    rows = [request.rows for request in batch.requests]
    columns = [tuple(zip(*column)) for column in zip(*everything)]
    for names, datatypes, arrays in columns:
        if not _alike(names, datatypes, arrays, rows):
            return False
    wanted = batch.wanted_outputs
    batch.respond(
        [
            (names[0], datatypes[0], _joined(batch, names[0], datatypes[0], arrays))
            for names, datatypes, arrays in columns
            if names[0] in wanted
        ]
    )
    return True


def _respond_alone(request: BatchRequest, response: InferenceResponse | None) -> bool:
    """Answer the only request of a batch, unless an output of it may not be fit to be sent."""
    if response is None or not response.plain:
        return False
    outputs = response.as_outputs()
    if any(datatype is DataType.BYTES for _, datatype, _ in outputs):
        return False
    request.respond(outputs)
    return True


def _alike(
    names: Sequence[str],
    datatypes: Sequence[DataType],
    arrays: Sequence[np.ndarray[Any, Any]],
    rows: list[int],
) -> bool:
    """Whether these are one output of requests with so many rows, to be joined along the first dimension."""
    first = arrays[0]
    if datatypes[0] is DataType.BYTES or not first.ndim:
        return False
    if names.count(names[0]) != len(names) or datatypes.count(datatypes[0]) != len(names):
        return False
    tail = first.shape[1:]
    return all(array.shape == (count, *tail) for array, count in zip(arrays, rows))


def _joined(
    batch: Batch, name: str, datatype: DataType, arrays: Sequence[np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Return the arrays one behind the other, in the batch's own output memory."""
    whole = batch.allocate(name, datatype, (batch.rows, *arrays[0].shape[1:]))
    np.concatenate(arrays, out=whole)
    return whole
