"""A model version that keeps a record of each request, and logs the stages that it goes through.

It is a class of its own, chosen when a version is made. So a server that does not log requests need not even
check whether it should: `actors.serving.model.ModelState` knows nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.instances.worker import LiveWorker
from actors.serving.model import ModelState, StatusObserver
from actors.serving.policy.waiting_line import Sequencing
from actors.serving.records import Recorder, named, record_of
from actors.serving.statistics import ModelStatistics
from actors.values.errors import TritiumError
from actors.values.events import Event
from actors.values.requests import InferRequest, InferResponse
from actors.values.specs import ModelSpec
from actors.wire.frames import Result
from actors.wire.gathering import Cut


class RecordedState(ModelState):
    """A `ModelState` whose requests have records. The server's own probes have none."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        recorder: Recorder,
        statistics: ModelStatistics,
        on_status: StatusObserver,
        wall_clock: Callable[[], int],
        sequencing: Sequencing | None = None,
    ) -> None:
        super().__init__(
            spec, statistics=statistics, on_status=on_status, wall_clock=wall_clock, sequencing=sequencing
        )
        self._recorder = recorder

    def _enqueue(self, request: InferRequest, *, in_company: bool = False) -> None:
        if not request.synthetic:
            record = self._recorder.open(request)
            if self._recorder.stages:
                keys: dict[str, object] = {"parent": record.parent} if record.parent else {}
                self._say(
                    Event.REQUEST_ACCEPTED,
                    request_id=request.id,
                    serial=record.serial,
                    rows=request.rows,
                    queued=len(self.queue),
                    **keys,
                )
        super()._enqueue(request, in_company=in_company)

    def count_hit(self, request: InferRequest, queue_ns: int, lookup_ns: int) -> None:
        """See `ModelState.count_hit`."""
        if not request.synthetic:
            record = record_of(request) or self._recorder.open(request)
            record.cached = True
        super().count_hit(request, queue_ns, lookup_ns)

    def dispatch(self, worker: LiveWorker, requests: Sequence[InferRequest], *, alone: bool = False) -> bool:
        """See `ModelState.dispatch`."""
        if not super().dispatch(worker, requests, alone=alone):
            return False
        batch = next(reversed(worker.outstanding.values()))  # the newest is the last
        instance = next(each for each in self.instances if each.worker is worker)
        now = trio.current_time()
        rows = sum(request.rows for request in requests if not request.padding)
        for request in requests:
            record = record_of(request)
            if record is not None:
                record.dispatched(batch, rows, instance=instance.spec.name, pid=instance.pid or 0, now=now)
        if self._recorder.stages:
            keys = {"alone": True} if alone else {}
            self._say(
                Event.BATCH_DISPATCHED,
                instance=instance.spec.name,
                pid=instance.pid,
                batch=batch.id,
                rows=rows,
                requests=named(requests),
                **keys,
            )
        return True

    def completed(self, batch: InFlight, result: Result, answers: Sequence[Cut], *, borrowed: bool) -> None:
        """See `ModelState.completed`."""
        records = map(record_of, batch.requests if self._recorder.stages else ())
        record = next((each for each in records if each is not None), None)  # padding has none
        if record is not None:
            self._say(
                Event.BATCH_COMPLETED,
                instance=record.instance,
                pid=record.pid,
                batch=batch.id,
                compute_input_us=result.input_ns // 1000,
                compute_infer_us=result.infer_ns // 1000,
                compute_output_us=result.output_ns // 1000,
                requests=named(batch.requests),
            )
        super().completed(batch, result, answers, borrowed=borrowed)

    def respond(
        self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool = True
    ) -> None:
        """See `ModelState.respond`."""
        record = None if request.answered else record_of(request)
        if record is not None:
            said = isinstance(part, InferResponse) and (len(part.outputs) > 0 or not final)
            if said and self.spec.decoupled:
                record.responded(trio.current_time())
            if final and record.relation:
                # Called before the part is passed on: the request's maker may end once it has the part.
                self._recorder.on_internal(request, part, "")
        super().respond(request, part, final=final)

    def _say(self, event: Event, **keys: object) -> None:
        self._recorder.log(event, level="debug", model=self.spec.name, version=self.spec.version, **keys)
