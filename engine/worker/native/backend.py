"""Runs libraries written for Triton's C API: `libtriton_<backend>.so`, unchanged (contract: c_abi.md).

The division of work: the shim, in C, holds the objects, answers what a library reads, and allocates outputs
in the batch's own memory. This module describes a batch in one call, and sends on what became of it. A
library runs in the worker's process and nowhere else, so that its crash is a worker's death like any other.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
from typing import TYPE_CHECKING, Any

from actors.values.errors import ErrorCode
from engine.worker.backends.base import Backend, LoadError
from engine.worker.backends.raw import address_of
from engine.worker.native.descriptions import PLAIN, Failure, Response, describe, describe_requests
from engine.worker.native.library import SHIM, Library, Loaded, check, row_bytes
from engine.worker.native.shim import Shim
from engine.worker.native.streams import OpenBatches
from engine.worker.native.table import SET_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from engine.worker.backends.base import Batch, ModelInfo

_PATIENCE = 10.0  # seconds that a library's threads may go on answering after the last batch
_ALIGNMENT = 64

VERBOSE = "log-verbose"
"""The setting by which a library's verbose lines are logged; Triton's flag is the server's."""


class NativeBackend(Backend):
    """See the module."""

    name = "c_library"
    pure = False  # a library may have effects of its own
    concurrent = True  # each lane is an instance of its own
    whole_batches = False

    @classmethod
    def complete_config(cls, model: ModelInfo) -> Mapping[str, Any] | None:
        """Have the library complete the configuration, if it has anything to do with that."""
        if SET_CONFIG not in check(model.artifact):
            return None
        loaded = Loaded(_shim(model), Library(model.artifact), model, completes=True)
        completed = loaded.shim.completed(loaded.model)
        loaded.end()
        return None if completed is None else dict(json.loads(completed))

    def load(self, model: ModelInfo) -> None:
        """Load the library, initialise the model, and make an instance for each lane."""
        if model.parameters.get("tritium.isolation") == "thread":
            raise LoadError(
                f"backend '{model.config.get('backend')}' is a C library, whose crash would be the server's"
                " with 'tritium.isolation' = 'thread'; leave it out"
            )
        check(model.artifact)
        self._model = model
        shim = self._shim = _shim(model)
        self._loaded = Loaded(shim, Library(model.artifact), model, completes=False)
        self._places = {tensor.name: place for place, tensor in enumerate(model.inputs)}
        self._names = [tensor.name for tensor in model.outputs]
        self._outputs = {name: place for place, name in enumerate(self._names)}
        rows = (row_bytes(tensor.backend_dims, tensor.datatype.size) for tensor in model.outputs)
        self._row_bytes = [nbytes for nbytes in rows if nbytes >= 0]
        self._learned = 0
        self._tokens = itertools.count(1)
        self._open = OpenBatches(shim, self._loaded.model, self._names) if model.decoupled else None
        self._instances: list[_Instance] = []
        names = [model.instance_name] + [f"{model.instance_name}_{at}" for at in range(1, model.lanes)]
        self._idle: queue.SimpleQueue[_Instance] = queue.SimpleQueue()
        for name in names:
            instance = _Instance() if model.lanes == 1 else _InstanceThread()
            instance.start(self._loaded, name)
            self._instances.append(instance)
            self._idle.put(instance)

    def has_check(self) -> bool:
        """Return whether the library has `TRITONBACKEND_ModelInstanceReady`."""
        return self._loaded.has_check

    def ready(self) -> bool:
        """Ask the instances."""
        return all(self._loaded.ready(instance.handle) for instance in self._instances)

    def execute(self, batch: Batch) -> None:
        """Have an instance execute the batch, on its thread."""
        instance = self._idle.get()
        try:
            instance.run(lambda: self._execute(batch, instance.handle))
        finally:
            self._idle.put(instance)

    def unload(self) -> None:
        """Finalise the instances, the model and the backend, once the library's threads have done."""
        if self._open is not None and not self._open.wait_empty(_PATIENCE):
            self._model.log(
                "warning",
                "the library still has requests to answer: it ends with the process, without its finalisers",
            )
            return
        for instance in self._instances:
            instance.end(self._loaded)
        if self._open is not None:
            self._open.close()
        self._loaded.end()
        _, _, responses, factories = self._shim.alive()
        if responses or factories:
            self._model.log(
                "warning",
                f"the library has left {responses} responses and {factories} response factories behind",
            )

    def _execute(self, batch: Batch, instance: int) -> None:
        requests = batch.requests
        raw = batch.raw
        inputs = raw.inputs()
        room = raw.room(self._wanted_room(batch.rows))
        carried = PLAIN if raw.plain else describe_requests(requests, self._outputs)
        rows = [request.rows for request in requests]
        token = next(self._tokens)
        if self._open is not None:
            gone = bytearray(len(rows) + 1)
            flags = address_of(gone), len(rows)
            description = describe(token, rows, inputs, self._places, room, flags) + carried
            self._open.begin(token, [request.sender() for request in requests], gone, (batch, inputs))
            self._execute_open(self._open, token, instance, description)
            return
        description = describe(token, rows, inputs, self._places, room, raw.cancel_flags) + carried
        data, handle = self._shim.execute(self._loaded.execute, instance, description)
        try:
            outcome = self._shim.reading(data, self._names).outcome(len(rows))
        finally:
            # What lies outside of the room has been copied.
            self._shim.free("batch", handle)
        self._learned = max(self._learned, outcome.needed)
        if outcome.failure is not None:
            batch.fail(outcome.failure.code, outcome.failure.message)
        elif outcome.stacked is not None:
            raw.respond(outcome.stacked, room)
        else:
            for index, (request, answer) in enumerate(zip(requests, outcome.each or ())):
                if isinstance(answer, Response):
                    raw.respond_to(index, answer.outputs, room, answer.parameters)
                elif isinstance(answer, Failure):
                    request.fail(answer.code, answer.message)
                else:
                    request.fail(
                        ErrorCode.INTERNAL,
                        f"the library of backend '{self._model.config.get('backend')}' released the request"
                        " without a response",
                    )

    def _execute_open(self, opened: OpenBatches, token: int, instance: int, description: bytearray) -> None:
        data, handle = self._shim.execute(self._loaded.execute, instance, description)
        failure = self._shim.reading(data, self._names).outcome(0).failure if data else None
        if failure is not None:
            opened.abandon(token, handle, failure)
        else:
            opened.returned(token, handle)

    def _wanted_room(self, rows: int) -> int:
        """Return the bytes that a batch's outputs are likely to take; more than those are copied once."""
        if self._open is not None:  # responses travel in frames
            return 0
        known = sum(-(-nbytes * rows // _ALIGNMENT) * _ALIGNMENT for nbytes in self._row_bytes)
        return max(known, self._learned)


class _Instance:
    """An instance whose batches are executed on the thread that asks."""

    handle = 0

    def start(self, loaded: Loaded, name: str) -> None:
        """Initialise it. Raises LoadError."""
        self.run(lambda: self._initialise(loaded, name))

    def _initialise(self, loaded: Loaded, name: str) -> None:
        self.handle = loaded.instance(name)

    def run(self, call: Callable[[], None]) -> None:
        """Do something on its thread, and wait until it is done. Raises what that raises."""
        call()

    def end(self, loaded: Loaded) -> None:
        """Finalise it."""
        self.run(lambda: loaded.end_instance(self.handle))


class _InstanceThread(_Instance):
    """An instance with a thread of its own, from its initialisation on."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="instance", daemon=True).start()

    def _serve(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # it is raised where the call was asked for
                self._done.put(error)
            else:
                self._done.put(None)

    def run(self, call: Callable[[], None]) -> None:
        """Have the thread do it. See `_Instance.run`."""
        self._calls.put(call)
        error = self._done.get()
        if error is not None:
            raise error

    def end(self, loaded: Loaded) -> None:
        """Finalise it, and end the thread."""
        super().end(loaded)
        self._calls.put(None)


def _shim(model: ModelInfo) -> Shim:
    shim = Shim(model.settings[SHIM])
    shim.log_to(model.log, verbose=model.settings.get(VERBOSE, "").lower() in ("1", "true", "on"))
    return shim
