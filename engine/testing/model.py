"""A model under test: the real backend over a model's file, in this process.

A test takes the place of server and clients.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from actors.serving.validation import Validator
from actors.values.errors import InvalidArgument
from actors.values.requests import InferRequest, InferResponse, ReplyPort
from actors.values.specs import ModelSpec
from engine.testing.callees import Call, Callee, FakeServer
from engine.testing.completing import ModelNotLoaded, complete, fields
from engine.testing.requests import (
    Answer,
    Array,
    FaultyRequest,
    Request,
    as_array,
    as_tensor,
    on_device,
)
from engine.testing.thread import ModelHung, ModelThread
from engine.worker.backends.base import LoadError, ModelInfo
from engine.worker.backends.python.backend import PythonBackend
from engine.worker.backends.testing import run
from engine.worker.devices.arrays import DeviceArray
from engine.worker.devices.cuda import CudaError

T = TypeVar("T")

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][^ ]*(?:\{.*\})?) ([^ ]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LogLine:
    """What the model logged: `level` is info, warning, error or verbose."""

    level: str
    message: str


@contextlib.contextmanager
def open_model(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    parameters: Mapping[str, str] | None = None,
    models: Mapping[str, Callee] | None = None,
    gpu: int | None = None,
    within: float = 30.0,
) -> Iterator[TestedModel]:
    """Load the model in a file, of either style, and unload it in the end.

    `config` replaces fields of its configuration; `parameters` are added to that. `models` are fakes of the
    models that it calls, by name: each takes a `Call` and returns outputs by name, yields them, or raises.
    With a `gpu` the model's instance is on that GPU, which need not be there if the model does not use it.
    Whatever the model does must end `within` so many seconds. Raises ModelNotLoaded with all that would keep
    a server from loading it, and ModelHung.
    """
    file = Path(path)
    spec = complete(file, config, parameters, gpu=gpu)
    model = TestedModel(file, spec, models or {}, within, gpu=gpu)
    model.load()
    try:
        yield model
    finally:
        model.unload()


class TestedModel:
    """A loaded model; `open_model` makes it. Everything it does is done on one thread, as in a worker."""

    __test__ = False  # for pytest, which takes the name for a test's

    def __init__(
        self,
        file: Path,
        spec: ModelSpec,
        models: Mapping[str, Callee],
        within: float,
        *,
        gpu: int | None = None,
    ) -> None:
        self.logs: list[LogLine] = []
        self._logged = threading.Condition()
        self._spec = spec
        self._server = FakeServer(models)
        self._within = within
        self._validate = Validator(spec)
        # What a server would also give the model; here a test gives it.
        self._of_sequences = {
            each.name: each for each in spec.backend_inputs if each.name not in spec.inputs_by_name
        }
        self._backend = PythonBackend()
        self._info = ModelInfo(**fields(spec, file, gpu=gpu), log=self._log, calls=self._server)
        self._thread = ModelThread()

    @property
    def config(self) -> Mapping[str, Any]:
        """The completed configuration, as the model is given it."""
        return self._info.config

    @property
    def calls(self) -> Sequence[Call]:
        """The calls that the model has made to others, in order."""
        return self._server.made

    @property
    def asked(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """What the model asked of other models, in order, with its arguments.

        Each is one of `model.load`, `model.unload` and `model.ready`.
        """
        return self._server.asked

    @property
    def metrics(self) -> Mapping[str, float]:
        """The model's own metrics as /metrics would show them: by name and labels, `hits{kind="a"}`."""
        text = "".join(self._server.metrics.blocks())
        return {name: float(value) for name, value in _SAMPLE.findall(text)}

    def infer(self, request: Request | Mapping[str, Any]) -> Answer:
        """Return the one response to a request.

        Raises InferenceFailed if that is an error, and AssertionError if there are several.
        """
        responses = self.responses(request)
        if len(responses) != 1:
            raise AssertionError(
                f"the model gave {len(responses)} responses and no error; `responses` returns as many as"
                " there are"
            )
        if responses[0].error is not None:
            raise responses[0].error
        return responses[0]

    def responses(self, request: Request | Mapping[str, Any]) -> list[Answer]:
        """Return all responses to a request, once it has ended; errors are among them."""
        return self.batch([request])[0]

    def batch(self, requests: Sequence[Request | Mapping[str, Any]]) -> list[list[Answer]]:
        """Return the responses to each of several requests that one `execute` is given.

        What a server would refuse is refused with its text, and never reaches the model. A server adds the
        controls and states of sequences; here the test gives them, among the inputs. Raises ValueError if no
        server would put these requests together, and ModelHung if one of them does not end.
        """
        asked = [each if isinstance(each, Request) else Request(each) for each in requests]
        accepted: dict[int, FaultyRequest] = {}
        answers: list[list[Answer]] = [[] for _ in asked]
        for at, request in enumerate(asked):
            try:
                accepted[at] = self._accepted(request)
            except InvalidArgument as error:
                answers[at] = [Answer.refused(error.code, error.message)]
        if accepted:
            self._run(list(accepted.values()))
        for at, given in accepted.items():
            answers[at] = given.responses()
        return answers

    def ready(self) -> bool:
        """Return what the model's readiness check says, True without one."""
        return self._do(self._backend.ready, "is_ready")

    def wait_logged(self, text: str) -> LogLine:
        """Return the first line with `text` in it, once there is one: the model's threads may be late.

        Raises ModelHung.
        """
        with self._logged:
            if self._logged.wait_for(lambda: any(text in line.message for line in self.logs), self._within):
                return next(line for line in self.logs if text in line.message)
        raise ModelHung(f"nothing with {text!r} in it was logged within {self._within:g} s, but: {self.logs}")

    def load(self) -> None:
        """Make and initialise the model. Raises ModelNotLoaded."""
        try:
            self._do(lambda: self._backend.load(self._info), "loading the model")
        except LoadError as error:
            self._thread.end()
            raise ModelNotLoaded(str(error)) from error

    def unload(self) -> None:
        """Finalise the model, unless it hangs: then nothing more can be done on its thread."""
        try:
            if not self._thread.hung:
                self._do(self._backend.unload, "finalize")
        finally:
            self._thread.end()

    def _accepted(self, request: Request) -> FaultyRequest:
        """Return the request as the backend gets it. Raises InvalidArgument as a server would."""
        inputs = {name: self._array(name, value) for name, value in request.inputs.items()}
        self._validate(
            InferRequest(
                model_name=self._spec.name,
                inputs=[
                    as_tensor(name, array) for name, array in inputs.items() if name not in self._of_sequences
                ],
                requested_outputs=request.requested_outputs,
                reply=_Nowhere(),
                accepted_at=0.0,
            )
        )
        return FaultyRequest(request, inputs)

    def _array(self, name: str, value: Any) -> Array | DeviceArray:
        declared = self._spec.inputs_by_name.get(name) or self._of_sequences.get(name)
        if declared is None:
            known = ", ".join(self._spec.inputs_by_name)
            raise InvalidArgument(
                f"unexpected inference input '{name}' for model '{self._spec.name}': it has {known}"
            )
        try:
            there = on_device(value)
            return as_array(value, declared.datatype) if there is None else there
        except (TypeError, ValueError, OverflowError, BufferError, CudaError) as error:
            raise InvalidArgument(f"input '{name}' can't be made {declared.datatype}: {error}") from error

    def _run(self, requests: list[FaultyRequest]) -> None:
        timers = [self._leaving(each) for each in requests if each.fault.cancelled_in is not None]
        try:
            self._do(lambda: run(self._backend, self._info, requests), "execute")
            for each in requests:
                if each.open and not each.ended.wait(self._within):
                    raise ModelHung(
                        f"a request has not had its final response within {self._within:g} s, but"
                        f" {len(each.parts)} others"
                    )
        finally:
            for timer in timers:
                timer.cancel()

    def _leaving(self, request: FaultyRequest) -> threading.Timer:
        def leave() -> None:
            request.is_cancelled = True

        timer = threading.Timer(request.fault.cancelled_in or 0, leave)
        timer.daemon = True
        timer.start()
        return timer

    def _do(self, function: Callable[[], T], what: str) -> T:
        return self._thread.run(function, what=what, within=self._within)

    def _log(self, level: str, message: str) -> None:
        with self._logged:
            self.logs.append(LogLine(level, message))
            self._logged.notify_all()


class _Nowhere(ReplyPort):
    """A reply port for requests that are only looked at."""

    def put(self, part: InferResponse | Exception, *, final: bool) -> None:
        """Do nothing: nothing waits for the answer."""
