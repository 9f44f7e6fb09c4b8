"""From the requests of a batch to the calls of the function that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.worker.authoring.requests import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.worker.authoring.declaring import Declared
    from engine.worker.backends.python.exchange import InferenceRequest


class Call(NamedTuple):
    """One call: which requests of the batch it answers, how many rows each has, and its arguments.

    Requests are given by position.
    """

    positions: Sequence[int]
    rows: Sequence[int]
    arguments: Mapping[str, Any]


def calls_of(requests: Sequence[InferenceRequest], declared: Declared) -> list[Call]:
    """Return the calls for a batch.

    If the function batches, there is one call for all requests that can be joined, else one for each.
    Requests can be joined if they carry the same inputs of the same dims.
    """
    each = [_call(position, request, declared) for position, request in enumerate(requests)]
    if not declared.joins or len(each) == 1:
        return each
    alike: dict[Any, list[Call]] = {}
    for call in each:
        dims = tuple((name, array.shape[1:]) for name, array in call.arguments.items())
        alike.setdefault(dims, []).append(call)
    return [_joined(group) for group in alike.values()]


def _call(position: int, request: InferenceRequest, declared: Declared) -> Call:
    arguments: dict[str, Any] = {}
    rows = 1
    for tensor in request.inputs():
        name, _, array = tensor.as_output()
        if name in declared.signature.inputs:  # a control of sequences need not be declared
            arguments[name] = array
        if declared.max_batch_size:
            rows = len(array)
    if declared.signature.request:
        arguments[declared.signature.request] = Request(request)
    return Call((position,), (rows,), arguments)


def _joined(calls: Sequence[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]
    return Call(
        [call.positions[0] for call in calls],
        [call.rows[0] for call in calls],
        {name: np.concatenate([call.arguments[name] for call in calls]) for name in calls[0].arguments},
    )
