"""How a version takes part in the log of requests: a record for each, and the stages that it goes through.

A server that does not log requests registers neither class, so it need not even check whether it should.
"""

from __future__ import annotations

import trio

from actors.serving.instances.batches import InFlight
from actors.serving.model import ModelState
from actors.serving.ports import BatchObserver, Stage
from actors.serving.records import Recorder, named, record_of
from actors.serving.standing import InstanceState
from actors.values.errors import TritiumError
from actors.values.events import Event
from actors.values.requests import InferRequest, InferResponse
from actors.wire.frames import Result


class RecordStage(Stage):
    """Gives each request of a version a record. The server's own probes have none."""

    __slots__ = ("_recorder", "_state")

    def __init__(self, state: ModelState, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder

    def accepted(self, request: InferRequest) -> None:
        """See `Stage.accepted`."""
        if request.synthetic:
            return
        record = self._recorder.open(request)
        if self._recorder.stages:
            keys: dict[str, object] = {"parent": record.parent} if record.parent else {}
            self._recorder.say(
                self._state.spec,
                Event.REQUEST_ACCEPTED,
                request_id=request.id,
                serial=record.serial,
                rows=request.rows,
                queued=len(self._state.queue),
                **keys,
            )

    def cached(self, request: InferRequest) -> None:
        """See `Stage.cached`."""
        if not request.synthetic:
            record = record_of(request) or self._recorder.open(request)
            record.cached = True

    def responding(self, request: InferRequest, part: InferResponse | TritiumError, *, final: bool) -> None:
        """See `Stage.responding`."""
        record = record_of(request)
        if record is None:
            return
        said = isinstance(part, InferResponse) and (len(part.outputs) > 0 or not final)
        if said and self._state.spec.decoupled:
            record.responded(trio.current_time())
        if final and record.relation:
            # Called before the part is passed on: the request's maker may end once it has the part.
            self._recorder.on_internal(request, part, "")


class RecordObserver(BatchObserver):
    """Notes in the records of a batch's requests which instance executes them."""

    __slots__ = ("_recorder", "_state")

    def __init__(self, state: ModelState, recorder: Recorder) -> None:
        self._state = state
        self._recorder = recorder

    def dispatched(self, batch: InFlight, instance: InstanceState) -> None:
        """See `BatchObserver.dispatched`."""
        now = trio.current_time()
        rows = sum(request.rows for request in batch.requests if not request.padding)
        for request in batch.requests:
            record = record_of(request)
            if record is not None:
                record.dispatched(batch, rows, instance=instance.spec.name, pid=instance.pid or 0, now=now)
        if self._recorder.stages:
            keys = {"alone": True} if batch.alone else {}
            self._recorder.say(
                self._state.spec,
                Event.BATCH_DISPATCHED,
                instance=instance.spec.name,
                pid=instance.pid,
                batch=batch.id,
                rows=rows,
                requests=named(batch.requests),
                **keys,
            )

    def finished(self, batch: InFlight, result: Result) -> None:
        """See `BatchObserver.finished`."""
        records = map(record_of, batch.requests if self._recorder.stages else ())
        record = next((each for each in records if each is not None), None)  # padding has none
        if record is not None:
            self._recorder.say(
                self._state.spec,
                Event.BATCH_COMPLETED,
                instance=record.instance,
                pid=record.pid,
                batch=batch.id,
                compute_input_us=result.input_ns // 1000,
                compute_infer_us=result.infer_ns // 1000,
                compute_output_us=result.output_ns // 1000,
                requests=named(batch.requests),
            )
