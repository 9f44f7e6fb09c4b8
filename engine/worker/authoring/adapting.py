"""A declared model as the class `TritonPythonModel` that the Python backend runs.

How a function is called follows from what it is. A function that batches has the rows of several requests
joined. A function that asks for the `Request`, or is a generator, is called for each request. The calls of a
coroutine for the requests of a batch are under way together. What is raised for one call answers the requests
of that call, and no others.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode
from engine.worker.authoring.answering import Answerer
from engine.worker.authoring.calls import calls_of
from engine.worker.authoring.configuring import compare, complete
from engine.worker.authoring.requests import Instance
from engine.worker.authoring.signature import Kind
from engine.worker.authoring.streaming import send_all, send_all_async
from engine.worker.backends.python.tracing import places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from engine.worker.authoring.calls import Call
    from engine.worker.authoring.declaring import Declared
    from engine.worker.backends.base import Batch
    from engine.worker.backends.python.completion import ModelConfig
    from engine.worker.backends.python.exchange import InferenceRequest
    from engine.worker.backends.python.responses import InferenceResponse


def adapted(declared: Declared) -> type[AdaptedModel]:
    """Return the class that the backend makes an object of, for each instance."""
    bases: dict[Kind, type[AdaptedModel]] = {
        Kind.VALUE: _Values,
        Kind.COROUTINE: _Coroutines,
        Kind.STREAM: _Streams,
        Kind.ASYNC_STREAM: _AsyncStreams,
    }
    body: dict[str, Any] = {"declared": declared, "__module__": declared.target.__module__}
    if declared.is_class and hasattr(declared.target, "ready"):
        body["is_ready"] = lambda self: self.target.ready()
    return type("TritonPythonModel", (bases[declared.signature.kind],), body)


class AdaptedModel:
    """What all kinds have in common: the configuration, and the object behind a class."""

    declared: Declared  # of the class that `adapted` makes
    target: Any

    @classmethod
    def auto_complete_config(cls, config: ModelConfig) -> ModelConfig:
        """Tell the configuration what the hints say. Raises ValueError if it already says something else."""
        return complete(config, cls.declared)

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Make the object behind a class; a function has none.

        Raises DeclarationError for another configuration.
        """
        instance = Instance.from_arguments(arguments)
        compare(self.declared, instance)
        self._inputs = self.declared.signature.inputs
        self._answerer = Answerer(self.declared, instance.name)
        self._ragged = any(port.get("allow_ragged_batch") for port in instance.config.get("input", ()))
        target = self.declared.target
        self.target = _made(target, instance) if self.declared.is_class else target

    def finalize(self) -> Any:
        """Close the object behind a class, if it can be closed.

        If that is a coroutine, the backend waits for it.
        """
        return self.target.close() if self.declared.is_class and hasattr(self.target, "close") else None


class _Values(AdaptedModel):
    """A function that returns its outputs."""

    @property
    def takes_batches(self) -> bool:
        """Whether a batch can be given to one call as it is.

        The function joins, and all rows of a batch are of the same dims.
        """
        return self.declared.joins and not self._ragged

    def execute_batch(self, batch: Batch) -> None:
        """Answer a batch by one call over its stacked tensors, without requests and responses for each."""
        arguments = {name: batch.stacked(name) for name in batch.input_names if name in self._inputs}
        try:
            outputs = self._answerer.outputs(self.target(**arguments), batch.rows)
        except Exception as error:  # noqa: BLE001  # the model's exception is its clients' answer
            failure = self._answerer.failure(error)
            batch.fail(ErrorCode[failure.code().name], failure.message())
        else:
            batch.respond(outputs)

    def execute(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
        """Call the function as often as it takes."""
        answerer = self._answerer
        calls = calls_of(requests, self.declared)
        try:
            return answerer.in_order(calls, [self._outcome(call) for call in calls])
        finally:
            places.set(None)

    def _outcome(self, call: Call) -> Any:
        places.set(call.positions)  # whose spans the function makes
        try:
            return self.target(**call.arguments)
        except Exception as error:  # noqa: BLE001  # the model's exception is its clients' answer
            return error


def batch_execution(model: object) -> Callable[[Batch], None] | None:
    """Return what runs a whole batch of `model` in one call.

    Returns None if requests must be given to it one by one.
    """
    return model.execute_batch if isinstance(model, _Values) and model.takes_batches else None


class _Coroutines(AdaptedModel):
    """A coroutine function."""

    async def execute(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
        """Await all calls of a batch together."""
        import asyncio  # noqa: TID251  # the loop of user code, as in the backend

        calls = calls_of(requests, self.declared)
        outcomes = await asyncio.gather(*(self._outcome(call) for call in calls), return_exceptions=True)
        return self._answerer.in_order(calls, outcomes)

    async def _outcome(self, call: Call) -> Any:
        places.set(call.positions)  # in this task alone
        return await self.target(**call.arguments)


class _Streams(AdaptedModel):
    """A generator: one request after the other, on the model's own thread."""

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Send what the generator yields, for each request."""
        for request, call in zip(requests, calls_of(requests, self.declared)):
            send_all(self.target, call, request.get_response_sender(), self._answerer)


class _AsyncStreams(AdaptedModel):
    """An asynchronous generator: the requests of this batch and of others are under way together."""

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Send what the generators yield, as it comes."""
        import asyncio  # noqa: TID251  # the loop of user code, as in the backend

        await asyncio.gather(
            *(
                send_all_async(self.target, call, request.get_response_sender(), self._answerer)
                for request, call in zip(requests, calls_of(requests, self.declared))
            )
        )


def _made(target: type[Any], instance: Instance) -> Any:
    """Make the object; a constructor that takes an argument is given the instance."""
    needed = [
        parameter
        for parameter in inspect.signature(target).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return target(instance) if needed else target()
