"""How a promised latency takes part: requests that would be late are refused, and batches are measured."""

from __future__ import annotations

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.policy.slo import Admission
from actors.serving.policy.waiting_line import WaitingLine
from actors.serving.ports import BatchObserver, Stage
from actors.serving.standing import InstanceState
from actors.serving.waiting import WaitingCallers
from actors.values.requests import InferRequest
from actors.wire.batch_frames import Result


class PromiseStage(Stage):
    """Refuses requests that can't be answered in time."""

    def __init__(self, admission: Admission, queue: WaitingLine, line: WaitingCallers) -> None:
        self._admission = admission
        self._queue = queue
        self._line = line

    def admit(self, request: InferRequest) -> None:
        """Raise Unavailable for a request that can't be answered in time."""
        ahead = self._queue.ahead_of(request) + self._line.ahead()
        patience = self._queue.patience(request)
        self._admission.admit(request, ahead=ahead, patience=patience, now=trio.current_time())


class PromiseObserver(BatchObserver):
    """Measures batches, from their hand-over to their answer."""

    def __init__(self, admission: Admission, queue: WaitingLine) -> None:
        self._admission = admission
        self._queue = queue

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """See `BatchObserver.dispatched`."""
        batch.requests[0].dispatched_at = trio.current_time()
        self._admission.dispatched(len(self._queue))

    def finished(self, batch: InFlight, result: Result) -> None:
        """See `BatchObserver.finished`."""
        requests, now = batch.requests, trio.current_time()
        dispatched_at = requests[0].dispatched_at
        if dispatched_at < 0.0:  # a warmup
            return
        clients = [request for request in requests if not (request.synthetic or request.padding)]
        rows = sum(request.rows for request in clients)
        latencies = [now - request.accepted_at for request in clients]
        self._admission.returned(len(requests), rows, now - dispatched_at, latencies, now)
