"""A backend of engines of language models: one thread that steps, and a stream for each request.

    lane's thread      takes requests, checks them, and leaves them in the inbox
    engine's thread    between two steps: takes in what has come, aborts what is wanted no more; then
                       one step; then sends what it made, one part for each stream

A client that does not read never holds the engine up: while a stream's window is full, its tokens wait here,
and leave in one part. A step that raises means that the engine is dead: the worker ends, and the supervisor
starts another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import threading
import time
import traceback
from abc import abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode, InvalidArgument, TritiumError, Unavailable
from actors.values.generation.sleeping import SLEEP, WAKE
from engine.worker.backends.base import Backend, LoadError, SenderClosed
from engine.worker.calls import CallFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from actors.values.requests import Parameter
    from engine.worker.backends.base import Batch, BatchRequest, ModelInfo, ResponseSender
    from engine.worker.backends.language.engine import Gauges, StepEngine, StepOutput


def wait_asleep() -> None:
    """Have threads of OpenMP sleep while they wait for each other; of use before PyTorch is imported.

    By default they spin. An engine's step has hundreds of short parallel parts, and it shares its cores with
    the server and the text worker: a thread that is not on a core is waited for by one that burns another.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def check_level(model: ModelInfo, sleeps: Sequence[int]) -> None:
    """Raise LoadError if the model is to be put to sleep at a level that its engine does not have."""
    told = model.parameters.get("tritium.sleep", "0")
    if told != "0" and int(told) not in sleeps:
        raise LoadError(
            f"model '{model.name}': 'tritium.sleep' is {told}, but {_no_level(int(told), sleeps)}"
        )


def _no_level(level: int, sleeps: Sequence[int]) -> str:
    known = f"only at level {' or '.join(map(str, sleeps))}" if sleeps else "at no level"
    return f"this engine does not sleep at level {level}, {known}"


def give_memory_back() -> None:
    """Have the system have what is free: large blocks go at once, and small ones only where glibc is told."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


class LanguageBackend(Backend):
    """See the module. A subclass makes the engine."""

    language = True
    environments = True
    pure = True
    concurrent = False

    @abstractmethod
    def make_engine(self, model: ModelInfo) -> StepEngine:
        """Load the model. Raises LoadError."""

    def load(self, model: ModelInfo) -> None:
        """Load the model, and start the engine's thread."""
        if model.parameters.get("tritium.isolation") == "thread":
            raise LoadError(
                f"model '{model.name}' has an engine, which needs a process of its own, but"
                " 'tritium.isolation' is"
                " 'thread'; leave it out"
            )
        self._log = model.log
        self._engine = self.make_engine(model)
        check_level(model, self._engine.sleeps)
        self._streams: dict[int, _Stream] = {}
        self._inbox: deque[_Stream] = deque()
        self._wanted = threading.Condition()
        self._stopping = False
        self._numbers = 0
        self._calls = model.calls
        self._told: Gauges | None = None
        self._told_at = 0.0
        self._steps = 0
        self._asleep = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def facts(self) -> Mapping[str, Any]:
        """Tell what the server must know of the model (`actors.generation.engine`)."""
        engine = self._engine
        return {
            **engine.facts(),
            "context": engine.context,
            "stops": sorted(engine.stops),
            "resumes": list(engine.resumes),
            "identity": engine.identity,
        }

    def unload(self) -> None:
        """Let the engine go, once it has nothing to do."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify()
        self._thread.join()
        self._engine.close()

    def execute(self, batch: Batch) -> None:
        """Take requests in. They are answered by the engine's thread."""
        for request in batch.requests:
            try:
                stream = self._stream(request)
            except TritiumError as error:
                request.fail(error.code, error.message)
                continue
            with self._wanted:
                self._inbox.append(stream)
                self._wanted.notify()

    def _stream(self, request: BatchRequest) -> _Stream:
        ids: Sequence[int] = request.input("input_ids").tolist()
        sampling = json.loads(request.input("sampling").ravel()[0])
        order = self._order(sampling)
        prepared = None if order else self._engine.prepare(ids, sampling)
        self._numbers += 1
        return _Stream(self._numbers, prepared, request.sender(), order)

    def _order(self, sampling: Mapping[str, Any]) -> Callable[[], None] | None:
        """Return what the engine's thread is to do for a request without ids, if this is one."""
        if "load_adapter" in sampling:
            return partial(self._engine.load_adapter, sampling["load_adapter"])
        if SLEEP in sampling:
            return partial(self._fall_asleep, sampling[SLEEP])
        return self._wake if WAKE in sampling else None

    # -- the engine's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._engine.begin()
            while self._take_in():
                self._abort_unwanted()
                if self._engine.busy:
                    outputs = self._engine.step()
                    self._steps += 1
                    with self._together():
                        self._give(outputs)
                self._send_held()
                self._tell_gauges()
        except BaseException:  # noqa: BLE001  # the engine is dead, and with it all that it holds
            self._log("error", f"the engine has died\n{traceback.format_exc()}")
            os._exit(1)

    def _tell_gauges(self) -> None:
        """Tell the server what the engine is busy with: twice a second, and once when it is idle."""
        now = time.monotonic()
        if self._calls is None or (self._engine.busy and now - self._told_at < _TELL_EVERY):
            return
        gauges = self._engine.gauges()._replace(steps=self._steps)
        if gauges != self._told:
            self._told, self._told_at = gauges, now
            # A server that has gone is noticed where requests come from.
            with contextlib.suppress(OSError, CallFailed):
                self._calls.tell(GAUGES, gauges._asdict())

    def _take_in(self) -> bool:
        """Take in what has come, and wait for something to do. False at the end."""
        with self._wanted:
            while not (self._inbox or self._engine.busy):
                if self._stopping:
                    return False
                # Streams whose tokens wait for their clients, or that may be cancelled, are looked at.
                self._wanted.wait(_LOOK_AGAIN if self._streams else None)
                if self._streams:
                    break
            coming, self._inbox = self._inbox, deque()
        for stream in coming:
            try:
                if stream.order is not None:
                    stream.order()
                    stream.finish()
                    continue
                if self._asleep:
                    raise Unavailable("the engine is asleep")
                self._engine.add(stream.number, stream.prepared)
            except (InvalidArgument, Unavailable) as error:
                stream.fail(error.code, error.message)
            else:
                stream.prepared = None
                self._streams[stream.number] = stream
        return True

    def _fall_asleep(self, level: int) -> None:
        if self._asleep:
            return
        if level not in self._engine.sleeps:
            raise InvalidArgument(_no_level(level, self._engine.sleeps))
        if self._streams or self._engine.busy:
            raise Unavailable("the engine has streams, and does not fall asleep")
        self._engine.sleep(level)
        self._asleep = True
        give_memory_back()

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake()
            self._asleep = False

    def _abort_unwanted(self) -> None:
        gone = [number for number, stream in self._streams.items() if stream.sender.cancelled()]
        if gone:
            self._engine.abort([number for number in gone if not self._streams[number].ended])
            for number in gone:
                self._streams.pop(number).finish()

    def _together(self) -> contextlib.AbstractContextManager[None]:
        """Have what is sent leave in one frame."""
        stream = next(iter(self._streams.values()), None)
        return contextlib.nullcontext() if stream is None else stream.sender.together()

    def _give(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.stream)
            if stream is None:
                continue
            if output.error:
                del self._streams[output.stream]
                stream.fail(ErrorCode.INVALID_ARG if output.invalid else ErrorCode.INTERNAL, output.error)
            else:
                stream.take(output)
                self._send(stream)

    def _send_held(self) -> None:
        for stream in [each for each in self._streams.values() if each.holds]:
            self._send(stream)

    def _send(self, stream: _Stream) -> None:
        try:
            done = stream.send()
        except SenderClosed:
            if not stream.ended:
                self._engine.abort([stream.number])
            done = True
        if done:
            self._streams.pop(stream.number, None)


_LOOK_AGAIN = 0.005  # seconds
_TELL_EVERY = 0.5  # seconds

GAUGES = "engine.gauges"
"""The subject on which the server hears `Gauges` (`engine.observability.engines`)."""


class _Stream:
    """One request, and the tokens that were not sent."""

    __slots__ = (
        "_chances",
        "_embedding",
        "_facts",
        "_held",
        "ended",
        "finish_",
        "number",
        "order",
        "prepared",
        "reason",
        "sender",
    )

    def __init__(
        self, number: int, prepared: Any, sender: ResponseSender, order: Callable[[], None] | None = None
    ) -> None:
        self.number = number
        self.order = order  # what is to be done, which is all that is asked for
        self.prepared = prepared  # for the engine, until it has it
        self.sender = sender
        self.ended = False
        self.finish_ = ""
        self.reason: int | None = None
        self._held: list[int] = []
        self._chances: list[Any] = []
        self._facts: Mapping[str, Any] | None = None
        self._embedding: Sequence[float] | None = None

    @property
    def holds(self) -> bool:
        """Whether there is something to send."""
        return bool(self._held or self.ended)

    def take(self, output: StepOutput) -> None:
        """Add what a step has made."""
        self._held += output.ids
        if output.chances is not None:
            self._chances += output.chances
        if output.facts is not None:
            self._facts = output.facts
        if output.finish:
            self.ended, self.finish_, self.reason = True, output.finish, output.reason
        if output.embedding is not None:
            self.ended, self._embedding = True, output.embedding

    def send(self) -> bool:
        """Send what there is, if there is room; return whether that was the end. Raises SenderClosed."""
        if not self.holds or self.sender.would_wait():
            return False
        self.sender.send(
            list(self._outputs()), self._parameters() if self.finish_ else None, final=self.ended
        )
        self._held, self._chances, self._facts = [], [], None
        return self.ended

    def _parameters(self) -> dict[str, Parameter]:
        told: dict[str, Parameter] = {"finish": self.finish_}
        if self.reason is not None:
            told["stop_reason"] = self.reason
        return told

    def _outputs(self) -> Iterator[tuple[str, DataType, Any]]:
        if self._embedding is not None:
            yield "embedding", DataType.FP32, np.array(self._embedding, np.float32)
            return
        yield "token_ids", DataType.INT32, np.array(self._held, np.int32)
        if self._chances:
            yield "chances", DataType.BYTES, _json(self._chances)
        if self._facts is not None:
            yield "facts", DataType.BYTES, _json(self._facts)

    def fail(self, code: ErrorCode, message: str) -> None:
        """End it with an error."""
        try:
            self.sender.fail(code, message)
        except SenderClosed:
            return

    def finish(self) -> None:
        """End it without another answer."""
        try:
            self.sender.finish()
        except SenderClosed:
            return


def _json(value: Any) -> Any:
    text = np.empty(1, object)
    text[0] = json.dumps(value, separators=(",", ":")).encode()
    return text
