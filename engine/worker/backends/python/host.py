"""What `triton_python_backend_utils` knows of the model that uses it, and of the execution that runs.

The module's functions take no model as an argument, so each thread belongs to one model. That is the model
attached to the thread, or else the one that was loaded last, which in a process of its own is the only one.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from engine.worker.backends.python.tensors import TritonModelException, as_text
from engine.worker.backends.python.tracing import NO_SPAN, recording_of, span_in
from engine.worker.forking import when_forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from engine.worker.backends.base import Batch
    from engine.worker.backends.python.telling import MetricChanges
    from engine.worker.backends.python.tracing import AnySpan, Attribute, Recording
    from engine.worker.calls import Calls, Origin

COMPLETING = "auto_complete_config"
INITIALIZING = "initialize"
SERVING = "execute"
FINALIZING = "finalize"

DEFAULT_POOL_SIZE = 32  # `thread-pool-size`, contract section 12
MOST_READERS = 24  # and so many plain `for` of coroutines may wait within each other
WHOLE_BATCH = -1  # in an origin, in place of a request's index

_NO_CALLS = "a model reaches its server only where that has loaded it, and not in auto_complete_config"


class Host:
    """A loaded model, as the module's functions see it. `phase` names the method that it has reached."""

    def __init__(
        self,
        directory: str,
        log: Callable[[str, str], None],
        *,
        instance_name: str = "",
        calls: Calls | None = None,
        pool_size: int = DEFAULT_POOL_SIZE,
        phase: str = INITIALIZING,
    ) -> None:
        """`directory` is the version directory; `calls` is None if there is no server to call."""
        self.directory = directory
        self.log = log
        self.instance_name = instance_name
        self.phase = phase
        self.metrics: MetricChanges | None = None  # made with the model's first metric
        self._calls = calls
        self._pool_size = pool_size
        self._pool: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._making = threading.Lock()
        when_forked(self)

    def forked(self) -> None:
        """This is a process that the model has forked.

        It may call, whatever its model was at: by now that may be another method.
        """
        self._making = threading.Lock()
        self._pool = self._readers = None  # whose threads are not here
        if self.phase == INITIALIZING:
            self.phase = SERVING

    @property
    def calls(self) -> Calls:
        """The way to the server. Raises TritonModelException if there is none."""
        if self._calls is None:
            raise TritonModelException(_NO_CALLS)
        return self._calls

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads of `async_exec`, at most `thread-pool-size` of them, made on first use."""
        # Imported here: with what it imports, it is too much for a model that makes no calls.
        from concurrent.futures import ThreadPoolExecutor

        with self._making:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._pool_size, "model-calls", initializer=attach, initargs=(self,)
                )
            return self._pool

    @property
    def readers(self) -> ThreadPoolExecutor:
        """Threads that wait for a plain `for` in a coroutine.

        They are not the pool's, because all of the pool's threads may be waiting for what the `for` gives.
        """
        from concurrent.futures import ThreadPoolExecutor

        with self._making:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(
                    MOST_READERS, "model-readers", initializer=attach, initargs=(self,)
                )
            return self._readers

    def failure(self, message: str) -> str:
        """Return the text with which Triton wraps what the server answers to a model."""
        return f"Failed to process the request for model '{self.instance_name}', message: {message}"

    def close(self) -> None:
        """End the threads, once what they wait for has ended."""
        for pool in (self._pool, self._readers):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        if self.metrics is not None:
            self.metrics.close()


class _Attached(threading.local):
    last: Host | None = None  # shared: an attribute of the class
    current: Host | None = None


_attached = _Attached()


def checked_text(what: str, value: object) -> str:
    """Return a text that can travel to the server. Raises TritonModelException for what is none."""
    if type(value) is str and value.isascii():  # as nearly all are
        return value
    try:
        text = as_text(what, value)
        text.encode()
    except TypeError:
        raise TritonModelException(f"{what} must be a str, got {type(value).__name__}") from None
    except UnicodeEncodeError as error:
        raise TritonModelException(f"{what} has a character that is no text: {error}") from error
    return text


def attach(host: Host) -> None:
    """Have the calling thread belong to a model, and so threads that belong to none."""
    _Attached.last = _attached.current = host


def current_host() -> Host:
    """Return the model that the calling thread belongs to. Raises TritonModelException if there is none."""
    host = _attached.current or _Attached.last
    if host is None:
        raise TritonModelException(
            "triton_python_backend_utils works only within a model that a server has loaded"
        )
    return host


class CallContext:
    """One run of `execute`: calls that name no request are made on its behalf.

    It lies in a context variable, so it goes along into the coroutines and the pool's threads that the run
    starts. Threads of the model's own have none.
    """

    __slots__ = ("_batch", "_calls", "_looked", "_parent", "_recording", "_traceparent", "running")

    def __init__(self, batch: Batch, calls: Calls | None = None) -> None:
        """`calls` is the way to the server, which is told of the model's spans."""
        self._batch: Batch | None = batch
        self._calls = calls
        self._recording: Recording | None = None
        self._looked = False  # for what is traced
        self._parent: Origin | None = None
        self._traceparent = ""
        self.running = True  # `execute` has not returned

    @property
    def parent(self) -> Origin | None:
        """The request that is executed.

        If there are several it is the batch, which is over when all of them are.
        """
        self._look()
        return self._parent

    @property
    def recording(self) -> Recording | None:
        """Where the model's spans go; None if no request is traced."""
        if not self._looked and self._batch is not None:
            self._looked = True
            self._recording = recording_of(self._batch, self._calls)
        return self._recording

    def flush(self) -> None:
        """Tell the server of the model's spans, before it has the answers."""
        if self._recording is not None:
            self._recording.flush()

    @property
    def traceparent(self) -> str:
        """The W3C context of the execution, or else what came with the request as a parameter.

        Empty without one, and if there are several requests.
        """
        self._look()
        return self._traceparent

    def _look(self) -> None:
        if self._parent is not None or self._batch is None:
            return
        requests = self._batch.requests
        self._parent = requests[0].origin
        if len(requests) == 1:
            trace = requests[0].trace
            self._traceparent = trace[0] if trace else str(requests[0].parameters.get("traceparent", ""))
        elif self._parent is not None:
            self._parent = self._parent[0], WHOLE_BATCH

    def end(self, *, outlived: bool) -> None:
        """`execute` has returned; with `outlived` its requests may still be open and may still make calls."""
        self.running = False
        if outlived:
            self._look()
            _ = self.recording
        self._batch = None


call_context: ContextVar[CallContext | None] = ContextVar("call_context", default=None)


def span(name: str, **attributes: Attribute) -> AnySpan:
    """Return a span of the running model's own, for `with`: a part of the traces that have this execution.

    It costs next to nothing where no request is traced. Outside of `execute`, and in threads that the model
    starts itself, it does nothing.
    """
    context = call_context.get()
    recording = None if context is None else context.recording
    return NO_SPAN if recording is None else span_in(recording, name, attributes)
