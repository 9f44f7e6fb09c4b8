"""Stand-ins for a model's surroundings: reply ports, workers that finish on cue, model specifications."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import trio

from actors.sequences.policy.sequences import sequencing_of
from actors.sequences.sequencer import run as run_sequencer
from actors.serving.batcher import run as run_scheduler
from actors.serving.instances.batches import InFlight
from actors.serving.model import ModelState
from actors.serving.standing import Status
from actors.serving.statistics import ModelStatistics
from actors.values.datatypes import DataType
from actors.values.errors import TritiumError
from actors.values.generation.sleeping import SleepState
from actors.values.requests import InferRequest
from actors.values.specs import Direct, InputSpec, InstanceSpec, ModelSpec, OutputSpec
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Result
from tests.support.doubles import Double
from tests.support.ports import Port


def make_spec(**changes):
    name = changes.get("name", "model")
    defaults = {
        "name": name,
        "version": 1,
        "platform": "fake",
        "backend": "fake",
        "max_batch_size": 8,
        "inputs": (InputSpec(name="INPUT", datatype=DataType.FP32, dims=(2,)),),
        "outputs": (OutputSpec(name="OUTPUT", datatype=DataType.FP32, dims=(2,)),),
        "scheduling": Direct(),
        "instances": (InstanceSpec(name=f"{name}_0_0"),),
        "model_directory": Path("/models"),
        "version_directory": Path("/models/1"),
        "artifact": "",
        "config_json": b"{}",
    }
    return ModelSpec(**{**defaults, **changes})


class TimedPort(Port):
    """A reply port that remembers when the latest part came, and puts itself into `arrivals` with each."""

    def __init__(self, arrivals=None):
        super().__init__()
        self.arrivals = [] if arrivals is None else arrivals
        self.at = None

    def put(self, part, *, final):
        super().put(part, final=final)
        self.arrivals.append(self)
        self.at = trio.current_time()


def make_request(rows=1, *, arrivals=None, **options):
    array = np.zeros((rows, 2), np.float32)
    return InferRequest(
        model_name="model",
        inputs=[Tensor.from_numpy("INPUT", array)],
        reply=TimedPort(arrivals),
        accepted_at=trio.current_time(),
        **options,
    )


class FakeSlot(Double):
    """A slot that counts its leases."""

    def __init__(self):
        self.leases = 0
        self.begun_ns = 0

    def lease(self):
        self.leases += 1

    def release(self):
        self.leases -= 1


class FakeWorker(Double):
    """What `ModelState` and the scheduler see of a `LiveWorker`: a batch stays until a test ends it."""

    has_check = False
    parts = steps = 0
    silent_for = 0.0
    sleep_state = SleepState.AWAKE
    reports: object = None

    def __init__(self, state, instance, *, capacity=1):
        self.state = state
        self.instance = instance
        self.capacity = capacity
        self.lanes = instance.spec.lanes
        self.outstanding = {}
        self.sent = []  # (time, requests, alone), in order
        self.cancelled = []
        self.fail_next = None  # an exception for the next dispatch
        self.took = 0.0
        self.taken_back = []  # batches, in order
        self.stopped = False  # it begins with nothing

    def probe(self, tell):
        tell(True)

    def forget(self, tell):
        """It told at once."""

    @property
    def idle(self):
        return not self.outstanding

    @property
    def has_room(self):
        return len(self.outstanding) < self.capacity

    @property
    def free_lanes(self):
        return self.lanes - len(self.outstanding)

    @property
    def waiting(self):
        return 0

    @property
    def busy_since(self):
        if self.free_lanes > 0:
            return math.inf
        return max(batch.since for batch in list(self.outstanding.values())[: self.lanes])

    def not_begun(self):
        return list(self.outstanding.values())[0 if self.stopped else self.lanes :]

    def holding(self, request):
        return next((batch for batch in self.outstanding.values() if request in batch.requests), None)

    def take_back(self, batch, now):
        if batch not in self.not_begun():
            return False
        del self.outstanding[batch.id]
        self.taken_back.append(batch)
        for request in batch.requests:
            request.attempts -= 1
        return True

    def dispatch(self, requests, *, now, alone=False):
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        assert self.has_room
        assert not any(request.answered and not request.padding for request in requests)
        begins = now if self.free_lanes > 0 else math.inf
        batch = InFlight(len(self.sent), list(requests), FakeSlot(), alone=alone, began_at=begins)
        self.outstanding[batch.id] = batch
        self.sent.append((now, list(requests), alone))
        for request in requests:
            request.attempts += 1
        return batch

    @property
    def stuck_since(self):
        executing = list(self.outstanding.values())[: self.lanes]
        return max(batch.began_at for batch in executing) if len(executing) == self.lanes else math.inf

    def disown(self):
        self.outstanding.clear()

    def cancel(self, request):
        self.cancelled.append(request)

    def finish(self, *, answers=None, borrowed=False):
        """The oldest batch is done."""
        batch = self.outstanding.pop(next(iter(self.outstanding)))
        self.took = trio.current_time() - batch.since
        for each in list(self.outstanding.values())[: self.lanes]:
            each.began_at = min(each.began_at, trio.current_time())
        given = answers or [None] * len(batch.requests)
        cuts = [
            (request, list(request.inputs), answer)
            for request, answer in zip(batch.requests, given, strict=True)
        ]
        result = Result(batch.id, 0, len(cuts), (1, 2, 3))
        self.state.outcome.completed(batch, result, cuts, borrowed=borrowed)
        self.state.dispatcher.ended(self.instance)
        if batch.alone:
            self.instance.suspects.outcome_ok()
        self.state.doorbell.ring()
        return batch

    @property
    def sizes(self):
        """How many requests each batch had."""
        return [len(requests) for _, requests, _ in self.sent]

    @property
    def times(self):
        """When each batch was sent."""
        return [at for at, _, _ in self.sent]


class Context(Double):
    """As much of a `ChildContext` as the scheduler touches."""

    def started(self, value=None):
        pass

    def publish(self, **info):
        pass


class Stage:
    """A model version in virtual time: its state, its scheduler, and a fake worker for each instance."""

    def __init__(
        self, nursery, *, capacity=1, ready=True, hold=None, stages=(), observers=(), spans=None, **changes
    ):
        self.nursery = nursery
        self.start = trio.current_time()
        self.changes: list[tuple[Status, str]] = []
        spec = make_spec(**changes)
        self.state = ModelState(
            spec,
            statistics=ModelStatistics(),
            on_status=lambda state: self.changes.append((state.status, state.reason)),
            wall_clock=lambda: 0,
            sequencing=sequencing_of(spec),
            stages=stages,
            observers=observers,
            spans=spans,
        )
        self.arrivals = []
        self.workers = [FakeWorker(self.state, each, capacity=capacity) for each in self.state.instances]
        if ready:
            for worker in self.workers:
                self.state.instance_ready(worker.instance, worker)
        self.logged = []
        if self.state.sequences is None:
            nursery.start_soon(partial(run_scheduler, Context(), self.state, hold=hold))
        else:
            nursery.start_soon(partial(run_sequencer, Context(), self.state, log=self._log, hold=hold))

    def _log(self, event, *, level="info", **keys):
        self.logged.append((event, level, keys))

    @property
    def worker(self):
        return self.workers[0]

    @property
    def now(self):
        """Seconds since the beginning."""
        return trio.current_time() - self.start

    def request(self, rows=1, **options):
        return make_request(rows, arrivals=self.arrivals, **options)

    async def send(self, rows=1, **options):
        request = self.request(rows, **options)
        await self.state.submit(request)
        return request

    async def sent(self, rows=1, **options):
        """Send, and let everything happen that follows at once."""
        request = await self.send(rows, **options)
        await self.settled()
        return request

    async def finished(self, worker=None, **options):
        """Have a worker, or the first, end its oldest batch; let everything happen that follows at once."""
        batch = (worker or self.worker).finish(**options)
        await self.settled()
        return batch

    def sending(self, rows=1, **options):
        """Submit in a task of its own; what `submit` raises is put into `refused`."""
        request = self.request(rows, **options)
        request.reply.refused = None
        request.reply.admitted = False

        async def submit():
            try:
                await self.state.submit(request)
                request.reply.admitted = True
            except TritiumError as error:
                request.reply.refused = error

        self.nursery.start_soon(submit)
        return request

    async def settled(self):
        await trio.testing.wait_all_tasks_blocked()
