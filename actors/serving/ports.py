"""The ports through which features join a model version. Each is empty by default.

What is called once a request is a base class, and not a protocol: compiled, such a call costs a
twentieth. A version without features pays one truth test for each port.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from actors.serving.instances.batches import InFlight
from actors.serving.standing import InstanceState
from actors.values.errors import TritiumError
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest, InferResponse, ServedModel
from actors.wire.batch_frames import Result


class Stage:
    """A feature that takes part in the way of each request: when it is submitted, and when it is answered.

    The methods are in the order in which a request comes to them. Each does nothing unless it is overridden.
    """

    keeps_requests: ClassVar[bool] = False
    """Whether requests may wait in the stage, which may look at their inputs elsewhere."""

    @property
    def waiting(self) -> int:
        """How many requests wait in the stage."""
        return 0

    def intercept(self, request: InferRequest) -> bool:
        """Whether the stage answers a valid `request`, now or later. It then needs no room in the queue."""
        return False

    def admit(self, request: InferRequest) -> None:
        """Raise TritiumError for a request that is to be refused before it waits for room."""

    def accepted(self, request: InferRequest) -> None:
        """There is room for `request`: it is accepted, unless the queue itself refuses it."""

    def holds(self, request: InferRequest) -> bool:
        """Whether an accepted `request` waits in the stage before it is queued."""
        return False

    def queued(self, request: InferRequest) -> None:
        """`request` is in the queue."""

    def cached(self, request: InferRequest) -> None:
        """`request` is about to be answered from a cache."""

    def responding(self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool) -> None:
        """`request` is about to be given `part`. No other code has seen it, or may have given it back."""

    def withdraw(self, request: InferRequest) -> bool:
        """End the wait of `request`, if it waits in the stage. If True, the caller answers it."""
        return False

    def is_wanted(self, request: InferRequest) -> bool:
        """Whether the stage needs the answer of a running `request`, whose client has left."""
        return False

    def abandon(self) -> Sequence[InferRequest]:
        """Return all requests that wait in the stage, for the caller to answer."""
        return ()


class BatchObserver:
    """A feature that is told of batches. Each method does nothing unless it is overridden."""

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """`batch` was handed to `instance`."""

    def part(self, batch: InFlight, request: InferRequest, *, final: bool) -> None:
        """A part of the answer of a decoupled model to `request` has come, and is about to be passed on."""

    def finished(self, batch: InFlight, result: Result) -> None:
        """The execution of `batch` is over; its requests are about to be answered."""

    def died(self, batch: InFlight, reason: str) -> None:
        """The worker is gone that had begun with `batch`, or may have."""

    def taken_back(self, batch: InFlight) -> None:
        """`batch` will not run where it was dispatched to: its model has not begun with it."""


class Observers:
    """The observers of one version. All that are in `told` are told.

    The one of spans is among them only while a traced request is in flight.
    """

    __slots__ = ("_always", "_of_spans", "_traced", "told")

    def __init__(self, always: tuple[BatchObserver, ...] = (), of_spans: BatchObserver | None = None) -> None:
        self.told = always
        self._always = always
        self._of_spans = of_spans
        self._traced = 0

    def traced(self) -> None:
        """A traced request is in flight."""
        self._traced += 1
        if self._traced == 1 and self._of_spans is not None:
            self.told = (*self._always, self._of_spans)

    def untraced(self) -> None:
        """A traced request is answered."""
        self._traced -= 1
        if not self._traced:
            self.told = self._always


class Composite(Protocol):
    """What runs the requests of an ensemble, which has no instances (`actors.ensembles.ensemble`)."""

    def cancel(self, request: InferRequest) -> None:
        """The client of a request that has left the queue has gone. Never raises."""

    def steps_of(self, request: InferRequest) -> Sequence[tuple[ServedModel, InferRequest]]:
        """Return the requests to models that `request` waits for, each until its final answer.

        `request` has left the queue.
        """

    def give_up(self) -> None:
        """Cancel everything that runs: it has been answered, and its results are not needed."""

    def keep(self) -> None:
        """A request counts on the ensemble: keep the models that it is composed of as long."""

    def let_go(self) -> None:
        """No request counts on the ensemble any more."""


class Mover(Protocol):
    """Takes requests off an instance that leaves, where others can go on with them (`actors.generation`)."""

    async def vacate(self, instance: InstanceState) -> None:
        """Return once an instance that is given no more batches holds none, or where that takes too long."""


class Sleeper(Protocol):
    """Puts the engines of a version to sleep, and wakes them (`actors.generation`). Nothing here waits.

    The version serves all the time. A request that comes while it sleeps waits in its queue.
    """

    level: int
    """How deep its engines may be put to sleep when their memory is wanted; 0: they may not."""

    state: SleepState
    """Where all of its engines stand."""

    wanted_since: float | None
    """Since when a request waits for it to wake."""

    awake_since: float
    """When it woke last, or was made."""

    wake_seconds: float
    """How long it took to wake the last time, from the order on; 0: it never has."""

    trouble: str
    """Why it stayed awake the last time; empty if it did not."""

    on_change: Callable[[], None]
    """Called when any of these has changed. It must neither block nor raise."""

    def fall_asleep(self, level: int, until: float) -> None:
        """Give engines nothing new, and put them to sleep when they have answered what they have.

        Where that takes until then, or where an engine can't, they go on as before. Nothing happens unless it
        is awake.
        """

    def wake(self) -> None:
        """Wake the engines. Nothing happens unless it is asleep, or about to be."""

    def refuse(self, why: str) -> None:
        """It can't wake now: tell those that wait for it."""
