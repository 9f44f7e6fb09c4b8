"""From what a function gives, or raises, to responses."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from engine.worker.authoring.requests import RequestError
from engine.worker.authoring.values import outputs_of
from engine.worker.backends.python.responses import InferenceResponse, TritonError, TritonErrorCode
from engine.worker.backends.python.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.worker.authoring.calls import Call
    from engine.worker.authoring.declaring import Declared
    from engine.worker.backends.base import Output


class Answerer:
    """Makes the responses of one instance of a declared model."""

    def __init__(self, declared: Declared, instance_name: str) -> None:
        self._signature = declared.signature
        self._batched = bool(declared.max_batch_size)
        self._instance = instance_name

    def in_order(self, calls: Sequence[Call], outcomes: Sequence[Any]) -> list[InferenceResponse]:
        """Return one response for each request of the batch, in its order.

        An outcome is what a call gave, or what it raised.
        """
        answers: dict[int, InferenceResponse] = {}
        for call, outcome in zip(calls, outcomes):
            answers.update(zip(call.positions, self._responses(call, outcome)))
        return [answers[position] for position in range(len(answers))]

    def part(self, given: Any) -> InferenceResponse:
        """Return one response of a stream. Raises WrongOutput."""
        return _response(outputs_of(given, self._signature, rows=None, batched=self._batched))

    def outputs(self, given: Any, rows: int) -> list[Output]:
        """Return the outputs in what a call gave that had so many rows. Raises WrongOutput."""
        return outputs_of(given, self._signature, rows=rows, batched=self._batched)

    def error(self, error: BaseException) -> InferenceResponse:
        """Return what a client is told of `error`, as a response."""
        return InferenceResponse(error=self.failure(error))

    def failure(self, error: BaseException) -> TritonError:
        """Return what a client is told of `error`.

        That is what a `RequestError` says, else the contract's text (section 4.3).
        """
        if isinstance(error, RequestError):
            return TritonError(error.message, TritonErrorCode[error.code])
        reason = (
            f"Failed to process the request(s) for model '{self._instance}', message: {_described(error)}"
        )
        return TritonError(reason)

    def _responses(self, call: Call, outcome: Any) -> list[InferenceResponse]:
        if isinstance(outcome, BaseException):
            return [self.error(outcome)] * len(call.positions)
        try:
            outputs = self.outputs(outcome, sum(call.rows))
        except Exception as error:  # noqa: BLE001
            # What can't be made an output is the model's mistake, and its clients' answer.
            return [self.error(error)] * len(call.positions)
        return [_response(outputs)] if len(call.rows) == 1 else _split(outputs, call.rows)


def _split(outputs: Sequence[Output], all_rows: Sequence[int]) -> list[InferenceResponse]:
    responses, start = [], 0
    for rows in all_rows:
        part = slice(start, start + rows)
        responses.append(_response([(name, datatype, array[part]) for name, datatype, array in outputs]))
        start += rows
    return responses


def _response(outputs: Sequence[Output]) -> InferenceResponse:
    return InferenceResponse([Tensor.over(*output) for output in outputs])


def _described(error: BaseException) -> str:
    """Return `Type: message` and the author's frames, innermost first, as the backend words it."""
    here = __file__.rpartition("/")[0]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(here)
    ]
    lines = [f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames)]
    text = f"{type(error).__name__}: {error}"
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text
