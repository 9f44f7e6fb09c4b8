"""The stand-in for a model that is not loaded: it has the model loaded, and passes on waiting requests.

A `WaitingRoom` belongs to a model, and its `Dormant`s stand for the versions. The first request wakes the
model; further requests share that one load. No task runs here. The tasks that wait are those of the
frontends, and each submits its own request. The load is done by the residency actor (`actors.residency.residency`), and
waiting tasks don't notice its restart.

After a failed load the model is not loaded again for a while. A request that comes in that time is told why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from actors.seams.slices import in_slices
from actors.serving.intake import STOPPING
from actors.serving.model import ModelState
from actors.serving.validation import Validator
from actors.supervision.spec import Backoff
from actors.values.errors import Cancelled, DeadlineExceeded, TritiumError, Unavailable
from actors.values.marks import ClientMarks, marks_for
from actors.values.requests import InferRequest, ServedModel
from actors.values.specs import ModelKey, ModelSpec, QueueBounds

AFTER_FAILURE: Final = Backoff(initial=1.0, factor=2.0, cap=60.0, jitter=0.0, first_immediate=False)
"""How long a model that could not be loaded is left alone, by failures in a row."""

# Attempts to find the model loaded and submit the request; two for each load.
_ATTEMPTS: Final = 6

Resolve = Callable[[str, str], ServedModel]
"""From a name and a version to the model that answers now: `actors.values.interfaces.Models.resolve`."""


class _Sleeper:
    """A request that waits for the load."""

    def __init__(self) -> None:
        self.called = trio.Event()
        self.refusal: TritiumError | None = None

    def call(self, refusal: TritiumError | None) -> None:
        """End the wait. Only the first call counts."""
        if not self.called.is_set():
            self.refusal = refusal
            self.called.set()


class WaitingRoom:
    """The requests that wait until a model is loaded, and the results of its loads. Passive."""

    def __init__(self, key: ModelKey, ring: Callable[[], object]) -> None:
        """`ring` is called when a request begins to wait, or when none is left.

        It must neither block nor raise.
        """
        self.key = key
        # Requests in here: they wait for the load, or for the model to take them.
        self.waiting = 0
        # When the first of the requests that wait for a load came.
        self.wanted_since: float | None = None
        self.wakes = 0
        # Seconds of all wakes, each from the first request to the end of the load.
        self.wake_seconds = 0.0
        self._ring = ring
        self._nbytes = 0
        self._asleep: dict[InferRequest, _Sleeper] = {}
        self._closed = False
        self._failures = 0
        self._failure = ""
        self._retry_at = -math.inf

    # -- for requests ----------------------------------------------------------------------------------------

    def enter(self, request: InferRequest, bounds: QueueBounds) -> None:
        """Let `request` in; `leave` must follow. Raises Unavailable."""
        if self._closed:
            raise Unavailable(request.prefix + STOPPING)
        now = trio.current_time()
        if now < self._retry_at:
            raise Unavailable(
                f"{request.prefix}model '{self.key}' could not be loaded: {self._failure} "
                f"(tried again in {math.ceil(self._retry_at - now)} s at the earliest)",
                retry_after=self._retry_at - now,
            )
        if self.waiting >= bounds.requests:
            raise self._full(request, f"{self.waiting} requests wait", "tritium.queue.max_requests")
        if self.waiting and self._nbytes + request.nbytes > bounds.nbytes:
            raise self._full(request, f"requests of {self._nbytes} bytes wait", "tritium.queue.max_bytes")
        self.waiting += 1
        self._nbytes += request.nbytes

    def _full(self, request: InferRequest, waiting: str, setting: str) -> Unavailable:
        return Unavailable(
            f"{request.prefix}{waiting} already while model '{self.key}' is being loaded; "
            f"try again later, or raise the model's '{setting}'"
        )

    def leave(self, request: InferRequest) -> None:
        """Let the request out again, whether it succeeded or failed."""
        self.waiting -= 1
        self._nbytes -= request.nbytes
        if not self.waiting:
            self._ring()  # from now on the model may be evicted

    async def wait(self, request: InferRequest) -> None:
        """Wait until the model has been loaded.

        Raises TritiumError: not loaded, deadline passed, client left.
        """
        if self._closed:
            raise Unavailable(request.prefix + STOPPING)
        sleeper = self._asleep[request] = _Sleeper()
        if self.wanted_since is None:
            self.wanted_since = trio.current_time()
            self._ring()
        try:
            with trio.move_on_at(request.deadline):
                await sleeper.called.wait()
        finally:
            del self._asleep[request]
            if not self._asleep:
                self.wanted_since = None
        if sleeper.refusal is not None:
            raise sleeper.refusal
        if not sleeper.called.is_set():
            raise DeadlineExceeded(
                f"{request.prefix}the request's own deadline passed while model '{self.key}' was being loaded"
            )

    def call_off(self, request: InferRequest) -> bool:
        """The client left. The load and other requests go on. False where `request` does not wait here."""
        sleeper = self._asleep.get(request)
        if sleeper is not None:
            sleeper.call(Cancelled(""))
        return sleeper is not None

    # -- for the residency actor -----------------------------------------------------------------------------

    def open(self) -> None:
        """The model serves: let all waiting requests go there."""
        if self.wanted_since is not None:
            self.wakes += 1
            self.wake_seconds += trio.current_time() - self.wanted_since
        self.forgive()
        self._call(lambda _: None)

    def refuse(self, why: str) -> None:
        """The model can't be loaded now: tell all waiting requests. A later request may try again."""
        self._call(lambda request: Unavailable(f"{request.prefix}model '{self.key}' {why}"))

    def load_failed(self, why: str) -> None:
        """The model could not be loaded: tell all waiting requests, and those that come within a while."""
        self._failures += 1
        self._failure = why
        self._retry_at = trio.current_time() + AFTER_FAILURE.delay(self._failures, 0.0)
        self.refuse(f"could not be loaded: {why}")

    def forgive(self) -> None:
        """Forget failed loads: the model serves, or its files have changed."""
        self._failures, self._retry_at = 0, -math.inf

    def close(self) -> None:
        """The server stops: answer all waiting requests, and let no more in."""
        self._closed = True
        self._call(lambda request: Unavailable(request.prefix + STOPPING))

    def _call(self, refusal: Callable[[InferRequest], TritiumError | None]) -> None:
        self.wanted_since = None
        for request, sleeper in self._asleep.items():
            sleeper.call(refusal(request))


class Dormant(ServedModel):
    """One version of a model that is not loaded. Implements `actors.values.requests.ServedModel`."""

    def __init__(self, spec: ModelSpec, room: WaitingRoom, resolve: Resolve) -> None:
        self._spec = spec
        self._marks = marks_for(spec.traffic, spec.fairness)
        self._room = room
        self._resolve = resolve
        self._validate = Validator(spec)

    @property
    def spec(self) -> ModelSpec:
        """Its configuration."""
        return self._spec

    @property
    def marks(self) -> ClientMarks | None:
        """What a frontend notes of a client."""
        return self._marks

    async def submit(self, request: InferRequest) -> None:
        """Validate `request`, have the model loaded, and submit it there.

        See `actors.values.requests.ServedModel.submit`.
        """
        if self._validate.must_walk(request):
            await in_slices(self._validate.walk_strings(request))
        # A request that the model can't take must not load it.
        self._validate(request)
        self._room.enter(request, self.spec.queue_bounds)
        try:
            await self._pass_on_once_loaded(request)
        finally:
            self._room.leave(request)

    def submit_nowait(self, request: InferRequest) -> None:
        """Raise `trio.WouldBlock`: there is a load to wait for.

        See `actors.values.requests.ServedModel.submit_nowait`.
        """
        raise trio.WouldBlock

    async def _pass_on_once_loaded(self, request: InferRequest) -> None:
        for _ in range(_ATTEMPTS):
            model = self._serving(request)
            if isinstance(model, Dormant):
                await self._room.wait(request)
                continue
            if isinstance(model, ModelState):  # other models record the receiver themselves
                request.routed_to = model
            try:
                await model.submit(request)
            except Unavailable:
                if self._serving(request) is model:
                    raise
            else:
                return
        raise Unavailable(
            f"{request.prefix}model '{self.spec.key}' was evicted whenever it had been loaded for this request; more memory "
            "is needed by other models than '--resident-memory-limit' leaves"
        )

    def _serving(self, request: InferRequest) -> ServedModel:
        version = "" if request.requested_version < 0 else str(request.requested_version)
        return self._resolve(self.spec.name, version)

    def cancel(self, request: InferRequest) -> None:
        """The client left. See `actors.values.requests.ServedModel.cancel`."""
        request.cancelled = True
        if not self._room.call_off(request) and request.routed_to is not None:
            request.routed_to.cancel(request)
