"""Responses and errors, as a Python model makes and sees them."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import TYPE_CHECKING

from engine.worker.backends.python.tensors import Tensor, TritonModelException, as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import AnyOutput, Output
    from engine.worker.calls import CallResponse


class TritonErrorCode(IntEnum):
    """What kind of failure a `TritonError` is."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """An error in place of a response's outputs."""

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        """Raises TypeError if the message is no text (an exception, say); ValueError for an unknown code."""
        self._message = as_text("the message of a TritonError", message)
        self._code = TritonErrorCode(code)

    def message(self) -> str:
        """Return the text."""
        return self._message

    def code(self) -> TritonErrorCode:
        """Return the code."""
        return self._code


def checked_parameters(parameters: Mapping[str, Parameter] | None) -> dict[str, Parameter]:
    """Return a model's parameters. Raises TritonModelException for what can't be one."""
    if parameters is not None and not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to have type dict, found type {type(parameters)}")
    for key, value in (parameters or {}).items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters or {})


class InferenceResponse:
    """The answer to one request: output tensors, or an error in their place."""

    __slots__ = ("_error", "_outputs", "_parameters", "plain")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """Raises TritonModelException with the contract's texts (section 5).

        Raises TypeError for what is neither a tensor nor an error.
        """
        self._outputs = list(output_tensors)
        self.plain = error is None and not parameters  # nothing but arrays in host memory
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse takes a TritonError, got {type(error)}")
        for tensor in self._outputs:
            if type(tensor) is not Tensor:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                if not isinstance(tensor, Tensor):
                    raise TypeError(
                        f"InferenceResponse takes a list of Tensor objects, got {type(tensor)}; make a Tensor of it"
                    )
                self.plain = False
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters) or None

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, if any."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON text."""
        return json.dumps(self._parameters or {})

    def given_parameters(self) -> Mapping[str, Parameter] | None:
        """Return the response parameters themselves, for the backend."""
        return self._parameters

    def as_outputs(self) -> list[Output]:
        """Return the outputs as `BatchRequest.respond` takes them.

        Those in a device's memory are copied to the host.
        """
        return [tensor.as_output() for tensor in self._outputs]

    def as_outputs_of(self, gpu: int) -> list[AnyOutput]:
        """Return the outputs as `BatchRequest.respond` takes them from an instance on this GPU.

        Those in its memory are left there.
        """
        return [tensor.as_output_of(gpu) for tensor in self._outputs]


def response_of(answer: CallResponse) -> InferenceResponse:
    """Return what a call was answered as a model sees it."""
    if answer.code is not None:
        code = _CODES.get(answer.code.name, TritonErrorCode.INTERNAL)
        return InferenceResponse(error=TritonError(answer.message, code))
    response = InferenceResponse([Tensor.over(*output) for output in answer.outputs])
    # Floats too, which models may not give themselves.
    response._parameters = dict(answer.parameters) or None  # noqa: SLF001
    return response


# Triton has eight codes. A timeout becomes UNAVAILABLE; a poisonous request would be a failure of its model.
_CODES = {**TritonErrorCode.__members__, "DEADLINE_EXCEEDED": TritonErrorCode.UNAVAILABLE}


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output tensor of a response, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
