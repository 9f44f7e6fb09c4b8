"""A model with several versions behind a real router, each answering what a test says, when it says so."""

import numpy as np
import trio

from actors.serving.instances.batches import InFlight
from actors.serving.model import ModelState
from actors.serving.routing.router import Router
from actors.serving.standing import Status
from actors.serving.statistics import FailureReason, ModelStatistics
from actors.traffic.traffic import TrafficControl
from actors.values.errors import Internal
from actors.values.requests import InferRequest
from actors.values.specs import ModelKey
from actors.values.tensors import Tensor
from actors.wire.batch_frames import Result
from tests.support.logged import Logged
from tests.support.model_doubles import FakeSlot, make_spec
from tests.support.ports import Port

KEY = ModelKey("model")


class Versions:
    """The versions, the router, and the traffic between them."""

    def __init__(self, *numbers, random, changeable=True, **changes):
        self.router = Router()
        self.log = Logged()
        self.slots = []
        self.control = TrafficControl(
            self.router.roster,
            log=self.log,
            random=random,
            wall_clock=lambda: 1_000 * int(trio.current_time()),
            changeable=changeable,
        )
        for number in numbers:
            self.add(number, **changes)

    def add(self, number, **changes):
        """Have a version serve, in place of an earlier generation of it, which is retired."""
        state = ModelState(
            make_spec(version=number, **changes),
            statistics=ModelStatistics(),
            on_status=self.router.roster.changed,
            wall_clock=lambda: 0,
        )
        self.router.roster.load_begun(KEY, state)
        state.standing.become(Status.READY)
        for old in self.router.roster.serve(KEY, {**self.router.roster.serving(KEY), number: state}):
            old.standing.become(Status.UNLOADING)
        return state

    def __getitem__(self, number):
        return self.router.roster.serving(KEY)[number]

    def request(self, value=0.0, **options):
        affinity = options.pop("affinity", "")
        request = InferRequest(
            model_name="model",
            inputs=[Tensor.from_numpy("INPUT", np.full((1, 2), value, np.float32))],
            reply=Port(),
            accepted_at=trio.current_time(),
            **options,
        )
        request.affinity = affinity
        return request

    async def send(self, value=0.0, **options):
        """Send a request that names no version, as a frontend does; return it and its answer's `port`."""
        request = self.request(value, **options)
        port = request.reply
        await self.router.resolve("model").submit(request)
        return request, port

    def answer(self, number, *, error=None, borrowed=False, outputs=None):
        """Have a version answer every request it holds; return how many that were.

        The answer is an error where `error` is given, otherwise `outputs` or the request's own inputs.
        """
        state = self[number]
        return answer(state, self.slots, error=error, borrowed=borrowed, outputs=outputs)


def answer(state, slots=None, *, requests=None, error=None, borrowed=False, outputs=None):
    """Have `state` answer all that it holds, or these `requests` that were taken from its queue."""
    requests = state.queue.take(len(state.queue)) if requests is None else requests
    if error is not None:
        for request in requests:
            state.outcome.fail(request, Internal(error), FailureReason.BACKEND)
    elif requests:
        slot = FakeSlot()
        if slots is not None:
            slots.append(slot)
        batch = InFlight(0, requests, slot, alone=False, began_at=0.0)
        cuts = []
        for request in requests:
            tensors = request.inputs if outputs is None else outputs
            renamed = [Tensor("OUTPUT", each.datatype, each.shape, each.data) for each in tensors]
            cuts.append((request, renamed, None))
        state.outcome.completed(batch, Result(0, 0, len(cuts), (1, 2, 3)), cuts, borrowed=borrowed)
    return len(requests)


def drawing(*points):
    """A random number generator that draws these points, the last one for ever."""
    drawn = list(points)

    def draw():
        return drawn.pop(0) if len(drawn) > 1 else drawn[0]

    return draw
