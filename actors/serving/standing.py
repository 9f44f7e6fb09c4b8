"""Where one model version stands: its status, its instances, and how its load went. Passive.

A version becomes READY when all its instances have joined for the first time. After that, the death of an
instance changes nothing here. Only when every instance keeps dying does the version become UNAVAILABLE.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

import trio

from actors.serving.instances.batches import HeldBatches
from actors.serving.instances.phases import LoadPhases
from actors.serving.instances.worker import LiveWorker
from actors.serving.policy.retries import SuspectQueue
from actors.values.specs import InstanceSpec, ModelSpec

CHECK_SECONDS: Final = 5.0  # contract, python_backend.md section 1.2


class Status(Enum):
    """Where a model version stands, in the repository index's words (contract, repository.md section 4)."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


STATUS_CHANGES: Final[Mapping[Status, frozenset[Status]]] = {
    Status.LOADING: frozenset({Status.READY, Status.UNAVAILABLE, Status.UNLOADING}),
    Status.READY: frozenset({Status.UNAVAILABLE, Status.UNLOADING}),
    Status.UNAVAILABLE: frozenset({Status.READY, Status.UNLOADING}),
    Status.UNLOADING: frozenset({Status.UNAVAILABLE}),
}


class InstanceState:
    """The part of an instance that outlives its worker: its status, its suspects, its counts."""

    def __init__(self, spec: InstanceSpec, key: str) -> None:
        self.spec = spec
        # Its name in the supervision tree. No other instance of the version ever has the same one.
        self.key = key
        self.pid: int | None = None  # of its worker, from launch to burial
        self.settled = trio.Event()  # it has joined for the first time, or failed to
        self.load_error = ""  # why it failed to join
        self.worker: LiveWorker | None = None  # set while its model is loaded and warm
        self.held = HeldBatches(spec.lanes)  # its batches, and the channel by which they come
        self.suspects = SuspectQueue()  # batches that killed this instance, to run alone
        self.exhausted = False
        self.started_once = False
        self.restarts = 0
        self.last_reason = ""

    @property
    def hunting(self) -> bool:
        """Whether it looks for the request that killed it. It takes no fresh traffic until then."""
        suspects = self.suspects  # asked several times a batch, so nothing here is a call
        return suspects.running != () or suspects.groups != []


class Standing:
    """The status and the instances of one model version."""

    def __init__(self, spec: ModelSpec, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever the status and its reason are new."""
        self.status = Status.LOADING
        self.reason = ""
        self.phase = "starting"  # what a load is busy with
        self.phase_since = trio.current_time()
        self.phases = LoadPhases()
        self.since = self._created_at = trio.current_time()
        self.load_seconds = 0.0
        self.load_finished = trio.Event()  # READY or UNAVAILABLE for the first time
        self.ended = trio.Event()  # it was retired, has drained, and its workers are gone
        # From their joining to their burial, also those whose instances stop or were removed.
        self.workers: dict[LiveWorker, None] = {}
        self._title = f"{spec.name}/{spec.version}"
        self._on_change = on_change
        self._keys = itertools.count()
        self.instances = [InstanceState(instance, str(next(self._keys))) for instance in spec.instances]
        # The instances that execute, the least recently served first. A passive instance is not in it.
        self.rotation = [each for each in self.instances if not each.spec.passive]

    def enter(self, phase: str) -> None:
        """The load of an instance is busy with something else now."""
        if phase != self.phase:
            self.phase, self.phase_since = phase, trio.current_time()
            self.phases.enter(phase, self.phase_since)

    def become(self, status: Status, reason: str = "") -> None:
        """Change the status, if it differs. Raises ValueError for a change that the table forbids."""
        if status is self.status:
            return
        if status not in STATUS_CHANGES[self.status]:
            raise ValueError(f"{self._title} can't go from {self.status.value} to {status.value}")
        self.status, self.reason, self.since = status, reason, trio.current_time()
        if not self.load_finished.is_set():
            self.load_seconds = self.since - self._created_at
            self.load_finished.set()
        self._on_change()

    @property
    def degraded(self) -> bool:
        """Whether it serves with fewer instances than it should."""
        return self.status is Status.READY and any(instance.exhausted for instance in self.instances)

    @property
    def exhausted(self) -> bool:
        """Whether every instance keeps dying and none lives."""
        return all(each.exhausted and each.worker is None for each in self.rotation)

    def joined(self, instance: InstanceState, worker: LiveWorker) -> None:
        """An instance's model is loaded and warm."""
        instance.restarts += instance.started_once
        instance.worker, instance.started_once = worker, True
        self.workers[worker] = None
        instance.settled.set()
        # Not after a failed load: that is final, even where a sibling's load ends after it.
        if self.status in (Status.LOADING, Status.UNAVAILABLE) and all(
            each.started_once for each in self.instances
        ):
            self.become(Status.READY)

    def load_failed(self, reason: str, instance: InstanceState | None = None) -> None:
        """An instance could not load the model, or died while loading.

        Before the version first serves, that is final.
        """
        if instance is not None and not instance.started_once:
            instance.load_error = reason
            instance.settled.set()
        if self.status is Status.LOADING:
            self.become(Status.UNAVAILABLE, reason)

    def add_instances(self, specs: Sequence[InstanceSpec]) -> list[InstanceState]:
        """Make room for more instances, which the caller starts."""
        added = [InstanceState(spec, str(next(self._keys))) for spec in specs]
        self.instances += added
        self.rotation += (each for each in added if not each.spec.passive)
        return added

    def remove(self, instance: InstanceState) -> None:
        """Forget an instance, which is no longer waited for."""
        self.instances.remove(instance)
        # A passive instance is never in it, nor is one that was given up as stuck.
        if instance in self.rotation:
            self.rotation.remove(instance)
        instance.settled.set()

    async def says_ready(self) -> bool:
        """Whether the version serves and its live instances say that they are ready, within `CHECK_SECONDS`.

        Only an instance with its own check is asked.
        """
        if self.status is not Status.READY:
            return False
        said = await self.asked()
        return said is not None and all(ready for _, _, ready in said)

    async def asked(self) -> list[tuple[InstanceState, LiveWorker, bool]] | None:
        """Ask each live instance now whether it is ready, and return the answers.

        Returns None where that takes longer than `CHECK_SECONDS`.
        """
        workers = [(each, each.worker) for each in self.instances if each.worker is not None]
        said: list[tuple[InstanceState, LiveWorker, bool]] = []
        all_answered = trio.Event()

        def tell(instance: InstanceState, worker: LiveWorker, ready: bool) -> None:  # `LiveWorker.probe`'s
            said.append((instance, worker, ready))
            if len(said) == len(workers):
                all_answered.set()

        tells = [(worker, partial(tell, instance, worker)) for instance, worker in workers]
        for worker, each in tells:
            worker.probe(each)
        try:
            if len(said) < len(workers):
                with trio.move_on_after(CHECK_SECONDS):
                    await all_answered.wait()
        finally:
            for worker, each in tells:
                worker.forget(each)
        return said if len(said) == len(workers) else None

    @property
    def silent_for(self) -> float:
        """For how many seconds each engine has shown no sign of life at its work; 0 while one lives."""
        workers = [each.worker for each in self.rotation if each.worker is not None]
        return min((worker.silent_for for worker in workers), default=0.0)

    def stuck_for(self, now: float) -> float:
        """Return for how many seconds every serving instance has been busy with one execution.

        Returns 0 while one instance is not.
        """
        workers = [each.worker for each in self.rotation if each.worker is not None]
        since = max((worker.stuck_since for worker in workers), default=math.inf)
        return now - since if since < math.inf else 0.0
