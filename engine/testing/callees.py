"""The server, as far as a model under test can tell.

These are fakes of the models it calls, of model control and of custom metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from actors.values.datatypes import DataType, from_numpy_dtype
from actors.values.errors import ErrorCode, TritiumError
from actors.wire.frames import FrameError
from engine.observability.custom_metrics import CustomMetrics
from engine.testing.requests import Array, Parameter, as_array
from engine.worker.authoring.requests import RequestError
from engine.worker.backends.python import control, metrics, telling
from engine.worker.calls import CallFailed, CallRequest, CallResponse, Calls, CallStream

# Contract, python_backend.md section 7.
_FAILED: Final = "Model {model} - Error when running inference: {why}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call that the model made to another one (BLS)."""

    model: str
    version: int  # -1: whichever there is
    inputs: Mapping[str, Array]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    id: str
    correlation_id: int | str
    flags: int
    timeout: float  # seconds, 0 for none
    decoupled: bool


Callee = Callable[[Call], Any]
"""A fake model: takes the call and returns its outputs by name, or yields them for a decoupled one.

It raises to answer with an error.
"""


class FakeServer(Calls):
    """Answers what a model asks of its server, and remembers it.

    `made` holds the calls, `asked` what was asked of other models.
    """

    def __init__(self, callees: Mapping[str, Callee]) -> None:
        self.made: list[Call] = []
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.metrics = CustomMetrics()
        self._hold = self.metrics.open()
        self._callees = callees
        self._unloaded: set[str] = set()

    def infer(self, call: CallRequest) -> CallStream:
        """Answer a call by the fake of that name."""
        made = Call(
            model=call.model,
            version=call.version,
            inputs={name: np.array(array) for name, _, array in call.inputs},
            requested_outputs=tuple(call.requested_outputs),
            parameters=dict(call.parameters or {}),
            id=call.id,
            correlation_id=call.correlation_id,
            flags=call.flags,
            timeout=call.timeout / 1e6,
            decoupled=call.decoupled,
        )
        self.made.append(made)
        return _Stream(self._responses(made))

    def ask(
        self, subject: str, body: Mapping[str, Any], attachments: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        """Answer a question about models or metrics. Raises CallFailed."""
        try:
            match subject:
                case metrics.FAMILY:
                    return self._hold.family(body)
                case metrics.SERIES:
                    return self._hold.series(body)
                case metrics.VALUE:
                    return self._hold.value(body)
                case control.LOAD | control.UNLOAD | control.READY:
                    self.asked.append((subject, {**body, "files": dict(attachments or {})}))
                    return self._control(subject, str(body["name"]))
        except TritiumError as error:
            raise CallFailed(error.code, error.message) from error
        raise CallFailed(ErrorCode.UNSUPPORTED, f"a server under test knows nothing of '{subject}'")

    def tell(self, subject: str, body: Mapping[str, Any]) -> None:
        """Take what a model does to its metrics."""
        if subject == telling.CHANGE:
            self._hold.change(body)
        elif subject == telling.RELEASE:
            self._hold.release(body)
        else:
            raise FrameError(f"a server under test knows nothing of '{subject}'")

    def _control(self, subject: str, name: str) -> dict[str, Any]:
        if name not in self._callees:
            unknown = f"Request for unknown model: '{name}' is not found"
            raise CallFailed(ErrorCode.NOT_FOUND, unknown)
        if subject == control.LOAD:
            self._unloaded.discard(name)
        elif subject == control.UNLOAD:
            self._unloaded.add(name)
        return {"ready": name not in self._unloaded}

    def _responses(self, call: Call) -> Iterator[CallResponse]:
        callee = self._callees.get(call.model)
        if callee is None:
            unknown = f"Request for unknown model: '{call.model}' is not found"
            yield _error(ErrorCode.NOT_FOUND, _FAILED.format(model=call.model, why=unknown))
        elif call.model in self._unloaded:
            why = f"Failed for execute the inference request. Model '{call.model}' is not ready."
            yield _error(ErrorCode.UNAVAILABLE, _FAILED.format(model=call.model, why=why))
        else:
            try:
                yield from _called(callee, call)
            except RequestError as error:
                yield _error(ErrorCode[error.code], error.message)
            except Exception as error:  # noqa: BLE001  # a fake that raises plays a model that fails
                told = f"{type(error).__name__}: {error}"
                why = f"Failed to process the request(s) for model '{call.model}', message: {told}"
                yield _error(ErrorCode.INTERNAL, why)


class _Stream(CallStream):
    """The responses of a fake, each made when it is asked for."""

    def __init__(self, responses: Iterator[CallResponse]) -> None:
        self._responses = responses
        self._cancelled = False
        self._ended = False

    def __next__(self) -> CallResponse:
        if self._ended:
            raise StopIteration
        if self._cancelled:
            response = _error(ErrorCode.CANCELLED, "the call was cancelled")
        else:
            response = next(self._responses)
        self._ended = response.final
        return response

    def cancel(self) -> None:
        """Have the next response be the error that ends it."""
        self._cancelled = True


def _called(callee: Callee, call: Call) -> Iterator[CallResponse]:
    given = callee(call)
    if isinstance(given, Mapping):
        yield CallResponse(_outputs(given, call), None, None, "", final=True)
    elif not isinstance(given, Iterator):
        raise TypeError(
            f"the fake of '{call.model}' gave {type(given).__name__}: outputs by name, or an iterator of such"
        )
    elif not call.decoupled:
        why = (
            f"Model {call.model} is using the decoupled. The current BLS request call doesn't support models"
            " using the decoupled"
            " transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls"
            " for decoupled models.'"
        )
        yield _error(ErrorCode.UNSUPPORTED, _FAILED.format(model=call.model, why=why))
    else:
        for each in given:
            yield CallResponse(_outputs(each, call), None, None, "", final=False)
        yield CallResponse((), None, None, "", final=True)


def _outputs(given: Mapping[str, Any], call: Call) -> list[tuple[str, DataType, Array]]:
    found = []
    for name, value in given.items():
        if call.requested_outputs and name not in call.requested_outputs:
            continue
        array = np.asarray(value)
        datatype = from_numpy_dtype(array.dtype)
        if datatype is None:
            raise TypeError(f"output '{name}' of the fake of '{call.model}' is an array of {array.dtype}")
        found.append((name, datatype, as_array(array, datatype)))
    return found


def _error(code: ErrorCode, message: str) -> CallResponse:
    return CallResponse((), None, code, message, final=True)
