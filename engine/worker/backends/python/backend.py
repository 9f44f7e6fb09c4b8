"""Models written in Python against `triton_python_backend_utils` (contract, python_backend.md).

The model runs in the worker's own interpreter, on the thread that loaded it. A coroutine `execute` runs on an
asyncio loop that lives on a thread of its own for as long as the model does, so that what the model started
there goes on between batches. The coroutine of a decoupled model is not waited for.

`tritium.concurrency` gives a worker several lanes. Coroutines of that many batches then share the loop. A
plain `execute` is still called by one lane at a time, and the other lanes wait for the responses that a model
has left to its senders.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import inspect
import json
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode
from engine.worker.authoring.adapting import batch_execution
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.python import c_python_backend_utils, triton_python_backend_utils
from engine.worker.backends.python.completion import ModelConfig
from engine.worker.backends.python.exchange import ServedRequest
from engine.worker.backends.python.host import (
    COMPLETING,
    DEFAULT_POOL_SIZE,
    FINALIZING,
    SERVING,
    CallContext,
    Host,
    attach,
    call_context,
)
from engine.worker.backends.python.loop import EventLoop
from engine.worker.backends.python.replies import BatchReplies, Gpu, Reply, StreamReply
from engine.worker.backends.python.responses import InferenceResponse
from engine.worker.backends.python.results import Wrong, checked, not_a_response, not_none, respond_together
from engine.worker.backends.python.source import DEFAULT_ARTIFACT, STUB, Source, describe
from engine.worker.backends.python.tensors import TritonModelException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from engine.worker.backends.base import Batch, ModelInfo

CONCURRENCY = "tritium.concurrency"
CPU_ONLY = "FORCE_CPU_ONLY_INPUT_TENSORS"

_MINIMA = (
    ("shm-default-byte-size", 1024 * 1024, "shm-default-byte-size can't be smaller than 4 MiBs"),
    ("shm-growth-byte-size", 1, "shm-growth-byte-size can't be smaller than or equal to zero."),
    ("stub-timeout-seconds", 1, "stub-timeout-seconds can't be smaller than or equal to zero."),
    ("thread-pool-size", 1, "thread-pool-size can't be less than 1."),
)


class PythonBackend(Backend):
    """Runs the class `TritonPythonModel` of a `model.py`."""

    name = "python"
    pure = False
    concurrent = False
    device_tensors = True
    default_artifact = DEFAULT_ARTIFACT

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Import the model and call its `auto_complete_config`, if it has one."""
        source = Source(model)
        host = Host(model.version_directory, model.log, phase=COMPLETING)
        attach(host)
        _offer_modules()
        try:
            auto_complete = getattr(source.load(), "auto_complete_config", None)
            host.directory = source.version_directory
            if auto_complete is None:
                return None
            completed = auto_complete(ModelConfig(dict(model.config)))
        except (Exception, SystemExit) as error:
            # Whatever the user's code raises is the reason why it does not load.
            raise LoadError(describe(error, within=model.model_directory)) from error
        finally:
            source.forget()
        if not isinstance(completed, ModelConfig):
            raise LoadError(
                f"auto_complete_config function in model '{model.name}' must return a valid pb.ModelConfig object."
            )
        return completed.as_dict()

    def load(self, model: ModelInfo) -> None:
        """Import the model, make its object and call `initialize`."""
        self._info = model
        self._source = Source(model)
        _check(model)
        # Without a GPU, and where answers come at any time, tensors are handed over in CPU memory.
        self._gpu = (
            Gpu(model.device_id, lends=model.parameters.get(CPU_ONLY) == "no")
            if model.kind == "GPU" and not model.decoupled
            else None
        )
        self._guard = threading.Condition()
        self._turn = threading.Lock() if model.lanes > 1 else contextlib.nullcontext()
        self._limited = CONCURRENCY in model.parameters
        self._host = Host(
            model.version_directory,
            model.log,
            instance_name=model.instance_name,
            calls=model.calls,
            pool_size=int(model.settings.get("thread-pool-size", DEFAULT_POOL_SIZE)),
        )
        self._loop = EventLoop(partial(attach, self._host))
        attach(self._host)
        _offer_modules()
        try:
            found = self._source.load()
            self._host.directory = self._source.version_directory
            self._model = found()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(_arguments(model, self._source.model_directory))
            self._whole = batch_execution(self._model)
            self._host.phase = SERVING
        except Exception as error:
            # Whatever the user's code raises is the reason why it does not load.
            self._host.close()
            self._source.forget()
            raise LoadError(describe(error)) from error

    def execute(self, batch: Batch) -> None:
        """Hand the batch's requests to the model and pass its responses on."""
        info = self._info
        if batch.rows > info.max_batch_size > 0:
            message = (
                f"batch size {batch.rows} for '{info.instance_name}', max allowed is {info.max_batch_size}"
            )
            batch.fail(ErrorCode.INTERNAL, message)
            return
        context = CallContext(batch, info.calls)
        token = call_context.set(context)
        try:
            if self._whole is not None:
                self._whole(batch)
            elif info.decoupled:
                self._execute_decoupled(batch, context)
            else:
                self._execute(batch)
        finally:
            call_context.reset(token)
            context.flush()
            context.end(outlived=info.decoupled)
            if self._host.metrics is not None:
                # A client that sees the answers sees what was counted.
                self._host.metrics.flush()

    # -- models that answer every request once ---------------------------------------------------------------

    def _execute(self, batch: Batch) -> None:
        replies = BatchReplies(batch, self._guard, batches=self._info.max_batch_size > 0, gpu=self._gpu)
        requests = _served(batch, replies)
        try:
            responses = checked(self._call(requests), requests, replies)
        except Wrong as error:
            self._fail(replies.replies(), str(error))
        except Exception as error:  # noqa: BLE001  # an exception of the user's code is its clients' answer
            self._fail(replies.replies(), describe(error))
        else:
            self._give(batch, replies, requests, responses)
        finally:
            replies.end()

    def _call(self, requests: list[ServedRequest]) -> Any:
        """Return what `execute` returns. Raises Wrong without one, or what the model raises."""
        with self._turn:
            returned = self._begin(requests)
        return self._loop.run(returned) if inspect.iscoroutine(returned) else returned

    def _begin(self, requests: list[ServedRequest]) -> Any:
        """Call `execute`, and return what it returns: a coroutine, if it is one."""
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise Wrong(f"Python model {self._source.path} does not implement `execute` method.")
        return execute(requests)

    def _give(
        self,
        batch: Batch,
        replies: BatchReplies,
        requests: Sequence[ServedRequest],
        responses: Sequence[InferenceResponse | None],
    ) -> None:
        """Answer a batch, whole if possible, else request by request, waiting for those with senders."""
        again = [request.rescheduled for request in requests]
        if replies.seal() and True not in again and respond_together(batch, responses):
            return
        for reply, rescheduled, response in zip(replies.replies(), again, responses):
            if rescheduled:
                self._reschedule(reply, response)
            else:
                self._answer(reply, response)

    def _answer(self, reply: Reply, response: InferenceResponse | None) -> None:
        if response is None:
            reply.wait_for_senders()
            reply.fail(ErrorCode.INTERNAL, self._failure(not_a_response(None)))
            return
        try:
            reply.give(response)
        except Exception as error:  # noqa: BLE001
            # Outputs that can't be encoded cost only their own request.
            reply.fail(ErrorCode.INTERNAL, self._failure(describe(error)))

    def _reschedule(self, reply: Reply, response: InferenceResponse | None) -> None:
        """Have a request run again, whose place in what `execute` returned is for None."""
        try:
            if response is not None:
                raise TritonModelException(not_none(response))
            reply.reschedule()
        except TritonModelException as error:
            self._fail([reply], str(error))

    def _fail(self, replies: Sequence[Reply], reason: str) -> None:
        self._info.log("error", self._failure(reason))
        for reply in replies:
            reply.fail(ErrorCode.INTERNAL, self._failure(reason))
            reply.close()

    def _failure(self, reason: str) -> str:
        return f"Failed to process the request(s) for model '{self._info.instance_name}', message: {reason}"

    # -- decoupled models ------------------------------------------------------------------------------------

    def _execute_decoupled(self, batch: Batch, context: CallContext) -> None:
        """Hand over the batch's requests, whose senders may answer when this has long returned.

        A coroutine is not waited for, unless the model says how many may run at once. The next batch may come
        while the coroutine is suspended.
        """
        replies = BatchReplies(batch, self._guard, batches=self._info.max_batch_size > 0)
        streams = replies.open_streams()
        requests = _served(batch, replies)
        try:
            with self._turn:
                returned = self._begin(requests)
            if inspect.iscoroutine(returned):
                # Without a limit nothing waits for its calls, however soon they are made.
                context.running = self._limited
                execution = self._loop.start(returned)
                execution.add_done_callback(partial(self._ended, streams))
                if self._limited:
                    concurrent.futures.wait([execution])
            else:
                self._check_returned(returned)
            self._reschedule_streams(requests, streams)
        except Wrong as error:
            self._fail_streams(streams, str(error))
        except Exception as error:  # noqa: BLE001  # an exception of the user's code is its clients' answer
            self._fail_streams(streams, describe(error))
        finally:
            replies.end()

    def _reschedule_streams(self, requests: Sequence[ServedRequest], streams: Sequence[StreamReply]) -> None:
        """Have those requests run again for which the model asks it.

        If a coroutine is suspended, it has not asked yet, and then it is too late.
        """
        for request, stream in zip(requests, streams):
            if request.rescheduled:
                try:
                    stream.reschedule()
                except TritonModelException as error:
                    self._fail_streams([stream], str(error))

    def _ended(self, streams: Sequence[StreamReply], execution: Future[Any]) -> None:
        """A decoupled model's coroutine has ended, and with it whatever it did not leave to others."""
        try:
            self._check_returned(execution.result())
        except Wrong as error:
            self._fail_streams(streams, str(error))
        except BaseException as error:  # noqa: BLE001  # of the user's code, a cancellation among them
            self._fail_streams(streams, describe(error))

    def _check_returned(self, returned: object) -> None:
        if returned is not None:
            raise Wrong(
                f"Python model '{self._info.instance_name}' is using the decoupled mode and the execute function"
                " must return None."
            )

    def _fail_streams(self, streams: Sequence[StreamReply], reason: str) -> None:
        self._info.log("error", self._failure(reason))
        for stream in streams:
            stream.fail(self._failure(reason))

    # -- the rest of a model's life --------------------------------------------------------------------------

    def has_check(self) -> bool:
        """Whether the model has an `is_ready`."""
        return getattr(self._model, "is_ready", None) is not None

    def ready(self) -> bool:
        """Ask the model's `is_ready`, if it has one. The caller limits how long that may take."""
        is_ready = getattr(self._model, "is_ready", None)
        if is_ready is None:
            return True
        try:
            answer = is_ready()
            if inspect.iscoroutine(answer):
                answer = self._loop.run(answer)
        except Exception as error:  # noqa: BLE001  # a check that fails says "not ready"
            self._info.log("error", f"is_ready failed: {describe(error)}")
            return False
        if not isinstance(answer, bool):
            self._info.log("error", "is_ready() must return a boolean value")
            return False
        if not answer:
            name = self._info.instance_name
            self._info.log("verbose", f"Model '{name}' is not ready (user-defined check failed).")
        return answer

    def unload(self) -> None:
        """Call `finalize`, whose errors are only logged, and end the event loop."""
        self._host.phase = FINALIZING
        try:
            finalize = getattr(self._model, "finalize", None)
            returned = finalize() if finalize is not None else None
            if inspect.iscoroutine(returned):
                self._loop.run(returned)
        except Exception as error:  # noqa: BLE001
            # Only the log is left to be told.
            self._info.log("error", f"finalize failed: {describe(error)}")
        self._loop.close()
        self._host.close()
        self._source.forget()


def _offer_modules() -> None:
    """Let model files import the two modules that Triton has for them, under their names."""
    sys.modules["triton_python_backend_utils"] = triton_python_backend_utils
    sys.modules["c_python_backend_utils"] = c_python_backend_utils


def _served(batch: Batch, replies: BatchReplies) -> list[ServedRequest]:
    """Return the batch's requests as the model sees them."""
    requests = []
    start = 0
    for index, request in enumerate(batch.requests):
        requests.append(ServedRequest(request, replies, index, start))
        start += request.rows
    return requests


def _check(model: ModelInfo) -> None:
    """Raise LoadError for what can't be honoured."""
    cpu_only = model.parameters.get(CPU_ONLY, "yes")
    if cpu_only not in ("yes", "no"):
        raise LoadError(f"Incorrect value for {CPU_ONLY}: {cpu_only}'")
    for key, least, message in _MINIMA:
        if _whole_number(key, model.settings.get(key, str(least))) < least:
            raise LoadError(message)
    if model.settings.get("shm-region-prefix-name") == "":
        raise LoadError("shm-region-prefix-name must at least contain one character.")
    if os.path.exists(os.path.join(model.model_directory, STUB)):
        _refuse_stub(model)


def _whole_number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise LoadError(
            f"{key} must be a whole number, got '{text}' (--backend-config=python,{key}=…)"
        ) from None


def _refuse_stub(model: ModelInfo) -> None:
    """Check the configured stub.

    A stub is Triton's own process, built for one interpreter. Only that interpreter is needed of it here.
    """
    if "EXECUTION_ENV_PATH" not in model.parameters:
        raise LoadError(
            f"model '{model.name}' brings a '{STUB}', which Tritium can't run: remove it, and name the environment that it was"
            " built for by the parameter EXECUTION_ENV_PATH"
        )
    model.log("warning", f"'{STUB}' is not used: the model runs on the interpreter of EXECUTION_ENV_PATH")


def _arguments(model: ModelInfo, directory: str) -> dict[str, str]:
    """Return what `initialize` is given.

    A backend's class, whose file lies elsewhere than the model's, is given the backend's settings as well, in
    the form in which backends of the reference implementation get them.
    """
    settings = {"backend_config": json.dumps({"cmdline": dict(model.settings)})}
    return {
        "model_config": json.dumps(model.config),
        "model_instance_kind": model.kind,
        "model_instance_name": model.instance_name,
        "model_instance_device_id": str(model.device_id),
        "model_repository": directory,
        "model_version": str(model.version),
        "model_name": model.name,
        **(settings if os.path.isabs(model.artifact) else {}),
    }
