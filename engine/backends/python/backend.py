"""Models written in Python against `triton_python_backend_utils` (contract, python_backend.md).

The model runs in the worker's own interpreter, on the thread that loaded it; a coroutine `execute` runs on an asyncio loop
that lives on a thread of its own for as long as the model does, so that what the model started there goes on between batches.
That of a decoupled model is not waited for.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import threading
import traceback
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.messages.errors import ErrorCode
from engine.backends.base import Backend, LoadError
from engine.backends.python import triton_python_backend_utils
from engine.backends.python.completion import ModelConfig
from engine.backends.python.exchange import InferenceResponse, ServedRequest
from engine.backends.python.replies import Reply, StreamReply
from engine.backends.python.tensors import TritonModelException
from engine.backends.python.triton_python_backend_utils import Host, attach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from engine.backends.base import Batch, ModelInfo

_MINIMA = (
    ("shm-default-byte-size", 1024 * 1024, "shm-default-byte-size can't be smaller than 4 MiBs"),
    ("shm-growth-byte-size", 1, "shm-growth-byte-size can't be smaller than or equal to zero."),
    ("stub-timeout-seconds", 1, "stub-timeout-seconds can't be smaller than or equal to zero."),
    ("thread-pool-size", 1, "thread-pool-size can't be less than 1."),
)


class _Wrong(Exception):
    """The model broke a rule of `execute`. The message is the contract's."""


class PythonBackend(Backend):
    """Runs the class `TritonPythonModel` of a `model.py`."""

    name = "python"
    pure = False
    concurrent = False
    default_artifact = "model.py"

    _loop: Any = None

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Import the model and call its `auto_complete_config`, where it has one."""
        _check_file(model)
        attach(Host(model.version_directory, model.log))
        sys.modules["triton_python_backend_utils"] = triton_python_backend_utils
        added = _add_paths(model)
        try:
            auto_complete = getattr(_import(model).TritonPythonModel, "auto_complete_config", None)
            if auto_complete is None:
                return None
            completed = auto_complete(ModelConfig(dict(model.config)))
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever the user's code raises is the reason why it does not load
            raise LoadError(_describe(error, within=model.model_directory)) from error
        finally:
            _forget(model)
            sys.path[:] = [path for path in sys.path if path not in added]
        if not isinstance(completed, ModelConfig):
            raise LoadError(
                f"auto_complete_config function in model '{model.name}' must return a valid pb.ModelConfig object."
            )
        return completed.as_dict()

    def load(self, model: ModelInfo) -> None:
        """Import the model, make its object and call `initialize`."""
        self._info = model
        self._path = _check(model)
        self._guard = threading.Condition()
        self._host = Host(model.version_directory, model.log)
        attach(self._host)
        sys.modules["triton_python_backend_utils"] = triton_python_backend_utils
        self._added_paths = _add_paths(model)
        try:
            self._model = _import(model).TritonPythonModel()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(_arguments(model))
        except Exception as error:  # whatever the user's code raises is the reason why it does not load
            self._clean_up()
            raise LoadError(_describe(error)) from error

    def execute(self, batch: Batch) -> None:
        """Hand the batch's requests to the model and pass its responses on."""
        if self._info.decoupled:
            self._execute_decoupled(batch)
            return
        replies = [Reply(request, self._guard) for request in batch.requests]
        requests = [ServedRequest(request, reply) for request, reply in zip(batch.requests, replies)]
        try:
            responses = self._call(requests, replies)
        except _Wrong as error:
            self._fail(replies, str(error))
        except Exception as error:  # noqa: BLE001  # an exception of the user's code is its clients' answer
            self._fail(replies, _describe(error))
        else:
            for request, reply, response in zip(requests, replies, responses):
                if request.rescheduled:
                    self._reschedule(reply, response)
                else:
                    self._answer(reply, response)
        finally:
            for reply in replies:
                reply.release()

    def _execute_decoupled(self, batch: Batch) -> None:
        """Hand over the batch's requests, whose senders may answer when this has long returned.

        A coroutine is not waited for: the next batch may come while it is suspended.
        """
        replies = [StreamReply(request) for request in batch.requests]
        requests = [ServedRequest(request, reply) for request, reply in zip(batch.requests, replies)]
        try:
            returned = self._user_execute()(requests)
            if inspect.iscoroutine(returned):
                self._start_coroutine(returned).add_done_callback(partial(self._ended, replies))
            else:
                self._check_returned(returned)
            self._reschedule_streams(requests, replies)
        except _Wrong as error:
            self._fail_streams(replies, str(error))
        except Exception as error:  # noqa: BLE001  # an exception of the user's code is its clients' answer
            self._fail_streams(replies, _describe(error))
        finally:
            for reply in replies:
                reply.release()

    def _reschedule_streams(self, requests: Sequence[ServedRequest], replies: Sequence[StreamReply]) -> None:
        """Have those run again that the model asks it for. A coroutine that is suspended has not said yet: too late."""
        for request, reply in zip(requests, replies):
            if request.rescheduled:
                try:
                    reply.reschedule()
                except TritonModelException as error:
                    self._fail_streams([reply], str(error))

    def _ended(self, replies: Sequence[StreamReply], execution: Future[Any]) -> None:
        """A decoupled model's coroutine has ended, and with it whatever it did not leave to others."""
        try:
            self._check_returned(execution.result())
        except _Wrong as error:
            self._fail_streams(replies, str(error))
        except BaseException as error:  # noqa: BLE001  # of the user's code, a cancellation among them
            self._fail_streams(replies, _describe(error))

    def _check_returned(self, returned: object) -> None:
        if returned is not None:
            raise _Wrong(
                f"Python model '{self._info.instance_name}' is using the decoupled mode and the execute function"
                " must return None."
            )

    def _fail_streams(self, replies: Sequence[StreamReply], reason: str) -> None:
        self._info.log("error", self._failure(reason))
        for reply in replies:
            reply.fail(self._failure(reason))

    def _user_execute(self) -> Callable[[list[ServedRequest]], Any]:
        """Return the model's `execute`. Raises _Wrong where it has none."""
        execute: Callable[[list[ServedRequest]], Any] | None = getattr(self._model, "execute", None)
        if execute is None:
            raise _Wrong(f"Python model {self._path} does not implement `execute` method.")
        return execute

    def _call(
        self, requests: list[ServedRequest], replies: Sequence[Reply]
    ) -> Sequence[InferenceResponse | None]:
        """Run `execute` and check what it returns. Raises _Wrong, or what the model raises."""
        returned = self._user_execute()(requests)
        if inspect.iscoroutine(returned):
            returned = self._run_coroutine(returned)
        if returned is None and (
            any(reply.answered or reply.senders for reply in replies)
            or any(request.rescheduled for request in requests)
        ):
            return [None] * len(requests)
        if not isinstance(returned, list):
            raise _Wrong(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise _Wrong(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
                f" InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for response in returned:
            if response is not None and not isinstance(response, InferenceResponse):
                raise _Wrong(_not_a_response(response))
        return returned

    def _answer(self, reply: Reply, response: InferenceResponse | None) -> None:
        if response is None:
            reply.wait_for_senders()
            reply.fail(ErrorCode.INTERNAL, self._failure(_not_a_response(None)))
            return
        try:
            reply.give(response)
        except Exception as error:  # noqa: BLE001  # outputs that can't be encoded cost their own request only
            reply.fail(ErrorCode.INTERNAL, self._failure(_describe(error)))

    def _reschedule(self, reply: Reply, response: InferenceResponse | None) -> None:
        """Have a request run again, whose place in what `execute` returned is for None."""
        try:
            if response is not None:
                raise TritonModelException(
                    "A request that is rescheduled gets its response from a later execution: return None in its place."
                )
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

    def _run_coroutine(self, coroutine: Any) -> Any:
        """Return what `coroutine` returns, run on the model's event loop."""
        return self._start_coroutine(coroutine).result()

    def _start_coroutine(self, coroutine: Any) -> Future[Any]:
        """Run `coroutine` on the model's event loop."""
        import asyncio  # noqa: TID251  # the user's coroutines are written for it; costs 50 ms where they are not

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=self._loop.run_forever, name="model-asyncio", daemon=True
            )
            self._loop_thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def ready(self) -> bool:
        """Ask the model's `is_ready`, where it has one. The caller limits how long that may take."""
        is_ready = getattr(self._model, "is_ready", None)
        if is_ready is None:
            return True
        try:
            answer = is_ready()
            if inspect.iscoroutine(answer):
                answer = self._run_coroutine(answer)
        except Exception as error:  # noqa: BLE001  # a check that fails says "not ready"
            self._info.log("error", f"is_ready failed: {_describe(error)}")
            return False
        if not isinstance(answer, bool):
            self._info.log("error", "is_ready() must return a boolean value")
            return False
        return answer

    def unload(self) -> None:
        """Call `finalize`, whose errors are only logged, and end the event loop."""
        try:
            finalize = getattr(self._model, "finalize", None)
            returned = finalize() if finalize is not None else None
            if inspect.iscoroutine(returned):
                self._run_coroutine(returned)
        except Exception as error:  # noqa: BLE001  # nobody is left to be told but the log
            self._info.log("error", f"finalize failed: {_describe(error)}")
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join()
            self._loop.close()
            self._loop = None
        self._clean_up()

    def _clean_up(self) -> None:
        for path in self._added_paths:
            if path in sys.path:
                sys.path.remove(path)
        _forget(self._info)


def _check(model: ModelInfo) -> str:
    """Return the path of the model's file. Raises LoadError for what can't be honoured."""
    path = _check_file(model)
    cpu_only = model.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    if cpu_only not in ("yes", "no"):
        raise LoadError(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {cpu_only}'")
    for key, least, message in _MINIMA:
        if int(model.settings.get(key, least)) < least:
            raise LoadError(message)
    if model.settings.get("shm-region-prefix-name") == "":
        raise LoadError("shm-region-prefix-name must at least contain one character.")
    return path


def _check_file(model: ModelInfo) -> str:
    """Return the path of the model's file. Raises LoadError where it, or the environment it asks for, can't be had."""
    filename = model.artifact or PythonBackend.default_artifact
    if not filename.endswith(".py"):
        raise LoadError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    path = os.path.join(model.version_directory, filename)
    if not os.path.isfile(path):
        raise LoadError(f"Python model file not found in '{path}'")
    if "EXECUTION_ENV_PATH" in model.parameters:
        raise LoadError(
            f"model '{model.name}': EXECUTION_ENV_PATH is not supported by this version of Tritium"
        )
    return path


def _add_paths(model: ModelInfo) -> list[str]:
    """Make the model's own modules importable: after the standard library, before what is installed."""
    at = next(
        (i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))),
        len(sys.path),
    )
    added = [path for path in (model.version_directory, model.model_directory) if path not in sys.path]
    sys.path[at:at] = added
    return added


def _import(model: ModelInfo) -> Any:
    """Import `<version>.<stem>`, afresh, from the version directory only."""
    _forget(model)
    package = types.ModuleType(str(model.version))
    package.__path__ = [model.version_directory]
    sys.modules[package.__name__] = package
    stem = (model.artifact or PythonBackend.default_artifact)[: -len(".py")]
    return importlib.import_module(f"{package.__name__}.{stem}")


def _forget(model: ModelInfo) -> None:
    package = str(model.version)
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            del sys.modules[name]


def _arguments(model: ModelInfo) -> dict[str, str]:
    return {
        "model_config": json.dumps(model.config),
        "model_instance_kind": model.kind,
        "model_instance_name": model.instance_name,
        "model_instance_device_id": str(model.device_id),
        "model_repository": model.model_directory,
        "model_version": str(model.version),
        "model_name": model.name,
    }


def _not_a_response(value: object) -> str:
    return (
        "Expected an 'InferenceResponse' object in the execute function return list, found type"
        f" '{type(value)}'."
    )


def _describe(error: BaseException, *, within: str = "") -> str:
    """Return `Type: message` and the frames it came through, innermost first.

    This module's own are left out, and where `within` names a directory, all others that have no file in it.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if within:
        frames = [frame for frame in frames if frame.filename.startswith(os.path.join(within, ""))]
    lines = [f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames)]
    text = f"{type(error).__name__}: {error}"
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text
